//! The memory that steps compute in, kept for the next step.
//!
//! Several steps may run at once: each borrows buffers of its own, and the lock is held only to take them and to put
//! them back. **Promise:** as many are large as there were large steps at once, and none stays larger than a chunk of a
//! prompt needs.

use super::PREFILL_TOKENS;
use super::attention::AttentionBuffers;
use super::delta_net::DeltaNetBuffers;
use super::rows::Rows;
use super::sequence::Span;
use super::shared::SharedBuffers;
use super::step::{Reach, Share};
use crate::dispatch::DispatchError;
use crate::types::GenerationId;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of buffers that are kept: those of a chunk, which memory that grows by doubling may hold twice.
const ROWS_KEPT_MAX: usize = 2 * PREFILL_TOKENS;

/// What one step computes in.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// The step's tokens, all sequences.
    pub tokens: Vec<u32>,
    /// The rows of each sequence.
    pub spans: Vec<Span>,
    /// Where the hidden states of each sequence may go.
    pub reach: Vec<Reach>,
    /// Whose each sequence is.
    pub generations: Vec<GenerationId>,
    /// Why the routed experts of a sequence were not computed, for those that are lost.
    pub lost: Vec<Option<Arc<DispatchError>>>,
    /// The hidden states.
    pub x: Rows,
    /// What a mixer or the experts read: `x`, normed.
    pub input: Rows,
    /// What a mixer adds to `x`.
    pub update: Rows,
    /// The MTP head's embeddings beside its hidden states.
    pub pairs: Rows,
    pub probabilities: Rows,
    pub attention: AttentionBuffers,
    pub delta_net: DeltaNetBuffers,
    pub shared: SharedBuffers,
}

impl Buffers {
    /// For rows of `shares`, as `spans` tells them apart.
    pub fn begin(&mut self, shares: &[Share<'_>], spans: Vec<Span>) {
        self.spans = spans;
        self.reach.clear();
        self.reach.extend(shares.iter().map(|share| share.reach));
        self.generations.clear();
        self.generations.extend(shares.iter().map(|share| share.sequence.generation));
        self.lost.clear();
        self.lost.resize(shares.len(), None);
    }

    /// Rows that they can take through a layer without growing.
    fn room(&self) -> usize {
        self.update.room()
    }

    fn is_kept(&self) -> bool {
        [&self.x, &self.input, &self.update].iter().all(|rows| rows.room() <= ROWS_KEPT_MAX)
    }
}

/// Buffers that no step uses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<Buffers>>,
}

impl Pool {
    /// Buffers until the loan is dropped, for taking `rows` rows through layers: the smallest of those that have room for
    /// them, or else the largest; new ones when all others are in use.
    pub fn lend(&self, rows: usize) -> Loan<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = |room: usize| if room >= rows { (false, room) } else { (true, usize::MAX - room) };
        let best = (0..free.len()).min_by_key(|index| fit(free[*index].room()));
        let buffers = best.map(|index| free.swap_remove(index)).unwrap_or_default();
        Loan { buffers, pool: self }
    }
}

/// Buffers in use.
pub(super) struct Loan<'a> {
    buffers: Buffers,
    pool: &'a Pool,
}

impl Deref for Loan<'_> {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        &self.buffers
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        if buffers.is_kept() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of so many rows each, at once.
    fn steps(pool: &Pool, rows: &[usize]) {
        let mut loans: Vec<_> = rows.iter().map(|rows| pool.lend(*rows)).collect();
        loans.iter_mut().zip(rows).for_each(|(loan, rows)| loan.update.reshape(*rows, 3));
    }

    fn rooms(pool: &Pool) -> Vec<usize> {
        let mut rooms: Vec<_> = pool.free.lock().unwrap().iter().map(Buffers::room).collect();
        rooms.sort_unstable();
        rooms
    }

    #[test]
    fn small_steps_leave_the_large_buffers_to_large_ones() {
        let pool = Pool::default();
        steps(&pool, &[PREFILL_TOKENS, 4, 4]);
        for order in [[4, 4, PREFILL_TOKENS], [4, PREFILL_TOKENS, 4], [PREFILL_TOKENS, 4, 4]] {
            steps(&pool, &order);
            steps(&pool, &order[..2]);
            assert_eq!(rooms(&pool), [4, 4, PREFILL_TOKENS]);
        }
    }

    #[test]
    fn buffers_that_outgrew_a_chunk_are_not_kept() {
        let pool = Pool::default();
        steps(&pool, &[PREFILL_TOKENS, 8 * PREFILL_TOKENS]);
        assert_eq!(rooms(&pool), [PREFILL_TOKENS]);
    }
}
