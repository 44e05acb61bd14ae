//! Threads that share out the pieces of one computation: one pool for the whole process.
//!
//! The caller works too: a request that is too small to be worth a wake-up never leaves its thread, and a large one
//! starts before the others are awake. A [`Crew`] owns no threads, it only says how many may work for it at once, so
//! that a backbone, its local experts and a worker in one process do not fight for the processor.

mod pool;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub use pool::NoThreads;

/// Multiplications that take about as long as handing a piece to a thread that is awake (2 µs).
const WORK_PER_THREAD: usize = 1 << 17;

/// Threads of [`Crew::all`]; 0 until somebody has asked or chosen.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// A number of threads, the caller included.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    threads: usize,
}

impl Crew {
    /// `threads` threads, the caller included (at least one).
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn new(threads: usize) -> Result<Self, NoThreads> {
        let threads = threads.max(1);
        pool::grow(threads - 1)?;
        Ok(Self { threads })
    }

    /// The threads that this process computes with: one per processor, or what [`Crew::choose`] said. Fewer where the
    /// operating system refuses them.
    #[must_use]
    pub fn all() -> Self {
        let threads = match ALL.load(Ordering::Relaxed) {
            0 => {
                let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                let threads = if pool::grow(threads - 1).is_ok() { threads } else { 1 };
                ALL.store(threads, Ordering::Relaxed);
                threads
            }
            threads => threads,
        };
        Self { threads }
    }

    /// From now on [`Crew::all`] has `threads` threads.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn choose(threads: usize) -> Result<(), NoThreads> {
        ALL.store(Self::new(threads)?.threads, Ordering::Relaxed);
        Ok(())
    }

    /// Threads, the caller included.
    #[must_use]
    pub fn threads(self) -> usize {
        self.threads
    }

    /// Calls `work` once for every piece; `size` = multiplications of all pieces together. Each thread makes its own
    /// scratch space with `scratch`. Pieces are handed out in order, to whoever is free.
    ///
    /// # Panics
    /// When `work` does, on whichever thread.
    pub fn each<I, S>(
        self,
        size: usize,
        pieces: I,
        scratch: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, I::Item) + Sync,
    ) where
        I: IntoIterator<IntoIter: Send>,
    {
        let pieces = pieces.into_iter();
        let most = pieces.size_hint().1.unwrap_or(usize::MAX).saturating_sub(1);
        let others = (size / WORK_PER_THREAD).min(self.threads - 1).min(most);
        if others == 0 {
            let mut scratch = scratch();
            return pieces.for_each(|piece| work(&mut scratch, piece));
        }
        let queue = Mutex::new(pieces);
        pool::run(others, &|| {
            let mut scratch = scratch();
            loop {
                // A poisoned queue means that another thread panicked; the pool passes its panic on. The lock ends
                // with this statement: as the condition of a loop it would last for the body and serialise it.
                let piece = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(piece) = piece else { return };
                work(&mut scratch, piece);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn pieces_are_worked_on_at_the_same_time() {
        let crew = Crew::new(2).expect("threads");
        let both = Barrier::new(2);
        // Passes only when two threads are inside at once. Others may have the pool's threads for a while.
        crew.each(usize::MAX, &mut [(), ()], || (), |(), ()| _ = both.wait());
    }

    #[test]
    fn every_piece_is_worked_on_once() {
        for threads in [0, 1, 3] {
            let crew = Crew::new(threads).expect("threads");
            for _ in 0..200 {
                let mut pieces = vec![0u32; 100];
                crew.each(usize::MAX, &mut pieces, || 1, |one, piece| *piece += *one);
                assert!(pieces.iter().all(|p| *p == 1));
            }
        }
    }

    #[test]
    fn many_callers_share_the_pool() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let crew = Crew::new(3).expect("threads");
                    for n in 0..100 {
                        let mut pieces: Vec<usize> = (0..n).collect();
                        crew.each(
                            usize::MAX,
                            &mut pieces,
                            || (),
                            |(), piece| {
                                // A computation inside a computation.
                                crew.each(usize::MAX, [1, 2], || (), |(), _| ());
                                *piece += 1;
                            },
                        );
                        assert!(pieces.into_iter().eq(1..=n));
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let crew = Crew::new(2).expect("threads");
        for bad in [0, 1] {
            let both = Barrier::new(2);
            let caught = std::panic::catch_unwind(|| {
                crew.each(
                    usize::MAX,
                    0..2,
                    || (),
                    |(), piece| {
                        both.wait();
                        assert_ne!(piece, bad, "as this test wants it");
                    },
                );
            });
            assert!(caught.is_err());
        }
        crew.each(usize::MAX, 0..10, || (), |(), _| ());
    }
}
