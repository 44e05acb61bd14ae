//! The thread that feeds a GPU: uploads one job while another computes, and hands results back.
//!
//! Jobs come through a bounded queue and are answered once, in order. Each wave of a job is a submission of its own, at
//! most two of them under way, so that the desktop gets its turn. **Promise:** after a loss every job that waits or
//! comes is answered with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::compose::Op;
use super::device::Device;
use super::layout::ClassKey;
use super::pipelines::Pipelines;
use super::plan::{Launch, Plan, Wave};
use super::slots::{JobSlot, SLOTS, sums_bytes};
use crate::kernel::KernelError;

/// Jobs that wait for the thread.
const QUEUE: usize = 4;
/// Timestamps of a job: begin and end of each wave.
const WAVES_TIMED_MAX: u32 = 64;

/// Results of a job: its sums and statuses, or its outputs, as words; and the time on the GPU where it was asked for.
pub(super) struct Done {
    pub words: Vec<u32>,
    pub gpu_time: Option<Duration>,
    /// From submission to completion of the job, for who plans the next ones.
    pub wall: Duration,
}

/// What the thread is asked for.
pub(super) struct Job {
    pub plan: Plan,
    /// The prepared rows.
    pub rows: Vec<u8>,
    /// Whether the GPU's own clock is asked.
    pub timed: bool,
    pub reply: SyncSender<Result<Done, KernelError>>,
}

/// A job on the GPU.
struct Flying {
    slot: usize,
    last: wgpu::SubmissionIndex,
    bytes: u64,
    timestamps: u32,
    started: Instant,
    reply: SyncSender<Result<Done, KernelError>>,
}

/// Starts a thread for `device`; it ends when the last sender is dropped.
///
/// # Errors
/// The system gives no thread, or the GPU no memory for the slots' first buffers.
pub(super) fn start(device: Arc<Device>, pipelines: Arc<Pipelines>) -> Result<SyncSender<Job>, KernelError> {
    let lost = |reason: String| KernelError::Lost { device: device.name.clone(), reason };
    let slots: Option<Vec<JobSlot>> = (0..SLOTS).map(|number| JobSlot::new(&device, number)).collect();
    let slots = slots.ok_or_else(|| KernelError::Full { device: device.name.clone(), bytes: 1 << 12 })?;
    let clock = device.has_timestamps().then(|| Clock::new(&device)).flatten();
    let (jobs, queue) = sync_channel(QUEUE);
    let thread = Thread { device: Arc::clone(&device), pipelines, slots, clock, flying: VecDeque::new() };
    std::thread::Builder::new()
        .name("kvasir-gpu".into())
        .spawn(move || thread.work(&queue))
        .map_err(|error| lost(error.to_string()))?;
    Ok(jobs)
}

/// The GPU's clock, read into a buffer of each slot.
struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
}

impl Clock {
    fn new(device: &Device) -> Option<Self> {
        let bytes = u64::from(2 * WAVES_TIMED_MAX) * 8;
        let queries = device.raw.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("waves"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * WAVES_TIMED_MAX,
        });
        let resolve = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let (resolved, staging) = (device.buffer("times", bytes, resolve)?, device.buffer("times", bytes, read)?);
        Some(Self { queries, resolved, staging })
    }
}

struct Thread {
    device: Arc<Device>,
    pipelines: Arc<Pipelines>,
    slots: Vec<JobSlot>,
    clock: Option<Clock>,
    flying: VecDeque<Flying>,
}

impl Thread {
    fn work(mut self, queue: &Receiver<Job>) {
        let mut next_slot = 0;
        loop {
            let job = if self.flying.is_empty() {
                match queue.recv() {
                    Ok(job) => Some(job),
                    Err(_) => return,
                }
            } else {
                // Also when the last sender is gone: what flies is still answered.
                queue.try_recv().ok()
            };
            let Some(job) = job else {
                self.land();
                continue;
            };
            // A timed job has the GPU, and its clock, for itself.
            while self.flying.len() >= SLOTS || (job.timed && !self.flying.is_empty()) {
                self.land();
            }
            let timed = job.timed;
            let reply = job.reply.clone();
            match self.launch(next_slot, job) {
                Ok(flying) => self.flying.push_back(flying),
                // The asker may have given up; nobody else wants to know.
                Err(error) => _ = reply.send(Err(error)),
            }
            next_slot = (next_slot + 1) % SLOTS;
            if timed {
                self.land();
            }
        }
    }

