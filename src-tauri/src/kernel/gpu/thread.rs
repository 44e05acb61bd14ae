//! The two threads that feed a GPU: one uploads and submits jobs, the other waits for them and hands results back.
//!
//! A job owns its slot of buffers from its upload to its answer, so one is filled while another computes. Each wave of
//! a job is a submission of its own, at most two of a job under way, so that the desktop gets its turn. **Promise:**
//! jobs are answered once, in order; after a loss every job that waits or comes is answered with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::compose::Op;
use super::device::Device;
use super::layout::ClassKey;
use super::pipelines::Pipelines;
use super::plan::{Launch, Plan, Wave};
use super::slots::{JobSlot, SLOTS, WAVES_TIMED_MAX, sums_bytes};
use crate::kernel::KernelError;

/// Jobs that wait for the threads.
const QUEUE: usize = 4;
/// Waves of a job under way.
const WAVES: usize = 2;

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
    /// Whether the GPU's own clock is asked, where it has one.
    pub timed: bool,
    pub reply: SyncSender<Result<Done, KernelError>>,
}

/// A job on the GPU.
struct Flying {
    slot: JobSlot,
    last: wgpu::SubmissionIndex,
    bytes: u64,
    /// Timestamps that it leaves.
    timestamps: u32,
    started: Instant,
    reply: SyncSender<Result<Done, KernelError>>,
}

/// The threads of an adapter. Dropped, it waits for them: a driver must not be let go by a thread that nobody waits for
/// while the process ends.
pub(super) struct Threads {
    jobs: Option<SyncSender<Job>>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Hands a job over; `None` when the threads have ended.
    pub fn send(&self, job: Job) -> Option<()> {
        self.jobs.as_ref()?.send(job).ok()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Without its queue the first thread ends, and without the first the second.
        self.jobs = None;
        for thread in self.running.drain(..) {
            // A panic was told where it happened, and whoever waited for an answer got none.
            let _ = thread.join();
        }
    }
}

/// Starts the threads of `device`.
///
/// # Errors
/// The system gives no thread, or the GPU no memory for the slots' first buffers.
pub(super) fn start(device: Arc<Device>, pipelines: Arc<Pipelines>) -> Result<Threads, KernelError> {
    let (jobs, queue) = sync_channel(QUEUE);
    let (landing, flown) = sync_channel(SLOTS);
    let (back, free) = sync_channel(SLOTS);
    for number in 0..SLOTS {
        let slot = JobSlot::new(&device, number);
        let slot = slot.ok_or_else(|| KernelError::Full { device: device.name.clone(), bytes: 1 << 12 })?;
        // The channel has room for every slot.
        let _ = back.send(slot);
    }
    let submitter = Submitter { device: Arc::clone(&device), pipelines };
    let lander = Lander { device: Arc::clone(&device) };
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
        spawned.map_err(|error| device.give_up(&format!("no thread: {error}")))
    };
    let mut threads = Threads { jobs: Some(jobs), running: Vec::new() };
    threads.running.push(spawn("kvasir-gpu", Box::new(move || submitter.work(&queue, &free, &landing)))?);
    threads.running.push(spawn("kvasir-gpu-land", Box::new(move || lander.work(&flown, &back)))?);
    Ok(threads)
}

/// Uploads and submits.
struct Submitter {
    device: Arc<Device>,
    pipelines: Arc<Pipelines>,
}

impl Submitter {
    fn work(&self, queue: &Receiver<Job>, free: &Receiver<JobSlot>, landing: &SyncSender<Flying>) {
        // A slot stays here until a job has left with it.
        let mut ready = None;
        while let Ok(job) = queue.recv() {
            let Some(mut slot) = ready.take().or_else(|| free.recv().ok()) else { return };
            let bytes = sums_bytes(&job.plan);
            let started = Instant::now();
            match self.launch(&mut slot, &job) {
                Ok((last, timestamps)) => {
                    let flying = Flying { slot, last, bytes, timestamps, started, reply: job.reply };
                    if landing.send(flying).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    ready = Some(slot);
                    // The asker may have given up; nobody else wants to know.
                    let _ = job.reply.send(Err(error));
                }
            }
        }
    }

