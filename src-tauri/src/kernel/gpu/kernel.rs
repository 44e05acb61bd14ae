//! The GPU as a kernel: places experts in its memory and answers requests, opening the adapter anew when it was lost.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::adapters::Found;
use super::compose::Weights;
use super::device::Device;
use super::layout::{ClassKey, pack_exact, pack_float, prepare_float_row, prepare_row};
use super::memory::Budget;
use super::pipelines::Pipelines;
use super::plan::{Plan, Work};
use super::readiness::Readiness;
use super::scratch::Scratch;
use super::store::{Resident, Store};
use super::thread::{self, Done, Job};
use super::{GpuError, GpuOptions, adapters, subgroups};
use crate::kernel::batch::{self, ExactBatch, Slot};
use crate::kernel::experts::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::kernel::float_form;
use crate::wire::work::{Dispatch, Partials, RowStatus};

/// Longest submission that is planned: a desktop redraws between two of them.
const WAVE: Duration = Duration::from_millis(10);
/// Time of a slot until one was measured.
const SLOT_NS_FIRST: u64 = 100_000;
/// Bytes of a job's largest buffer.
const JOB_BYTES_MAX: usize = 64 << 20;
/// Slots of a job.
const JOB_SLOTS_MAX: usize = 16_384;
/// Part of the room that is offered, of 256: exponents and padding take up to 3 % beside the stored bytes.
const OFFERED: u64 = 246;

/// An adapter that is open.
pub(super) struct Open {
    pub device: Arc<Device>,
    pub pipelines: Arc<Pipelines>,
    pub readiness: Readiness,
    store: Store,
    jobs: SyncSender<Job>,
    /// Nanoseconds that a slot takes, as measured of late.
    slot_ns: AtomicU64,
}

/// Computes experts on a GPU.
pub struct GpuKernel {
    options: GpuOptions,
    open: RwLock<Arc<Open>>,
    /// Held by whoever opens the adapter anew, so that several who miss it open it once.
    recovering: Mutex<()>,
}

impl Open {
    /// Opens the adapter that `options` choose.
    pub fn new(options: &GpuOptions, patience: Duration) -> Result<Arc<Self>, GpuError> {
        Self::on(adapters::detect(options, patience)?, options)
    }

    /// Opens the adapter that was found.
    pub fn on(found: Found, options: &GpuOptions) -> Result<Arc<Self>, GpuError> {
        let device = Arc::new(Device::open(&found.adapter, options.checked)?);
        let pipelines = Arc::new(Pipelines::new(Arc::clone(&device))?);
        let seen = subgroups::probe(&Scratch::new(Arc::clone(&device)))?;
        let readiness = Readiness::new(&found, seen, options.cache.clone());
        let (adapter, cap) = (found.adapter, options.memory_bytes);
        let room = move |taken: u64| {
            let budget = Budget::of(&adapter);
            // A driver that tells what is used has counted our chunks already.
            let uncounted = if budget.used_bytes.or(budget.host_free_bytes).is_some() { 0 } else { taken };
            let free = budget.offer_bytes(None).saturating_sub(uncounted);
            free.min(cap.map_or(u64::MAX, |cap| cap.saturating_sub(taken)))
        };
        let store = Store::new(Arc::clone(&device), Box::new(room));
        let refused = |error: KernelError| GpuError::Device { adapter: device.name.clone(), reason: error.to_string() };
        let jobs = thread::start(Arc::clone(&device), Arc::clone(&pipelines)).map_err(refused)?;
        Ok(Arc::new(Self { device, pipelines, readiness, store, jobs, slot_ns: AtomicU64::new(SLOT_NS_FIRST) }))
    }

    /// Uploads an expert.
    pub fn place(&self, expert: &Expert) -> Result<Expert, KernelError> {
        self.place_in(&self.store, expert)
    }

    /// Uploads an expert to a place in `store`, which belongs to this device.
    pub fn place_in(&self, store: &Store, expert: &Expert) -> Result<Expert, KernelError> {
        if let Some(lost) = self.device.lost() {
            return Err(lost);
        }
        let (key, bytes) = pack(expert, &self.device.name)?;
        let resident = store.take(key)?;
        self.device.queue.write_buffer(&resident.chunk.buffer, resident.offset(), &bytes);
        // Waiting bounds the memory that uploads on their way take.
        self.device.wait(self.device.queue.submit([]))?;
        Ok(expert.placed_as(Arc::new(resident)))
    }

    /// What the kernels read of an expert.
    fn resident(&self, id: u16, expert: &Expert) -> Result<Placed, KernelError> {
        let placed = expert.placed().and_then(|placed| Arc::clone(placed).downcast::<Resident>().ok());
        let Some(resident) = placed else {
            return Err(KernelError::NotPlaced { expert: id, device: self.device.name.clone() });
        };
        if !Arc::ptr_eq(&resident.device, &self.device) {
            let reason = "the expert was placed before the device was opened anew".to_owned();
            return Err(KernelError::Lost { device: self.device.name.clone(), reason });
        }
        Ok(resident)
    }

