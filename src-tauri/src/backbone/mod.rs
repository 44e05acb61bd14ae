//! Everything of the model but the routed experts, and the loop that writes text with it.
//!
//! Before: a prompt's tokens. After: logits, a chosen token, again. Each layer hands its routed experts to
//! [`crate::dispatch`] and computes the shared expert while they are away.
//!
//! **Invariant:** the bits of a row depend on the tokens before it alone, never on the rows beside it, on threads,
//! on how a prompt was split (in multiples of 64), or on who computed the experts.

pub mod api;
pub mod attention;
pub mod combine;
pub mod delta_net;
pub mod delta_rule;
pub mod generate;
pub mod logits;
pub mod rope;
pub mod router;
pub mod rows;
pub mod sampler;
pub mod sequence;
pub mod shared;

pub use generate::{Finish, GenerateOptions, Generation, Piece, Timing};
pub use logits::LogitRecord;
pub use rows::Rows;
pub use sampler::{Sampler, Sampling, argmax};
pub use sequence::Sequence;

use crate::dispatch::{Dispatch, DispatchError, MoeStep};
use crate::kernel::float::{Dense, Residency};
use crate::kernel::quant::dequantise;
use crate::model::{self, HyperParameters, LayerWeights, Matrix, Model};
use attention::Attention;
use combine::combine;
use delta_net::DeltaNet;
use rope::Rope;
use router::Router;
use sequence::LayerState;
use shared::SharedExpert;
use std::sync::Arc;
use tokio::task::yield_now;

/// Prompt tokens of one forward pass; a multiple of the delta rule's chunk, so that splitting changes no bit.
pub const PREFILL_TOKENS: usize = 512;

/// Rows of logits that a step is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The last row's: what comes next.
    Last,
    /// Every row's.
    Every,
}

/// Why a step cannot be computed. The sequence is lost with it.
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

/// A model that contradicts itself.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("layer {layer} is Gated DeltaNet, expected sizes of its heads in the model's parameters, got none")]
pub struct BackboneError {
    /// The layer.
    pub layer: usize,
}

/// A model ready to run.
pub struct Backbone {
    model: Arc<Model>,
    dispatch: Arc<dyn Dispatch>,
    layers: Vec<Layer>,
    head: Dense,
    rope: Rope,
}

struct Layer {
    input_norm: Vec<f32>,
    mixer: Mixer,
    post_norm: Vec<f32>,
    router: Router,
    shared: Option<SharedExpert>,
}

enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

impl Layer {
    fn new(weights: &LayerWeights, hyper: &HyperParameters, residency: Residency) -> Option<Self> {
        let mixer = match &weights.mixer {
            model::Mixer::Attention(weights) => Mixer::Attention(Attention::new(weights, hyper, residency)),
            model::Mixer::DeltaNet(weights) => {
                Mixer::DeltaNet(DeltaNet::new(weights, hyper.delta_net?, hyper.rms_eps, residency))
            }
        };
        Some(Self {
            input_norm: weights.input_norm.clone(),
            mixer,
            post_norm: weights.post_norm.clone(),
            router: Router::new(&weights.router, hyper),
            shared: weights.shared.as_ref().map(|shared| SharedExpert::new(shared, residency)),
        })
    }
}

/// The matrices that may be resident as f32.
fn dense_matrices(weights: &model::Weights) -> Vec<&Matrix> {
    let mut matrices = vec![&weights.head];
    for layer in &weights.layers {
        matrices.extend(match &layer.mixer {
            model::Mixer::Attention(w) => [&w.q, &w.k, &w.v, &w.output].to_vec(),
            model::Mixer::DeltaNet(w) => [&w.qkv, &w.z, &w.a, &w.b, &w.output].to_vec(),
        });
        matrices.extend(layer.shared.iter().flat_map(|s| [&s.ffn.gate, &s.ffn.up, &s.ffn.down]));
    }
    matrices
}

impl Backbone {
    /// Logits after `tokens`, which follow what `sequence` has seen.
    ///
    /// # Errors
    /// An unknown token, a full context, or routed experts that could not be computed.
    pub async fn forward(&self, sequence: &mut Sequence, tokens: &[u32], want: Want) -> Result<Rows, ForwardError> {
        let mut x = self.embed(sequence, tokens)?;
        for layer in 0..self.layers.len() {
            x = self.layer(layer, x, sequence).await?;
        }
        sequence.position += tokens.len();
        let x = if want == Want::Last { x.last() } else { x };
        Ok(self.logits(&x))
    }

