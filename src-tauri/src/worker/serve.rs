//! The desk where requests are computed: as many threads as the kernel likes, so that the link never waits for it.
//!
//! Each thread takes one request at a time; all its parts are one batch, answered part by part and in order.
//! **Promises:** every request is answered in full or declined once, with a reason, a kernel that panics included;
//! what is past its deadline, or whose link or hardware is gone, is not computed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::warn;

use super::courtesy::Duty;
use super::equipment::is_gone;
use super::load::{Load, Place};
use super::outgoing::Link;
use super::slices::Holdings;
use super::status::Board;
use crate::kernel::{ExpertCompute, ExpertSource};
use crate::types::ExpertId;
use crate::wire::control::{Control, Decline};
use crate::wire::frame::ROWS_MAX;
use crate::wire::work::{Dispatch, Partials};
use crate::wire::{Frame, FrameError, Header, Kind};

/// Stable codes of a [`Decline`].
pub(super) mod reason {
    /// The request names another lease or an expert outside it.
    pub const LEASE: &str = "lease";
    /// There is no time left, or the desk is full.
    pub const DEADLINE: &str = "deadline";
    /// The request contradicts itself.
    pub const SHAPE: &str = "shape";
    /// The requests under way hold too many bytes.
    pub const BUSY: &str = "busy";
    /// The hardware went away.
    pub const LOST: &str = "lost";
    /// The kernel failed.
    pub const INTERNAL: &str = "internal";
}

/// Requests computed at once: beyond a few, more only wait for the hardware.
const THREADS_MAX: usize = 8;
/// Largest request over all its parts: 2,048 float rows of the widest model and their assignments.
const REQUEST_BYTES_MAX: usize = 72 << 20;

/// A request, complete once all its parts are there.
pub(super) struct Job {
    received: Instant,
    place: Place,
    /// Its parts in order; none once it is refused.
    parts: Vec<Frame>,
    refused: Option<&'static str>,
}

impl Job {
    /// A request whose first part came now.
    pub fn new(place: Place) -> Self {
        Self { received: Instant::now(), place, parts: Vec::new(), refused: None }
    }

    /// Adds a part; a request that cannot be taken holds nothing from then on.
    pub fn add(&mut self, part: Frame) {
        let refused = if self.refused.is_some() {
            return;
        } else if !self.expects(&part.header) {
            reason::SHAPE
        } else if !self.place.hold(part.body.len()) {
            reason::BUSY
        } else {
            self.parts.push(part);
            return;
        };
        self.refused = Some(refused);
        self.parts.clear();
        self.place.lighten();
    }

    /// Why it is refused, if it is.
    pub fn refused(&self) -> Option<&'static str> {
        self.refused
    }

    /// Whether `header` is that of the next part, within the bounds of a request.
    fn expects(&self, header: &Header) -> bool {
        let rows: u64 = self.parts.iter().map(|part| u64::from(part.header.rows)).sum();
        let bytes: usize = self.parts.iter().map(|part| part.body.len()).sum();
        let same = |first: &Header| {
            (first.kind, first.layer, first.flags, first.parts)
                == (header.kind, header.layer, header.flags, header.parts)
        };
        usize::from(header.part) == self.parts.len()
            && rows + u64::from(header.rows) <= u64::from(ROWS_MAX)
            && bytes + header.body_bytes as usize <= REQUEST_BYTES_MAX
            && self.parts.first().is_none_or(|part| same(&part.header))
    }
}

/// What the desk's threads work with. The link is weak: a session that is gone is not kept open by its kernel.
pub(super) struct Tools {
    pub compute: Arc<dyn ExpertCompute>,
    pub holdings: Arc<Holdings>,
    pub board: Arc<Board>,
    pub link: Weak<Link>,
    /// How much of the time may be computed.
    pub duty: Duty,
    /// Where the desk says that the hardware is lost, and why.
    pub lost: watch::Sender<Option<String>>,
}

/// See the module.
pub(super) struct Desk {
    jobs: SyncSender<Job>,
    load: Arc<Load>,
}

impl Desk {
    /// Opens a desk on which `queue` requests may wait.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn open(tools: Tools, queue: usize) -> std::io::Result<Self> {
        let (jobs, queued) = sync_channel(queue);
        let (tools, queued) = (Arc::new(tools), Arc::new(Mutex::new(queued)));
        for _ in 0..tools.compute.depth().clamp(1, THREADS_MAX) {
            let (tools, runtime, queued) = (Arc::clone(&tools), Handle::current(), Arc::clone(&queued));
            std::thread::Builder::new().name("kvasir-desk".into()).spawn(move || work(&tools, &runtime, &queued))?;
        }
        Ok(Self { jobs, load: Load::new() })
    }

    /// What is under way.
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Puts a request on the desk; gives the reason when it cannot be taken.
    pub fn put(&self, job: Job) -> Result<(), &'static str> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => reason::DEADLINE,
            TrySendError::Disconnected(_) => reason::INTERNAL,
        })
    }
}

