//! The desk where requests are computed: one thread, one request at a time, so that the link never waits for a kernel.
//!
//! All parts of a request are one batch, answered part by part.
//! **Promise:** every request is answered in full or declined once, with a reason; what is past its deadline is not
//! computed.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tracing::warn;

use super::session::Link;
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
    /// The kernel failed.
    pub const INTERNAL: &str = "internal";
}

/// Largest request over all its parts: 2,048 float rows of the widest model and their assignments.
const REQUEST_BYTES_MAX: usize = 72 << 20;

/// A request, complete once all its parts are there.
pub(super) struct Job {
    pub received: Instant,
    /// Its parts in order.
    pub parts: Vec<Frame>,
}

impl Job {
    /// Whether `header` is that of the next part, within the bounds of a request.
    pub fn expects(&self, header: &Header) -> bool {
        let rows: u64 = self.parts.iter().map(|part| u64::from(part.header.rows)).sum();
        let bytes: usize = self.parts.iter().map(|part| part.body.len()).sum();
        let same = |first: &Header| {
            (first.kind, first.layer, first.flags, first.parts)
                == (header.kind, header.layer, header.flags, header.parts)
        };
        usize::from(header.part) == self.parts.len()
            && rows + u64::from(header.rows) <= ROWS_MAX.into()
            && bytes + header.body_bytes as usize <= REQUEST_BYTES_MAX
            && self.parts.first().is_none_or(|part| same(&part.header))
    }
}

/// What the desk's thread works with. The link is weak: a session that is gone is not kept open by its kernel.
pub(super) struct Tools {
    pub compute: Arc<dyn ExpertCompute>,
    pub holdings: Arc<Holdings>,
    pub board: Arc<Board>,
    pub link: Weak<Link>,
}

/// See the module.
pub(super) struct Desk {
    jobs: SyncSender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Desk {
    /// Opens a desk on which `queue` requests may wait.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn open(tools: Tools, queue: usize) -> std::io::Result<Self> {
        let (jobs, queued) = sync_channel(queue);
        let waiting = Arc::new(AtomicUsize::new(0));
        let (runtime, done) = (Handle::current(), Arc::clone(&waiting));
        std::thread::Builder::new().name("kvasir-desk".into()).spawn(move || work(&tools, &runtime, &queued, &done))?;
        Ok(Self { jobs, waiting })
    }

    /// Puts a request on the desk; gives the reason when it cannot be taken.
    pub fn put(&self, job: Job) -> Result<(), &'static str> {
        self.waiting.fetch_add(1, SeqCst);
        self.jobs.try_send(job).map_err(|error| {
            self.waiting.fetch_sub(1, SeqCst);
            match error {
                TrySendError::Full(_) => reason::DEADLINE,
                TrySendError::Disconnected(_) => reason::INTERNAL,
            }
        })
    }

    /// Whether every request was answered.
    pub fn is_clear(&self) -> bool {
        self.waiting.load(SeqCst) == 0
    }
}

fn work(tools: &Tools, runtime: &Handle, queued: &Receiver<Job>, waiting: &AtomicUsize) {
    while let Ok(job) = queued.recv() {
        let replies = answer(tools, &job).unwrap_or_else(|why| vec![decline(&job, why)]);
        let Some(link) = tools.link.upgrade() else { return };
        for reply in replies {
            let sent = match reply {
                Ok(frame) => runtime.block_on(link.send(&frame)).map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = sent {
                warn!(error, "reply not sent");
            }
        }
        waiting.fetch_sub(1, SeqCst);
    }
}

fn decline(job: &Job, why: &str) -> Result<Frame, FrameError> {
    let request = job.parts.first().map_or(0, |part| part.header.request);
    Decline { reason: why.to_owned() }.reply(request)
}

/// The frames that answer a request, or the reason to decline it.
fn answer(tools: &Tools, job: &Job) -> Result<Vec<Result<Frame, FrameError>>, &'static str> {
    let first = job.parts.first().ok_or(reason::SHAPE)?;
    let layer = first.header.layer;
    let word =
        |at: usize| first.body.get(at..at + 4).and_then(|b| b.first_chunk::<4>()).map(|b| u32::from_le_bytes(*b));
    let (Some(lease), Some(deadline_ms)) = (word(0), word(4)) else { return Err(reason::SHAPE) };
    if job.received.elapsed() >= Duration::from_millis(deadline_ms.into()) {
        return Err(reason::DEADLINE);
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
    let partials = tools.compute.compute(&*held as &dyn ExpertSource, layer, &requests).map_err(|error| {
        warn!(request = first.header.request, %error, "request not computed");
        reason::INTERNAL
    })?;
    let assignments: usize = requests.iter().map(|r| r.assignments.len()).sum();
    tools.board.answered(assignments as u64, held.hidden);
    Ok(job.parts.iter().zip(&partials).map(|(part, partials)| reply(&part.header, partials, held.hidden)).collect())
}

/// The reply repeats its request's shape.
fn reply(asked: &Header, partials: &Partials, hidden: usize) -> Result<Frame, FrameError> {
    let kind = if asked.kind == Kind::Challenge { Kind::ChallengeReply } else { Kind::Partials };
    Frame::new(Header { kind, ..*asked }, partials.encode(hidden))
}
