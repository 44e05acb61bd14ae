//! One forward pass over rows of many sequences: a prompt's chunk beside the next token of everybody else.
//!
//! Before: tokens, and the state of the sequences that they continue. After: logits, and the states moved on. Dense
//! layers and experts run over all rows at once; attention and the delta rule run within each sequence.
//!
//! **Invariant:** a row's bits depend on the tokens of its own sequence alone, never on the rows beside it.

use super::combine::combine;
use super::rows::Rows;
use super::sequence::{LayerState, Sequence, Span};
use super::{Backbone, Mixer, PREFILL_TOKENS};
use crate::dispatch::{DispatchError, MoeStep, Pending, Route, StepSums};
use crate::kernel::quant::dequantise;
use crate::types::GenerationId;
use std::time::{Duration, Instant};
use tokio::task::yield_now;

/// Rows of logits that a step is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// None: more of the prompt follows.
    Nothing,
    /// The last row's: what comes next.
    Last,
    /// Every row's.
    Every,
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
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepOutput {
    /// Per share: the rows of logits that it wanted, `[rows, vocab]`.
    pub logits: Vec<Rows>,
    /// Per share.
    pub served: Vec<Served>,
    /// Time spent on routed experts that nothing else filled: computing them here, or waiting for them.
    pub experts: Duration,
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
    /// The routed experts failed.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
}

