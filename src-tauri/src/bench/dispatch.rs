//! Steps of one or more layers through worker, gateway, hub and backbone, by rows and by round trip.
//!
//! Each cell sends the same rows over and over: from the router's decision to the last sum, with real sockets, TLS and
//! accounts, over a line that delays every byte by half a round trip. **Promises:** a cell whose sums are not the local
//! ones, or whose work was done by anybody but the workers, is an error and no figure; what a kernel alone needs is
//! measured beside it in the same run.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::decode::p50_ms;
use super::far::{Far, Outside};
use crate::demo::DemoError;
use crate::demo::network::Network;
use crate::dispatch::{Counts, Dispatch, DispatchError, LocalDispatch, Mode, MoeStep, Route, StepSums};
use crate::kernel::ExpertCompute;
use crate::model::Model;
use crate::types::GenerationId;

/// Digits that tell builds apart.
const BUILD_DIGITS: usize = 16;
/// Fewest passes behind a median.
const PASSES_MIN: usize = 3;

/// What to measure.
pub struct DispatchOptions {
    /// The model.
    pub model: Arc<Model>,
    /// The backbone's kernel, and the one that is measured alone.
    pub compute: Arc<dyn ExpertCompute>,
    /// One worker each, unless they are outside.
    pub workers: Vec<Arc<dyn ExpertCompute>>,
    /// Workers that come from elsewhere; then there is one round trip, which is theirs and is only subtracted.
    pub outside: Option<Outside>,
    /// Rows of a step, one measurement each.
    pub rows: Vec<usize>,
    /// Round trips between workers and gateway, one measurement each.
    pub round_trips: Vec<Duration>,
    /// Layers of a pass, each remote, one measurement each.
    pub layers: Vec<u16>,
    /// How long a cell is measured, beyond its first three passes.
    pub time: Duration,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DispatchBench {
    /// The program's version.
    pub version: &'static str,
    /// Which build of it: the start of the program file's BLAKE3 digest, as `b3sum` prints it.
    pub build: String,
    /// Model name.
    pub model: String,
    /// Width of a row.
    pub hidden: usize,
    /// Assignments of a row and layer.
    pub experts_per_row: usize,
    /// Workers.
    pub workers: usize,
    /// The kernel's hardware.
    pub device: String,
    /// One per round trip, number of layers and number of rows.
    pub cells: Vec<Cell>,
}

/// One cell; a pass takes its rows through its layers, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Round trip of the line.
    pub rtt_ms: f64,
    /// Remote layers.
    pub layers: usize,
    /// Rows.
    pub rows: usize,
    /// Passes measured.
    pub passes: usize,
    /// Median time of a pass.
    pub p50_ms: f64,
    /// What it took beyond one round trip per layer.
    pub beyond_rtt_ms: f64,
    /// Rows through all layers per second.
    pub rows_per_s: f64,
    /// Median time of the same pass on this machine, without a network.
    pub local_ms: f64,
    /// Assignments that workers computed, of all passes.
    pub assignments_remote: u64,
    /// Bytes of work frames both ways, per row and layer.
    pub wire_bytes_per_row: f64,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum DispatchBenchError {
    /// The network.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A step.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The program's own file.
    #[error("cannot read the running program's file, by which figures are kept apart: {0}")]
    Program(std::io::Error),
    /// More layers than the model has.
    #[error("expected at most {limit} layers, got {got}: ask for fewer with --layers")]
    Layers {
        /// The model's.
        limit: usize,
        /// Asked for.
        got: u16,
    },
    /// Sums that are not the local ones.
    #[error("expected the sums of a local run, got others, at {rows} rows and {rtt_ms} ms: this is a fault, report it")]
    Sums {
        /// Rows.
        rows: usize,
        /// Round trip.
        rtt_ms: f64,
    },
    /// Work that was not done by workers.
    #[error(
        "expected {expected} assignments by workers, got {got}, at {rows} rows and {rtt_ms} ms: the machine is too busy"
    )]
    Assignments {
        /// All of the measured passes.
        expected: u64,
        /// Those that were accepted from workers.
        got: u64,
        /// Rows.
        rows: usize,
        /// Round trip.
        rtt_ms: f64,
    },
}

/// Measures.
///
/// # Errors
/// A network that does not come up, a step that fails, or sums or workers other than expected.
pub async fn dispatch(options: DispatchOptions) -> Result<DispatchBench, DispatchBenchError> {
    let DispatchOptions { model, compute, workers, outside, rows, round_trips, layers, time } = options;
    let (hyper, limit) = (&model.hyper, model.hyper.layers);
    let most = layers.iter().copied().max().unwrap_or(0);
    if usize::from(most) > limit {
        return Err(DispatchBenchError::Layers { limit, got: most });
    }
    let local = LocalDispatch::new(Arc::clone(&model), Arc::clone(&compute), Mode::Exact);
    let mut cells = Vec::new();
    for rtt in round_trips {
        let (model, compute, workers) = (Arc::clone(&model), Arc::clone(&compute), workers.clone());
        let outside = outside.clone();
        let far = Far {
            model,
            compute,
            workers,
            remote_layers: (0..most).collect(),
            one_way: rtt / 2,
            bits_per_s: None,
            outside,
        };
        let network = far.start().await?;
        for count in &layers {
            for rows in &rows {
                let pass = Pass { steps: steps(&far.model, *count, *rows) };
                cells.push(pass.measure(&network, &local, rtt, time).await?);
            }
        }
        network.stop().await?;
    }
    Ok(DispatchBench {
        version: env!("CARGO_PKG_VERSION"),
        build: build()?,
        model: model.name.clone(),
        hidden: hyper.hidden_size,
        experts_per_row: hyper.experts_per_token,
        workers: outside.map_or(workers.len(), |outside| outside.workers),
        device: compute.device(),
        cells,
    })
}

