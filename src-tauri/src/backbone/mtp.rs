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
use super::step::{ExpertTimes, ForwardError, Reach, Want, logits_of};
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

/// One sequence's rows of a pass of the head.
#[derive(Debug)]
pub struct DraftShare<'a> {
    /// The rows seen before; it moves past these.
    pub state: &'a mut DraftState,
    /// Row i: the state of a token behind the trunk's final norm ([`Backbone::step_with_hidden`]) or of an earlier
    /// draft.
    pub hidden: &'a Rows,
    /// The token after each row.
    pub next: &'a [u32],
    /// The logits that are asked for: those of the token after `next[i]`.
    pub want: Want,
    /// Where its hidden states may go.
    pub reach: Reach,
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
        self.draft_state_with_room(0)
    }

    /// The same, with the memory of its first `rows` rows taken at once.
    pub(super) fn draft_state_with_room(&self, rows: usize) -> Option<DraftState> {
        let (hyper, position) = (self.hyper(), 0);
        let state = || DraftState { position, head_dim: hyper.head_dim, cache: KvCache::with_room(hyper, rows) };
        self.mtp.as_ref().map(|_| state())
    }

    /// Runs the head over the rows of one sequence; see [`DraftShare`].
    ///
    /// # Errors
    /// As [`Backbone::draft_all`].
    pub async fn draft(
        &self,
        state: &mut DraftState,
        hidden: &Rows,
        next: &[u32],
        want: Want,
        reach: Reach,
    ) -> Result<Draft, ForwardError> {
        let mut drafts = self.draft_all(&mut [DraftShare { state, hidden, next, want, reach }]).await?;
        Ok(drafts.pop().unwrap_or_default())
    }

    /// Runs the head over the rows of many sequences together.
    ///
    /// # Errors
    /// A model without a head, no or unknown tokens, other hidden states than tokens, a full context, or routed experts
    /// that could not be computed; after the last the states must not be used again.
    pub async fn draft_all(&self, shares: &mut [DraftShare<'_>]) -> Result<Vec<Draft>, ForwardError> {
        let Some((mtp, Mixer::Attention(mixer))) = self.mtp.as_ref().map(|mtp| (mtp, &mtp.layer.mixer)) else {
            return Err(ForwardError::NoHead);
        };
        let (eps, width) = (self.hyper().rms_eps, self.hyper().hidden_size);
        for DraftShare { state, hidden, next, .. } in shares.iter() {
            self.check_room(state.position, next)?;
            if (hidden.len(), hidden.width()) != (next.len(), width) {
                return Err(ForwardError::Hidden {
                    expected: [next.len(), width],
                    got: [hidden.len(), hidden.width()],
                });
            }
        }

        let mut buffers = self.buffers.lend(shares.iter().map(|share| share.next.len()).sum());
        let Buffers { tokens, spans, reach, generations, lost, x, input, update, pairs, attention, .. } = &mut *buffers;
        tokens.clear();
        spans.clear();
        reach.clear();
        input.reshape(0, width);
        for share in shares.iter() {
            let (first, rows, position) = (tokens.len(), share.next.len(), share.state.position);
            spans.push(Span { first, rows, position, drafts: 0 });
            reach.push(share.reach);
            tokens.extend_from_slice(share.next);
            input.append(width, share.hidden.values());
        }
        // A draft decides nothing, so nobody is told when a false partial was in it.
        generations.clear();
        generations.resize(shares.len(), GenerationId::default());
        lost.clear();
        lost.resize(shares.len(), None);
        pairs.reshape(tokens.len(), 2 * width);
        parallel::rows(4 * pairs.values().len(), pairs.values_mut(), 2 * width, |r, pair| {
            let (embedding, state) = pair.split_at_mut(width);
            dequantise(mtp.embedding.ty, mtp.embedding.row(tokens[r] as usize), embedding);
            rms_norm(embedding, &mtp.embedding_norm, eps);
            state.copy_from_slice(input.row(r));
            rms_norm(state, &mtp.hidden_norm, eps);
        });
        pairs.times_into(&mtp.projection, x);
        x.normed_into(&mtp.layer.input_norm, eps, input);
        let caches = spans.iter().zip(shares.iter_mut()).map(|(span, share)| (*span, &mut share.state.cache));
        mixer.forward(input, &mut caches.collect::<Vec<_>>(), &self.rope, attention, update);
        x.add(update);
        shares.iter_mut().for_each(|share| share.state.position += share.next.len());
        let left = self.hand_over(&mtp.layer, self.layers.len() as u16, &mut buffers);
        self.come_home(left, &mut buffers, &mut ExpertTimes::default(), &mut []).await?;
        if let Some(error) = buffers.lost.iter_mut().find_map(Option::take) {
            return Err(ForwardError::Lost(error));
        }

        let Buffers { x, input, update, spans, .. } = &mut *buffers;
        x.normed_into(&mtp.final_norm, eps, input);
        let wanted = shares.iter().zip(spans.iter()).map(|(share, span)| share.want.rows(span));
        update.pick_from(input, wanted.clone().flatten());
        let head = mtp.head.as_ref().unwrap_or(&self.head);
        let logits = logits_of(head, update, wanted.map(|rows| rows.len()));
        let drafts = spans.iter().zip(logits).map(|(span, logits)| {
            let mut hidden = Rows::default();
            hidden.pick_from(input, span.first..span.first + span.rows);
            Draft { hidden, logits }
        });
        Ok(drafts.collect())
    }
}
