//! Threads that share out the pieces of one computation.
//!
//! The caller works too: a request that is too small to be worth a wake-up never leaves its thread, and a large one
//! starts before the others are awake.

use std::sync::{Mutex, PoisonError};

/// Multiplications that take about as long as waking a thread.
const WORK_PER_THREAD: usize = 1 << 20;

/// A fixed number of threads, the caller included.
#[derive(Debug)]
pub(super) struct Crew {
    others: Option<rayon::ThreadPool>,
    threads: usize,
}

impl Crew {
    /// `threads` threads, the caller included.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let others = match threads.saturating_sub(1) {
            0 => None,
            n => Some(
                rayon::ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("kvasir-kernel-{i}")).build()?,
            ),
        };
        Ok(Self { others, threads: threads.max(1) })
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` once for every piece; `size` = multiplications of all pieces together. Each thread makes its own
    /// scratch space with `scratch`.
    pub fn each<T: Send, S>(
        &self,
        size: usize,
        pieces: &mut [T],
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, &mut T) + Sync,
    ) {
        let others = (size / WORK_PER_THREAD).min(self.threads - 1).min(pieces.len().saturating_sub(1));
        let queue = Mutex::new(pieces.iter_mut());
        let drain = || {
            let mut scratch = scratch();
            loop {
                // A poisoned queue means that another thread panicked; its panic is passed on by the scope. The lock
                // ends with this statement: as the condition of a loop it would last for the body and serialise it.
                let piece = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(piece) = piece else { return };
                work(&mut scratch, piece);
            }
        };
        match &self.others {
            Some(pool) if others > 0 => pool.in_place_scope(|scope| {
                (0..others).for_each(|_| scope.spawn(|_| drain()));
                drain();
            }),
            _ => drain(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_worked_on_at_the_same_time() {
        let crew = Crew::new(2).expect("threads");
        let both = std::sync::Barrier::new(2);
        // Passes only when two threads are inside at once.
        crew.each(usize::MAX, &mut [(), ()], || (), |(), ()| _ = both.wait());
    }

    #[test]
    fn every_piece_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let crew = Crew::new(threads).expect("threads");
            let mut pieces = vec![0u32; 1000];
            crew.each(usize::MAX, &mut pieces, || 1, |one, piece| *piece += *one);
            assert!(pieces.iter().all(|p| *p == 1));
        }
    }
}