    /// Runs `prompt` and returns the logits of its last row, `[1, vocab]`.
    ///
    /// # Errors
    /// As [`Backbone::forward`]; a prompt longer than the context fails before any work.
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

    /// One decoder layer: `x + mixer(norm x)`, then `x + experts(norm x)`.
    ///
    /// # Errors
    /// Routed experts that could not be computed.
    pub async fn layer(&self, index: usize, mut x: Rows, sequence: &mut Sequence) -> Result<Rows, ForwardError> {
        let (layer, eps, position) = (&self.layers[index], self.hyper().rms_eps, sequence.position);
        let input = x.normed(&layer.input_norm, eps);
        x.add(&match (&layer.mixer, &mut sequence.layers[index]) {
            (Mixer::Attention(mixer), LayerState::Attention(cache)) => {
                mixer.forward(&input, cache, position, &self.rope)
            }
            (Mixer::DeltaNet(mixer), LayerState::DeltaNet(state)) => mixer.forward(&input, state, position),
            _ => return Err(ForwardError::State { expected: self.layers.len() }),
        });

        let input = x.normed(&layer.post_norm, eps);
        let routes = layer.router.choose(&input);
        let hidden = input.values().to_vec();
        let step = MoeStep { layer: index as u16, rows: x.len(), hidden, rms: x.rms(), routes };
        let routed = self.dispatch.begin(step);
        let shared = layer.shared.as_ref().map(|shared| shared.forward(&input));
        combine(&mut x, &routed.await?, shared.as_ref());
        Ok(x)
    }

    /// The tokens' embeddings: what enters the first layer.
    ///
    /// # Errors
    /// As [`Backbone::check_tokens`].
    pub fn embed(&self, sequence: &Sequence, tokens: &[u32]) -> Result<Rows, ForwardError> {
        self.check_tokens(sequence, tokens)?;
        let embedding = &self.model.weights.embedding;
        let mut x = Rows::zeros(tokens.len(), embedding.cols);
        for (row, token) in x.iter_mut().zip(tokens) {
            dequantise(embedding.ty, embedding.row(*token as usize), row);
        }
        Ok(x)
    }

    /// Whether `tokens` can follow what `sequence` has seen.
    ///
    /// # Errors
    /// No token, an unknown one, more than the context holds, or the state of another model.
    pub fn check_tokens(&self, sequence: &Sequence, tokens: &[u32]) -> Result<(), ForwardError> {
        let (vocab, limit) = (self.model.weights.embedding.rows, self.hyper().context_length);
        let needed = sequence.position + tokens.len();
        match tokens.iter().find(|token| **token as usize >= vocab) {
            _ if tokens.is_empty() => Err(ForwardError::Empty),
            _ if needed > limit => Err(ForwardError::Context { limit, needed }),
            _ if sequence.layers.len() != self.layers.len() => Err(ForwardError::State { expected: self.layers.len() }),
            Some(token) => Err(ForwardError::Token { vocab, token: *token }),
            None => Ok(()),
        }
    }

    /// Logits of every row of `x`, what left the last layer.
    #[must_use]
    pub fn logits(&self, x: &Rows) -> Rows {
        x.normed(&self.model.weights.final_norm, self.hyper().rms_eps).times(&self.head)
    }

    /// Prepares `model`; its routed experts go to `dispatch`. The MTP head stays in the files.
    ///
    /// # Errors
    /// A layer whose kind the model's sizes do not describe.
    pub fn new(model: Arc<Model>, dispatch: Arc<dyn Dispatch>) -> Result<Self, BackboneError> {
        let (weights, hyper) = (&model.weights, &model.hyper);
        let residency = Residency::for_weights(dense_matrices(weights));
        let prepare = |(index, layer)| Layer::new(layer, hyper, residency).ok_or(BackboneError { layer: index });
        let layers = weights.layers.iter().enumerate().map(prepare).collect::<Result<_, _>>()?;
        let head = Dense::new(&weights.head, residency);
        let rope = Rope::new(hyper);
        Ok(Self { dispatch, layers, head, rope, model })
    }

    /// A sequence before its first token.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.hyper())
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    fn hyper(&self) -> &HyperParameters {
        &self.model.hyper
    }
}
