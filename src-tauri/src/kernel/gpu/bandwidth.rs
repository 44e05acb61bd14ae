//! How fast an adapter reads its memory: the figure against which the expert kernels are judged.
//!
//! Decoding reads every weight once per step, so that this speed, and not the data sheet's, bounds it. What was read
//! is added up and compared, so that a driver cannot leave the reads out.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use wgpu::BufferUsages;

use super::GpuError;
use super::adapters::Found;
use super::device::Device;
use super::scratch::Scratch;

/// What is read: far more than a cache holds.
const READ_BYTES: u64 = 1 << 30;
/// The same for programs on the CPU, whose speed is of no interest beyond working.
const READ_BYTES_SOFTWARE: u64 = 64 << 20;
/// Threads of a launch: as many as the largest GPUs keep under way.
const THREADS: u32 = 1 << 18;
/// The same for programs on the CPU.
const THREADS_SOFTWARE: u32 = 1 << 13;
/// Threads of a workgroup that are tried.
const WORKGROUPS: [u32; 3] = [64, 128, 256];
/// Launches per size, the first one for warming up.
const ROUNDS: usize = 7;
/// Bytes of a vec4<u32>.
const VEC4_BYTES: u64 = 16;

/// Measured speed of reading.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReadSpeed {
    /// 10⁹ bytes per second: the median of the best workgroup size.
    pub gb_per_s: f64,
    /// Bytes that each launch read.
    pub bytes: u64,
    /// Threads of a workgroup at which it was reached.
    pub workgroup: u32,
    /// Whether the device's own clock timed it; otherwise the launch is counted in.
    pub device_clock: bool,
}

/// The WGSL that fills memory, by workgroups of so many threads.
#[must_use]
pub fn fill_source(workgroup: u32) -> String {
    format!("const WORKGROUP: u32 = {workgroup}u;\n{}", include_str!("../../../../shaders/fill.any.wgsl"))
}

/// The WGSL that reads it.
#[must_use]
pub fn read_source(workgroup: u32) -> String {
    format!("const WORKGROUP: u32 = {workgroup}u;\n{}", include_str!("../../../../shaders/read.any.wgsl"))
}

/// Measures how fast `found` reads its memory.
///
/// # Errors
/// The device cannot be had, has no room or is lost, or what it read is not what was there.
pub fn measure(found: &Found) -> Result<ReadSpeed, GpuError> {
    measure_on(&Scratch::new(Arc::new(Device::open(&found.adapter, false)?)), found)
}

/// The same on an opened device.
pub(super) fn measure_on(scratch: &Scratch, found: &Found) -> Result<ReadSpeed, GpuError> {
    let is_software = found.is_software();
    let wanted = if is_software { READ_BYTES_SOFTWARE } else { READ_BYTES };
    let limits = &scratch.device.limits;
    let room = wanted
        .min(limits.max_storage_buffer_binding_size)
        .min(limits.max_buffer_size)
        .min(found.budget.offer_bytes(None) / 2);
    let count = room / VEC4_BYTES;
    if count == 0 {
        return Err(GpuError::Memory { adapter: found.label(), wanted, free: room });
    }
    let bytes = count * VEC4_BYTES;
    let threads = if is_software { THREADS_SOFTWARE } else { THREADS };
    let memory = scratch.buffer("memory", bytes, BufferUsages::STORAGE)?;
    let sums_usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
    let sums = scratch.buffer("sums", u64::from(threads) * VEC4_BYTES, sums_usage)?;

    let fill = scratch.shader("fill", &fill_source(WORKGROUPS[0]), &[true])?;
    scratch.run(&fill, &scratch.bind(&fill, &[&memory]), threads / WORKGROUPS[0])?;
    // Below 2^32: a binding has less than 2^36 bytes.
    let expected = (0..count as u32).map(content).fold([0; 4], xor);

    let mut best: Option<(Duration, u32)> = None;
    for workgroup in WORKGROUPS {
        let label = format!("read by {workgroup} threads");
        let read = scratch.shader(&label, &read_source(workgroup), &[false, true])?;
        let bound = scratch.bind(&read, &[&memory, &sums]);
        let mut times = (0..ROUNDS)
            .map(|_| scratch.run(&read, &bound, threads / workgroup))
            .collect::<Result<Vec<_>, _>>()?
            .split_off(1);
        let got = scratch.read(&sums)?.as_chunks::<16>().0.iter().map(vec4).fold([0; 4], xor);
        if got != expected {
            let reason = format!("expected {expected:08x?}, got {got:08x?}");
            return Err(GpuError::SelfTest { adapter: found.label(), variant: label, reason });
        }
        times.sort();
        let median = times[times.len() / 2];
        if best.is_none_or(|(time, _)| median < time) {
            best = Some((median, workgroup));
        }
    }
    let (time, workgroup) = best.unwrap_or((Duration::MAX, 0));
    let gb_per_s = bytes as f64 / time.as_secs_f64() / 1e9;
    Ok(ReadSpeed { gb_per_s, bytes, workgroup, device_clock: scratch.has_clock() })
}

/// What `fill` of `shaders/read.any.wgsl` leaves in place `i`.
fn content(i: u32) -> [u32; 4] {
    let h = (i ^ (i >> 15)).wrapping_mul(0x2c1b_3c6d);
    [h, h ^ (h >> 12), i, !h]
}

fn vec4(bytes: &[u8; 16]) -> [u32; 4] {
    bytemuck::cast(*bytes)
}

fn xor(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gpu::tests::scratch_for_tests;

    #[test]
    fn memory_is_read_at_some_speed_and_what_was_read_is_checked() {
        let Some((scratch, found)) = scratch_for_tests() else { return };
        let speed = measure_on(&scratch, &found).expect("a measurement");
        assert!(speed.gb_per_s > 0.0 && speed.gb_per_s.is_finite(), "{speed:?}");
        assert!(speed.bytes >= 1 << 20, "{speed:?}");
        println!("{}: {speed:?}", found.label());
    }
}