    fn run(&self, plan: Plan, rows: Vec<u8>, timed: bool) -> Result<Done, KernelError> {
        let gone = || {
            let stopped =
                || KernelError::Lost { device: self.device.name.clone(), reason: "its thread ended".to_owned() };
            self.device.lost().unwrap_or_else(stopped)
        };
        let slots = plan.slots.len() as u64;
        let (reply, answer) = sync_channel(1);
        self.jobs.send(Job { plan, rows, timed, reply }).map_err(|_| gone())?;
        let done = answer.recv().map_err(|_| gone())??;
        let ns = u64::try_from(done.wall.as_nanos()).unwrap_or(u64::MAX) / slots.max(1);
        self.slot_ns.store((self.slot_ns.load(Relaxed).saturating_mul(7).saturating_add(ns)) / 8, Relaxed);
        Ok(done)
    }

    fn wave_slots(&self) -> usize {
        (WAVE.as_nanos() as u64 / self.slot_ns.load(Relaxed).max(1)).max(1) as usize
    }

    /// Bytes that experts may still take.
    pub fn room(&self) -> u64 {
        self.store.room()
    }

    fn alignment(&self) -> usize {
        self.device.limits.min_storage_buffer_offset_alignment as usize
    }

    /// Answers a request; with `timed`, also the time on the GPU where the adapter has a clock.
    pub fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
        timed: bool,
    ) -> Result<(Vec<Partials>, Duration), KernelError> {
        if parts.first().is_some_and(Dispatch::is_float) {
            return self.compute_float(experts, layer, parts, timed);
        }
        let batch = ExactBatch::new(experts, layer, parts, |id, expert| self.resident(id, expert))?;
        let hidden = batch.hidden;
        let mut sums = vec![0i32; batch.rows.len() * hidden];
        let mut status = vec![RowStatus::Ok; batch.rows.len()];
        let mut time = Duration::ZERO;
        // A job's experts share their shape. Which job adds what does not matter: integers are added.
        let keys: BTreeSet<ClassKey> = batch.groups.iter().map(|group| group.expert.chunk.key).collect();
        let rows_max = (JOB_BYTES_MAX / (4 * hidden.max(1))).max(1);
        for (key, first) in keys.iter().flat_map(|key| (0..batch.rows.len()).step_by(rows_max).map(move |r| (*key, r)))
        {
            let rows = first..(first + rows_max).min(batch.rows.len());
            for works in works(&batch, key, &rows) {
                let count = rows.len() as u32;
                let plan = Plan::new(key, count, works, self.alignment(), self.wave_slots());
                let mut prepared = Vec::with_capacity(rows.len() * key.row_bytes());
                batch.rows[rows.clone()].iter().for_each(|row| prepare_row(row.wire, &mut prepared));
                let done = self.run(plan, prepared, timed)?;
                time += done.gpu_time.unwrap_or(done.wall);
                let (values, codes) = done.words.split_at(rows.len() * hidden);
                let own = &mut sums[rows.start * hidden..rows.end * hidden];
                own.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value as i32));
                status[rows.clone()].iter_mut().zip(codes).for_each(|(status, code)| *status = worse(*status, *code));
            }
        }
        Ok((batch::into_parts(parts, &status, sums, hidden), time))
    }

    fn compute_float(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
        timed: bool,
    ) -> Result<(Vec<Partials>, Duration), KernelError> {
        let mut time = Duration::ZERO;
        let replies = float_form::compute_with(experts, layer, parts, |id, expert, x, out| {
            let resident = self.resident(id, expert)?;
            let key = resident.chunk.key;
            let per_job = (JOB_BYTES_MAX / (4 * key.hidden.max(key.intermediate).max(1))).max(1);
            for (x, out) in x.chunks(per_job * key.hidden).zip(out.chunks_mut(per_job * key.hidden)) {
                let count = x.len() / key.hidden;
                let slots = (0..count as u32).map(|row| (row, 0)).collect();
                let works = vec![Work { resident: &resident, slots }];
                let plan = Plan::new(key, count as u32, works, self.alignment(), self.wave_slots());
                let mut rows = Vec::with_capacity(count * key.row_bytes());
                x.chunks_exact(key.hidden).for_each(|row| prepare_float_row(row, &mut rows));
                let done = self.run(plan, rows, timed)?;
                time += done.gpu_time.unwrap_or(done.wall);
                out.iter_mut().zip(&done.words).for_each(|(out, bits)| *out = f32::from_bits(*bits));
            }
            Ok(())
        })?;
        Ok((replies, time))
    }
}

/// What the kernels read of an expert.
type Placed = Arc<Resident>;

