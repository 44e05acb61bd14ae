//! One forward pass over rows of many sequences: a prompt's chunk beside the next token of everybody else.
//!
//! Before: tokens, and the state of the sequences that they continue. After: logits, and the states moved on. Dense
//! layers and experts run over all rows at once; attention and the delta rule run within each sequence.
//!
//! **Invariant:** a row's bits depend on the tokens of its own sequence alone, never on the rows beside it.

use super::Backbone;
use super::buffers::Buffers;
use super::parallel;
use super::parts::{self, Part};
use super::rows::Rows;
use super::sequence::{Sequence, Span};
use crate::dispatch::DispatchError;
use crate::kernel::float::Dense;
use crate::kernel::quant::dequantise;
use crate::model::Matrix;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Work of dequantising one weight, in multiply-adds.
const DEQUANTISE_WORK: usize = 4;

/// Rows of logits that a step is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// None: more of the prompt follows.
    Nothing,
    /// The last row's: what comes next.
    Last,
    /// Every row's.
    Every,
    /// Every row's. All rows but the first are drafts: the sequence moves past the first alone, and past as many of the
    /// others as [`Backbone::accept`] says; the next step forgets them.
    Drafts,
}

impl Want {
    /// The rows of a share whose logits are asked for.
    pub(super) fn rows(self, span: &Span) -> Range<usize> {
        let end = span.first + span.rows;
        match self {
            Self::Nothing => end..end,
            Self::Last => end - 1..end,
            Self::Every | Self::Drafts => span.first..end,
        }
    }
}

/// How far the hidden states of a sequence may travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// To whoever holds an expert.
    #[default]
    Any,
    /// To workers of wallets that the operator trusts.
    Trusted,
    /// Not out of this machine.
    Local,
}

/// One sequence's share of a step.
#[derive(Debug)]
pub struct Share<'a> {
    /// What was seen before; it moves past `tokens`.
    pub sequence: &'a mut Sequence,
    /// The tokens that follow.
    pub tokens: &'a [u32],
    /// The logits that are asked for.
    pub want: Want,
    /// Where its hidden states may go.
    pub reach: Reach,
}

/// Assignments of a share, by who computed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Workers, accepted.
    pub remote: u64,
    /// This machine.
    pub local: u64,
}

/// What a step gave.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// Per share: the rows of logits that it wanted, `[rows, vocab]`.
    pub logits: Vec<Rows>,
    /// Per share.
    pub served: Vec<Served>,
    /// What its routed experts took.
    pub experts: ExpertTimes,
    /// Per share: why nobody could compute its routed experts, while those of other shares were; its logits and its state
    /// mean nothing. Only [`Backbone::step_in_parts`] gives such shares; elsewhere they fail the step.
    pub lost: Vec<Option<Arc<DispatchError>>>,
}

/// Where the time of routed experts went, all layers and parts of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpertTimes {
    /// What nothing else of the step filled: computing them here, or waiting for them.
    pub waited: Duration,
    /// In which workers had them, whatever was computed meanwhile.
    pub away: Duration,
    /// The part of the wait in which other threads of this machine computed them.
    pub here: Duration,
}

/// Why a step cannot be computed. After a failure of the routed experts its sequences are lost; the other reasons are
/// found before any of them is touched.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// No tokens.
    #[error("expected at least one token, got none")]
    Empty,
    /// A token that the model does not know.
    #[error("expected a token below {vocab}, got {token}")]
    Token {
        /// Size of the vocabulary.
        vocab: usize,
        /// The token.
        token: u32,
    },
    /// More tokens than the model's context holds.
    #[error("expected at most {limit} tokens of context, got {needed}")]
    Context {
        /// The model's limit.
        limit: usize,
        /// Tokens before and in this step.
        needed: usize,
    },
    /// The state of another model.
    #[error("expected the state of {expected} layers of this model, got another")]
    State {
        /// Layers.
        expected: usize,
    },
    /// A draft of a model that has no MTP head.
    #[error("expected a model with an MTP head, got one without: do not ask it for drafts")]
    NoHead,
    /// A draft over hidden states of another shape than its tokens imply.
    #[error("expected hidden states of {expected:?} (rows, width), got {got:?}")]
    Hidden {
        /// Rows and width.
        expected: [usize; 2],
        /// Rows and width.
        got: [usize; 2],
    },
    /// The routed experts failed.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// Those of one sequence did.
    #[error(transparent)]
    Lost(Arc<DispatchError>),
}

impl ForwardError {
    /// Whether the reason is that nobody may or can compute an expert.
    #[must_use]
    pub fn has_no_holder(&self) -> bool {
        let error = match self {
            Self::Dispatch(error) => error,
            Self::Lost(error) => error,
            _ => return false,
        };
        matches!(error, DispatchError::NoHolder { .. })
    }
}

