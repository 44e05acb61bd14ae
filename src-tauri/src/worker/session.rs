//! One session of a worker, from the hub's hello to the close.
//!
//! This task only moves frames: requests go to the desk, pieces of experts to the pipe, and a lease is taken beside
//! them. A session keeps its hardware: when that is lost or changed, the session gives everything back and ends.
//! **Promise:** when its future is dropped, the link goes with it; nothing detached keeps it open.

mod leaving;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval_at};
use tracing::{debug, info, warn};

use super::Worker;
use super::budget::Budget;
use super::ended::{Ended, INCOMPLETE_MAX, SessionError};
use super::equipment::{Equipment, is_gone};
use super::fetch::{FetchError, Room, Taken, Taking};
use super::hardware::Hardware;
use super::join::Joined;
use super::outgoing::Link;
use super::pipe::{Piece, Pipe};
use super::receipts::Receipts;
use super::serve::{Desk, Job, Tools};
use super::slices::Holdings;
use super::status::Phase;
use crate::net::ws::WsReceiver;
use crate::shutdown::Shutdown;
use crate::types::Digest;
use crate::wire::control::{Control, Decline, GoAway, Lease, Offer, Receipt, Refuse, SliceReady};
use crate::wire::handshake::{HandshakeError, Open, WorkerSession};
use crate::wire::{Frame, Kind};
use leaving::farewell;

/// Quiet for this long and the time of a round trip, a released worker has seen the last of its requests.
const QUIET: Duration = Duration::from_millis(200);
/// Longest time that counts as a round trip.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);

/// A session under way.
struct Session<'a> {
    worker: &'a Worker,
    equipment: &'a Equipment,
    link: Arc<Link>,
    receiver: WsReceiver,
    open: Open,
    holdings: Arc<Holdings>,
    desk: Desk,
    pipe: Arc<Pipe>,
    pieces: mpsc::Sender<Piece>,
    receipts: Receipts,
    incomplete: BTreeMap<u64, Job>,
    /// Manifest of the model that the hub said hello with.
    manifest: Digest,
    quiet: Duration,
    /// What it offers.
    room: Room,
    /// Whether somebody else took the memory of what was held here.
    crowded: bool,
    budget: Budget,
    /// A lease for which the room became too small.
    outdated: Option<Lease>,
}

/// What a frame, or the end of a lease's taking, asks of the session's loop.
enum Next {
    Go,
    Take(Lease),
    End(Ended),
}

/// Serves until the session ends, the hardware is lost or another one, or the worker stops.
pub(super) async fn serve(
    worker: &Worker,
    equipment: &Equipment,
    joined: Joined,
    hardware: &mut watch::Receiver<Hardware>,
    shutdown: &Shutdown,
) -> Result<Ended, SessionError> {
    let Joined { socket, session, round_trip, .. } = joined;
    let WorkerSession { session_id, hub_key, session_signer, manifest, limits, seal, open, .. } = session;
    info!(session = %session_id, hub = %hub_key, "session open");
    let (sender, receiver) = socket.split();
    let link = Arc::new(Link::new(seal, sender));
    let holdings = Arc::new(Holdings::default());
    let (lost, mut lost_for) = watch::channel(None);
    let tools = Tools {
        compute: Arc::clone(&equipment.kernel),
        holdings: Arc::clone(&holdings),
        board: Arc::clone(&worker.status),
        link: Arc::downgrade(&link),
        duty: worker.config.duty.clone(),
        lost,
    };
    let desk = Desk::open(tools, limits.in_flight_max as usize)?;
    let (pipe, pieces) = Pipe::new(Arc::clone(&link), worker.config.timers.chunk);
    let receipts_dir = worker.home.receipts.clone();
    let receipts = Receipts::new(hub_key, session_id, worker.wallet.address(), session_signer, receipts_dir);
    let (pipe, incomplete) = (Arc::new(pipe), BTreeMap::new());
    let quiet = QUIET + round_trip.min(ROUND_TRIP_MAX);
    // From here on, so that no change is missed between the two.
    let budget = worker.config.budget.clone();
    let now = equipment.room(worker).await;
    let room = Room { most: now, now };
    if let Some(cache) = worker.library.cache() {
        cache.offered(now);
    }
    let mut session = Session {
        worker,
        equipment,
        link,
        receiver,
        open,
        holdings,
        desk,
        pipe,
        pieces,
        receipts,
        incomplete,
        manifest,
        quiet,
        room,
        crowded: false,
        budget,
        outdated: None,
    };
    let ended = session.run(&mut lost_for, hardware, shutdown).await?;
    let (why, patience) = farewell(&ended, &worker.config.timers);
    if let Err(error) = session.drain(why, patience, shutdown).await {
        debug!(%error, "link ended while draining");
    }
    Ok(ended)
}

/// The reason for which the hardware was lost, once it is.
async fn reported(lost: &mut watch::Receiver<Option<String>>) -> String {
    match lost.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
        Ok(reason) => reason.unwrap_or_default(),
        // The desk is gone, and the session's loop says why.
        Err(_) => std::future::pending().await,
    }
}

