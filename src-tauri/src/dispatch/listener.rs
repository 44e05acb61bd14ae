//! The backbone's end of the hub's connections: one worker session each, from `SessionOpen` to `SessionClosed`.
//!
//! Three tasks share a connection: this one reads, one writes, one fetches weights from disk. Work frames leave before
//! weights, so a download never costs a step more than one chunk.
//! **Promises:** every queue is bounded and a full one ends the session by name; a session that ends, ends everything
//! that waited for it at once; no frame of a peer can stop the listener; a worker fetches no more than it was leased;
//! connections are bounded before they cost anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};
use tokio::task::{JoinError, JoinHandle, JoinSet, spawn_blocking};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::challenge::CHALLENGE;
use super::counters::Counters;
use super::door::{Caller, Door};
use super::fleet::FetchRefused;
use super::inflight::Delivery;
use super::remote::{RemoteDispatch, Shared};
use super::session::Session;
use super::stock::{Stock, StockError};
use crate::net::Io;
use crate::net::framed::{self, FramedError, FramedReader, FramedWriter};
use crate::net::peer::PeerError;
use crate::shutdown::Shutdown;
use crate::types::PublicKey;
use crate::wire::control::{
    BackboneHello, Control, Decline, ExpertGet, Offer, Refuse, Release, SessionClosed, SessionOpen, SliceReady,
};
use crate::wire::{Frame, FrameError, Kind};

/// The hub dials before its worker has proved itself, which takes up to ten seconds.
const OPEN_DEADLINE: Duration = Duration::from_secs(20);
/// How long a closed session's last verdicts may take.
const LAST_VERDICTS: Duration = Duration::from_secs(10);
/// Unanswered `ExpertGet`s of a session: what the hub allows.
const GETS_QUEUED: usize = 16;
/// Connections beyond those of sessions: being opened, being refused, or saying their last.
const OPENING_MAX: usize = 64;
/// Pause after a failed accept, so that a lack of file handles does not become a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// When a hub that found no room should try again.
const BUSY_RETRY_MS: u64 = 5_000;