    /// Uploads a job and submits its waves; gives its last submission and the timestamps that it leaves.
    fn launch(&self, slot: &mut JobSlot, job: &Job) -> Result<(wgpu::SubmissionIndex, u32), KernelError> {
        let device = &self.device;
        if let Some(lost) = device.lost() {
            return Err(lost);
        }
        let bytes = sums_bytes(&job.plan);
        let waves = job.plan.waves.len();
        let timed = job.timed && waves <= WAVES_TIMED_MAX as usize && slot.has_clock(device);
        let full = || KernelError::Full { device: device.name.clone(), bytes };
        slot.load(device, &self.pipelines.layouts, &job.plan, &job.rows).ok_or_else(full)?;
        let mut submitted = VecDeque::new();
        for (i, wave) in job.plan.waves.iter().enumerate() {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            if i == 0 {
                slot.clear(&mut encoder, &job.plan);
            }
            self.encode(&mut encoder, slot, &job.plan, wave, timed.then_some(i as u32))?;
            if i + 1 == waves {
                slot.read_back(&mut encoder, bytes, if timed { 2 * waves as u32 } else { 0 });
            }
            submitted.push_back(device.submit(Some(encoder.finish())));
            if i + 1 < waves
                && submitted.len() >= WAVES
                && let Some(oldest) = submitted.pop_front()
            {
                device.wait(oldest)?;
            }
        }
        let last = submitted.pop_back().ok_or_else(|| device.give_up("a job without waves"))?;
        Ok((last, if timed { 2 * waves as u32 } else { 0 }))
    }

    /// One wave: gate and up, the quantiser, down.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        slot: &JobSlot,
        plan: &Plan,
        wave: &Wave,
        timed: Option<u32>,
    ) -> Result<(), KernelError> {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: timed.and_then(|i| slot.timestamps(i)),
        });
        for launch in &wave.launches {
            self.encode_launch(&mut pass, slot, plan.key, Op::GateUp, launch)?;
        }
        if plan.key.is_exact() {
            pass.set_pipeline(self.pipelines.quantise());
            pass.set_bind_group(0, slot.quantise(), &[wave.record_at]);
            pass.dispatch_workgroups(wave.slots.end - wave.slots.start, 1, 1);
        }
        for launch in &wave.launches {
            self.encode_launch(&mut pass, slot, plan.key, Op::Down, launch)?;
        }
        Ok(())
    }

    fn encode_launch(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        slot: &JobSlot,
        key: ClassKey,
        op: Op,
        launch: &Launch,
    ) -> Result<(), KernelError> {
        let (weights, rows) = match op {
            Op::GateUp => (key.outer, key.intermediate),
            Op::Down => (key.inner, key.hidden),
        };
        let kernel = self.pipelines.kernel((op, weights, launch.tile));
        let wrong = |reason: String| KernelError::Wrong { device: self.device.name.clone(), reason };
        let pipeline = self.pipelines.compiled(kernel).map_err(|error| wrong(error.to_string()))?;
        let bound = slot.bound(&self.device, &self.pipelines.layouts, &launch.chunk);
        let bound = bound.ok_or_else(|| self.device.give_up("a slot without buffers"))?;
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, if op == Op::GateUp { &bound.gate_up } else { &bound.down }, &[launch.tiles_at]);
        pass.dispatch_workgroups((rows as u32).div_ceil(kernel.tiling.rows), launch.tiles, 1);
        Ok(())
    }
}

/// Waits and answers.
struct Lander {
    device: Arc<Device>,
}

impl Lander {
    fn work(&self, flown: &Receiver<Flying>, back: &SyncSender<JobSlot>) {
        while let Ok(Flying { slot, last, bytes, timestamps, started, reply }) = flown.recv() {
            let done = self.device.wait(last).and_then(|()| {
                let wall = started.elapsed();
                let read = slot.read(bytes, timestamps).map_err(|error| self.device.give_up(&error))?;
                let period = f64::from(self.device.timestamp_ns);
                let gpu_time = read.ticks.map(|ticks| Duration::from_secs_f64(ticks as f64 * period / 1e9));
                Ok(Done { words: read.words, gpu_time, wall })
            });
            // First the slot, so that the next job is not kept waiting by whoever reads the answer.
            let submitting = back.send(slot).is_ok();
            // The asker may have given up.
            let _ = reply.send(done);
            if !submitting && flown.try_recv().is_err() {
                return;
            }
        }
    }
}
