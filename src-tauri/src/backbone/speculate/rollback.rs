//! Takes back what drafts that were wrong did to a sequence.
//!
//! Keys and values are cut off. Recurrent states cannot be cut, and a snapshot per draft would take 144 MiB of the 122B
//! model each. So a draft's row meets a copy of each head's matrix that lives in the cache of the core that computes
//! it, and leaves what it brings to the recurrence (1.7 MB per draft of that model); those that are accepted run once
//! more, without projections and experts, on the state itself.

use crate::backbone::sequence::{LayerState, Sequence};
use crate::backbone::{Backbone, Mixer};

impl Backbone {
    /// Moves `sequence` past the first `count` drafts of its last step ([`crate::backbone::Want::Drafts`]), all of them
    /// at most, and forgets the others. The state has the bits that steps of these tokens alone would have given it.
    pub fn accept(&self, sequence: &mut Sequence, count: usize) {
        let count = count.min(sequence.drafts);
        let (position, head_dim) = (sequence.position, self.hyper().head_dim);
        for (layer, state) in self.layers.iter().zip(&mut sequence.layers) {
            match (&layer.mixer, state) {
                (_, LayerState::Attention(cache)) => cache.truncate(position + count, head_dim),
                (Mixer::DeltaNet(mixer), LayerState::DeltaNet(state)) => {
                    mixer.accept(state, position, count);
                }
                (Mixer::Attention(_), LayerState::DeltaNet(_)) => {}
            }
        }
        sequence.position += count;
        sequence.drafts = 0;
    }
}
