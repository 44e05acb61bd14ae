//! Sends a step's assignments to whoever holds the experts and brings the partials home.
//!
//! Before: the backbone's router decided (expert, gate weight) for every row, and its decision is final.
//! After: `backbone::combine` turns the sums into hidden state. The sum of a row does not depend on who
//! computed what, because partials are integers on the row's grid.

mod audit;
mod batch;
mod caught;
mod challenge;
mod choice;
mod claims;
pub mod counters;
mod door;
pub mod estimate;
pub mod exact;
pub mod experts;
mod fleet;
mod heat;
mod here;
pub mod inflight;
mod listener;
pub mod local;
pub mod placement;
mod portions;
mod quarantine;
pub mod remote;
mod request;
mod session;
mod stock;
mod trust;

pub use audit::{AuditPolicy, Draws, Look, RATE_MIN, Seniority};
pub use counters::Counts;
pub use estimate::{DeadlineRule, Measured};
pub use experts::ModelExperts;
pub use fleet::{LayerView, NotReady, WorkerView};
pub use local::{LocalDispatch, Mode};
pub use placement::{Division, LayerSize, Rules as PlacementRules, divide};
pub use remote::{RemoteConfig, RemoteDispatch};
pub use trust::{Bounds, TrustConfig};

use crate::kernel::KernelError;
use crate::types::GenerationId;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// One routed expert of a row, as the router chose it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Route {
    /// Expert index within the layer.
    pub expert: u16,
    /// Gate weight, ≥ 0.
    pub weight: f32,
}

/// The routed-expert work of one layer and step.
#[derive(Clone, PartialEq, Debug)]
pub struct MoeStep {
    /// The layer.
    pub layer: u16,
    /// Rows.
    pub rows: usize,
    /// `rows × hidden`: output of the norm before the experts.
    pub hidden: Vec<f32>,
    /// Per row: root mean square of what entered that norm; it sets the row's grid.
    pub rms: Vec<f32>,
    /// `rows × experts_per_token`.
    pub routes: Vec<Route>,
    /// Per row: whose it is, so that a generation that used a false partial can be named.
    pub generations: Vec<GenerationId>,
    /// Whether only workers of trusted wallets may see these rows.
    pub trusted_only: bool,
}

/// What a step's experts came to.
#[derive(Clone, PartialEq, Debug)]
pub struct StepSums {
    /// One per row.
    pub rows: Vec<RowSum>,
    /// Per row: assignments whose partials came from a worker and were used.
    pub remote: Vec<u32>,
    /// From sending to the last answer of a worker; zero where none was asked.
    pub away: Duration,
    /// Computing on threads of this machine, while whoever waits for the sums has none of it to do.
    pub here: Duration,
}

impl StepSums {
    /// Sums that were all computed where they are awaited.
    #[must_use]
    pub fn here(rows: Vec<RowSum>) -> Self {
        let open = Self::open(rows.len());
        Self { rows, ..open }
    }

    /// Nothing yet, of so many rows.
    fn open(rows: usize) -> Self {
        Self { rows: Vec::new(), remote: vec![0; rows], away: Duration::ZERO, here: Duration::ZERO }
    }
}

/// The weighted sum of a row's routed experts.
#[derive(Clone, PartialEq, Debug)]
pub enum RowSum {
    /// `hidden` integers times 2^grid.
    Exact {
        /// Power of two.
        grid: i8,
        /// The sum.
        sum: Vec<i32>,
    },
    /// `hidden` floats (float-weight experts, or a row that the exact form cannot hold).
    Float(Vec<f32>),
}

/// Why a step cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The router gave a weight that is no weight.
    #[error("layer {layer}, row {row}: gate weight {weight} of expert {expert} is not a finite number ≥ 0")]
    GateWeight {
        /// Layer.
        layer: u16,
        /// Row.
        row: usize,
        /// Expert.
        expert: u16,
        /// The weight.
        weight: f32,
    },
    /// An expert that the model does not have.
    #[error("layer {layer} has no expert {expert}")]
    NoExpert {
        /// Layer.
        layer: u16,
        /// Expert.
        expert: u16,
    },
    /// No worker brings an expert that this machine may not compute itself.
    #[error(
        "layer {layer}, expert {expert}: no worker that holds it answers, and this machine is told not to compute it; try again later"
    )]
    NoHolder {
        /// Layer.
        layer: u16,
        /// Expert.
        expert: u16,
    },
    /// The backbone's own kernel refused its work.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The backbone's own kernel answered something else than it was asked.
    #[error(transparent)]
    Partials(#[from] exact::PartialsError),
    /// An expert cannot be read from the model's file.
    #[error("cannot read layer {layer}, expert {expert} from the model's file: {source}")]
    Weights {
        /// Layer.
        layer: u16,
        /// Expert.
        expert: u16,
        /// Why.
        source: std::io::Error,
    },
    /// The process stops.
    #[error("shutting down")]
    Stopping,
}

/// The sums of a step's rows, once they are there.
pub type Pending = Pin<Box<dyn Future<Output = Result<StepSums, DispatchError>> + Send>>;

/// Computes routed experts, here or far away.
pub trait Dispatch: Send + Sync {
    /// Sends what is remote at once; local work and waiting happen when the returned future is awaited, so that
    /// the caller can do its own work in between.
    fn begin(&self, step: MoeStep) -> Pending;

    /// The same for rows that must not leave this machine: nobody is asked.
    fn begin_here(&self, step: MoeStep) -> Pending;

    /// Whether this machine can compute rows that must not leave it.
    fn computes_here(&self) -> bool {
        true
    }
}
