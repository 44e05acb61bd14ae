//! One worker's session as dispatch sees it: the way out, what the worker owes, and how fast it is.
//!
//! **Promises:** a request's frames are queued together or not at all; nobody waits for a full queue; a worker that owes
//! a late answer, or several times in a row gave nothing usable, is left alone for a while instead of costing every step
//! a deadline.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::challenge::Proof;
use super::choice::{Candidate, Standing};
use super::estimate::{Estimate, Load, Measured};
use super::inflight::Inflight;
use super::trust::{Bounds, Dossier};
use crate::shutdown::{self, Shutdown, ShutdownTrigger};
use crate::types::PublicKey;
use crate::wire::control::{Control, SessionOpen, Verdict};
use crate::wire::{Frame, FrameError};

/// Frames that may wait for a session's hub: a 2,048-row request of the widest model and its verdicts fit.
const QUEUE_FRAMES: usize = 1024;
/// Requests in a row without a usable answer before a worker is benched.
const MISSES_IN_A_ROW: u32 = 3;
/// Not asked for this long, a worker is tried again even where a replica seems faster.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// How long a benched worker is left alone; after it, one more miss benches it again, for twice as long.
const BENCH: Duration = Duration::from_secs(5);
/// Most doublings of that pause: about five minutes.
const BENCH_DOUBLINGS_MAX: u32 = 6;

struct Pace {
    estimate: Estimate,
    misses_in_a_row: u32,
    benched_until: Option<Instant>,
    /// When the newest request was sent.
    asked: Option<Instant>,
}

/// What a worker's last session owed when it ended; the next one begins with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Misses {
    in_a_row: u32,
    benched_until: Option<Instant>,
}

impl Pace {
    fn bench(&mut self, now: Instant) {
        let doublings = self.misses_in_a_row.saturating_sub(MISSES_IN_A_ROW).min(BENCH_DOUBLINGS_MAX);
        self.benched_until = Some(now + BENCH * (1 << doublings));
    }
}

/// See the module.
pub(super) struct Session {
    /// Who it is.
    pub opened: SessionOpen,
    /// What is out.
    pub inflight: Inflight,
    /// Accepted assignments.
    pub assignments: AtomicU64,
    /// Whether its device may be asked for work.
    pub proof: Proof,
    /// What is known of its honesty.
    pub dossier: Arc<Dossier>,
    /// The hub that it came over; `None` on loopback without keys.
    pub hub: Option<PublicKey>,
    /// What it may be given.
    pub bounds: Bounds,
    out: mpsc::Sender<Frame>,
    pace: Mutex<Pace>,
    ending: ShutdownTrigger,
}