/// Why a hub's connection ended before its `SessionClosed`.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Framed(#[from] FramedError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Stock(#[from] StockError),
    #[error("expected SessionOpen within {} s", OPEN_DEADLINE.as_secs())]
    NotOpened,
    #[error("expected a frame of a worker's session, got {got:?}")]
    Unexpected { got: Kind },
    #[error(transparent)]
    Fetch(#[from] FetchRefused),
    #[error("expected at most {GETS_QUEUED} unanswered ExpertGet")]
    TooManyGets,
    #[error("the hub closed the connection without SessionClosed")]
    Abandoned,
    #[error("reading weights ended early: {0}")]
    Weights(#[from] JoinError),
    #[error("ended by dispatch")]
    Ended,
}

impl RemoteDispatch {
    /// Lets hubs connect until `shutdown`; returns once every connection has ended.
    pub async fn serve(&self, listener: TcpListener, shutdown: Shutdown) {
        self.serve_at(Door::Tcp(listener), shutdown).await;
    }

    /// The same for streams that the caller has opened, and secured where they leave the machine.
    pub async fn serve_streams(&self, streams: mpsc::Receiver<Io>, shutdown: Shutdown) {
        self.serve_at(Door::Streams(streams), shutdown).await;
    }

    async fn serve_at(&self, mut door: Door, shutdown: Shutdown) {
        let sessions_max = self.shared.config.sessions_max;
        let places = Arc::new(Semaphore::new(sessions_max));
        let handles = Arc::new(Semaphore::new(sessions_max + OPENING_MAX));
        let mut connections = JoinSet::new();
        let placing = async {
            let trust = &self.shared.trust;
            let (placing, saving) = (self.shared.fleet.keep_placing(&shutdown), trust.keep_saving(&shutdown));
            let (challenging, auditing) =
                (self.shared.keep_challenging(&shutdown), self.shared.keep_auditing(&shutdown));
            tokio::join!(placing, saving, challenging, auditing);
        };
        tokio::pin!(placing);
        loop {
            tokio::select! {
                () = &mut placing => break,
                Some(_) = connections.join_next() => {}
                accepted = accept(&mut door, &handles) => match accepted {
                    Ok((handle, caller, from)) => {
                        let (shared, places) = (Arc::clone(&self.shared), Arc::clone(&places));
                        let shutdown = shutdown.clone();
                        connections.spawn(async move {
                            let _handle = handle;
                            if let Err(error) = connection(&shared, caller, &places, &shutdown).await {
                                debug!(%from, %error, "hub connection ended");
                            }
                        });
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept a hub");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        while connections.join_next().await.is_some() {}
        self.shared.trust.save().await;
    }
}

/// The next connection, once there is a handle for it; until then others wait with the system.
async fn accept(door: &mut Door, handles: &Arc<Semaphore>) -> std::io::Result<(OwnedSemaphorePermit, Caller, String)> {
    let handle = Arc::clone(handles).acquire_owned().await.map_err(std::io::Error::other)?;
    let (caller, from) = door.next().await?;
    Ok((handle, caller, from))
}

/// One connection of a hub, from accept to close.
async fn connection(
    shared: &Arc<Shared>,
    caller: Caller,
    places: &Semaphore,
    shutdown: &Shutdown,
) -> Result<(), ConnectionError> {
    let opened = tokio::select! {
        opened = open(shared, caller, places) => opened?,
        () = shutdown.wait() => return Ok(()),
    };
    match opened {
        Some((opened, hub, _place, reader, writer)) => session(shared, (opened, hub), reader, writer, shutdown).await,
        None => Ok(()),
    }
}

type Opened<'a> =
    (SessionOpen, Option<PublicKey>, SemaphorePermit<'a>, FramedReader<ReadHalf<Io>>, FramedWriter<WriteHalf<Io>>);

/// Says hello and waits for the hub's worker; `None` when there is no room, or when no worker came of it.
async fn open<'a>(
    shared: &Shared,
    caller: Caller,
    places: &'a Semaphore,
) -> Result<Option<Opened<'a>>, ConnectionError> {
    let (stream, hub) = caller.secured(&shared.config.peers).await?;
    let (mut reader, mut writer) = framed::split(stream);
    let Ok(place) = places.try_acquire() else {
        let busy = Refuse { reason: "busy".into(), retry_after_ms: Some(BUSY_RETRY_MS) };
        writer.send(&busy.frame()?).await?;
        return Ok(None);
    };
    let hello = BackboneHello { manifest: shared.stock.manifest_id(), hidden_size: shared.stock.hidden_size() };
    writer.send(&hello.frame()?).await?;
    let first = timeout(OPEN_DEADLINE, reader.recv()).await.map_err(|_| ConnectionError::NotOpened)??;
    Ok(match first {
        Some(first) => Some((SessionOpen::read(&first)?, hub, place, reader, writer)),
        None => None,
    })
}

/// A worker's session, from its first frame to its last verdict.
async fn session(
    shared: &Arc<Shared>,
    (opened, hub): (SessionOpen, Option<PublicKey>),
    mut reader: FramedReader<ReadHalf<Io>>,
    writer: FramedWriter<WriteHalf<Io>>,
    shutdown: &Shutdown,
) -> Result<(), ConnectionError> {
    info!(session = %opened.session_id, wallet = %opened.wallet, "worker joined");
    let (mut session, frames, ended) = Session::new(opened);
    session.hub = hub;
    session.bounds = shared.config.trust.bounds(&session.opened.wallet);
    let session = Arc::new(session);
    let (gets, gets_rx) = mpsc::channel(GETS_QUEUED);
    let (chunks_tx, chunks) = mpsc::channel(1);
    let weights = serve_weights(&shared.stock, gets_rx, chunks_tx);
    let mut writing = AbortOnDrop(tokio::spawn(write(writer, frames, chunks)));

    shared.fleet.join(Arc::clone(&session));
    shared.tell_late(&session);
    if shared.turn_away(&session) {
        info!(session = %session.opened.session_id, "a wallet that was caught before is turned away");
    }
    let read = async {
        loop {
            let frame = reader.recv().await?.ok_or(ConnectionError::Abandoned)?;
            if shared.take(&session, frame, &gets)? {
                return Ok(());
            }
        }
    };
    let result = tokio::select! {
        result = read => result,
        result = weights => result,
        () = ended.wait() => Err(ConnectionError::Ended),
        () = shutdown.wait() => Ok(()),
        _ = &mut writing.0 => Err(ConnectionError::Abandoned),
    };
    shared.fleet.leave(&session);
    session.inflight.close();
    info!(session = %session.opened.session_id, result = ?result, "worker left");
    // The writer ends by itself once the last step that used this session has given its verdicts.
    drop(session);
    if !writing.0.is_finished() {
        let _ = timeout(LAST_VERDICTS, &mut writing.0).await;
    }
    result
}

/// A task that does not outlive its owner.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// Acts on a frame of a session; whether it was the last.
    fn take(
        self: &Arc<Self>,
        session: &Arc<Session>,
        frame: Frame,
        gets: &mpsc::Sender<(u64, ExpertGet)>,
    ) -> Result<bool, ConnectionError> {
        let delivery = match frame.header.kind {
            Kind::Partials => session.inflight.deliver(frame),
            Kind::ChallengeReply => {
                self.challenge_reply(session, frame);
                return Ok(false);
            }
            Kind::Decline if frame.header.request & CHALLENGE != 0 => {
                self.challenge_declined(session, frame.header.request, &Decline::read(&frame)?.reason);
                return Ok(false);
            }
            Kind::Decline => session.inflight.decline(frame.header.request, Decline::read(&frame)?.reason),
            kind => return self.take_control(session, kind, &frame, gets),
        };
        match delivery {
            Delivery::Taken => {}
            Delivery::Late => session.came_late(),
            Delivery::Unasked => Counters::add(&self.counters.refused, 1),
        }
        Ok(false)
    }

    fn take_control(
        self: &Arc<Self>,
        session: &Arc<Session>,
        kind: Kind,
        frame: &Frame,
        gets: &mpsc::Sender<(u64, ExpertGet)>,
    ) -> Result<bool, ConnectionError> {
        match kind {
            Kind::Offer => self.offered(session, Offer::read(frame)?)?,
            Kind::SliceReady => self.slice_ready(session, &SliceReady::read(frame)?)?,
            Kind::Release => self.fleet.release(session, &Release::read(frame)?)?,
            Kind::Pause => self.fleet.pause(session, true),
            Kind::Resume => self.fleet.pause(session, false),
            Kind::ExpertGet => {
                let get = ExpertGet::read(frame)?;
                self.fleet.fetch(session, &get)?;
                gets.try_send((frame.header.request, get)).map_err(|_| ConnectionError::TooManyGets)?;
            }
            Kind::SessionClosed => {
                debug!(session = %session.opened.session_id, reason = SessionClosed::read(frame)?.reason, "closed");
                return Ok(true);
            }
            got => return Err(ConnectionError::Unexpected { got }),
        }
        Ok(false)
    }
}

/// Reads what is asked for, one piece ahead of the writer.
async fn serve_weights(
    stock: &Arc<Stock>,
    mut gets: mpsc::Receiver<(u64, ExpertGet)>,
    chunks: mpsc::Sender<Frame>,
) -> Result<(), ConnectionError> {
    while let Some((request, get)) = gets.recv().await {
        let (stock, layer) = (Arc::clone(stock), get.layer);
        let chunk = spawn_blocking(move || stock.read(&get)).await?;
        if chunks.send(chunk?.reply(request, layer)?).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes work and control frames as they come, and weights when there is nothing else.
async fn write(
    mut writer: FramedWriter<WriteHalf<Io>>,
    mut frames: mpsc::Receiver<Frame>,
    mut chunks: mpsc::Receiver<Frame>,
) -> Result<(), FramedError> {
    loop {
        let frame = tokio::select! {
            biased;
            frame = frames.recv() => match frame {
                Some(frame) => frame,
                None => return writer.finish().await,
            },
            Some(chunk) = chunks.recv() => chunk,
        };
        writer.send(&frame).await?;
    }
}
