//! What this machine computes of the remote layers: the rest that nobody holds, and what workers did not bring.
//!
//! Work goes to a blocking thread, off the tasks that move bytes; how long it takes is learnt, because a replica is
//! asked instead only when it is sooner. **Promise:** one call uses no more of a leased layer's experts at once than
//! [`ModelExperts::at_once`] says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};

use super::exact::Part;
use super::portions::{numbered, portions, whole};
use super::{DispatchError, ModelExperts};
use crate::kernel::ExpertCompute;
use crate::wire::work::{Dispatch, Partials};

/// Seconds per assignment before anything was measured: an expert of 5 MB from memory.
const FIRST_ASSIGNMENT_S: f64 = 1e-3;
/// Weight of a new observation.
const GAIN: f64 = 1.0 / 8.0;

/// What this machine computed, and how long it took.
pub(super) struct Computed {
    pub parts: Vec<Part>,
    pub partials: Vec<Partials>,
    pub took: Duration,
}

/// Parts being computed on this machine.
pub(super) type Computing = JoinHandle<Result<Computed, DispatchError>>;

/// Whole answers being computed on this machine.
pub(super) type Answering = JoinHandle<Result<Vec<Partials>, DispatchError>>;

/// See the module.
pub(super) struct Here {
    experts: Arc<ModelExperts>,
    compute: Arc<dyn ExpertCompute>,
    assignment_s: Mutex<f64>,
}

impl Here {
    /// Computes `experts` with `compute`.
    pub fn new(experts: Arc<ModelExperts>, compute: Arc<dyn ExpertCompute>) -> Arc<Self> {
        Arc::new(Self { experts, compute, assignment_s: Mutex::new(FIRST_ASSIGNMENT_S) })
    }

    /// What computes.
    pub fn kernel(&self) -> &dyn ExpertCompute {
        &*self.compute
    }

    /// The time that so many assignments would take.
    pub fn predict(&self, assignments: usize) -> Duration {
        let each = *self.assignment_s.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_secs_f64(assignments as f64 * each)
    }

    fn observe(&self, assignments: usize, took: Duration) {
        if assignments > 0 {
            let mut each = self.assignment_s.lock().unwrap_or_else(PoisonError::into_inner);
            *each += GAIN * (took.as_secs_f64() / assignments as f64 - *each);
        }
    }

    /// Computes parts; `None` when there are none.
    pub fn spawn(self: &Arc<Self>, layer: u16, parts: Vec<Part>) -> Option<Computing> {
        if parts.is_empty() {
            return None;
        }
        let here = Arc::clone(self);
        Some(spawn_blocking(move || here.compute(layer, parts)))
    }

    /// The whole answer to each of `asked`, as a worker would give it; `None` when nothing is asked.
    pub fn answer(self: &Arc<Self>, layer: u16, asked: Vec<Dispatch>) -> Option<Answering> {
        if asked.is_empty() {
            return None;
        }
        let here = Arc::clone(self);
        Some(spawn_blocking(move || {
            let computed = here.compute(layer, numbered(&asked))?;
            Ok(whole(&asked, &computed.parts, &computed.partials))
        }))
    }

    /// Computes parts at once, in portions that do not bring many of a leased layer's experts into memory together.
    fn compute(&self, layer: u16, parts: Vec<Part>) -> Result<Computed, DispatchError> {
        let mut all = Computed { parts: Vec::new(), partials: Vec::new(), took: Duration::ZERO };
        for portion in portions(parts, self.experts.at_once(layer)) {
            let requests: Vec<_> = portion.iter().map(|part| part.dispatch.clone()).collect();
            let start = Instant::now();
            all.partials.extend(self.compute.compute(&*self.experts, layer, &requests)?);
            let took = start.elapsed();
            self.observe(requests.iter().map(|request| request.assignments.len()).sum(), took);
            all.parts.extend(portion);
            all.took += took;
        }
        Ok(all)
    }
}

/// The result of blocking work; a panic there goes on here, and work that was dropped means that the process stops.
pub(super) async fn joined<T>(work: JoinHandle<T>) -> Result<T, DispatchError> {
    work.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => DispatchError::Stopping,
    })
}
