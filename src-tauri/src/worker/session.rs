//! One session of a worker, from the hub's hello to the close.
//!
//! This task only moves frames: requests go to the desk, pieces of experts to the pipe, and a lease is taken beside
//! them. **Promise:** when its future is dropped, the link goes with it; nothing detached keeps it open.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, info};

use super::fetch::{FetchError, Pipe, Taking};
use super::outgoing::{Link, LinkError};
use super::receipts::Receipts;
use super::serve::{Desk, Job, Tools};
use super::slices::Holdings;
use super::status::Phase;
use super::{Worker, link::Ended};
use crate::net::ws::{self, WsError, WsReceiver, WsStream};
use crate::shutdown::Shutdown;
use crate::types::Digest;
use crate::wire::WORKER_PATH;
use crate::wire::control::{Control, Decline, GoAway, Lease, Offer, Receipt, Refuse, Release, SliceReady};
use crate::wire::handshake::{HandshakeError, Open, OpenError, WorkerHandshake, WorkerRandom, WorkerSession};
use crate::wire::receipt::ReceiptError;
use crate::wire::{Frame, FrameError, Kind};

/// Requests whose parts are still coming in.
const INCOMPLETE_MAX: usize = 8;
/// Quiet for this long and the time of a round trip, a released worker has seen the last of its requests.
const QUIET: Duration = Duration::from_millis(200);
/// Longest time that counts as a round trip.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);

