//! The multi-token-prediction head: drafts the token after next from a hidden state and the next token.
//!
//! Row t reads the trunk's state of token t behind the final norm and the embedding of token t + 1, runs one attention
//! layer with experts over its own cache, and predicts token t + 2. A second draft reads, in place of the trunk's
//! state, what the head gave for the first ([`Draft::hidden`]), and the drafted token.
//!
//! Drafts never decide anything: the trunk does. The head's experts are those of the layer behind the trunk's last.

use super::buffers::Buffers;
use super::rows::{Rows, rms_norm};
use super::sequence::{KvCache, Span};
use super::step::{ForwardError, Reach, Served, StepOutput, Want};
use super::{Backbone, Layer, Mixer, parallel};
use crate::kernel::float::{Dense, Residency};
use crate::kernel::quant::dequantise;
use crate::model::{HyperParameters, Matrix, MtpWeights, Weights};
use crate::types::GenerationId;

/// The head, ready to run.
pub(super) struct Mtp {
    embedding: Matrix,
    embedding_norm: Vec<f32>,
    hidden_norm: Vec<f32>,
    projection: Dense,
    layer: Layer,
    final_norm: Vec<f32>,
    /// `None`: the trunk's.
    head: Option<Dense>,
}

/// What the head remembers of one sequence: keys and values of the rows that it has seen.
#[derive(Clone, Debug)]
pub struct DraftState {
    position: usize,
    head_dim: usize,
    cache: KvCache,
}

impl DraftState {
    /// Rows seen.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets all rows from `position` on: those of drafts that the trunk did not confirm.
    pub fn truncate(&mut self, position: usize) {
        self.position = self.position.min(position);
        self.cache.truncate(self.position, self.head_dim);
    }
}

/// What the head gave.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Draft {
    /// `[rows, hidden]`: every row behind the head's final norm, which the next draft reads.
    pub hidden: Rows,
    /// The rows of logits that were asked for, `[rows, vocab]`.
    pub logits: Rows,
}

impl Mtp {
    pub fn new(mtp: &MtpWeights, trunk: &Weights, hyper: &HyperParameters, residency: Residency) -> Option<Self> {
        let own_head = !mtp.head.is_same(&trunk.head);
        Some(Self {
            embedding: mtp.embedding.clone(),
            embedding_norm: mtp.embedding_norm.clone(),
            hidden_norm: mtp.hidden_norm.clone(),
            projection: Dense::new(&mtp.projection, residency),
            layer: Layer::new(&mtp.layer, hyper, residency)?,
            final_norm: mtp.final_norm.clone(),
            head: own_head.then(|| Dense::new(&mtp.head, residency)),
        })
    }
}

impl Backbone {
    /// The head's state before the first row of a sequence; `None` when the model has no head.
    #[must_use]
    pub fn draft_state(&self) -> Option<DraftState> {
        let (hyper, position) = (self.hyper(), 0);
        let state = || DraftState { position, head_dim: hyper.head_dim, cache: KvCache::with_room(hyper, 0) };
        self.mtp.as_ref().map(|_| state())
    }

    /// Runs the head over `next.len()` rows that follow those of `state`: row i of `hidden` is the state of a token
    /// behind the trunk's final norm ([`Backbone::step_with_hidden`]) or of an earlier draft, `next[i]` the token after
    /// it. The logits are those of the token after `next[i]`.
    ///
    /// # Errors
    /// A model without a head, no or unknown tokens, other hidden states than tokens, a full context, or routed experts
    /// that could not be computed; after the last the state must not be used again.
    pub async fn draft(
        &self,
        state: &mut DraftState,
        hidden: &Rows,
        next: &[u32],
        want: Want,
        reach: Reach,
    ) -> Result<Draft, ForwardError> {
        let Some((mtp, Mixer::Attention(mixer))) = self.mtp.as_ref().map(|mtp| (mtp, &mtp.layer.mixer)) else {
            return Err(ForwardError::NoHead);
        };
        self.check_room(state.position, next)?;
        let (eps, width) = (self.hyper().rms_eps, self.hyper().hidden_size);
        if (hidden.len(), hidden.width()) != (next.len(), width) {
            return Err(ForwardError::Hidden { expected: [next.len(), width], got: [hidden.len(), hidden.width()] });
        }

        let mut buffers = self.buffers.lend();
        let span = Span { first: 0, rows: next.len(), position: state.position };
        buffers.spans.clear();
        buffers.spans.push(span);
        buffers.reach.clear();
        buffers.reach.push(reach);
        // A draft decides nothing, so nobody is told when a false partial was in it.
        buffers.generations.clear();
        buffers.generations.push(GenerationId::default());
        let Buffers { x, input, update, pairs, attention, .. } = &mut *buffers;
        pairs.reshape(next.len(), 2 * width);
        parallel::rows(4 * pairs.values().len(), pairs.values_mut(), 2 * width, |r, pair| {
            let (embedding, state) = pair.split_at_mut(width);
            dequantise(mtp.embedding.ty, mtp.embedding.row(next[r] as usize), embedding);
            rms_norm(embedding, &mtp.embedding_norm, eps);
            state.copy_from_slice(hidden.row(r));
            rms_norm(state, &mtp.hidden_norm, eps);
        });
        pairs.times_into(&mtp.projection, x);
        x.normed_into(&mtp.layer.input_norm, eps, input);
        mixer.forward(input, &mut [(span, &mut state.cache)], &self.rope, attention, update);
        x.add(update);
        state.position += next.len();
        let mut output = StepOutput { served: vec![Served::default()], ..StepOutput::default() };
        self.experts(&mtp.layer, self.layers.len() as u16, &mut buffers, &mut output).await?;

        let mut draft = Draft::default();
        buffers.x.normed_into(&mtp.final_norm, eps, &mut draft.hidden);
        let head = mtp.head.as_ref().unwrap_or(&self.head);
        match want {
            Want::Nothing => {}
            Want::Last => draft.hidden.last().times_into(head, &mut draft.logits),
            Want::Every => draft.hidden.times_into(head, &mut draft.logits),
        }
        Ok(draft)
    }
}
