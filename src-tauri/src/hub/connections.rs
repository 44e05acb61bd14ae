//! Every connection of a gateway, whoever dialled it: room first, then its head, then a session or one answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::admission::Refusal;
use super::http::{self, Answer};
use super::session::Origin;
use super::{Hub, HubError, REFUSALS, drained, flush_regularly, rendezvous, session};
use crate::net::Io;
use crate::net::head::{GATEWAY_HEADER, Head, PEER_HEADER, Received, Upgrade, read_head};
use crate::net::ws::{WsConfig, WsStream};
use crate::wire::WORKER_PATH;

/// Connections that are no worker's: polls, probes, heads that are still being read. Workers never take their room, so
/// that the gateways' polls for credit always come through.
const OTHER_CONNECTIONS: usize = 64;
/// Connections that gateways have begun to use and that wait for their task.
const CLAIMED: usize = 16;
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until the hub is drained, or the ledger has fenced it.
///
/// # Errors
/// [`HubError::Fenced`].
pub(super) async fn accept_until_drained(hub: &Arc<Hub>, listener: &TcpListener) -> Result<(), HubError> {
    let room = Arc::new(Semaphore::new(hub.config.limits.sessions + REFUSALS + OTHER_CONNECTIONS));
    let mut connections = JoinSet::new();
    let (claimed, mut claims) = mpsc::channel(CLAIMED);
    let mut kept = JoinSet::new();
    for gateway in &hub.config.rendezvous {
        kept.spawn(rendezvous::keep(Arc::clone(hub), gateway.clone(), claimed.clone()));
    }
    let mut fenced = pin!(flush_regularly(hub));
    let mut drained = pin!(drained(hub));
    let stopped = loop {
        tokio::select! {
            error = &mut fenced => break Err(HubError::Fenced(error)),
            () = &mut drained => break Ok(()),
            (permit, stream, from) = accept(listener, &room) => {
                let hub = Arc::clone(hub);
                connections.spawn(async move {
                    let _permit = permit;
                    accepted(&hub, stream, from).await;
                });
            }
            Some(io) = claims.recv() => {
                let (hub, room) = (Arc::clone(hub), Arc::clone(&room));
                connections.spawn(async move {
                    let deadline = Instant::now() + hub.config.timing.handshake;
                    // A hub without room answers nothing, as one whose listener is not served.
                    if let Ok(Ok(_permit)) = timeout_at(deadline, room.acquire_owned()).await {
                        secured(&hub, io, Ipv4Addr::UNSPECIFIED.into(), deadline).await;
                    }
                });
            }
            Some(done) = connections.join_next() => {
                if let Err(error) = done {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
        }
    };
    kept.shutdown().await;
    connections.shutdown().await;
    stopped
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (Option<OwnedSemaphorePermit>, TcpStream, SocketAddr) {
    // The semaphore is never closed; without a permit a connection would still be bounded by its sessions.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => return (permit, stream, from),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection that a gateway dialled.
async fn accepted(hub: &Arc<Hub>, stream: TcpStream, from: SocketAddr) {
    let deadline = Instant::now() + hub.config.timing.handshake;
    match timeout_at(deadline, hub.config.gateway_peer.accept(stream)).await {
        Ok(Ok((io, _gateway))) => secured(hub, io, from.ip(), deadline).await,
        Ok(Err(error)) => tracing::warn!(%from, %error, "connection refused"),
        Err(_) => tracing::warn!(%from, "connection secured too late"),
    }
}

/// A connection with a gateway at its other end, `from` where it does not say for whom it comes.
async fn secured(hub: &Arc<Hub>, mut io: Io, from: IpAddr, deadline: Instant) {
    let answer = match read_head(&mut io, deadline).await {
        Ok(request) if request.head.path == WORKER_PATH => match Upgrade::check(&request, WORKER_PATH) {
            Ok(upgrade) => {
                let origin = origin(hub, &request, from);
                // A gateway that says who it is may know another hub for the worker.
                if origin.gateway.is_some() && hub.is_draining() {
                    hub.outcomes.count("refused", Refusal::Draining.code());
                    Answer::refused(503, Refusal::Draining.code(), "the hub drains")
                } else if let Ok(_room) = hub.workers.try_acquire() {
                    return upgraded(hub, io, &upgrade.key, origin, deadline).await;
                } else {
                    hub.outcomes.count("refused", Refusal::Busy.code());
                    Answer::refused(503, Refusal::Busy.code(), "the hub is full")
                }
            }
            Err(error) => Answer::refused(error.status(), error.code(), error),
        },
        Ok(request) => http::answer(hub, &request).await,
        Err(error) => Answer::refused(error.status(), error.code(), error),
    };
    if !matches!(timeout(hub.config.timing.stall, answer.send(&mut io)).await, Ok(Ok(()))) {
        tracing::debug!(%from, "an answer was not taken");
    }
}

/// Where a worker comes from, as its gateway says.
fn origin(hub: &Hub, request: &Received<Head>, from: IpAddr) -> Origin {
    let headers = &request.head.headers;
    let peer = headers.only(PEER_HEADER).and_then(|text| text.parse().ok()).unwrap_or(from);
    let gateway = headers.only(GATEWAY_HEADER).and_then(|text| text.parse().ok());
    Origin { peer: hub.admission.peer_hash(peer), gateway }
}

async fn upgraded(hub: &Arc<Hub>, io: Io, key: &str, origin: Origin, deadline: Instant) {
    let timing = &hub.config.timing;
    // One message waits behind the one on its way: the session's own queues decide what goes next.
    let config = WsConfig { queue: 1, write_deadline: timing.stall, ping: timing.ping, ..WsConfig::hub() };
    match WsStream::accept(io, key, Vec::new(), config).await {
        Ok(ws) => session::run(hub, ws, origin, deadline).await,
        Err(error) => tracing::debug!(%error, "upgrade was not taken"),
    }
}