/// Answers until the session is over; what still waits then is let go.
fn work(tools: &Tools, runtime: &Handle, queued: &Mutex<Receiver<Job>>) {
    // Whoever waits for a request holds the lock, and lets go of it with the request in hand.
    let next = || queued.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(job) = next() {
        if tools.link.strong_count() == 0 {
            return;
        }
        let request = job.parts.first().map_or(0, |part| part.header.request);
        let replies = match catch_unwind(AssertUnwindSafe(|| answer(tools, &job))).unwrap_or(Err(reason::INTERNAL)) {
            Ok(replies) => replies,
            Err(why) => Vec::from_iter(Decline { reason: why.to_owned() }.reply(request).ok()),
        };
        let Some(link) = tools.link.upgrade() else { return };
        for reply in replies {
            if let Err(error) = runtime.block_on(link.send(&reply)) {
                warn!(request, %error, "reply not sent");
                break;
            }
        }
    }
}

/// The frames that answer a request, or the reason to decline it.
fn answer(tools: &Tools, job: &Job) -> Result<Vec<Frame>, &'static str> {
    let first = job.parts.first().ok_or(reason::SHAPE)?;
    let layer = first.header.layer;
    let word =
        |at: usize| first.body.get(at..at + 4).and_then(|b| b.first_chunk::<4>()).map(|b| u32::from_le_bytes(*b));
    let (Some(lease), Some(deadline_ms)) = (word(0), word(4)) else { return Err(reason::SHAPE) };
    if job.received.elapsed() >= Duration::from_millis(deadline_ms.into()) {
        return Err(reason::DEADLINE);
    }
    if tools.lost.borrow().is_some() {
        return Err(reason::LOST);
    }
    let held = tools.holdings.of_lease(lease).ok_or(reason::LEASE)?;
    let decode = |part: &Frame| Dispatch::decode(&part.header, &part.body, held.hidden);
    let requests = job.parts.iter().map(decode).collect::<Result<Vec<_>, _>>().map_err(|error| {
        warn!(request = first.header.request, %error, "request refused");
        reason::SHAPE
    })?;
    let mut ids = requests.iter().flat_map(|r| &r.assignments).map(|a| ExpertId { layer, expert: a.expert });
    if requests.iter().any(|r| r.lease != lease) || !ids.all(|id| held.slice.contains(id)) {
        return Err(reason::LEASE);
    }
    let failed = |error: &dyn std::fmt::Display| {
        warn!(request = first.header.request, %error, "request not computed");
        reason::INTERNAL
    };
    let compute = || tools.compute.compute(&*held as &dyn ExpertSource, layer, &requests);
    let is_over = || tools.link.strong_count() == 0 || tools.lost.borrow().is_some();
    let deadline = job.received + Duration::from_millis(deadline_ms.into());
    let partials = match tools.duty.compute(deadline, is_over, compute).ok_or(reason::DEADLINE)? {
        Ok(partials) => partials,
        Err(error) if is_gone(&error) => {
            warn!(request = first.header.request, %error, "request not computed");
            tools.lost.send_replace(Some(error.to_string()));
            return Err(reason::LOST);
        }
        Err(error) => return Err(failed(&error)),
    };
    if partials.len() != job.parts.len() {
        return Err(failed(&format_args!("expected {} parts, got {}", job.parts.len(), partials.len())));
    }
    let replies = job.parts.iter().zip(&partials).map(|(part, partials)| reply(&part.header, partials, held.hidden));
    let replies = replies.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    // Challenges earn nothing.
    if first.header.kind == Kind::Dispatch {
        let assignments: usize = requests.iter().map(|r| r.assignments.len()).sum();
        tools.board.answered(assignments as u64, held.hidden);
    }
    Ok(replies)
}

/// The reply repeats its request's shape.
fn reply(asked: &Header, partials: &Partials, hidden: usize) -> Result<Frame, FrameError> {
    let kind = if asked.kind == Kind::Challenge { Kind::ChallengeReply } else { Kind::Partials };
    Frame::new(Header { kind, ..*asked }, partials.encode(hidden))
}

#[cfg(test)]
mod tests;
