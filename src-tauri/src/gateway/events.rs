//! `GET /v1/wallets/{address}/events`: a wallet's statement now and whenever it changes, as server-sent events.
//!
//! Each event is named `statement`, carries the same JSON as the wallet's read, and has its ETag as id. A comment is sent
//! when there is no news for a while. The stream ends when the gateway drains and after an hour, with a pause told in
//! advance after which to come again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::{Instant, sleep_until};

use super::api::{Api, Caller, etag, parse_address};
use super::reply::Refusal;
use super::subscriptions::Subscription;
use crate::ledger::WalletStatement;
use crate::net::backoff::jitter;
use crate::shutdown::Shutdown;

/// What a listener is told to wait before it comes again, so that all of them do not come at once; up to twice that.
const RETRY: Duration = Duration::from_secs(3);

/// A stream under way.
struct Listening {
    subscription: Subscription,
    shutdown: Shutdown,
    until: Instant,
    /// What the listener heard last; nothing before the first event.
    last: Option<String>,
    /// The first event.
    first: Option<WalletStatement>,
}

/// The handler.
pub(super) async fn events(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(address): Path<String>,
) -> Result<Response, Refusal> {
    let wallet = parse_address(&address)?;
    // Listening begins before the first look, so that no credit falls between them.
    let subscription = api.subscriptions.subscribe(caller.peer, wallet).ok_or_else(|| {
        Refusal::new(503, "subscriptions", "no room for another subscription: ask for the wallet now and then")
    })?;
    let first = Some(api.subscriptions.statement(wallet).await?);
    let until = Instant::now() + api.deadlines.subscription;
    caller.until.extend(until + api.deadlines.public);
    let shutdown = api.shutdown.clone();
    let listening = Listening { subscription, shutdown, until, last: None, first };
    let events = stream::unfold(listening, |mut listening| async move {
        let statement = listening.next().await?;
        let tag = etag(&statement);
        let is_first = listening.last.replace(tag.clone()).is_none();
        let mut event = Event::default().event("statement").id(tag).json_data(&statement).ok()?;
        if is_first {
            event = event.retry(RETRY + jitter(RETRY));
        }
        Some((Ok::<_, Infallible>(event), listening))
    });
    let alive = KeepAlive::new().interval(api.deadlines.heartbeat);
    Ok(Sse::new(events).keep_alive(alive).into_response())
}

impl Listening {
    /// The next statement that differs from the last one told; `None` at the end.
    async fn next(&mut self) -> Option<WalletStatement> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let news = tokio::select! {
                news = self.subscription.changed() => news?,
                () = self.shutdown.wait() => return None,
                () = sleep_until(self.until) => return None,
            };
            if self.last.as_deref() != Some(etag(&news).as_str()) {
                return Some(news);
            }
        }
    }
}
