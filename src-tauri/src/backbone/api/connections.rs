//! The API's connections: so many at once, none that takes for ever, all ended soon after a stop.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::net::tcp;
use crate::shutdown::Shutdown;

/// Connections at once: everybody who may run or wait, and some more for probes and idle clients.
const CONNECTIONS: usize = 768;
/// For a TLS handshake.
const TLS_DEADLINE: Duration = Duration::from_secs(10);
/// How long a client may take nothing of what is written to it.
const WRITE_DEADLINE: Duration = Duration::from_secs(60);
/// For a request's head, and for the next request of a connection that stays open.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// For answers under way after a stop: a generation ends within a step, a client that does not read never.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept: out of descriptors is not cured by trying faster.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `shutdown`, then lets what is under way end for a while and cuts the rest.
pub async fn serve(listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, router: Router, shutdown: Shutdown) {
    let mut connections = JoinSet::new();
    let tls = tls.map(TlsAcceptor::from);
    accept(&listener, tls.as_ref(), &router, &shutdown, &mut connections).await;
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

async fn accept(
    listener: &TcpListener,
    tls: Option<&TlsAcceptor>,
    router: &Router,
    shutdown: &Shutdown,
    connections: &mut JoinSet<()>,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut stop = std::pin::pin!(shutdown.wait());
    loop {
        tokio::select! {
            () = &mut stop => return,
            Some(done) = connections.join_next() => report(done),
            accepted = listener.accept() => match (accepted, Arc::clone(&room).try_acquire_owned()) {
                (Ok((stream, _)), Ok(permit)) => {
                    let (tls, router, shutdown) = (tls.cloned(), router.clone(), shutdown.clone());
                    connections.spawn(async move {
                        opened(stream, tls, router, shutdown).await;
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

async fn opened(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, shutdown: Shutdown) {
    tcp::tune(&stream);
    let Some(tls) = tls else { return connection(stream, router, shutdown).await };
    match timeout(TLS_DEADLINE, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, router, shutdown).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client's TLS handshake failed"),
        Err(_) => tracing::debug!("a client's TLS handshake took too long"),
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, shutdown: Shutdown) {
    let stream = Patient { stream, waiting: None };
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

/// A stream whose writes end when the other side takes nothing for too long.
struct Patient<S> {
    stream: S,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// Passes on what a write gave, unless it has been waiting for too long.
    fn hold<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let deadline = || Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_DEADLINE));
        ready!(self.waiting.get_or_insert_with(deadline).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.hold(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.hold(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.hold(context, closed)
    }
}
