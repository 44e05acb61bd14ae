//! Which layers a backbone lends to workers: those it was told, or those that its memory does not take.

use super::{AnyError, usage};
use crate::backbone::scheduler::STATE_BYTES;
use crate::cli::RemoteLayers;
use crate::config;
use crate::dispatch::{LayerSize, RemoteConfig, divide};
use crate::model::room::memory_free;
use crate::model::{Inspection, Model};

/// The part of a machine's memory that is left to everything that nobody counted.
const SPARE_PART: u64 = 8;

/// Layers that workers may hold.
pub(super) struct Lent {
    pub layers: Vec<u16>,
    /// Why these, in one sentence.
    pub why: String,
}

/// What `config` lends of `model`.
///
/// # Errors
/// Layers that the model does not have, or memory that nobody names.
pub(super) fn lent(config: &config::Backbone, model: &Model) -> Result<Lent, AnyError> {
    let all = model.hyper.layers;
    if let RemoteLayers::Chosen(chosen) = &config.remote_layers {
        let layers = super::commands::layers(chosen, model)?;
        let why = format!("{} of {all} layers may go out, as --remote-layers says", layers.len());
        return Ok(Lent { layers, why });
    }
    let sizes: Vec<LayerSize> =
        (0u16..).zip(model.weights.moe_layers()).filter_map(|(layer, weights)| LayerSize::of(layer, weights)).collect();
    let (trunk, drafter) = sizes.split_at(sizes.len().min(all));
    let memory = match config.experts_memory {
        Some(said) => said,
        None => {
            let free = memory_free().ok_or_else(|| {
                usage(
                    "--remote-layers auto: this system does not say how much memory is free; give --experts-memory"
                        .into(),
                )
            })?;
            // What drafts tokens stays whatever is lent, as do the dense matrices and the streams' states.
            let drafter: u64 = drafter.iter().map(LayerSize::bytes).sum();
            let dense = Inspection::of(model).backbone_bytes;
            let states = config.api.state_bytes.unwrap_or(STATE_BYTES);
            let cache = config.expert_cache_bytes.unwrap_or(RemoteConfig::EXPERT_CACHE_BYTES);
            [free / SPARE_PART, dense, drafter, states, cache].into_iter().fold(free, u64::saturating_sub)
        }
    };
    let division = divide(trunk, memory);
    if division.away.is_empty() {
        tracing::warn!(
            "every layer fits the memory here, so that workers get nothing to do; --remote-layers says otherwise"
        );
    }
    Ok(Lent { why: division.to_string(), layers: division.away })
}
