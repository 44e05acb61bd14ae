//! Everything of the model but the routed experts, and the loop that writes text with it.
//!
//! Before: a prompt's tokens. After: logits, a chosen token, again. Each layer hands its routed experts to
//! [`crate::dispatch`] and computes the shared expert while they are away.
//!
//! **Invariant:** the bits of a row depend on the tokens before it alone, never on the rows beside it, on threads,
//! on how a prompt was split (in multiples of 64), or on who computed the experts.

pub mod api;
pub mod attention;
mod buffers;
pub mod combine;
pub mod delta_net;
pub mod delta_rule;
pub mod generate;
mod layer;
pub mod logits;
pub mod logprobs;
pub mod mtp;
mod parallel;
mod parts;
pub mod rope;
pub mod router;
pub mod rows;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod shared;
pub mod speculate;
pub mod step;

pub use generate::{Finish, GenerateOptions, Generation, Piece, Timing};
pub use logits::LogitRecord;
pub use logprobs::{Logprob, Logprobs};
pub use mtp::{Draft, DraftShare, DraftState};
pub use rows::Rows;
pub use sampler::{Adjustments, Sampler, Sampling, argmax};
pub use scheduler::{Order, Scheduler, SchedulerConfig};
pub use sequence::Sequence;
pub use speculate::{Drafters, Speculation, Tally};
pub use step::{ExpertTimes, ForwardError, Reach, Served, Share, StepOutput, Want};

use crate::dispatch::Dispatch;
use crate::kernel::float::{Dense, Residency};
use crate::model::{self, HyperParameters, LayerWeights, Matrix, Model};
use attention::Attention;
use buffers::Pool;
use delta_net::DeltaNet;
use mtp::Mtp;
use rope::Rope;
use router::Router;
use shared::SharedExpert;
use std::sync::Arc;

/// Prompt tokens of one forward pass; a multiple of the delta rule's chunk, so that splitting changes no bit.
pub const PREFILL_TOKENS: usize = 512;

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
    mtp: Option<Mtp>,
    buffers: Pool,
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
    if let Some(mtp) = &weights.mtp {
        matrices.push(&mtp.projection);
        matrices.extend(Some(&mtp.head).filter(|own| !own.is_same(&weights.head)));
    }
    for layer in weights.moe_layers() {
        matrices.extend(match &layer.mixer {
            model::Mixer::Attention(w) => [&w.q, &w.k, &w.v, &w.output].to_vec(),
            model::Mixer::DeltaNet(w) => [&w.qkv, &w.z, &w.a, &w.b, &w.output].to_vec(),
        });
        matrices.extend(layer.shared.iter().flat_map(|s| [&s.ffn.gate, &s.ffn.up, &s.ffn.down]));
    }
    matrices
}

impl Backbone {
    /// Prepares `model`; its routed experts go to `dispatch`.
    ///
    /// # Errors
    /// A layer whose kind the model's sizes do not describe.
    pub fn new(model: Arc<Model>, dispatch: Arc<dyn Dispatch>) -> Result<Self, BackboneError> {
        let (weights, hyper) = (&model.weights, &model.hyper);
        let residency = Residency::for_weights(dense_matrices(weights));
        let prepare = |(index, layer)| Layer::new(layer, hyper, residency).ok_or(BackboneError { layer: index });
        let layers = weights.layers.iter().enumerate().map(prepare).collect::<Result<_, _>>()?;
        let head = Dense::new(&weights.head, residency);
        let mtp = weights
            .mtp
            .as_ref()
            .map(|mtp| Mtp::new(mtp, weights, hyper, residency).ok_or(BackboneError { layer: weights.layers.len() }));
        let (mtp, rope, buffers) = (mtp.transpose()?, Rope::new(hyper), Pool::default());
        Ok(Self { dispatch, layers, head, rope, mtp, buffers, model })
    }

    /// A sequence before its first token.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.hyper())
    }

    /// Whether hidden states of a sequence can be kept from leaving this machine.
    #[must_use]
    pub fn can_keep(&self, reach: Reach) -> bool {
        reach != Reach::Local || self.dispatch.computes_here()
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