/// The output of a step all of whose shares were computed.
fn whole(output: StepOutput) -> Result<StepOutput, ForwardError> {
    match output.lost.iter().flatten().next() {
        Some(error) => Err(ForwardError::Lost(Arc::clone(error))),
        None => Ok(output),
    }
}

/// Logits of normed rows, cut into as many per share as `counts` says.
pub(super) fn logits_of(head: &Dense, normed: &Rows, counts: impl ExactSizeIterator<Item = usize>) -> Vec<Rows> {
    let mut all = Rows::default();
    if !normed.is_empty() {
        normed.times_into(head, &mut all);
    }
    if counts.len() == 1 {
        return vec![all];
    }
    let mut next = 0;
    let cut = counts.map(|count| {
        let mut rows = Rows::default();
        rows.pick_from(&all, next..next + count);
        next += count;
        rows
    });
    cut.collect()
}

impl Backbone {
    /// Runs all of `shares` through the model together.
    ///
    /// # Errors
    /// An unknown token, a full context, or routed experts that could not be computed.
    pub async fn step(&self, shares: &mut [Share<'_>]) -> Result<StepOutput, ForwardError> {
        whole(self.step_in_parts(shares, 1, None).await?)
    }

    /// As [`Backbone::step`], and leaves in `hidden` what every row became behind the final norm, in the order of
    /// `shares`: what the MTP head reads ([`Backbone::draft`]).
    ///
    /// # Errors
    /// As [`Backbone::step`].
    pub async fn step_with_hidden(
        &self,
        shares: &mut [Share<'_>],
        hidden: &mut Rows,
    ) -> Result<StepOutput, ForwardError> {
        whole(self.step_in_parts(shares, 1, Some(hidden)).await?)
    }

    /// As [`Backbone::step`], cut into at most `parts` parts that wait for their routed experts beside each other: for
    /// prompts whose experts are far away. No bit depends on it. With `hidden`, as [`Backbone::step_with_hidden`].
    ///
    /// # Errors
    /// As [`Backbone::step`].
    pub async fn step_in_parts(
        &self,
        shares: &mut [Share<'_>],
        parts: usize,
        hidden: Option<&mut Rows>,
    ) -> Result<StepOutput, ForwardError> {
        if shares.is_empty() {
            return Ok(StepOutput::default());
        }
        // The parts go through the layers, each in buffers of its own.
        let mut buffers = self.buffers.lend(0);
        let Buffers { tokens, spans, .. } = &mut *buffers;
        tokens.clear();
        spans.clear();
        for share in shares.iter() {
            self.check_tokens(share.sequence, share.tokens)?;
            let rows = share.tokens.len();
            let drafts = if share.want == Want::Drafts { rows - 1 } else { 0 };
            spans.push(Span { first: tokens.len(), rows, position: share.sequence.position, drafts });
            tokens.extend_from_slice(share.tokens);
        }
        shares.iter_mut().filter(|share| share.sequence.drafts > 0).for_each(|share| self.accept(share.sequence, 0));
        let (served, lost) = (vec![Served::default(); shares.len()], vec![None; shares.len()]);
        let mut output = StepOutput { served, lost, ..StepOutput::default() };
        let mut parts = self.parts(shares, &buffers, parts);
        for layer in 0..self.layers.len() {
            for part in &mut parts {
                self.finish_layer(part, &mut output).await?;
                part.left = Some(self.leave(layer, &mut shares[part.shares.clone()], &mut part.buffers)?);
            }
        }
        let Buffers { x, input, spans, .. } = &mut *buffers;
        x.reshape(0, self.hyper().hidden_size);
        for part in &mut parts {
            self.finish_layer(part, &mut output).await?;
            x.append(self.hyper().hidden_size, part.buffers.x.values());
        }
        drop(parts);

        let eps = self.hyper().rms_eps;
        for (share, span) in shares.iter_mut().zip(spans.iter()) {
            share.sequence.position += span.sure();
            share.sequence.drafts = span.drafts;
        }
        if let Some(hidden) = hidden {
            x.normed_into(&self.model.weights.final_norm, eps, hidden);
        }
        let wanted = shares.iter().zip(spans.iter()).map(|(share, span)| share.want.rows(span));
        input.pick_from(x, wanted.clone().flatten());
        input.normed_into(&self.model.weights.final_norm, eps, x);
        output.logits = logits_of(&self.head, x, wanted.map(|rows| rows.len()));
        Ok(output)
    }

    /// The parts of a step in buffers of their own, before the first layer.
    fn parts(&self, shares: &[Share<'_>], whole: &Buffers, most: usize) -> Vec<Part<'_>> {
        let mut tokens = whole.tokens.as_slice();
        let part = |(range, spans): parts::Cut| {
            let rows = spans.iter().map(|span| span.rows).sum();
            let (mut buffers, own) = (self.buffers.lend(rows), &tokens[..rows]);
            tokens = &tokens[rows..];
            buffers.begin(&shares[range.clone()], spans);
            self.embed_into(own, &self.model.weights.embedding, &mut buffers.x);
            Part { buffers, shares: range, left: None }
        };
        parts::cut(&whole.spans, most).into_iter().map(part).collect()
    }

    /// Waits for the routed experts of the layer that a part has left, if it has left one.
    async fn finish_layer(&self, part: &mut Part<'_>, output: &mut StepOutput) -> Result<(), ForwardError> {
        let Some(left) = part.left.take() else { return Ok(()) };
        let served = &mut output.served[part.shares.clone()];
        self.come_home(left, &mut part.buffers, &mut output.experts, served).await?;
        for (all, lost) in output.lost[part.shares.clone()].iter_mut().zip(&part.buffers.lost) {
            *all = all.take().or_else(|| lost.clone());
        }
        Ok(())
    }

    /// Logits after `tokens`, which follow what `sequence` has seen.
    ///
    /// # Errors
    /// As [`Backbone::step`].
    pub async fn forward(&self, sequence: &mut Sequence, tokens: &[u32], want: Want) -> Result<Rows, ForwardError> {
        let mut output = self.step(&mut [Share { sequence, tokens, want, reach: Reach::Any }]).await?;
        Ok(output.logits.pop().unwrap_or_default())
    }

    /// One decoder layer of one sequence: `x + mixer(norm x)`, then `x + experts(norm x)`.
    ///
    /// # Errors
    /// Routed experts that could not be computed.
    pub async fn layer(&self, index: usize, x: Rows, sequence: &mut Sequence) -> Result<Rows, ForwardError> {
        let mut buffers = self.buffers.lend(x.len());
        let span = Span { first: 0, rows: x.len(), position: sequence.position, drafts: 0 };
        let mut share = [Share { sequence, tokens: &[], want: Want::Nothing, reach: Reach::Any }];
        buffers.begin(&share, vec![span]);
        buffers.x = x;
        let left = self.leave(index, &mut share, &mut buffers)?;
        self.come_home(left, &mut buffers, &mut ExpertTimes::default(), &mut []).await?;
        Ok(std::mem::take(&mut buffers.x))
    }

    /// The tokens' embeddings: what enters the first layer.
    ///
    /// # Errors
    /// As [`Backbone::check_tokens`].
    pub fn embed(&self, sequence: &Sequence, tokens: &[u32]) -> Result<Rows, ForwardError> {
        self.check_tokens(sequence, tokens)?;
        let mut x = Rows::default();
        self.embed_into(tokens, &self.model.weights.embedding, &mut x);
        Ok(x)
    }

    pub(super) fn embed_into(&self, tokens: &[u32], embedding: &Matrix, x: &mut Rows) {
        x.reshape(tokens.len(), embedding.cols);
        parallel::rows(DEQUANTISE_WORK * x.values().len(), x.values_mut(), embedding.cols, |r, row| {
            dequantise(embedding.ty, embedding.row(tokens[r] as usize), row);
        });
    }

    /// Whether `tokens` can follow what `sequence` has seen.
    ///
    /// # Errors
    /// No token, an unknown one, more than the context holds, or the state of another model.
    pub fn check_tokens(&self, sequence: &Sequence, tokens: &[u32]) -> Result<(), ForwardError> {
        if sequence.layers.len() != self.layers.len() {
            return Err(ForwardError::State { expected: self.layers.len() });
        }
        self.check_room(sequence.position, tokens)
    }

    /// Whether `prompt` can begin a sequence.
    ///
    /// # Errors
    /// No token, an unknown one, or more than the context holds.
    pub fn check_prompt(&self, prompt: &[u32]) -> Result<(), ForwardError> {
        self.check_room(0, prompt)
    }

    pub(super) fn check_room(&self, position: usize, tokens: &[u32]) -> Result<(), ForwardError> {
        let (vocab, limit) = (self.model.weights.embedding.rows, self.hyper().context_length);
        let needed = position + tokens.len();
        match tokens.iter().find(|token| **token as usize >= vocab) {
            _ if tokens.is_empty() => Err(ForwardError::Empty),
            _ if needed > limit => Err(ForwardError::Context { limit, needed }),
            Some(token) => Err(ForwardError::Token { vocab, token: *token }),
            None => Ok(()),
        }
    }

    /// Logits of every row of `x`, what left the last layer.
    #[must_use]
    pub fn logits(&self, x: &Rows) -> Rows {
        let (mut normed, mut logits) = (Rows::default(), Rows::default());
        x.normed_into(&self.model.weights.final_norm, self.hyper().rms_eps, &mut normed);
        normed.times_into(&self.head, &mut logits);
        logits
    }
}
