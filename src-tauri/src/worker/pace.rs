//! How many assignments a second this machine computes, measured on an expert of a fixed shape.
//!
//! The figure is the backbone's first guess only; what a worker really takes corrects it with every reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::kernel::numerics;
use crate::kernel::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::model::{BlockType, Data, ExpertWeights, Matrix};
use crate::types::GateWeight;
use crate::wire::work::{Activations, Assignment, Dispatch, RowHead};

const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 512;
/// Experts per row, as models have them.
const EXPERTS: u16 = 8;
/// Long enough to be above the clock's grain, short enough for nobody to notice.
const MEASURE_FOR: Duration = Duration::from_millis(50);

struct SameExpert(Arc<Expert>);

impl ExpertSource for SameExpert {
    fn expert(&self, _layer: u16, _expert: u16) -> Option<Arc<Expert>> {
        Some(Arc::clone(&self.0))
    }
}

/// Assignments per second; 0 when the kernel fails, which the log then says.
pub(super) async fn measure(compute: Arc<dyn ExpertCompute>) -> f64 {
    match tokio::task::spawn_blocking(move || assignments_per_s(&*compute)).await {
        Ok(Ok(pace)) => pace,
        Ok(Err(error)) => {
            tracing::error!(%error, "self-test failed");
            0.0
        }
        Err(error) => {
            tracing::error!(%error, "self-test ended early");
            0.0
        }
    }
}

fn assignments_per_s(compute: &dyn ExpertCompute) -> Result<f64, KernelError> {
    let (Some(gate), Some(up), Some(down)) =
        (matrix(INTERMEDIATE, HIDDEN), matrix(INTERMEDIATE, HIDDEN), matrix(HIDDEN, INTERMEDIATE))
    else {
        return Ok(0.0);
    };
    let experts = SameExpert(Arc::new(compute.place(Expert::new(&ExpertWeights { gate, up, down })?)?));
    let request = [request()];
    // The first answer pays for caches and threads that the next ones find ready.
    compute.compute(&experts, 0, &request)?;
    let started = Instant::now();
    let mut assignments = 0;
    while started.elapsed() < MEASURE_FOR {
        compute.compute(&experts, 0, &request)?;
        assignments += u32::from(EXPERTS);
    }
    Ok(f64::from(assignments) / started.elapsed().as_secs_f64())
}

/// Q8_0 rows of small mixed values: blocks of a scale 2^-10 in f16 and 32 integers.
fn matrix(rows: usize, cols: usize) -> Option<Matrix> {
    let blocks = rows * cols / BlockType::Q8_0.block().0;
    let block = (0..32u8).map(|i| i.wrapping_mul(37) | 1);
    let bytes: Vec<u8> = (0..blocks).flat_map(|_| [0x00, 0x14].into_iter().chain(block.clone())).collect();
    Matrix::new(BlockType::Q8_0, rows, cols, Data::from(bytes))
}

/// One row and its experts.
fn request() -> Dispatch {
    let row: Vec<f32> = (0..HIDDEN).map(|i| ((i * 29 % 64) as f32 - 31.5) / 32.0).collect();
    let mut bytes = Vec::new();
    // The values are all within ±1, which the quantiser never refuses.
    let quantised = numerics::quantise_row(&row, &mut bytes);
    debug_assert!(quantised.is_ok());
    let gate = GateWeight { mantissa: 1 << 15, exponent: -18 };
    Dispatch {
        lease: 0,
        deadline_ms: 0,
        hidden: HIDDEN,
        rows: vec![RowHead { grid: numerics::grid(1.0), count: EXPERTS, first: 0 }],
        activations: Activations::Exact(bytes.into()),
        assignments: (0..EXPERTS).map(|expert| Assignment { expert, gate }).collect(),
    }
}
