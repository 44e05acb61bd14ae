//! The GPU as a kernel: places experts in its memory and answers requests, opening the adapter anew when it was lost.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::adapters::Found;
use super::choice::Identity;
use super::compose::Weights;
use super::compute::Pace;
use super::device::Device;
use super::layout::{ClassKey, pack_exact, pack_float};
use super::memory::Budget;
use super::pipelines::Pipelines;
use super::readiness::Readiness;
use super::scratch::Scratch;
use super::store::{Resident, Store};
use super::thread::{self, Threads};
use super::{GpuError, GpuOptions, adapters, subgroups};
use crate::kernel::experts::{Expert, ExpertCompute, ExpertSource, KernelError};
use crate::wire::work::{Dispatch, Partials};

/// Part of the room that is offered, of 256: exponents and padding take up to 3 % beside the stored bytes.
const OFFERED: u64 = 246;

/// An adapter that is open.
pub(super) struct Open {
    pub device: Arc<Device>,
    identity: Identity,
    pub pipelines: Arc<Pipelines>,
    pub readiness: Readiness,
    store: Store,
    pub threads: Threads,
    pub pace: Pace,
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
        let (adapter, identity, cap) = (found.adapter, found.identity, options.memory_bytes);
        let room = move |taken: u64| Budget::of(&adapter).room(taken, cap);
        let store = Store::new(Arc::clone(&device), Box::new(room));
        let refused = |error: KernelError| GpuError::Device { adapter: device.name.clone(), reason: error.to_string() };
        let threads = thread::start(Arc::clone(&device), Arc::clone(&pipelines)).map_err(refused)?;
        Ok(Arc::new(Self { device, identity, pipelines, readiness, store, threads, pace: Pace::default() }))
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
        self.device.wait(self.device.submit(None))?;
        Ok(expert.placed_as(Arc::new(resident)))
    }

    /// What the kernels read of an expert.
    pub fn resident(&self, id: u16, expert: &Expert) -> Result<Arc<Resident>, KernelError> {
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

    /// Bytes that experts may still take.
    pub fn room(&self) -> u64 {
        self.store.room()
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
        Ok((partials, time))
    }

    pub(super) fn now(&self) -> Arc<Open> {
        Arc::clone(&self.open.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the GPU was given to do so far, and what it holds.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let open = self.now();
        Activity { submissions: open.device.submissions(), expert_bytes: open.store.taken() }
    }
}

/// What a GPU was given to do, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Submissions since the adapter was opened.
    pub submissions: u64,
    /// Bytes of its memory that experts take.
    pub expert_bytes: u64,
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

    fn identity(&self) -> String {
        self.now().identity.to_string()
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

    fn release(&self) {
        // Whoever opens it anew at this moment does so for somebody who has stopped.
        let _alone = self.recovering.lock().unwrap_or_else(PoisonError::into_inner);
        self.now().device.give_up("given back");
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