impl Backbone {
    /// Runs all of `shares` through the model together.
    ///
    /// # Errors
    /// An unknown token, a full context, or routed experts that could not be computed.
    pub async fn step(&self, shares: &mut [Share<'_>]) -> Result<StepOutput, ForwardError> {
        let mut spans = Vec::with_capacity(shares.len());
        let mut tokens = Vec::new();
        for share in shares.iter() {
            self.check_tokens(share.sequence, share.tokens)?;
            spans.push(Span { first: tokens.len(), rows: share.tokens.len(), position: share.sequence.position });
            tokens.extend_from_slice(share.tokens);
        }
        let mut output = StepOutput { served: vec![Served::default(); shares.len()], ..StepOutput::default() };
        let mut x = self.embeddings(&tokens);
        for layer in 0..self.layers.len() {
            x = self.layer_of(layer, x, shares, &spans, &mut output).await?;
        }

        let mut wanted = Vec::new();
        for (share, span) in shares.iter_mut().zip(&spans) {
            share.sequence.position += span.rows;
            wanted.push(match share.want {
                Want::Nothing => 0..0,
                Want::Last => span.first + span.rows - 1..span.first + span.rows,
                Want::Every => span.first..span.first + span.rows,
            });
        }
        let asked: Vec<usize> = wanted.iter().cloned().flatten().collect();
        let logits = if asked.is_empty() { Rows::zeros(0, 1) } else { self.logits(&x.pick(&asked)) };
        let mut next = 0;
        for rows in wanted {
            let which: Vec<usize> = (next..next + rows.len()).collect();
            output.logits.push(logits.pick(&which));
            next += rows.len();
        }
        Ok(output)
    }

    /// Logits after `tokens`, which follow what `sequence` has seen.
    ///
    /// # Errors
    /// As [`Backbone::step`].
    pub async fn forward(&self, sequence: &mut Sequence, tokens: &[u32], want: Want) -> Result<Rows, ForwardError> {
        let mut output = self.step(&mut [Share { sequence, tokens, want, reach: Reach::Any }]).await?;
        Ok(output.logits.pop().unwrap_or_else(|| Rows::zeros(0, 1)))
    }

    /// Runs `prompt` and returns the logits of its last row, `[1, vocab]`.
    ///
    /// # Errors
    /// As [`Backbone::step`]; a prompt longer than the context fails before any work.
    pub async fn prefill(&self, sequence: &mut Sequence, prompt: &[u32]) -> Result<Rows, ForwardError> {
        self.check_tokens(sequence, prompt)?;
        let mut logits = Rows::zeros(0, 1);
        for tokens in prompt.chunks(PREFILL_TOKENS) {
            logits = self.forward(sequence, tokens, Want::Last).await?;
            // Local experts never wait: without this, whoever races the prefill against a stop would never be asked.
            yield_now().await;
        }
        Ok(logits)
    }

    /// One decoder layer of one sequence: `x + mixer(norm x)`, then `x + experts(norm x)`.
    ///
    /// # Errors
    /// Routed experts that could not be computed.
    pub async fn layer(&self, index: usize, x: Rows, sequence: &mut Sequence) -> Result<Rows, ForwardError> {
        let span = Span { first: 0, rows: x.len(), position: sequence.position };
        let mut share = [Share { sequence, tokens: &[], want: Want::Nothing, reach: Reach::Any }];
        let mut output = StepOutput { served: vec![Served::default()], ..StepOutput::default() };
        self.layer_of(index, x, &mut share, &[span], &mut output).await
    }

    async fn layer_of(
        &self,
        index: usize,
        mut x: Rows,
        shares: &mut [Share<'_>],
        spans: &[Span],
        output: &mut StepOutput,
    ) -> Result<Rows, ForwardError> {
        let (layer, eps) = (&self.layers[index], self.hyper().rms_eps);
        let input = x.normed(&layer.input_norm, eps);
        let other = || ForwardError::State { expected: self.layers.len() };
        let states = spans.iter().zip(shares.iter_mut().map(|share| &mut share.sequence.layers[index]));
        x.add(&match &layer.mixer {
            Mixer::Attention(mixer) => {
                let caches = states.map(|(span, state)| match state {
                    LayerState::Attention(cache) => Ok((*span, cache)),
                    LayerState::DeltaNet(_) => Err(other()),
                });
                mixer.forward(&input, &mut caches.collect::<Result<Vec<_>, _>>()?, &self.rope)
            }
            Mixer::DeltaNet(mixer) => {
                let states = states.map(|(span, state)| match state {
                    LayerState::DeltaNet(state) => Ok((*span, state)),
                    LayerState::Attention(_) => Err(other()),
                });
                mixer.forward(&input, &mut states.collect::<Result<Vec<_>, _>>()?)
            }
        });

        let input = x.normed(&layer.post_norm, eps);
        let routes = layer.router.choose(&input);
        let per_row = routes.len() / x.len();
        let begun = self.begin(index as u16, &input, &x.rms(), routes, shares, spans);
        let shared = layer.shared.as_ref().map(|shared| shared.forward(&input));
        let start = Instant::now();
        let sums = begun.finish().await?;
        output.experts += start.elapsed();
        for (served, span) in output.served.iter_mut().zip(spans) {
            let remote: u64 = sums.remote[span.first..span.first + span.rows].iter().map(|n| u64::from(*n)).sum();
            served.remote += remote;
            served.local += (span.rows * per_row) as u64 - remote;
        }
        combine(&mut x, &sums.rows, shared.as_ref());
        Ok(x)
    }

    /// Hands the routed experts of a layer over, the rows that must stay apart from the others.
    fn begin(
        &self,
        layer: u16,
        input: &Rows,
        rms: &[f32],
        routes: Vec<Route>,
        shares: &[Share<'_>],
        spans: &[Span],
    ) -> Begun {
        let rows_of = |reach: Reach| -> Vec<usize> {
            let of = shares.iter().zip(spans).filter(|(share, _)| share.reach == reach);
            of.flat_map(|(_, span)| span.first..span.first + span.rows).collect()
        };
        let (rows, per_row) = (input.len(), routes.len() / input.len());
        let owners = shares.iter().zip(spans);
        let owners: Vec<GenerationId> =
            owners.flat_map(|(share, span)| std::iter::repeat_n(share.sequence.generation, span.rows)).collect();
        let parts = [Reach::Any, Reach::Trusted, Reach::Local].into_iter().filter_map(|reach| {
            let (which, trusted_only) = (rows_of(reach), reach == Reach::Trusted);
            let step = match which.len() {
                0 => return None,
                n if n == rows => {
                    let (hidden, rms) = (input.values().to_vec(), rms.to_vec());
                    MoeStep {
                        layer,
                        rows,
                        hidden,
                        rms,
                        routes: routes.clone(),
                        generations: owners.clone(),
                        trusted_only,
                    }
                }
                n => MoeStep {
                    layer,
                    rows: n,
                    hidden: which.iter().flat_map(|r| input.row(*r)).copied().collect(),
                    rms: which.iter().map(|r| rms[*r]).collect(),
                    routes: which.iter().flat_map(|r| &routes[r * per_row..(r + 1) * per_row]).copied().collect(),
                    generations: which.iter().map(|r| owners[*r]).collect(),
                    trusted_only,
                },
            };
            let pending = match reach {
                Reach::Any | Reach::Trusted => self.dispatch.begin(step),
                Reach::Local => self.dispatch.begin_here(step),
            };
            Some((which, pending))
        });
        Begun { rows, parts: parts.collect() }
    }

    /// The tokens' embeddings: what enters the first layer.
    ///
    /// # Errors
    /// As [`Backbone::check_tokens`].
    pub fn embed(&self, sequence: &Sequence, tokens: &[u32]) -> Result<Rows, ForwardError> {
        self.check_tokens(sequence, tokens)?;
        Ok(self.embeddings(tokens))
    }

    fn embeddings(&self, tokens: &[u32]) -> Rows {
        let embedding = &self.model.weights.embedding;
        let mut x = Rows::zeros(tokens.len(), embedding.cols);
        for (row, token) in x.iter_mut().zip(tokens) {
            dequantise(embedding.ty, embedding.row(*token as usize), row);
        }
        x
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

    fn check_room(&self, position: usize, tokens: &[u32]) -> Result<(), ForwardError> {
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
        x.normed(&self.model.weights.final_norm, self.hyper().rms_eps).times(&self.head)
    }
}

/// A layer's routed experts on their way: which rows of the step each part holds, and its sums.
struct Begun {
    rows: usize,
    parts: Vec<(Vec<usize>, Pending)>,
}

impl Begun {
    /// The sums in the order of the step's rows.
    async fn finish(self) -> Result<StepSums, DispatchError> {
        let mut rows: Vec<_> = std::iter::repeat_with(|| None).take(self.rows).collect();
        let mut remote = vec![0; self.rows];
        for (which, pending) in self.parts {
            let sums = pending.await?;
            for ((r, sum), served) in which.into_iter().zip(sums.rows).zip(sums.remote) {
                (rows[r], remote[r]) = (Some(sum), served);
            }
        }
        Ok(StepSums { rows: rows.into_iter().flatten().collect(), remote })
    }
}
