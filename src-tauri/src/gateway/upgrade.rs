//! From a worker's checked head to a splice: a hub must say 101 before anything else is forwarded.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::config::GatewayConfig;
use super::hub_leg::{self, HubError};
use super::metrics::Metrics;
use super::reply::Refusal;
use super::splice::{Pool, Silence, splice};
use crate::net::Io;
use crate::net::head::Upgrade;

/// What every upgrade of one gateway shares.
#[derive(Debug, Default)]
pub struct Shared {
    /// Buffers.
    pub pool: Pool,
    /// Where the next worker starts to look for a hub.
    pub turn: AtomicUsize,
}

/// Finds a hub for a checked upgrade and splices until the end. A refusal goes to the worker, whose connection ends.
pub async fn serve<S>(
    worker: S,
    request: Upgrade,
    peer: IpAddr,
    config: &GatewayConfig,
    shared: &Shared,
    metrics: &Metrics,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if !is_public_host(&request.host, &config.public_hosts) {
        metrics.refused_heads.add(1);
        Refusal::new(421, "host", format!("expected a public host of this gateway, got {}", request.host))
            .send(worker)
            .await;
        return;
    }
    match open(&request, peer, config, shared).await {
        Ok((hub, answer)) => carry(worker, hub, answer, config, shared, metrics).await,
        Err(error) => {
            tracing::warn!(%error, "a worker found no hub");
            metrics.refused_by_hub.add(1);
            refusal(&error).send(worker).await;
        }
    }
}

/// A hub that said 101, and the bytes of its answer. Hubs that cannot be reached are passed over; one that answers decides.
async fn open(
    request: &Upgrade,
    peer: IpAddr,
    config: &GatewayConfig,
    shared: &Shared,
) -> Result<(Io, Vec<u8>), HubError> {
    let first = shared.turn.fetch_add(1, Ordering::Relaxed);
    let mut failure = HubError::Status { expected: 101, got: 503 };
    for step in 0..config.hubs.len() {
        let Some(endpoint) = config.hubs.get(first.wrapping_add(step) % config.hubs.len()) else { break };
        match hub_leg::dial(endpoint, config).await {
            Ok(mut hub) => {
                let accept = request.accept_key();
                let sent = request.rebuild(peer);
                let answer = hub_leg::upgrade(&mut hub, &sent, &accept, config.deadlines.hub).await?;
                return Ok((hub, answer.bytes));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn carry<S>(mut worker: S, hub: Io, answer: Vec<u8>, config: &GatewayConfig, shared: &Shared, metrics: &Metrics)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let relay = async {
        worker.write_all(&answer).await?;
        worker.flush().await
    };
    if !matches!(timeout(config.deadlines.head, relay).await, Ok(Ok(()))) {
        tracing::debug!("a worker left before its upgrade was answered");
        return;
    }
    drop(answer);
    let _open = OpenSplice::count(metrics);
    let silence = Silence { idle: config.deadlines.idle, half_closed: config.deadlines.half_closed };
    let ended = splice(worker, hub, &shared.pool, silence, &metrics.bytes_up, &metrics.bytes_down).await;
    tracing::debug!(%ended, "a splice ended");
}

/// Keeps the gauge right when the splice is dropped at the end of a drain.
struct OpenSplice<'a>(&'a Metrics);

impl<'a> OpenSplice<'a> {
    fn count(metrics: &'a Metrics) -> Self {
        metrics.splices.add(1);
        metrics.splices_open.add(1);
        Self(metrics)
    }
}

impl Drop for OpenSplice<'_> {
    fn drop(&mut self) {
        self.0.splices_open.sub(1);
    }
}

/// What a worker hears; a hub that is full or drains says so itself, everything else is a bad gateway.
fn refusal(error: &HubError) -> Refusal {
    match error {
        HubError::Status { got: 503, .. } => Refusal::new(503, "hub_busy", "no hub takes workers now, try again"),
        HubError::Connect(_) | HubError::Late(_) => {
            Refusal::new(502, "hub_unreachable", "no hub could be reached, try again")
        }
        _ => Refusal::new(502, "hub_refused", "the hub did not accept the connection"),
    }
}

/// Whether a `Host` value, port aside, is one of ours.
fn is_public_host(host: &str, public_hosts: &[String]) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    public_hosts.is_empty() || public_hosts.iter().any(|public| public.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::is_public_host;

    #[test]
    fn a_public_host_is_compared_without_its_port_and_case() {
        let ours = ["Gateway.Example".to_owned(), "[::1]".to_owned()];
        for (host, fits) in [
            ("gateway.example", true),
            ("gateway.example:8443", true),
            ("gateway.example.evil", false),
            ("evil:gateway.example", false),
            ("[::1]:443", true),
            ("[::1]", true),
            ("", false),
        ] {
            assert_eq!(is_public_host(host, &ours), fits, "{host}");
        }
        assert!(is_public_host("anything", &[]));
    }
}