/// Why a session ended by itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Connect(#[from] ws::ConnectError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("no handshake within {} ms", .0.as_millis())]
    HandshakeDeadline(Duration),
    #[error("no randomness: {0}")]
    Random(#[from] getrandom::Error),
    #[error(transparent)]
    Socket(#[from] WsError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    #[error("no thread to compute on: {0}")]
    Desk(#[from] std::io::Error),
    #[error("the hub closed the link")]
    Closed,
    #[error("expected a frame for a worker, got {got:?}")]
    Unexpected { got: Kind },
    #[error("pieces of experts that were not asked for")]
    Unasked,
    #[error("lease for the model with manifest {got}, expected {expected}")]
    OtherModel { expected: Digest, got: Digest },
    #[error("more than {INCOMPLETE_MAX} requests are incomplete")]
    Incomplete,
}

/// A session that the hub has agreed to.
pub(super) struct Joined {
    socket: WsStream,
    session: WorkerSession,
    /// From our answer to the hub's welcome.
    round_trip: Duration,
}

/// Dials a gateway and proves the wallet to its hub.
pub(super) async fn join(worker: &Worker, url: &str) -> Result<Joined, SessionError> {
    let mut socket = WsStream::connect(&with_path(url), Arc::clone(&worker.tls), ws::WsConfig::worker()).await?;
    let limit = worker.config.timers.handshake;
    let greeted = timeout(limit, greet(worker, url, &mut socket)).await;
    let (session, round_trip) = greeted.map_err(|_| SessionError::HandshakeDeadline(limit))??;
    Ok(Joined { socket, session, round_trip })
}

async fn greet(worker: &Worker, url: &str, socket: &mut WsStream) -> Result<(WorkerSession, Duration), SessionError> {
    let config = &worker.config;
    let random = WorkerRandom::draw()?;
    let operators = config.operators.clone();
    let mut shake = WorkerHandshake::new(operators, host_of(url), worker.home.worker_id, &config.agent, random);
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
fn with_path(url: &str) -> String {
    let bare = url.trim_end_matches('/');
    match bare.split_once("://") {
        Some((_, rest)) if !rest.contains('/') => format!("{bare}{WORKER_PATH}"),
        _ => url.to_owned(),
    }
}

/// A session under way.
struct Session<'a> {
    worker: &'a Worker,
    link: Arc<Link>,
    receiver: WsReceiver,
    open: Open,
    holdings: Arc<Holdings>,
    desk: Desk,
    pipe: Arc<Pipe>,
    pieces: mpsc::Sender<Frame>,
    receipts: Receipts,
    incomplete: BTreeMap<u64, Job>,
    /// Manifest of the model that the hub said hello with.
    manifest: Digest,
    quiet: Duration,
}

/// What a frame asks of the session's loop.
enum Next {
    Go,
    Take(Lease),
    Leave(GoAway),
}

/// Serves until the session ends or the worker stops.
pub(super) async fn serve(worker: &Worker, joined: Joined, shutdown: &Shutdown) -> Result<Ended, SessionError> {
    let Joined { socket, session, round_trip } = joined;
    let WorkerSession { session_id, hub_key, session_signer, manifest, limits, seal, open, .. } = session;
    info!(session = %session_id, hub = %hub_key, "session open");
    let (sender, receiver) = socket.split();
    let link = Arc::new(Link::new(seal, sender));
    let holdings = Arc::new(Holdings::default());
    let tools = Tools {
        compute: Arc::clone(&worker.compute),
        holdings: Arc::clone(&holdings),
        board: Arc::clone(&worker.status),
        link: Arc::downgrade(&link),
    };
    let desk = Desk::open(tools, limits.in_flight_max as usize)?;
    let (pipe, pieces) = Pipe::new(Arc::clone(&link), worker.config.timers.chunk);
    let receipts_dir = worker.home.receipts.clone();
    let receipts = Receipts::new(hub_key, session_id, worker.wallet.address(), session_signer, receipts_dir);
    let (pipe, incomplete) = (Arc::new(pipe), BTreeMap::new());
    let quiet = QUIET + round_trip.min(ROUND_TRIP_MAX);
    let session =
        Session { worker, link, receiver, open, holdings, desk, pipe, pieces, receipts, incomplete, manifest, quiet };
    session.run(shutdown).await
}

impl Session<'_> {
    async fn run(mut self, shutdown: &Shutdown) -> Result<Ended, SessionError> {
        let offer = Offer {
            device: self.worker.status.device(),
            memory_bytes: self.worker.config.memory_bytes,
            assignments_per_s: self.worker.assignments_per_s,
            wants: Vec::new(),
        };
        self.link.send(&offer.frame()?).await?;
        self.worker.status.phase(Phase::Offered);
        let timers = self.worker.config.timers;
        let mut taking = idle();
        let stop = shutdown.wait();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                frame = receive(&mut self.receiver, &mut self.open) => match self.act(frame?).await? {
                    Next::Go => {}
                    Next::Take(lease) => taking = self.take(lease),
                    Next::Leave(go) => {
                        drop(taking);
                        self.drain("moving", timers.moving, shutdown).await?;
                        return Ok(Ended::GoAway(Duration::from_millis(go.reconnect_after_ms)));
                    }
                },
                taken = &mut taking => {
                    let (held, bytes) = taken?;
                    let (lease, slice) = (held.lease, held.slice.to_string());
                    self.holdings.take_over(held);
                    self.link.send(&SliceReady { lease, bytes }.frame()?).await?;
                    info!(lease, slice, bytes, "serving");
                    self.worker.status.serving(slice);
                    taking = idle();
                }
                () = &mut stop => {
                    drop(taking);
                    self.drain("stopping", timers.drain, shutdown).await?;
                    return Ok(Ended::Stopped);
                }
            }
        }
    }
}

type Taken = Result<(Arc<super::slices::Held>, u64), FetchError>;

/// Nothing to take.
fn idle() -> Pin<Box<dyn Future<Output = Taken> + Send>> {
    Box::pin(std::future::pending())
}

async fn receive(receiver: &mut WsReceiver, open: &mut Open) -> Result<Frame, SessionError> {
    let sealed = receiver.recv().await?.ok_or(SessionError::Closed)?;
    Ok(open.open(sealed)?)
}