    /// Uploads a job and submits its waves.
    fn launch(&mut self, slot: usize, job: Job) -> Result<Flying, KernelError> {
        if let Some(lost) = self.device.lost() {
            return Err(lost);
        }
        let device = Arc::clone(&self.device);
        let full = || KernelError::Full { device: device.name.clone(), bytes: sums_bytes(&job.plan) };
        let layouts = &self.pipelines.layouts;
        self.slots[slot].load(&device, layouts, &job.plan, &job.rows).ok_or_else(full)?;
        let started = Instant::now();
        let bytes = sums_bytes(&job.plan);
        let waves = job.plan.waves.len();
        let timed = job.timed && self.clock.is_some() && waves <= WAVES_TIMED_MAX as usize;
        let mut submitted = VecDeque::new();
        for (i, wave) in job.plan.waves.iter().enumerate() {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let (sums, staging) = self.slots[slot].results().ok_or_else(full)?;
            if i == 0 {
                encoder.clear_buffer(sums, 0, Some(bytes));
                // Inner rows of floats are read to the end of their last vector.
                if !job.plan.key.is_exact()
                    && let Some(inner) = self.slots[slot].inner()
                {
                    encoder.clear_buffer(inner, 0, None);
                }
            }
            self.encode(&mut encoder, slot, &job.plan, wave, timed.then_some(i as u32))?;
            if i + 1 == waves {
                encoder.copy_buffer_to_buffer(sums, 0, staging, 0, bytes);
                if timed && let Some(clock) = &self.clock {
                    encoder.resolve_query_set(&clock.queries, 0..2 * waves as u32, &clock.resolved, 0);
                    let bytes = 16 * waves as u64;
                    encoder.copy_buffer_to_buffer(&clock.resolved, 0, &clock.staging, 0, bytes);
                    encoder.map_buffer_on_submit(&clock.staging, wgpu::MapMode::Read, 0..bytes, |_| ());
                }
                encoder.map_buffer_on_submit(staging, wgpu::MapMode::Read, 0..bytes, |_| ());
            }
            submitted.push_back(device.queue.submit([encoder.finish()]));
            if i + 1 < waves
                && submitted.len() >= SLOTS
                && let Some(oldest) = submitted.pop_front()
            {
                device.wait(oldest)?;
            }
        }
        let last = submitted.pop_back().ok_or_else(full)?;
        Ok(Flying {
            slot,
            last,
            bytes,
            timestamps: if timed { 2 * waves as u32 } else { 0 },
            started,
            reply: job.reply,
        })
    }

    /// One wave: gate and up, the quantiser, down.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        slot: usize,
        plan: &Plan,
        wave: &Wave,
        timed: Option<u32>,
    ) -> Result<(), KernelError> {
        let lost = |reason: String| KernelError::Lost { device: self.device.name.clone(), reason };
        let timestamp_writes = timed.zip(self.clock.as_ref()).map(|(i, clock)| wgpu::ComputePassTimestampWrites {
            query_set: &clock.queries,
            beginning_of_pass_write_index: Some(2 * i),
            end_of_pass_write_index: Some(2 * i + 1),
        });
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        let launch = |pass: &mut wgpu::ComputePass<'_>, op: Op, launch: &Launch| {
            let ClassKey { outer, inner, hidden, intermediate } = plan.key;
            let (weights, rows) = match op {
                Op::GateUp => (outer, intermediate),
                Op::Down => (inner, hidden),
            };
            let kernel = self.pipelines.kernel((op, weights, launch.tile));
            let pipeline = self.pipelines.compiled(kernel).map_err(|error| lost(error.to_string()))?;
            let bound = self.slots[slot].bound(&self.device, &self.pipelines.layouts, &launch.chunk);
            let bound = bound.ok_or_else(|| lost("a slot without buffers".to_owned()))?;
            let group = if op == Op::GateUp { &bound.gate_up } else { &bound.down };
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, group, &[launch.tiles_at]);
            pass.dispatch_workgroups((rows as u32).div_ceil(kernel.tiling.rows), launch.tiles, 1);
            Ok::<(), KernelError>(())
        };
        for each in &wave.launches {
            launch(&mut pass, Op::GateUp, each)?;
        }
        if plan.key.is_exact() {
            pass.set_pipeline(self.pipelines.quantise());
            pass.set_bind_group(0, self.slots[slot].quantise(), &[wave.record_at]);
            pass.dispatch_workgroups(wave.slots.end - wave.slots.start, 1, 1);
        }
        for each in &wave.launches {
            launch(&mut pass, Op::Down, each)?;
        }
        Ok(())
    }

    /// Waits for the oldest job and answers it.
    fn land(&mut self) {
        let Some(flying) = self.flying.pop_front() else { return };
        let read = self.device.wait(flying.last.clone()).and_then(|()| self.read(&flying));
        // The asker may have given up.
        let _ = flying.reply.send(read);
    }

    fn read(&self, flying: &Flying) -> Result<Done, KernelError> {
        let wall = flying.started.elapsed();
        let gone = |error: String| self.device.give_up(&error);
        let (_, staging) = self.slots[flying.slot].results().ok_or_else(|| gone("no results".to_owned()))?;
        let mapped = staging.slice(0..flying.bytes).get_mapped_range().map_err(|error| gone(error.to_string()))?;
        let words = mapped.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        drop(mapped);
        staging.unmap();
        let gpu_time = match &self.clock {
            Some(clock) if flying.timestamps > 0 => {
                let bytes = u64::from(flying.timestamps) * 8;
                let range = clock.staging.slice(0..bytes).get_mapped_range();
                let mapped = range.map_err(|error| gone(error.to_string()))?;
                let ticks: Vec<u64> =
                    mapped.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
                drop(mapped);
                clock.staging.unmap();
                let ticks: u64 = ticks.chunks_exact(2).map(|wave| wave[1].saturating_sub(wave[0])).sum();
                Some(Duration::from_secs_f64(ticks as f64 * f64::from(self.device.timestamp_ns) / 1e9))
            }
            _ => None,
        };
        Ok(Done { words, gpu_time, wall })
    }
}
