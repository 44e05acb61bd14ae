//! What the subgroups of a device really are, asked of the device itself: what drivers say is a range at best.

use serde::Serialize;
use wgpu::{BufferUsages, Features};

use super::GpuError;
use super::scratch::Scratch;

/// Threads of a workgroup of the probe, as `shaders/probe.subgroup.wgsl` says.
const WORKGROUP: usize = 128;
/// Workgroups of the probe: several, because compilers may choose a size per launch.
const GROUPS: u32 = 64;

/// Subgroups as they were seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Subgroups {
    /// Lanes, the fewest that were seen.
    pub size: u32,
    /// Whether eight neighbouring threads are eight neighbouring lanes that three shuffles add up.
    pub eight_lanes_ok: bool,
}

/// The WGSL of the probe.
#[must_use]
pub const fn probe_source() -> &'static str {
    include_str!("../../../../shaders/probe.subgroup.wgsl")
}

/// Probes the subgroups of a device; `None` when it has none, or cannot compile the probe.
///
/// # Errors
/// The device is lost.
pub(super) fn probe(scratch: &Scratch) -> Result<Option<Subgroups>, GpuError> {
    if !scratch.device.features.contains(Features::SUBGROUP) {
        return Ok(None);
    }
    let shader = match scratch.shader("subgroups", probe_source(), &[true]) {
        Ok(shader) => shader,
        Err(error) => {
            tracing::warn!(%error, "kernels do without subgroups");
            return Ok(None);
        }
    };
    let bytes = 16 * WORKGROUP as u64 * u64::from(GROUPS);
    let seen = scratch.buffer("seen", bytes, BufferUsages::STORAGE | BufferUsages::COPY_SRC)?;
    scratch.run(&shader, &scratch.bind(&shader, &[&seen]), GROUPS)?;
    let threads: Vec<Seen> = scratch.read(&seen)?.as_chunks::<16>().0.iter().map(Seen::new).collect();
    Ok(Some(Subgroups {
        size: threads.iter().map(|t| t.size).min().unwrap_or(0),
        eight_lanes_ok: threads.as_chunks::<8>().0.iter().all(are_eight_neighbours),
    }))
}

/// What one thread wrote.
#[derive(Clone, Copy)]
struct Seen {
    lane: u32,
    size: u32,
    sum: u32,
    own: u32,
}

impl Seen {
    fn new(bytes: &[u8; 16]) -> Self {
        let [lane, size, sum, own] = bytemuck::cast(*bytes);
        Self { lane, size, sum, own }
    }
}

/// Whether eight threads are lanes 8k to 8k + 7 of a subgroup and all hold their sum.
fn are_eight_neighbours(threads: &[Seen; 8]) -> bool {
    let sum = threads.iter().fold(0u32, |sum, t| sum.wrapping_add(t.own));
    let first = threads[0].lane;
    let is_whole = first.is_multiple_of(8) && threads.iter().zip(first..).all(|(t, lane)| t.lane == lane);
    is_whole && threads.iter().all(|t| t.size >= 8 && t.sum == sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gpu::tests::scratch_for_tests;

    fn eight(first: u32) -> [Seen; 8] {
        std::array::from_fn(|i| Seen { lane: first + i as u32, size: 16, sum: 36, own: i as u32 + 1 })
    }

    #[test]
    fn lanes_out_of_order_small_subgroups_and_wrong_sums_are_seen() {
        assert!(are_eight_neighbours(&eight(8)));
        assert!(!are_eight_neighbours(&eight(4)));
        let mut swapped = eight(0);
        swapped.swap(2, 3);
        assert!(!are_eight_neighbours(&swapped));
        assert!(!are_eight_neighbours(&eight(0).map(|t| Seen { size: 4, ..t })));
        let mut wrong = eight(0);
        wrong[5].sum += 1;
        assert!(!are_eight_neighbours(&wrong));
    }

    #[test]
    fn the_probe_agrees_with_the_range_that_the_driver_tells() {
        let Some((scratch, found)) = scratch_for_tests() else { return };
        let Some(seen) = probe(&scratch).expect("a probe") else { return };
        let told = found.info.subgroup_min_size..=found.info.subgroup_max_size;
        assert!(told.contains(&seen.size), "expected a size in {told:?}, got {seen:?}");
        println!("{}: {seen:?}", found.label());
    }
}
