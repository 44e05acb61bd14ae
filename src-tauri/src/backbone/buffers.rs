//! The memory that steps compute in, kept for the next step.
//!
//! Several steps may run at once: each borrows buffers of its own, and the lock is held only to take them and to put
//! them back.

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
}

/// Buffers that no step uses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Mutex<Vec<Buffers>>,
}

impl Pool {
    /// Buffers until the loan is dropped; new ones when all others are in use.
    pub fn lend(&self) -> Loan<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan { buffers: free.unwrap_or_default(), pool: self }
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
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }
}
