//! From a worker's checked head to a splice: a hub must say 101 before anything else is forwarded.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::config::GatewayConfig;
use super::hub_leg::{self, HubError};
use super::legs::{Legs, Load};
use super::metrics::Metrics;
use super::reply::Refusal;
use super::splice::{Pool, Silence, splice};
use crate::net::Io;
use crate::net::head::Upgrade;
use crate::types::GatewayRun;

/// What every upgrade of one gateway shares.
#[derive(Debug)]
pub struct Shared {
    /// Buffers.
    pub pool: Pool,
    /// The hubs.
    pub legs: Arc<Legs>,
    /// Which run of the gateway this is.
    pub run: GatewayRun,
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
    if metrics.draining.load(Ordering::Relaxed) {
        return Refusal::new(503, "draining", "the gateway drains, try again").send(worker).await;
    }
    match open(&request, peer, config, shared).await {
        Ok(way) => {
            let leg = Arc::clone(way.load.leg());
            carry(worker, way, config, shared, metrics).await;
            shared.legs.left(peer, &leg);
        }
        Err(error) => {
            tracing::warn!(%error, "a worker found no hub");
            metrics.refused_by_hub.add(1);
            refusal(&error).send(worker).await;
        }
    }
}

/// A hub that said 101.
struct Way {
    hub: Io,
    /// The bytes of its answer.
    answer: Vec<u8>,
    load: Load,
}

/// The first hub that takes the worker. Nothing of the worker but the rebuilt head has reached those that did not.
async fn open(request: &Upgrade, peer: IpAddr, config: &GatewayConfig, shared: &Shared) -> Result<Way, HubError> {
    let mut failure = HubError::Status { expected: 101, got: 503 };
    let deadline = config.deadlines.hub;
    let until = Instant::now() + deadline;
    if config.hub_peer.hub_server().is_some() {
        // After a restart workers and hubs come back together, in any order.
        let _ = timeout(config.deadlines.attempt, shared.legs.more_than(0)).await;
    }
    for leg in shared.legs.order(peer) {
        // Counted from here on, so that many who come at once spread.
        let load = leg.load();
        let asked = timeout_at(until, hub_leg::upgrade(&leg, request, (peer, shared.run), config)).await;
        match asked.unwrap_or(Err(HubError::Late(deadline))) {
            Ok((hub, answer)) => {
                leg.did_well();
                return Ok(Way { hub, answer, load });
            }
            Err(error) => {
                tracing::debug!(leg = leg.name, %error, "a hub took no worker");
                leg.failed();
                failure = error;
            }
        }
    }
    Err(failure)
}

async fn carry<S>(mut worker: S, way: Way, config: &GatewayConfig, shared: &Shared, metrics: &Metrics)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Way { hub, answer, load: _load } = way;
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