impl Session<'_> {
    /// Brings a lease's experts here, beside everything else.
    fn take(&self, lease: Lease) -> Pin<Box<dyn Future<Output = Taken> + Send>> {
        info!(lease = lease.lease, "lease");
        let taking = Taking {
            library: Arc::clone(&self.worker.library),
            holdings: Arc::clone(&self.holdings),
            board: Arc::clone(&self.worker.status),
            link: Arc::clone(&self.link),
            pipe: Arc::clone(&self.pipe),
            load: Arc::clone(self.desk.load()),
            quiet: self.quiet,
            memory_bytes: self.worker.config.memory_bytes,
        };
        Box::pin(taking.take(lease))
    }

    async fn act(&mut self, frame: Frame) -> Result<Next, SessionError> {
        match frame.header.kind {
            Kind::Dispatch | Kind::Challenge => self.request(frame).await?,
            Kind::ExpertChunk => self.pieces.try_send(frame).map_err(|_| SessionError::Unasked)?,
            Kind::Lease => {
                let lease = Lease::read(&frame)?;
                if lease.manifest != self.manifest {
                    return Err(SessionError::OtherModel { expected: self.manifest, got: lease.manifest });
                }
                return Ok(Next::Take(lease));
            }
            Kind::GoAway => return Ok(Next::Leave(GoAway::read(&frame)?)),
            Kind::Receipt => {
                let receipt = Receipt::read(&frame)?;
                let work_bytes = receipt.work_bytes;
                let ack = self.receipts.agree(receipt)?;
                self.link.send(&ack.frame()?).await?;
                self.worker.status.receipted(work_bytes);
            }
            Kind::Refuse => {
                let Refuse { reason, retry_after_ms } = Refuse::read(&frame)?;
                return Err(HandshakeError::Refused { reason, retry_after_ms }.into());
            }
            got => return Err(SessionError::Unexpected { got }),
        }
        Ok(Next::Go)
    }

    /// Collects the parts of a request, in order, and puts it on the desk when it is complete. One that is refused is
    /// declined with its last part, because a decline speaks for all of them.
    async fn request(&mut self, frame: Frame) -> Result<(), SessionError> {
        let header = frame.header;
        let mut job = match self.incomplete.remove(&header.request) {
            Some(job) => job,
            None if self.incomplete.len() >= INCOMPLETE_MAX => return Err(SessionError::Incomplete),
            None => Job::new(self.desk.load().enter()),
        };
        job.add(frame);
        if header.part + 1 < header.parts {
            self.incomplete.insert(header.request, job);
            return Ok(());
        }
        if let Some(why) = job.refused().or_else(|| self.desk.put(job).err()) {
            self.link.send(&Decline { reason: why.to_owned() }.reply(header.request)?).await?;
        }
        Ok(())
    }

    /// Gives everything back, answers what is still under way within `patience`, less when the worker stops, and
    /// closes.
    async fn drain(mut self, why: &str, patience: Duration, shutdown: &Shutdown) -> Result<(), SessionError> {
        let stopping = self.worker.config.timers.drain;
        let mut until = Instant::now() + patience;
        if let Some(held) = self.holdings.newest() {
            self.link.send(&Release { lease: held.lease, experts: BTreeMap::new() }.frame()?).await?;
        }
        loop {
            let now = Instant::now();
            if shutdown.is_requested() {
                until = until.min(now + stopping);
            }
            if now >= until {
                break;
            }
            match timeout(self.quiet.min(until - now), receive(&mut self.receiver, &mut self.open)).await {
                Ok(Ok(frame)) if frame.header.kind == Kind::ExpertChunk => {}
                Ok(Ok(frame)) => drop(self.act(frame).await?),
                Ok(Err(error)) => {
                    debug!(%error, "link ended while draining");
                    break;
                }
                // Requests whose parts are still coming in count as under way.
                Err(_) if self.desk.load().is_clear() => break,
                Err(_) => {}
            }
        }
        // The hub may be slow to answer the close; nobody waits for it.
        let _ = timeout(stopping, self.link.close(1000, why)).await;
        Ok(())
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
