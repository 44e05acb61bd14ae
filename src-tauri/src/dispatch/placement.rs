//! Decides who holds which experts: what workers offer, hold and manage to do in, one share per worker out.
//!
//! A token pays one round trip for every layer that has a remote expert, so a worker owns whole layers first; a layer's
//! experts are spread only when there are more workers than layers, or when no worker has room for all. How much a
//! worker owns follows its pace; one that is far slower than the others owns what is left, of the coldest layers, or
//! nothing. Once everything is owned, spare memory holds replicas: of what slow or unproven workers own first, then of
//! what is asked for most.
//!
//! **Promises:** pure and deterministic; no share is larger than its worker's memory; no expert is owned twice or twice
//! on one worker; when the experts are of one size and the memory suffices, every one is owned; what is held already
//! stays where it is, unless shares have grown far apart, and then a bounded number of bytes moves at a time.

mod division;
mod level;
mod numbering;
mod owners;
mod replicas;
mod table;

use std::time::Duration;

use crate::model::{ExpertWeights, LayerWeights};
use crate::wire::Slice;
pub use division::{Division, divide};
pub use numbering::Numbering;
use table::Table;

/// A layer to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSize {
    /// The layer.
    pub layer: u16,
    /// Routed experts of the layer.
    pub experts: u16,
    /// Stored bytes of one expert.
    pub expert_bytes: u64,
}

impl LayerSize {
    /// A layer of a model; `None` where it has more experts than can be numbered.
    #[must_use]
    pub fn of(layer: u16, weights: &LayerWeights) -> Option<Self> {
        let bytes = |expert: &ExpertWeights| expert.shape().bytes() as u64;
        let expert_bytes = weights.experts.iter().map(bytes).max().unwrap_or(0);
        Some(Self { layer, experts: u16::try_from(weights.experts.len()).ok()?, expert_bytes })
    }

    /// Stored bytes of all its experts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.expert_bytes.saturating_mul(self.experts.into())
    }
}

/// What a worker can hold, how fast it answers, and what it holds so far.
#[derive(Clone, PartialEq, Debug)]
pub struct Capacity {
    /// Bytes that its slice may take.
    pub memory_bytes: u64,
    /// Layers it would rather hold; empty = any.
    pub wants: Vec<u16>,
    /// Layers that it must not hold.
    pub barred: Vec<u16>,
    /// Assignments per second.
    pub assignments_per_s: f64,
    /// Time that a request and its answer travel.
    pub round_trip: Duration,
    /// Whether it has been here for a while and answers what it is asked.
    pub is_proven: bool,
    /// What it is asked for first.
    pub own: Slice,
    /// What it holds or is fetching, own and replicas.
    pub held: Slice,
}

impl Capacity {
    /// Steps of one row that it serves per second, one after the other; 0 when it says nothing usable. Paces that are
    /// nearly alike are the same.
    fn pace(&self) -> f64 {
        let seconds = STEP_S + self.round_trip.as_secs_f64() + USUAL_ASSIGNMENTS / self.assignments_per_s;
        let pace = 1.0 / seconds;
        let grades = pace.log(GRADE).round();
        if self.assignments_per_s > 0.0 && grades.is_finite() { GRADE.powf(grades) } else { 0.0 }
    }
}

/// What a step takes beside its experts, in seconds: round trips far below it make no difference.
const STEP_S: f64 = 0.01;
/// From one grade of pace to the next.
const GRADE: f64 = 1.5;
/// Assignments of the request by which workers are compared: one row of a usual model.
const USUAL_ASSIGNMENTS: f64 = 8.0;

/// What an operator decides about placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Most workers that hold an expert; 1 = no replicas.
    pub holders_max: usize,
    /// Bytes that may move to make shares even again; what a newcomer takes over does not count.
    pub levelled_bytes_max: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { holders_max: 2, levelled_bytes_max: 1 << 30 }
    }
}

/// How often experts were asked for: by layer, then by expert. What is missing counts as never.
pub type Heat = [Vec<u32>];

/// What a worker is to hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Experts for which it is asked first.
    pub own: Slice,
    /// Experts that it holds for when their owner is slow or gone.
    pub replicas: Slice,
}

/// One share per worker, in the order of `workers`.
#[must_use]
pub fn place(layers: &[LayerSize], heat: &Heat, workers: &[Capacity], rules: &Rules) -> Vec<Share> {
    let mut table = Table::new(layers, heat, workers);
    table.keep();
    table.fill();
    table.level(rules.levelled_bytes_max);
    let replicas = table.replicas(rules.holders_max);
    table.shares(&replicas)
}

#[cfg(test)]
mod tests;
