//! Accepts connections and leads each to its place: permits, TLS, head, then a splice or the public HTTP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::accounts::Accounts;
use super::api::{self, Api};
use super::config::GatewayConfig;
use super::metrics::Metrics;
use super::permits::Permits;
use super::reply::Refusal;
use super::upgrade;
use crate::ledger::Ledger;
use crate::net::head::{HeadError, Rewind, Upgrade, read_head};
use crate::net::tcp;
use crate::shutdown::Shutdown;
use crate::wire::WORKER_PATH;

/// Pause after a failed accept: out of descriptors is not cured by trying faster.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection of one gateway shares.
struct Gateway {
    config: Arc<GatewayConfig>,
    acceptor: TlsAcceptor,
    permits: Permits,
    router: Router,
    metrics: Arc<Metrics>,
    upgrades: upgrade::Shared,
}

/// Serves until the shutdown, then stops accepting, lets splices end for `deadlines.drain`, polls the hubs once more for
/// what those splices earned, and returns.
pub async fn serve(listener: TcpListener, config: GatewayConfig, ledger: Ledger, shutdown: Shutdown) {
    let config = Arc::new(config);
    let metrics = Arc::new(Metrics::new(config.hubs.len()));
    let accounts = Accounts::new(Arc::clone(&config), ledger.clone(), Arc::clone(&metrics));
    let mut polls = JoinSet::new();
    for index in 0..config.hubs.len() {
        polls.spawn(accounts.clone().run(index, shutdown.clone()));
    }
    let gateway = Arc::new(Gateway {
        acceptor: TlsAcceptor::from(Arc::clone(&config.tls)),
        permits: Permits::new(config.limits),
        router: api::router(Api { ledger, metrics: Arc::clone(&metrics) }),
        upgrades: upgrade::Shared::default(),
        metrics,
        config,
    });

    let mut connections = JoinSet::new();
    accept(&listener, &gateway, &mut connections, &shutdown).await;
    drop(listener);
    gateway.metrics.draining.store(true, Ordering::Relaxed);
    tracing::info!(connections = connections.len(), "the gateway drains");
    let ended = timeout(gateway.config.deadlines.drain, async {
        while let Some(done) = connections.join_next().await {
            report(done);
        }
    });
    if ended.await.is_err() {
        tracing::warn!(connections = connections.len(), "the drain is over, connections are cut");
        connections.shutdown().await;
    }
    while let Some(done) = polls.join_next().await {
        report(done);
    }
    for index in 0..gateway.config.hubs.len() {
        accounts.poll(index).await;
    }
}

async fn accept(listener: &TcpListener, gateway: &Arc<Gateway>, connections: &mut JoinSet<()>, shutdown: &Shutdown) {
    let mut stop = std::pin::pin!(shutdown.wait());
    loop {
        tokio::select! {
            () = &mut stop => return,
            Some(done) = connections.join_next() => report(done),
            accepted = listener.accept() => match accepted {
                Ok((tcp, peer)) => admit(gateway, tcp, peer, connections),
                Err(error) => {
                    tracing::warn!(%error, "accepting failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

fn admit(gateway: &Arc<Gateway>, tcp: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
    let Some(permit) = gateway.permits.take(peer.ip()) else {
        gateway.metrics.refused_by_limit.add(1);
        return;
    };
    let gateway = Arc::clone(gateway);
    connections.spawn(async move {
        gateway.connection(tcp, peer.ip().to_canonical()).await;
        drop(permit);
    });
}

fn report(done: Result<(), JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        tracing::error!(%error, "a task of the gateway panicked");
    }
}

impl Gateway {
    async fn connection(&self, tcp: TcpStream, peer: IpAddr) {
        tcp::tune(&tcp);
        let deadline = Instant::now() + self.config.deadlines.head;
        match timeout_at(deadline, self.acceptor.accept(tcp)).await {
            Ok(Ok(stream)) => self.request(stream, peer, deadline).await,
            Ok(Err(error)) => {
                tracing::debug!(%error, "no TLS");
                self.metrics.refused_heads.add(1);
            }
            Err(_) => self.metrics.refused_heads.add(1),
        }
    }

    async fn request<S>(&self, mut stream: S, peer: IpAddr, deadline: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let received = match read_head(&mut stream, deadline).await {
            Ok(received) => received,
            Err(error) => {
                self.metrics.refused_heads.add(1);
                if !matches!(error, HeadError::Ended(_) | HeadError::Io(_)) {
                    Refusal::from(error).send(stream).await;
                }
                return;
            }
        };
        // hyper would leave a connection that asks for another protocol without a proper end.
        let wants_upgrade = received.head.headers.all("upgrade").next().is_some();
        if received.head.path != WORKER_PATH && !wants_upgrade {
            let stream = Rewind::new(received.bytes, stream);
            return api::serve(stream, self.router.clone(), self.config.deadlines.public).await;
        }
        match Upgrade::check(&received, WORKER_PATH) {
            Ok(request) => {
                drop(received);
                upgrade::serve(stream, request, peer, &self.config, &self.upgrades, &self.metrics).await;
            }
            Err(error) => {
                self.metrics.refused_heads.add(1);
                Refusal::from(error).send(stream).await;
            }
        }
    }
}