/// The work of class `key` for `rows`, cut into jobs of bounded size; an expert with more than a job's slots fills
/// several.
fn works<'a>(batch: &'a ExactBatch<'_, Placed>, key: ClassKey, rows: &Range<usize>) -> Vec<Vec<Work<'a>>> {
    let per_slot = key.inner_bytes().max(key.prepared_bytes()).max(1);
    let most = (JOB_BYTES_MAX / per_slot).clamp(1, JOB_SLOTS_MAX);
    let word = |slot: &Slot| {
        let grid = u32::from(batch.rows[slot.row].grid as u8);
        u32::from(slot.gate.mantissa) | u32::from(slot.gate.exponent as u8) << 16 | grid << 24
    };
    let (mut jobs, mut room) = (Vec::<Vec<Work<'a>>>::new(), 0);
    for group in batch.groups.iter().filter(|group| group.expert.chunk.key == key) {
        let own = group.slots.iter().filter(|slot| rows.contains(&slot.row));
        let slots: Vec<_> = own.map(|slot| ((slot.row - rows.start) as u32, word(slot))).collect();
        for slots in slots.chunks(most) {
            let work = Work { resident: &group.expert, slots: slots.to_vec() };
            match jobs.last_mut() {
                Some(job) if slots.len() <= room => {
                    room -= slots.len();
                    job.push(work);
                }
                _ => {
                    room = most - slots.len();
                    jobs.push(vec![work]);
                }
            }
        }
    }
    jobs
}

fn worse(status: RowStatus, code: u32) -> RowStatus {
    match (status, code) {
        (RowStatus::Poison, _) | (_, 2..) => RowStatus::Poison,
        (RowStatus::Range, _) | (_, 1) => RowStatus::Range,
        (RowStatus::Ok, 0) => RowStatus::Ok,
    }
}

/// Class of an expert on `device`.
fn class(expert: &Expert, device: &str) -> Result<ClassKey, KernelError> {
    let types = expert.types();
    match types.map(Weights::of) {
        [Some(outer), Some(up), Some(inner)] if outer == up && outer.is_exact() == inner.is_exact() => {
            Ok(ClassKey { outer, inner, hidden: expert.hidden(), intermediate: expert.intermediate() })
        }
        _ => Err(KernelError::Types { device: device.to_owned(), types }),
    }
}

/// Class and bytes of an expert in host memory, for `device`.
fn pack(expert: &Expert, device: &str) -> Result<(ClassKey, Vec<u8>), KernelError> {
    let key = class(expert, device)?;
    match (expert.exact(), expert.weights()) {
        (Some(exact), _) => Ok((key, pack_exact(key, exact))),
        (None, Some(weights)) => Ok((key, pack_float(key, weights))),
        (None, None) => Err(KernelError::Request { what: "experts in host memory", expected: 1, got: 0 }),
    }
}

impl GpuKernel {
    /// Opens the adapter that `options` choose.
    ///
    /// # Errors
    /// No adapter fits, or the driver refuses.
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        Self::open_within(options, Duration::ZERO)
    }

    /// The same, looking for the adapter as long as `patience`; blocks.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_within(options: &GpuOptions, patience: Duration) -> Result<Self, GpuError> {
        let open = RwLock::new(Open::new(options, patience)?);
        Ok(Self { options: options.clone(), open, recovering: Mutex::default() })
    }

    /// [`compute`](ExpertCompute::compute), and the time of its kernels by the adapter's own clock if it has one.
    ///
    /// # Errors
    /// As [`compute`](ExpertCompute::compute).
    pub fn compute_timed(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<(Vec<Partials>, Option<Duration>), KernelError> {
        let open = self.now();
        let (partials, time) = open.compute(experts, layer, parts, true)?;
        Ok((partials, open.device.has_timestamps().then_some(time)))
    }

    pub(super) fn now(&self) -> Arc<Open> {
        Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the GPU and its memory back at once: what is under way is answered as lost, and so is everything until
    /// [`recover`](ExpertCompute::recover).
    pub fn release(&self) {
        self.now().device.give_up("given back");
    }
}

impl ExpertCompute for GpuKernel {
    fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
    ) -> Result<Vec<Partials>, KernelError> {
        Ok(self.now().compute(experts, layer, parts, false)?.0)
    }

    fn device(&self) -> String {
        format!("gpu ({})", self.now().device.name)
    }

    fn place(&self, expert: Expert) -> Result<Expert, KernelError> {
        let open = self.now();
        open.readiness.prepare(&open, class(&expert, &open.device.name)?)?;
        open.place(&expert)
    }

    fn memory_bytes(&self) -> Option<u64> {
        let open = self.now();
        Some(open.store.room().saturating_add(open.store.free()) / 256 * OFFERED)
    }

    fn depth(&self) -> usize {
        super::slots::SLOTS
    }

    fn recover(&self, patience: Duration) -> Result<(), KernelError> {
        let _alone = self.recovering.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lost) = self.now().device.lost() else { return Ok(()) };
        let opened = Open::new(&self.options, patience).map_err(|error| match lost {
            KernelError::Lost { device, .. } => KernelError::Lost { device, reason: error.to_string() },
            other => other,
        })?;
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = opened;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
