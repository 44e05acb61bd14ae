//! The hub's few answers over plain HTTP, for gateways and operators: meters, status, health, a gateway's goodbye.
//!
//! One request a connection, no body, `Connection: close`. Written by hand on the strict head that the WebSocket path
//! needs anyway: a second HTTP parser would be a second opinion on where a request ends.

use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::registry::Notice;
use super::{Counts, Hub, returns};
use crate::ledger::{METERS_PER_PAGE_MAX, RunId};
use crate::net::head::{Head, Received};
use crate::telemetry::Vitals;
use crate::wire::{LEAVE_PATH, RECEIPTS_PATH};

/// An answer: status and JSON.
pub struct Answer {
    status: u16,
    body: Vec<u8>,
}

/// `{"error": {"code", "message"}}`, as the gateways answer too.
#[derive(Serialize)]
struct Refused<'a> {
    error: Reason<'a>,
}

#[derive(Serialize)]
struct Reason<'a> {
    code: &'a str,
    message: String,
}

/// What `/status` tells.
#[derive(Serialize)]
struct Status {
    hub: crate::types::PublicKey,
    version: &'static str,
    hub_epoch: u64,
    sessions: usize,
    wallets: usize,
    draining: bool,
    outcomes: Counts,
    backbone_reachable: bool,
    /// Why not, if it is not.
    backbone_error: Option<String>,
    vitals: Vitals,
}

impl Answer {
    /// JSON.
    pub fn json(status: u16, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self { status, body },
            Err(_) => Self { status: 500, body: Vec::new() },
        }
    }

    /// A refusal with a stable code.
    #[must_use]
    pub fn refused(status: u16, code: &str, message: impl ToString) -> Self {
        Self::json(status, &Refused { error: Reason { code, message: message.to_string() } })
    }

    /// Sends the answer and says that nothing follows.
    ///
    /// # Errors
    /// The stream's own.
    pub async fn send(&self, stream: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            426 => "Upgrade Required",
            503 => "Service Unavailable",
            500 => "Internal Server Error",
            _ => "Bad Request",
        };
        let mut out = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.body.len()
        )
        .into_bytes();
        out.extend_from_slice(&self.body);
        stream.write_all(&out).await?;
        stream.shutdown().await
    }
}

/// Answers everything that is not `/v1/worker`.
pub async fn answer(hub: &Hub, request: &Received<Head>) -> Answer {
    let head = &request.head;
    let method = match head.path.as_str() {
        "/v1/meters" | "/status" | "/healthz" => "GET",
        LEAVE_PATH | RECEIPTS_PATH => "POST",
        _ => return Answer::refused(404, "path", "no such path"),
    };
    if head.method != method {
        return Answer::refused(405, "method", format!("expected {method}"));
    }
    if !request.rest().is_empty() {
        return Answer::refused(400, "body", "expected nothing after the head");
    }
    match head.path.as_str() {
        "/v1/meters" => match page_of(head.query.as_deref().unwrap_or_default()) {
            Some(asked) => meters(hub, asked).await,
            None => Answer::refused(400, "query", "expected after=<change_seq>&limit=<rows>&run=<run>"),
        },
        RECEIPTS_PATH => returns::answer(hub, head.query.as_deref().unwrap_or_default()).await,
        LEAVE_PATH => send_away(hub, head.query.as_deref().unwrap_or_default()),
        "/healthz" if hub.is_draining() => Answer::refused(503, "draining", "the hub drains"),
        "/healthz" => Answer::json(200, &serde_json::json!({ "ok": true })),
        _ => status(hub).await,
    }
}

/// A gateway stops: the workers that came through that run of it finish what they have and come again.
fn send_away(hub: &Hub, query: &str) -> Answer {
    match query.strip_prefix("gateway=").map(str::parse) {
        Some(Ok(run)) => {
            let sessions = hub.registry.notify_gateway(run, Notice::Drained);
            tracing::info!(gateway = %run, sessions, "a gateway stops, its workers are sent away");
            Answer::json(200, &serde_json::json!({ "sessions": sessions }))
        }
        _ => Answer::refused(400, "query", "expected gateway=<32 hex digits>"),
    }
}

async fn meters(hub: &Hub, asked: AskedPage) -> Answer {
    match hub.meters.page(asked.after, asked.run, asked.limit).await {
        Ok(page) => Answer::json(200, &page),
        Err(error) => {
            tracing::error!(%error, "no meters for a gateway");
            Answer::refused(503, "ledger", "the ledger is not available")
        }
    }
}

async fn status(hub: &Hub) -> Answer {
    let (sessions, wallets) = hub.registry.count();
    let backbone_error = hub.probe_backbone().await;
    let status = Status {
        hub: hub.identity.key().public(),
        version: env!("CARGO_PKG_VERSION"),
        hub_epoch: hub.epoch,
        sessions,
        wallets,
        draining: hub.is_draining(),
        outcomes: hub.outcomes.counts(),
        backbone_reachable: backbone_error.is_none(),
        backbone_error,
        vitals: Vitals::now(hub.config.clock.unix_ms(), hub.config.kept_in.as_deref()),
    };
    Answer::json(200, &status)
}

/// What a gateway asks for.
#[derive(Debug, PartialEq, Eq)]
struct AskedPage {
    after: u64,
    run: Option<RunId>,
    limit: u32,
}

/// `after` (default 0), `limit` (default and at most 1,000) and `run` of a query; `None` for anything else in it.
fn page_of(query: &str) -> Option<AskedPage> {
    let (mut after, mut limit, mut run) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("after", value) if after.is_none() => after = Some(value.parse().ok()?),
            ("limit", value) if limit.is_none() => limit = Some(value.parse().ok()?),
            ("run", value) if run.is_none() => run = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    let limit = limit.unwrap_or(METERS_PER_PAGE_MAX);
    let asked = AskedPage { after: after.unwrap_or(0), run, limit };
    (1..=METERS_PER_PAGE_MAX).contains(&limit).then_some(asked)
}

#[cfg(test)]
mod tests {
    use super::{AskedPage, page_of};
    use crate::types::Hex;

    #[test]
    fn a_page_is_asked_for_with_two_numbers_and_a_run_and_nothing_else() {
        let asked = |after, limit| Some(AskedPage { after, run: None, limit });
        assert_eq!(page_of(""), asked(0, 1000));
        assert_eq!(page_of("after=7&limit=2"), asked(7, 2));
        assert_eq!(page_of("limit=1000"), asked(0, 1000));
        let run = "run=01010101010101010101010101010101";
        assert_eq!(page_of(run), Some(AskedPage { after: 0, run: Some(Hex([1; 16])), limit: 1000 }));
        let twice = format!("{run}&{run}");
        for bad in [
            "after",
            "after=-1",
            "limit=0",
            "limit=1001",
            "after=1&after=2",
            "x=1",
            "limit=two",
            "after=1;limit=2",
            "run=1",
            &twice,
        ] {
            assert_eq!(page_of(bad), None, "{bad}");
        }
    }
}