impl Session {
    /// A session, the frames to write for it, and the sign that it must end.
    pub fn new(opened: SessionOpen) -> (Self, mpsc::Receiver<Frame>, Shutdown) {
        let (out, frames) = mpsc::channel(QUEUE_FRAMES);
        let (ending, ended) = shutdown::channel();
        let round_trip = Duration::from_micros(opened.round_trip_us);
        let pace = Pace { estimate: Estimate::new(round_trip), misses_in_a_row: 0, benched_until: None, asked: None };
        let dossier = Arc::new(Dossier::new(opened.session_id, opened.wallet));
        let session = Self {
            proof: Proof::default(),
            dossier,
            hub: None,
            bounds: Bounds::default(),
            opened,
            inflight: Inflight::default(),
            assignments: AtomicU64::new(0),
            out,
            pace: Mutex::new(pace),
            ending,
        };
        (session, frames, ended)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session; its connection's task notices.
    pub fn end(&self, why: &str) {
        warn!(session = %self.opened.session_id, why, "session ended by dispatch");
        self.ending.fire();
    }

    /// The worker offers this pace.
    pub fn offered(&self, assignments_per_s: f64) {
        self.pace().estimate.offered(assignments_per_s);
    }

    /// The misses that a reconnect must not wash off, if there are any.
    pub fn misses(&self) -> Option<Misses> {
        let pace = self.pace();
        let misses = Misses { in_a_row: pace.misses_in_a_row, benched_until: pace.benched_until };
        (misses.in_a_row > 0).then_some(misses)
    }

    /// The same installation was here before, and this is what it still owed.
    pub fn owes(&self, misses: Misses) {
        let mut pace = self.pace();
        (pace.misses_in_a_row, pace.benched_until) = (misses.in_a_row, misses.benched_until);
    }

    /// What its answers have shown so far.
    pub fn measured(&self) -> Measured {
        self.pace().estimate.measured()
    }

    /// A request was sent at `now`.
    pub fn asked(&self, now: Instant) {
        self.pace().asked = Some(now);
    }

    /// How it stands when holders are compared at `now`.
    pub fn candidate(&self, now: Instant) -> Candidate {
        let queued = self.inflight.queued();
        let pace = self.pace();
        let standing = if pace.benched_until.is_some_and(|until| now < until) {
            Standing::Benched
        } else if pace.asked.map_or(pace.misses_in_a_row == 0, |asked| now - asked > STALE_AFTER) {
            Standing::Stale
        } else {
            Standing::Busy
        };
        Candidate { estimate: pace.estimate, queued, standing }
    }

    /// Whether requests may go to this worker at `now`.
    pub fn may_be_asked(&self, now: Instant) -> bool {
        self.pace().benched_until.is_none_or(|until| now >= until)
    }

    /// The time that a load will take, as far as is known.
    pub fn predict(&self, load: Load) -> Duration {
        self.pace().estimate.predict(load)
    }

    /// A request was answered in full, and all of it could be used.
    pub fn on_time(&self, load: Load, took: Duration) {
        let mut pace = self.pace();
        pace.estimate.observe(load, took);
        pace.misses_in_a_row = 0;
        pace.benched_until = None;
    }

    /// A request missed its deadline, which was `allowed` after its sending. A link that has gone dark looks like this, so
    /// the worker is asked no more until its answer comes after all, or for a while. A newcomer, whose first answers are
    /// its slowest, has more than one chance.
    pub fn late(&self, load: Load, allowed: Duration, now: Instant) {
        let mut pace = self.pace();
        pace.estimate.missed(load, allowed);
        pace.misses_in_a_row += 1;
        if pace.estimate.measured().answers > 0 || pace.misses_in_a_row >= MISSES_IN_A_ROW {
            pace.bench(now);
        }
    }

    /// An answer came after its deadline: the worker is slow, not dead.
    pub fn came_late(&self) {
        let mut pace = self.pace();
        if pace.misses_in_a_row < MISSES_IN_A_ROW {
            pace.benched_until = None;
        }
    }

    /// A request came to nothing at `now`: declined, or answered with something that cannot be used.
    pub fn missed(&self, now: Instant) {
        let mut pace = self.pace();
        pace.misses_in_a_row += 1;
        if pace.misses_in_a_row >= MISSES_IN_A_ROW {
            pace.bench(now);
            debug!(session = %self.opened.session_id, misses = pace.misses_in_a_row, "worker is left alone for a while");
        }
    }

    /// Queues all frames of a request, or none when there is no room.
    pub fn send_all(&self, frames: Vec<Frame>) -> bool {
        match self.out.try_reserve_many(frames.len()) {
            Ok(permits) => {
                permits.zip(frames).for_each(|(permit, frame)| permit.send(frame));
                true
            }
            Err(_) => false,
        }
    }

    /// Queues a control frame; a hub that reads so little that there is no room loses the session.
    pub fn send(&self, frame: Result<Frame, FrameError>) {
        match frame.map(|frame| self.out.try_send(frame)) {
            Ok(Ok(()) | Err(TrySendError::Closed(_))) => {}
            Ok(Err(TrySendError::Full(_))) => self.end("its hub does not read"),
            Err(error) => self.end(&error.to_string()),
        }
    }

    /// Tells the hub what of a part was used.
    pub fn judge(&self, request: u64, part: u16, accepted: u32, refused: u32, reason: &str) {
        self.assignments.fetch_add(accepted.into(), Relaxed);
        self.send(Verdict { request, part, accepted, refused, reason: reason.to_owned() }.frame());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dispatch::estimate::Queued;
    use crate::types::{Hex, PublicKey};
    use crate::wire::{Header, Kind};

    pub fn opened(n: u8) -> SessionOpen {
        SessionOpen {
            session_id: Hex([n; 16]),
            wallet: PublicKey([n; 32]),
            worker_id: Hex([n; 16]),
            peer_ip_hash: Hex([0; 16]),
            round_trip_us: 20_000,
        }
    }

    #[test]
    fn a_request_is_queued_whole_or_not_at_all() {
        let (session, mut frames, _ended) = Session::new(opened(1));
        let frame = Frame::new(Header::control(Kind::Dispatch), vec![]).unwrap();
        assert!(session.send_all(vec![frame.clone(); QUEUE_FRAMES - 1]));
        assert!(!session.send_all(vec![frame.clone(); 2]));
        assert!(session.send_all(vec![frame; 1]));
        let mut queued = 0;
        while frames.try_recv().is_ok() {
            queued += 1;
        }
        assert_eq!(queued, QUEUE_FRAMES);
    }

    #[test]
    fn a_hub_that_does_not_read_loses_the_session() {
        let (session, _frames, ended) = Session::new(opened(1));
        (0..QUEUE_FRAMES).for_each(|n| session.judge(n as u64, 0, 1, 0, "ok"));
        assert!(!ended.is_requested());
        session.judge(0, 1, 1, 0, "ok");
        assert!(ended.is_requested());
    }

    #[test]
    fn a_reconnect_washes_off_no_misses() {
        let (session, _frames, _ended) = Session::new(opened(1));
        let now = Instant::now();
        assert_eq!(session.misses(), None);
        (0..MISSES_IN_A_ROW).for_each(|_| session.missed(now));
        let (again, _frames, _ended) = Session::new(opened(2));
        assert_eq!(again.candidate(now).standing, Standing::Stale, "a newcomer is tried");
        again.owes(session.misses().unwrap());
        assert!(!again.may_be_asked(now) && again.may_be_asked(now + BENCH));
        assert_eq!(again.candidate(now + BENCH).standing, Standing::Busy, "and one that owes gets no favour");
    }

    #[test]
    fn a_worker_that_keeps_missing_is_left_alone_for_a_while() {
        let (session, _frames, _ended) = Session::new(opened(1));
        let load = Load { bytes: 1, queued: Queued::default(), assignments: 1 };
        let (now, took) = (Instant::now(), Duration::from_secs(1));
        (1..MISSES_IN_A_ROW).for_each(|_| session.missed(now));
        assert!(session.may_be_asked(now));
        session.missed(now);
        assert!(!session.may_be_asked(now));
        assert!(session.may_be_asked(now + BENCH));
        session.missed(now + BENCH);
        assert!(!session.may_be_asked(now + BENCH * 3 - took));
        assert!(session.may_be_asked(now + BENCH * 3));
        session.on_time(load, Duration::from_millis(1));
        assert!(session.may_be_asked(now + BENCH));
    }

    #[test]
    fn a_worker_that_owes_a_late_answer_is_not_asked_until_it_comes() {
        let (session, _frames, _ended) = Session::new(opened(1));
        let (now, load) = (Instant::now(), Load { bytes: 1, queued: Queued::default(), assignments: 1 });
        session.late(load, Duration::from_secs(1), now);
        assert!(session.may_be_asked(now), "a newcomer has another chance");
        session.on_time(load, Duration::from_secs(1));
        session.late(load, Duration::from_secs(1), now);
        assert!(!session.may_be_asked(now));
        session.came_late();
        assert!(session.may_be_asked(now));
        (1..MISSES_IN_A_ROW).for_each(|_| session.late(load, Duration::from_secs(1), now));
        session.came_late();
        assert!(!session.may_be_asked(now), "always late is no better than never");
    }
}
