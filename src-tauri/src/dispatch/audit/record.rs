//! What a session's work went into: its newest frames, to be looked at again, and the generations that used them.
//!
//! **Promise:** bounded in bytes and in entries, whatever a worker or a client does. Why digests and not the answers:
//! an answer is four times its request, and equality is all that is asked of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::{Digest, GenerationId, Hex};
use crate::wire::work::{Activations, Dispatch, Partials};

/// Frames remembered of a session.
const FRAMES_MAX: usize = 32;
/// Their bytes.
const BYTES_MAX: usize = 128 << 10;
/// Generations remembered of a session.
const GENERATIONS_MAX: usize = 64;

/// A frame whose answer was used.
pub(in crate::dispatch) struct Used {
    /// Its request.
    pub request: u64,
    /// Its part.
    pub part: u16,
    /// Its layer.
    pub layer: u16,
    /// What was asked.
    pub dispatch: Dispatch,
    /// BLAKE3 of the answer's bytes.
    pub answer: Digest,
}

impl Used {
    fn bytes(&self) -> usize {
        bytes(&self.dispatch)
    }
}

/// BLAKE3 of an answer's bytes.
pub(in crate::dispatch) fn digest(partials: &Partials, hidden: usize) -> Digest {
    Hex(*blake3::hash(&partials.encode(hidden)).as_bytes())
}

/// Bytes that a request holds in memory, about.
pub(in crate::dispatch) fn bytes(dispatch: &Dispatch) -> usize {
    let activations = match &dispatch.activations {
        Activations::Exact(bytes) => bytes.len(),
        Activations::Float(values) => 4 * values.len(),
    };
    activations + 8 * dispatch.rows.len() + 6 * dispatch.assignments.len()
}

/// A generation and the requests whose answers it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) struct User {
    pub generation: GenerationId,
    pub first_request: u64,
    pub last_request: u64,
}

#[derive(Default)]
struct Pages {
    frames: VecDeque<Used>,
    bytes: usize,
    users: Vec<User>,
}

/// See the module.
#[derive(Default)]
pub(in crate::dispatch) struct Record(Mutex<Pages>);

impl Record {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a frame is small enough to be remembered. Float answers have no bits to compare.
    pub fn takes(dispatch: &Dispatch) -> bool {
        !dispatch.is_float() && bytes(dispatch) <= BYTES_MAX / 4
    }

    /// Notes who used an answer to `request`; of too many generations the one that is longest over goes.
    pub fn used_by(&self, generations: BTreeSet<GenerationId>, request: u64) {
        let users = &mut self.pages().users;
        for generation in generations {
            if let Some(user) = users.iter_mut().find(|user| user.generation == generation) {
                user.last_request = user.last_request.max(request);
                continue;
            }
            if users.len() >= GENERATIONS_MAX
                && let Some(oldest) = (0..users.len()).min_by_key(|i| users[*i].last_request)
            {
                users.swap_remove(oldest);
            }
            users.push(User { generation, first_request: request, last_request: request });
        }
    }

    /// Remembers a frame; the oldest make room.
    pub fn remember(&self, used: Used) {
        let pages = &mut *self.pages();
        pages.bytes += used.bytes();
        pages.frames.push_back(used);
        while pages.frames.len() > FRAMES_MAX || pages.bytes > BYTES_MAX {
            let Some(oldest) = pages.frames.pop_front() else { break };
            pages.bytes -= oldest.bytes();
        }
    }

    /// Takes the remembered frames, oldest first.
    pub fn take_frames(&self) -> Vec<Used> {
        let mut pages = self.pages();
        pages.bytes = 0;
        pages.frames.drain(..).collect()
    }

    /// The remembered generations, by number.
    pub fn users(&self) -> Vec<User> {
        let mut users = self.pages().users.clone();
        users.sort_by_key(|user| user.generation);
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::work::RowHead;

    fn used(request: u64, bytes: usize) -> Used {
        let dispatch = Dispatch {
            lease: 1,
            deadline_ms: 1,
            hidden: 32,
            rows: vec![RowHead { grid: 0, count: 0, first: 0 }],
            activations: Activations::Exact(vec![0; bytes].into()),
            assignments: Vec::new(),
        };
        Used { request, part: 0, layer: 0, dispatch, answer: Hex([0; 32]) }
    }

    #[test]
    fn the_newest_frames_are_kept_within_their_bounds() {
        let record = Record::default();
        (0..100).for_each(|request| record.remember(used(request, 10)));
        let kept: Vec<u64> = record.take_frames().iter().map(|used| used.request).collect();
        assert_eq!(kept, (68..100).collect::<Vec<u64>>());
        (0..10).for_each(|request| record.remember(used(request, BYTES_MAX / 3)));
        assert_eq!(record.take_frames().len(), 2);
        assert!(!Record::takes(&used(0, BYTES_MAX).dispatch) && Record::takes(&used(0, 1_000).dispatch));
    }

    #[test]
    fn generations_are_kept_with_the_requests_they_used() {
        let record = Record::default();
        let one = |n: u64| BTreeSet::from([GenerationId(n)]);
        (0..2 * GENERATIONS_MAX as u64).for_each(|n| {
            record.used_by(one(n), n);
            record.used_by(one(0), n);
        });
        let users = record.users();
        assert_eq!(users.len(), GENERATIONS_MAX);
        assert_eq!(users[0], User { generation: GenerationId(0), first_request: 0, last_request: 127 });
        assert_eq!(users[1].generation, GenerationId(65));
    }
}
