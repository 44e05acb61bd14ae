//! The adapters of this machine: what the drivers show, the one to compute on, and why not when there is none.
//!
//! A driver may come up seconds after the program (boot, resume), so looking again is part of looking. There is no
//! silent fall to the CPU: whoever gets no adapter gets the reason.

use std::time::Duration;

use wgpu::{Adapter, AdapterInfo, Backends, DeviceType, DownlevelFlags, Instance, InstanceDescriptor, Limits};

use super::choice::{Candidate, Identity, PassedOver, judge};
use super::listing::list;
use super::memory::Budget;
use super::surroundings::Surroundings;
use super::{GpuError, GpuOptions};

/// The back ends that are looked through.
const BACKENDS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);
/// First wait between two looks.
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// Longest wait between two looks.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// An adapter and what there is to know of it without opening it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The adapter.
    pub adapter: Adapter,
    /// What its driver says.
    pub info: AdapterInfo,
    /// Which hardware it is.
    pub identity: Identity,
    /// Its memory when it was found.
    pub budget: Budget,
}

impl Found {
    fn new(adapter: Adapter) -> Self {
        let (info, budget) = (adapter.get_info(), Budget::of(&adapter));
        Self { identity: Identity::of(&info), adapter, info, budget }
    }

    /// Whether it is a program on the CPU.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.info.device_type == DeviceType::Cpu
    }

    /// Name and back end, for people.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} ({:?})", self.info.name, self.info.backend)
    }
}

/// Everything that one look found.
#[derive(Debug)]
pub struct Survey {
    /// Best first.
    pub usable: Vec<Found>,
    /// The others, with the reason.
    pub passed_over: Vec<(Found, PassedOver)>,
    /// What else the machine shows.
    pub surroundings: Surroundings,
}

impl Survey {
    /// Why nothing is usable, for somebody who asked with `options`.
    #[must_use]
    pub fn no_adapter(&self, options: &GpuOptions) -> GpuError {
        let wanted = match &options.adapter {
            Some(name) => format!("a GPU whose name or identity contains {name:?}"),
            None => "a GPU".to_string(),
        };
        let each = |(found, why): &(Found, PassedOver)| format!("{} [{}]: {why}", found.label(), found.identity);
        let seen: Vec<String> = self.passed_over.iter().map(each).collect();
        let seen = if seen.is_empty() { "none".to_string() } else { seen.join("; ") };
        let was_misnamed = self.passed_over.iter().any(|(_, why)| *why == PassedOver::NotWanted);
        let advice = if was_misnamed { "name one of these".to_string() } else { self.surroundings.advice() };
        GpuError::NoAdapter { wanted, seen, advice }
    }
}

/// Looks once through every back end.
#[must_use]
pub fn survey(options: &GpuOptions) -> Survey {
    // A new instance every time: drivers are found when it is made.
    let backends = BACKENDS;
    let instance = Instance::new(InstanceDescriptor { backends, ..InstanceDescriptor::new_without_display_handle() });
    // SAFETY: only asks whether the back end came up; nothing of it is kept.
    #[expect(unsafe_code, reason = "wgpu says in no other way that there is no loader")]
    let vulkan = unsafe { instance.as_hal::<wgpu::hal::api::Vulkan>() }.is_some();
    let found: Vec<Found> =
        pollster::block_on(instance.enumerate_adapters(backends)).into_iter().map(Found::new).collect();
    let candidate = |f: &Found| Candidate {
        info: f.info.clone(),
        heap_bytes: f.budget.heap_bytes,
        lacks: what_it_lacks(&f.adapter),
    };
    let candidates: Vec<Candidate> = found.iter().map(candidate).collect();
    let judgement = judge(&candidates, options);
    Survey {
        usable: judgement.usable.iter().map(|i| found[*i].clone()).collect(),
        passed_over: judgement.passed_over.into_iter().map(|(i, why)| (found[i].clone(), why)).collect(),
        surroundings: Surroundings::look(vulkan),
    }
}

/// Looks for an adapter as long as `patience`; blocks.
///
/// # Errors
/// [`GpuError::NoAdapter`] with everything that was seen, [`GpuError::Drivers`] for a look that did not end well.
pub fn detect(options: &GpuOptions, patience: Duration) -> Result<Found, GpuError> {
    let look = || {
        // Whoever lets another process look loads no driver here before that one found something.
        if options.looker.is_some()
            && let Some(lacks) = list(options)?.lacks
        {
            return Err(lacks.into());
        }
        let mut survey = survey(options);
        if survey.usable.is_empty() { Err(survey.no_adapter(options)) } else { Ok(survey.usable.swap_remove(0)) }
    };
    retry(patience, look, std::thread::sleep)
}

/// Calls `look` until it finds something or the waits add up to `patience`.
fn retry<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<T, GpuError>,
    mut wait: impl FnMut(Duration),
) -> Result<T, GpuError> {
    let (mut waited, mut pause) = (Duration::ZERO, WAIT_FIRST);
    loop {
        let error = match look() {
            Ok(found) => return Ok(found),
            Err(error) if waited >= patience => return Err(error),
            Err(error) => error,
        };
        if waited.is_zero() {
            tracing::warn!("waiting up to {} s for a GPU: {error}", patience.as_secs());
        }
        let step = pause.min(patience - waited);
        wait(step);
        waited += step;
        pause = (pause * 2).min(WAIT_MAX);
    }
}

/// What the kernels need and `adapter` does not have.
fn what_it_lacks(adapter: &Adapter) -> Option<String> {
    if !adapter.get_downlevel_capabilities().flags.contains(DownlevelFlags::COMPUTE_SHADERS) {
        return Some("compute shaders".to_string());
    }
    let mut lacks = None;
    let has = adapter.limits();
    Limits::defaults().check_limits_with_fail_fn(&has, false, |name, needed, got| {
        if name.contains("storage_buffer") || name.contains("compute") {
            lacks.get_or_insert(format!("{name}: expected {needed}, got {got}"));
        }
    });
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> GpuError {
        GpuError::NoAdapter { wanted: "a GPU".into(), seen: "none".into(), advice: "plug one in".into() }
    }

    #[test]
    fn a_gpu_that_appears_after_boot_is_found() {
        let (mut looks, mut waits) = (0, Vec::new());
        let look = || {
            looks += 1;
            if looks == 4 { Ok("gpu") } else { Err(none()) }
        };
        let found = retry(Duration::from_secs(300), look, |pause| waits.push(pause.as_secs()));
        assert_eq!((found, waits), (Ok("gpu"), vec![1, 2, 4]));
    }

    #[test]
    fn patience_ends_with_the_reason() {
        let mut waits = Vec::new();
        let found = retry(Duration::from_secs(30), || Err::<(), _>(none()), |pause| waits.push(pause.as_secs()));
        assert_eq!((found, waits), (Err(none()), vec![1, 2, 4, 8, 10, 5]));
    }

    #[test]
    fn without_patience_there_is_one_look() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            Err::<(), _>(none())
        };
        assert_eq!(retry(Duration::ZERO, look, |_| ()), Err(none()));
        assert_eq!(looks, 1);
    }
}
