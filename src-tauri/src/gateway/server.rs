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
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::accounts::Accounts;
use super::api::{self, Api, COSTLY_AT_ONCE};
use super::config::GatewayConfig;
use super::legs::Legs;
use super::metrics::Metrics;
use super::permits::{Permit, Permits};
use super::reply::Refusal;
use super::speed::Transfers;
use super::splice::{Ahead, Pool};
use super::subscriptions::Subscriptions;
use super::{admin, certificate, drain, rendezvous, upgrade};
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

/// Where a gateway listens.
#[derive(Debug)]
pub struct Listeners {
    /// For workers and the public.
    pub public: TcpListener,
    /// For the operator; plain HTTP, so it should be reached from this machine only.
    pub admin: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(public: TcpListener) -> Self {
        Self { public, admin: None }
    }
}

/// Serves until the shutdown, then stops accepting, has the hubs send the workers away, gives all that for
/// `deadlines.drain`, polls the hubs once more for what was earned meanwhile, and returns.
pub async fn serve(listeners: impl Into<Listeners>, config: GatewayConfig, ledger: Ledger, shutdown: Shutdown) {
    let Listeners { public, admin } = listeners.into();
    let config = Arc::new(config);
    let legs = Arc::new(Legs::new(config.hubs.iter().map(|hub| hub.addr)));
    let (certificate, kept_in) = (config.certificate.clone(), config.kept_in.clone());
    let metrics = Arc::new(Metrics { certificate, kept_in, ..Metrics::new(Arc::clone(&legs)) });
    let subscriptions = Subscriptions::new(ledger.clone(), config.limits.subscriptions, Arc::clone(&metrics));
    let subscriptions = Arc::new(subscriptions);
    let accounts = Accounts::new(Arc::clone(&config), ledger.clone(), Arc::clone(&legs), Arc::clone(&subscriptions));
    let mut beside = JoinSet::new();
    beside.spawn(accounts.clone().run(shutdown.clone()));
    beside.spawn(Arc::clone(&subscriptions).run(config.deadlines.refresh, shutdown.clone()));
    if let Some(files) = config.certificate.clone() {
        beside.spawn(certificate::watch(files, config.deadlines.certificate, Arc::clone(&metrics), shutdown.clone()));
    }
    // Beyond the drain, since it shows the drain.
    let mut operators = JoinSet::new();
    if let Some(listener) = admin {
        operators.spawn(admin::serve(listener, Arc::clone(&metrics)));
    }
    let api = Api {
        ledger,
        metrics: Arc::clone(&metrics),
        subscriptions,
        deadlines: config.deadlines,
        shutdown: shutdown.clone(),
        transfers: Transfers::default(),
        claims: config.claims,
        costly: Semaphore::new(COSTLY_AT_ONCE),
        config: Arc::clone(&config),
    };
    let gateway = Arc::new(Gateway {
        acceptor: TlsAcceptor::from(Arc::clone(&config.tls)),
        permits: Permits::new(config.limits),
        router: api::router(Arc::new(api)),
        upgrades: upgrade::Shared { pool: Pool::default(), legs, run: drain::run_id() },
        metrics,
        config,
    });

    let mut connections = JoinSet::new();
    accept(&public, &gateway, &mut connections, &shutdown).await;
    drop(public);
    gateway.metrics.draining.store(true, Ordering::Relaxed);
    drain::drain(&mut connections, &gateway.upgrades, &gateway.config).await;
    while let Some(done) = beside.join_next().await {
        report(done);
    }
    accounts.last().await;
    drop(operators);
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
    let permit = match gateway.permits.take(peer.ip(), Instant::now()) {
        Ok(permit) => permit,
        Err(limit) => return gateway.metrics.refused(limit),
    };
    let gateway = Arc::clone(gateway);
    connections.spawn(async move {
        gateway.metrics.connections_open.add(1);
        gateway.connection(tcp, peer.ip().to_canonical(), permit).await;
        gateway.metrics.connections_open.sub(1);
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
    async fn connection(&self, tcp: TcpStream, peer: IpAddr, mut permit: Permit) {
        tcp::tune(&tcp);
        let deadline = Instant::now() + self.config.deadlines.head;
        match timeout_at(deadline, self.secure(tcp)).await {
            Ok(Ok((stream, None))) => self.request(stream, peer, deadline, &mut permit).await,
            Ok(Ok((stream, Some(hub)))) => {
                permit.is_ours();
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
    async fn secure(&self, tcp: TcpStream) -> io::Result<(TlsStream<Ahead<TcpStream>>, Option<PublicKey>)> {
        let tcp = Ahead::new(tcp, self.upgrades.pool.clone());
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

    async fn request<S>(&self, mut stream: S, peer: IpAddr, deadline: Instant, permit: &mut Permit)
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
        permit.requested();
        // hyper would leave a connection that asks for another protocol without a proper end.
        let wants_upgrade = received.head.headers.all("upgrade").next().is_some();
        if received.head.path != WORKER_PATH && !wants_upgrade {
            let stream = Rewind::new(received.bytes, stream);
            self.metrics.requests.add(1);
            return api::serve(stream, self.router.clone(), peer, self.config.deadlines.public).await;
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