/// Completes once there is other hardware to use.
async fn changed(hardware: &mut watch::Receiver<Hardware>) {
    if hardware.changed().await.is_err() {
        std::future::pending().await
    }
}

impl Session<'_> {
    async fn run(
        &mut self,
        lost_for: &mut watch::Receiver<Option<String>>,
        hardware: &mut watch::Receiver<Hardware>,
        shutdown: &Shutdown,
    ) -> Result<Ended, SessionError> {
        self.offer().await?;
        self.worker.status.phase(Phase::Offered);
        let mut taking = idle();
        let stop = shutdown.wait();
        tokio::pin!(stop);
        let every = self.worker.config.timers.memory;
        let mut looks = interval_at(tokio::time::Instant::now() + every, every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = tokio::select! {
                () = &mut stop => Next::End(Ended::Stopped),
                reason = reported(lost_for) => Next::End(Ended::Lost(reason)),
                () = changed(hardware) => Next::End(Ended::Changed),
                () = self.budget.changed() => self.resize().await?,
                _ = looks.tick() => self.look_at_memory().await?,
                frame = receive(&mut self.receiver, &mut self.open) => self.act(frame?).await?,
                taken = &mut taking => {
                    taking = idle();
                    self.took(taken).await?
                }
            };
            match next {
                Next::Go => {}
                Next::Take(lease) => taking = self.take(lease),
                Next::End(ended) => return Ok(ended),
            }
        }
    }

    async fn offer(&self) -> Result<(), SessionError> {
        let offer = Offer {
            device: self.equipment.kernel.device(),
            memory_bytes: self.room.now,
            assignments_per_s: self.equipment.assignments_per_s() * f64::from(self.worker.config.duty.percent())
                / 100.0,
            wants: Vec::new(),
        };
        Ok(self.link.send(&offer.frame()?).await?)
    }

    /// Says what became of a lease. Of hardware that took less, what it took is offered, so that the backbone gives the
    /// rest to others; the same lease is tried once more where only experts of before were in its way.
    async fn took(&mut self, taken: Result<Taken, FetchError>) -> Result<Next, SessionError> {
        match taken {
            Ok(Taken::Held { held, bytes }) => {
                let (lease, slice) = (held.lease, held.slice.to_string());
                self.holdings.take_over(held);
                self.link.send(&SliceReady { lease, bytes, experts: BTreeMap::new() }.frame()?).await?;
                info!(lease, slice, bytes, "serving");
                self.worker.status.serving(slice);
                Ok(Next::Go)
            }
            Ok(Taken::Full { lease, bytes, placed, why }) => {
                warn!(lease = lease.lease, bytes, placed, %why, "offering less memory");
                self.room.now = self.room.now.min(placed);
                self.offer().await?;
                Ok(if bytes <= self.room.now { Next::Take(lease) } else { Next::Go })
            }
            Ok(Taken::Outdated(lease)) => {
                self.outdated = Some(lease);
                Ok(Next::Go)
            }
            Err(FetchError::Unusable { source, .. }) if is_gone(&source) => {
                Ok(Next::End(Ended::Lost(source.to_string())))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A lease on its way here.
type Coming = Pin<Box<dyn Future<Output = Result<Taken, FetchError>> + Send>>;

/// Nothing to take.
fn idle() -> Coming {
    Box::pin(std::future::pending())
}

async fn receive(receiver: &mut WsReceiver, open: &mut Open) -> Result<Frame, SessionError> {
    let sealed = receiver.recv().await?.ok_or(SessionError::Closed)?;
    Ok(open.open(sealed)?)
}

impl Session<'_> {
    /// Brings a lease's experts here, beside everything else.
    fn take(&self, lease: Lease) -> Coming {
        info!(lease = lease.lease, "lease");
        let taking = Taking {
            library: Arc::clone(&self.worker.library),
            holdings: Arc::clone(&self.holdings),
            board: Arc::clone(&self.worker.status),
            link: Arc::clone(&self.link),
            pipe: Arc::clone(&self.pipe),
            load: Arc::clone(self.desk.load()),
            compute: Arc::clone(&self.equipment.kernel),
            patience: self.worker.config.timers.chunk,
            consent: self.worker.config.consent.clone(),
            quiet: self.quiet,
            room: self.room,
        };
        Box::pin(taking.take(lease))
    }

    async fn act(&mut self, frame: Frame) -> Result<Next, SessionError> {
        match frame.header.kind {
            Kind::Dispatch | Kind::Challenge => self.request(frame).await?,
            Kind::ExpertChunk => self.pieces.try_send((Instant::now(), frame)).map_err(|_| SessionError::Unasked)?,
            Kind::Lease => {
                let lease = Lease::read(&frame)?;
                if lease.manifest != self.manifest {
                    return Err(SessionError::OtherModel { expected: self.manifest, got: lease.manifest });
                }
                self.outdated = None;
                return Ok(Next::Take(lease));
            }
            Kind::GoAway => {
                let pause = Duration::from_millis(GoAway::read(&frame)?.reconnect_after_ms);
                return Ok(Next::End(Ended::GoAway(pause)));
            }
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
}
