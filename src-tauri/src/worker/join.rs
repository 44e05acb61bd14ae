//! How a session begins: dialling a gateway, and proving the wallet to the hub behind it.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::Worker;
use super::ended::SessionError;
use crate::net::dial::{DIAL_DEADLINE, Trip};
use crate::net::ws::{WsConfig, WsStream};
use crate::wire::handshake::{WorkerHandshake, WorkerRandom, WorkerSession};
use crate::wire::{Frame, WORKER_PATH};

/// A session that the hub has agreed to.
pub(super) struct Joined {
    pub socket: WsStream,
    pub session: WorkerSession,
    /// From our answer to the hub's welcome.
    pub round_trip: Duration,
    /// The way to the gateway.
    pub trip: Trip,
}

/// Dials a gateway and proves the wallet to its hub.
pub(super) async fn join(worker: &Worker, url: &str) -> Result<Joined, SessionError> {
    let config = WsConfig { ping: worker.config.timers.ping, ..WsConfig::worker() };
    let url_with_path = with_path(url);
    let mut trip = Trip::default();
    let dialled = WsStream::travel(&url_with_path, &worker.connector, config, DIAL_DEADLINE, &mut trip).await;
    worker.status.inspected(worker.connector.trust().inspector());
    let mut socket = dialled?;
    let limit = worker.config.timers.handshake;
    let greeted = timeout(limit, greet(worker, url, &mut socket)).await;
    let (session, round_trip) = greeted.map_err(|_| SessionError::HandshakeDeadline(limit))??;
    Ok(Joined { socket, session, round_trip, trip })
}

async fn greet(worker: &Worker, url: &str, socket: &mut WsStream) -> Result<(WorkerSession, Duration), SessionError> {
    let config = &worker.config;
    let random = WorkerRandom::draw()?;
    let operators = config.operators.clone();
    let mut shake = WorkerHandshake::new(operators, host_of(url), worker.home.worker_id, &config.agent, random)
        .with_invite(config.invite.clone());
    let hello = Frame::decode(socket.recv().await?.ok_or(SessionError::Closed)?)?;
    let answer = shake.answer(&hello, &*worker.wallet, config.clock.unix_ms() / 1000)?;
    let answered = Instant::now();
    socket.send(answer.encode()).await?;
    let welcome = Frame::decode(socket.recv().await?.ok_or(SessionError::Closed)?)?;
    Ok((shake.welcomed(&welcome)?, answered.elapsed()))
}

/// The host of a URL, without scheme, port and path.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

/// The URL with [`WORKER_PATH`] when it names none.
pub(crate) fn with_path(url: &str) -> String {
    let bare = url.trim_end_matches('/');
    match bare.split_once("://") {
        Some((_, rest)) if !rest.contains('/') => format!("{bare}{WORKER_PATH}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_is_found() {
        for (url, host) in [
            ("wss://gateway.example/v1/worker", "gateway.example"),
            ("wss://gateway.example:8443/v1/worker", "gateway.example"),
            ("ws://127.0.0.1:80", "127.0.0.1"),
            ("wss://[::1]:443/v1/worker", "[::1]"),
            ("wss://[::1]/v1/worker", "[::1]"),
        ] {
            assert_eq!(host_of(url), host);
        }
    }

    #[test]
    fn a_url_without_a_path_means_the_workers_path() {
        assert_eq!(with_path("wss://gateway.example:8443"), "wss://gateway.example:8443/v1/worker");
        assert_eq!(with_path("wss://gateway.example/"), "wss://gateway.example/v1/worker");
        assert_eq!(with_path("wss://gateway.example/other"), "wss://gateway.example/other");
    }
}
