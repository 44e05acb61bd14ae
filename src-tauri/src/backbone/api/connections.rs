//! The API's connections: so many at once, none that takes for ever, all ended soon after a stop.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::net::tcp;
use crate::shutdown::Shutdown;

/// Connections at once: everybody who may have a place, several times over, for probes and idle clients.
const CONNECTIONS: usize = 128;
/// For a request's head, and for the next request of a connection that stays open.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// For answers under way after a stop: a generation ends within a step, a client that does not read never.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept: out of descriptors is not cured by trying faster.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `shutdown`, then lets what is under way end for a while and cuts the rest.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) {
    let mut connections = JoinSet::new();
    accept(&listener, &router, &shutdown, &mut connections).await;
    drop(listener);
    let ended = timeout(DRAIN, async {
        while let Some(done) = connections.join_next().await {
            report(done);
        }
    });
    if ended.await.is_err() {
        tracing::warn!(connections = connections.len(), "the drain is over, clients are cut");
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener, router: &Router, shutdown: &Shutdown, connections: &mut JoinSet<()>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut stop = std::pin::pin!(shutdown.wait());
    loop {
        tokio::select! {
            () = &mut stop => return,
            Some(done) = connections.join_next() => report(done),
            accepted = listener.accept() => match (accepted, Arc::clone(&room).try_acquire_owned()) {
                (Ok((stream, _)), Ok(permit)) => {
                    let (router, shutdown) = (router.clone(), shutdown.clone());
                    connections.spawn(async move {
                        connection(stream, router, shutdown).await;
                        drop(permit);
                    });
                }
                (Ok((_, from)), Err(_)) => tracing::warn!(%from, "closed: {CONNECTIONS} connections are open"),
                (Err(error), _) => {
                    tracing::warn!(%error, "accepting failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, router: Router, shutdown: Shutdown) {
    tcp::tune(&stream);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.wait() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection failed");
    }
}

fn report(done: Result<(), JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(%error, "a client's task panicked");
    }
}
