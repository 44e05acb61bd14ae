//! What a session's device has shown of itself, and what it still owes.
//!
//! **Promise:** a name that changes proves nothing, and buys no challenge before its time; a device that declines again
//! and again counts as unproven.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::BlockType;
use crate::wire::work::Dispatch;

/// Pause after a challenge that was declined or found no room.
const RETRY: Duration = Duration::from_secs(1);
/// Challenges in a row that a device may decline before it is asked for no more work.
const DECLINES_MAX: u32 = 12;
/// Pause before the challenge of a device whose name changes again and again.
const RENAME_PAUSE: Duration = Duration::from_secs(10);

/// Types of gate, up and down.
pub(super) type Types = [BlockType; 3];

/// A question whose answer is awaited.
pub(super) struct Question {
    /// Which challenge it is of.
    pub(super) challenge: u64,
    pub(super) layer: u16,
    pub(super) dispatch: Dispatch,
}

pub(super) struct Open {
    /// Its number.
    pub(super) challenge: u64,
    pub(super) questions: HashMap<u64, Question>,
    /// Questions that are not answered rightly yet.
    pub(super) left: usize,
    pub(super) types: Vec<Types>,
    pub(super) sent: Instant,
}

#[derive(Default)]
pub(super) struct State {
    /// As it was offered last.
    pub(super) device: String,
    /// What the device has passed.
    pub(super) proven: Vec<Types>,
    pub(super) open: Option<Open>,
    /// When a device that has passed is asked again.
    pub(super) again: Option<Instant>,
    /// Nothing is asked before this moment.
    pub(super) not_before: Option<Instant>,
    /// When it was last called otherwise.
    pub(super) named: Option<Instant>,
    /// A challenge was left unanswered, and none was passed since.
    pub(super) overdue: bool,
    /// Challenges that it declined, one after the other.
    pub(super) declined: u32,
}

/// Whether a session's device may be asked for work.
#[derive(Default)]
pub(in crate::dispatch) struct Proof {
    pub(super) holds: AtomicBool,
    pub(super) state: Mutex<State>,
}

impl Proof {
    /// Whether it may.
    pub(in crate::dispatch) fn holds(&self) -> bool {
        self.holds.load(Relaxed)
    }

    /// A proof that needs no challenge.
    #[cfg(test)]
    pub(in crate::dispatch) fn granted(&self) {
        self.holds.store(true, Relaxed);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device is called `device`; another name than before proves nothing. Whether a proof is lost by it.
    pub(super) fn named(&self, device: &str) -> bool {
        let mut state = self.state();
        if state.device == device {
            return false;
        }
        // Whoever changes its name waits: else every new name would buy a challenge, and the backbone's time.
        let not_before = state.named.map(|at| at + RENAME_PAUSE).filter(|moment| *moment > Instant::now());
        *state = State { device: device.to_owned(), named: Some(Instant::now()), not_before, ..State::default() };
        self.holds.swap(false, Relaxed)
    }

    /// Notes a challenge that is about to be sent; `false` when another one is open already.
    pub(super) fn opens(&self, open: Open) -> bool {
        let mut state = self.state();
        let is_first = state.open.is_none();
        if is_first {
            state.open = Some(open);
        }
        is_first
    }

    /// Notes a right answer; whether it was the last one that the device owed.
    pub(super) fn answered(&self, challenge: u64, again: Instant) -> bool {
        let mut state = self.state();
        // It may belong to a challenge that another one has taken the place of.
        let Some(open) = state.open.as_mut().filter(|open| open.challenge == challenge) else { return false };
        open.left -= 1;
        if open.left > 0 {
            return false;
        }
        let passed = state.open.take().map(|open| open.types).unwrap_or_default();
        for types in passed {
            if !state.proven.contains(&types) {
                state.proven.push(types);
            }
        }
        (state.again, state.declined, state.overdue) = (Some(again), 0, false);
        true
    }

    /// Gives the open challenge up; another one follows after a pause, which grows with every time.
    pub(super) fn put_off(&self) {
        let mut state = self.state();
        (state.open, state.not_before) = (None, Some(Instant::now() + RETRY * (1 + state.declined).min(30)));
    }

    /// Whether it was asked so often in vain that its proof holds no longer.
    pub(super) fn is_evaded(&self) -> bool {
        self.state().declined >= DECLINES_MAX
    }

    /// Whether the open challenge has become late just now. It is given up, and another one follows: what was lost on
    /// the way must not keep a worker from work for ever.
    pub(super) fn is_late(&self, patience: Duration) -> bool {
        let mut state = self.state();
        let is_late = state.open.as_ref().is_some_and(|open| open.sent.elapsed() >= patience);
        if is_late {
            (state.open, state.overdue) = (None, true);
        }
        is_late
    }
}
