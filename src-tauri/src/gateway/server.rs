//! Accepts connections and leads each to its place: permits, TLS, head, then a splice or the public HTTP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::accounts::Accounts;
use super::api::{self, Api};
use super::config::GatewayConfig;
use super::legs::Legs;
use super::metrics::Metrics;
use super::permits::Permits;
use super::reply::Refusal;
use super::splice::Pool;
use super::{drain, rendezvous, upgrade};
use crate::ledger::Ledger;
use crate::net::head::{HeadError, Rewind, Upgrade, read_head};
use crate::net::peer::key_shown;
use crate::net::tcp;
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
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

/// Serves until the shutdown, then stops accepting, has the hubs send the workers away, gives all that for
/// `deadlines.drain`, polls the hubs once more for what was earned meanwhile, and returns.
pub async fn serve(listener: TcpListener, config: GatewayConfig, ledger: Ledger, shutdown: Shutdown) {
    let config = Arc::new(config);
    let legs = Arc::new(Legs::new(config.hubs.iter().map(|hub| hub.addr)));
    let metrics = Arc::new(Metrics::new(Arc::clone(&legs)));
    let accounts = Accounts::new(Arc::clone(&config), ledger.clone(), Arc::clone(&legs));
    let polls = tokio::spawn(accounts.clone().run(shutdown.clone()));
    let gateway = Arc::new(Gateway {
        acceptor: TlsAcceptor::from(Arc::clone(&config.tls)),
        permits: Permits::new(config.limits),
        router: api::router(Api { ledger, metrics: Arc::clone(&metrics) }),
        upgrades: upgrade::Shared { pool: Pool::default(), legs, run: drain::run_id() },
        metrics,
        config,
    });

    let mut connections = JoinSet::new();
    accept(&listener, &gateway, &mut connections, &shutdown).await;
    drop(listener);
    gateway.metrics.draining.store(true, Ordering::Relaxed);
    drain::drain(&mut connections, &gateway.upgrades, &gateway.config).await;
    report(polls.await);
    accounts.last().await;
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

pub(super) fn report(done: Result<(), JoinError>) {
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
        match timeout_at(deadline, self.secure(tcp)).await {
            Ok(Ok((stream, None))) => self.request(stream, peer, deadline).await,
            Ok(Ok((stream, Some(hub)))) => {
                rendezvous::arrive(stream, hub, &self.upgrades, &self.config, deadline).await
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "no TLS");
                self.metrics.refused_heads.add(1);
            }
            Err(_) => self.metrics.refused_heads.add(1),
        }
    }

    /// TLS, and the key of a hub of ours that dials in.
    async fn secure(&self, tcp: TcpStream) -> io::Result<(TlsStream<TcpStream>, Option<PublicKey>)> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
        let for_hubs = self.config.hub_peer.hub_server().filter(|_| rendezvous::is_hub(&hello.client_hello()));
        match for_hubs {
            None => Ok((hello.into_stream(Arc::clone(self.acceptor.config())).await?, None)),
            Some(config) => {
                let stream = hello.into_stream(config).await?;
                let key = key_shown(stream.get_ref().1);
                Ok((stream, Some(key.ok_or(io::ErrorKind::InvalidData)?)))
            }
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