/// The start of the digest of the running program's file.
fn build() -> Result<String, DispatchBenchError> {
    let file = std::env::current_exe().and_then(std::fs::read).map_err(DispatchBenchError::Program)?;
    Ok(blake3::hash(&file).to_hex().chars().take(BUILD_DIGITS).collect())
}

/// The steps of some rows, one per layer.
struct Pass {
    steps: Vec<MoeStep>,
}

impl Pass {
    async fn measure(
        &self,
        network: &Network,
        local: &LocalDispatch,
        rtt: Duration,
        time: Duration,
    ) -> Result<Cell, DispatchBenchError> {
        let (rtt_ms, layers) = (rtt.as_secs_f64() * 1e3, self.steps.len());
        let rows = self.steps.first().map_or(0, |step| step.rows);
        let (expected, _) = self.run(local).await?;
        let (got, _) = self.run(&network.dispatch).await?;
        if got.iter().zip(&expected).any(|(got, expected)| got.rows != expected.rows) {
            return Err(DispatchBenchError::Sums { rows, rtt_ms });
        }
        let (mut alone, mut remote) = (Vec::new(), Vec::new());
        let before = network.dispatch.counts();
        let start = Instant::now();
        while remote.len() < PASSES_MIN || start.elapsed() < time {
            // By turns, so that both meet the same machine.
            alone.push(self.run(local).await?.1);
            remote.push(self.run(&network.dispatch).await?.1);
        }
        let after = network.dispatch.counts();
        let since = |of: fn(&Counts) -> u64| of(&after) - of(&before);
        let assignments: usize = self.steps.iter().map(|step| step.routes.len()).sum();
        let (expected, got) = ((remote.len() * assignments) as u64, since(|counts| counts.assignments_remote));
        if got != expected {
            return Err(DispatchBenchError::Assignments { expected, got, rows, rtt_ms });
        }
        let (passes, p50_ms) = (remote.len(), p50_ms(&mut remote));
        Ok(Cell {
            rtt_ms,
            layers,
            rows,
            passes,
            p50_ms,
            beyond_rtt_ms: p50_ms - rtt_ms * layers as f64,
            rows_per_s: rows as f64 / p50_ms * 1e3,
            local_ms: self::p50_ms(&mut alone),
            assignments_remote: got,
            wire_bytes_per_row: since(|counts| counts.raw_bytes) as f64 / (passes * rows * layers) as f64,
        })
    }

    async fn run(&self, dispatch: &dyn Dispatch) -> Result<(Vec<StepSums>, Duration), DispatchError> {
        let (mut sums, mut time) = (Vec::with_capacity(self.steps.len()), Duration::ZERO);
        for step in &self.steps {
            let step = step.clone();
            let start = Instant::now();
            sums.push(dispatch.begin(step).await?);
            time += start.elapsed();
        }
        Ok((sums, time))
    }
}

/// One step of `rows` rows for each of the first `layers` layers: arbitrary numbers, and experts that differ by row.
fn steps(model: &Model, layers: u16, rows: usize) -> Vec<MoeStep> {
    let (hidden, experts, k) = (model.hyper.hidden_size, model.hyper.experts, model.hyper.experts_per_token);
    let number = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 8) % 2001) as f32 / 1000.0 - 1.0;
    let step = |layer: u16| {
        // Neighbours have other experts, and each row has k different ones.
        let first = |row: usize| row.wrapping_mul(7919) + usize::from(layer);
        let routes = (0..rows).flat_map(|row| (0..k).map(move |i| (first(row) + i * (experts / k).max(1)) % experts));
        MoeStep {
            layer,
            rows,
            hidden: (0..rows * hidden).map(|i| number(i + usize::from(layer))).collect(),
            rms: vec![1.0; rows],
            routes: routes.map(|expert| Route { expert: expert as u16, weight: 1.0 / k as f32 }).collect(),
            generations: vec![GenerationId::default(); rows],
            trusted_only: false,
        }
    };
    (0..layers).map(step).collect()
}

impl fmt::Display for DispatchBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, hidden, experts_per_row, workers, device, .. } = self;
        writeln!(f, "{model}: rows of {hidden}, {experts_per_row} experts a row, {workers} workers, {device}")?;
        write!(f, "  rtt ms  layers  rows    p50 ms  beyond rtt  local ms      rows/s  wire bytes/row")?;
        for cell in &self.cells {
            write!(
                f,
                "\n  {:6.1}  {:6}  {:4}  {:8.2}  {:10.2}  {:8.2}  {:10.0}  {:14.0}",
                cell.rtt_ms,
                cell.layers,
                cell.rows,
                cell.p50_ms,
                cell.beyond_rtt_ms,
                cell.local_ms,
                cell.rows_per_s,
                cell.wire_bytes_per_row
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_different_experts_of_the_model() {
        let model = crate::model::embedded().unwrap();
        let (experts, k) = (model.hyper.experts, model.hyper.experts_per_token);
        for step in steps(&model, 2, 64) {
            assert_eq!((step.hidden.len(), step.routes.len()), (64 * model.hyper.hidden_size, 64 * k));
            for row in step.routes.chunks(k) {
                let mut of: Vec<u16> = row.iter().map(|route| route.expert).collect();
                of.sort_unstable();
                of.dedup();
                assert!(of.len() == k && of.iter().all(|expert| usize::from(*expert) < experts), "{row:?}");
            }
        }
    }
}
