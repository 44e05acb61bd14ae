//! `/status`: what a token costs here and why, as JSON.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::Api;
use crate::dispatch::{LayerView, RemoteDispatch};
use crate::telemetry::Vitals;

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Status {
    version: &'static str,
    model: String,
    /// Trunk layers.
    layers: usize,
    placement: Placement,
    steps: Steps,
    drafts: Drafts,
    vitals: Vitals,
}

/// Where the layers are, and what that costs.
#[derive(Debug, Serialize)]
struct Placement {
    /// Why these layers may go out.
    why: String,
    /// Round trips that a token pays now: layers of which a worker serves something.
    round_trips_per_token: usize,
    /// Their sum, each layer's farthest worker counted.
    round_trip_ms_per_token: f64,
    /// Sessions of workers.
    workers: usize,
    /// The layers that may go out.
    away: Vec<LayerView>,
}

/// How steps hide their round trips.
#[derive(Debug, Serialize)]
struct Steps {
    /// Steps under way at once.
    lanes: u64,
    /// Streams that take turns in them.
    streams: u64,
    steps: u64,
    rows: u64,
    /// Time of all steps, those that overlap counted each.
    seconds: f64,
    /// Time in which every step under way waited.
    idle_seconds: f64,
}

/// What speculation brings.
#[derive(Debug, Serialize)]
struct Drafts {
    judged: u64,
    right: u64,
    /// Tokens that a stream gets from a step, on average; 0 before the first.
    tokens_per_turn: f64,
}

impl Status {
    pub(super) fn of(api: &Api) -> Self {
        let (model, counters) = (api.backbone().model(), api.scheduler.counters());
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let dispatch = api.config.dispatch.as_ref();
        let away = dispatch.map(RemoteDispatch::layers).unwrap_or_default();
        let asked = || away.iter().filter(|layer| layer.held > 0);
        let turns = of(&counters.turns);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            model: model.name.clone(),
            layers: model.hyper.layers,
            placement: Placement {
                why: api.config.lent.clone(),
                round_trips_per_token: asked().count(),
                round_trip_ms_per_token: asked().map(|layer| layer.round_trip_us as f64 / 1e3).sum(),
                workers: dispatch.map_or(0, |dispatch| dispatch.workers().len()),
                away,
            },
            steps: Steps {
                lanes: of(&counters.gauges.lanes),
                streams: of(&counters.gauges.running),
                steps: of(&counters.steps),
                rows: of(&counters.step_rows),
                seconds: of(&counters.step_us) as f64 / 1e6,
                idle_seconds: of(&counters.idle_us) as f64 / 1e6,
            },
            vitals: api.vitals(),
            drafts: Drafts {
                judged: of(&counters.drafted),
                right: of(&counters.accepted),
                tokens_per_turn: if turns == 0 { 0.0 } else { of(&counters.new_tokens) as f64 / turns as f64 },
            },
        }
    }
}
