//! What `kvasir gpu` shows: every adapter, what it can do, whether its kernels are right, and how fast they are.
//!
//! Every adapter is listed, those passed over with the reason; a machine without any is no error. The figures are
//! measured here and now, on synthetic experts of a real model's shape.

mod text;

use std::time::{Duration, Instant};

use serde::Serialize;
use wgpu::{Backend, DeviceType, Features};

use super::adapters::{Found, survey};
use super::bandwidth::{self, ReadSpeed};
use super::compose::Weights;
use super::kernel::Open;
use super::layout::ClassKey;
use super::memory::Budget;
use super::readiness::Variant;
use super::scratch::Scratch;
use super::subgroups::{self, Subgroups};
use super::tune::{Course, Effort};
use super::{GpuError, GpuOptions};
use crate::kernel::KernelError;

/// Hidden and intermediate size of Qwen3.5-122B's experts.
const SIZES: [usize; 2] = [3072, 1024];
/// Rows of the timed requests: decode, and a batch.
const ROWS: [usize; 2] = [1, 64];

/// Everything that `kvasir gpu` tells.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Usable ones first, best first.
    pub adapters: Vec<AdapterReport>,
    /// Why no adapter is usable, when none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One adapter.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterReport {
    /// The driver's name for it.
    pub name: String,
    /// What `--gpu` may say.
    pub identity: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// `discrete`, `integrated`, `virtual`, `other` or `cpu`.
    pub kind: String,
    /// The driver.
    pub driver: String,
    /// Its version.
    pub driver_info: String,
    /// Why it is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
    /// Its memory.
    pub memory: Budget,
    /// Bytes that a worker would offer for experts.
    pub offer_bytes: u64,
    /// Largest piece of memory that a kernel sees.
    pub binding_bytes_max: u64,
    /// Largest piece of memory.
    pub buffer_bytes_max: u64,
    /// Largest workgroup, in threads.
    pub workgroup_threads_max: u32,
    /// Whether the device has a clock.
    pub timestamps: bool,
    /// Smallest and largest subgroup, as the driver tells; `None` without subgroups.
    pub subgroup_sizes: Option<[u32; 2]>,
    /// Whether dot products of packed int8 are instructions of the device; `None` where the back end does not tell.
    pub packed_int8_dot: Option<bool>,
    /// What was measured; `None` for one that is passed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Why nothing could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// What an adapter did.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Subgroups as they are.
    pub subgroups: Option<Subgroups>,
    /// Speed of reading.
    pub read: ReadSpeed,
    /// One entry per exact type of weights.
    pub self_test: Vec<TypeResult>,
    /// Every kernel that was tried, the chosen ones marked.
    pub kernels: Vec<Variant>,
    /// Experts of Q4_K, 3072 × 1024, eight per row or as many as were placed.
    pub throughput: Vec<Throughput>,
}

/// Whether the kernels for a type are right.
#[derive(Clone, Debug, Serialize)]
pub struct TypeResult {
    /// The type.
    pub weights: String,
    /// Whether known work gives the pinned results.
    pub passed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Speed of requests.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// Rows of a request.
    pub rows: usize,
    /// Its assignments.
    pub assignments: usize,
    /// From request to reply, milliseconds: the median.
    pub ms: f64,
    /// On the device, milliseconds: the median.
    pub device_ms: f64,
    /// Assignments per second, by the time from request to reply.
    pub assignments_per_s: f64,
}

/// Looks at every adapter of this machine and measures those that `options` choose, with their cache of tuning results.
#[must_use]
pub fn report(options: &GpuOptions) -> Report {
    let seen = survey(options);
    let why = seen.usable.is_empty().then(|| seen.no_adapter(options).to_string());
    let usable = seen.usable.iter().map(|found| match measure(found, options) {
        Ok(measured) => AdapterReport { measured: Some(measured), ..AdapterReport::new(found, options) },
        Err(error) => AdapterReport { fault: Some(error.to_string()), ..AdapterReport::new(found, options) },
    });
    let passed_over = seen
        .passed_over
        .iter()
        .map(|(found, why)| AdapterReport { passed_over: Some(why.to_string()), ..AdapterReport::new(found, options) });
    Report { adapters: usable.chain(passed_over).collect(), why }
}

impl AdapterReport {
    fn new(found: &Found, options: &GpuOptions) -> Self {
        let (info, limits, features) = (&found.info, found.adapter.limits(), found.adapter.features());
        let kind = match info.device_type {
            DeviceType::DiscreteGpu => "discrete",
            DeviceType::IntegratedGpu => "integrated",
            DeviceType::VirtualGpu => "virtual",
            DeviceType::Cpu => "cpu",
            DeviceType::Other => "other",
        };
        let has_subgroups = features.contains(Features::SUBGROUP);
        Self {
            name: info.name.clone(),
            identity: found.identity.to_string(),
            backend: format!("{:?}", info.backend).to_lowercase(),
            kind: kind.to_string(),
            driver: info.driver.clone(),
            driver_info: info.driver_info.clone(),
            passed_over: None,
            memory: found.budget,
            offer_bytes: found.budget.offer_bytes(options.memory_bytes),
            binding_bytes_max: limits.max_storage_buffer_binding_size,
            buffer_bytes_max: limits.max_buffer_size,
            workgroup_threads_max: limits.max_compute_invocations_per_workgroup,
            timestamps: features.contains(Features::TIMESTAMP_QUERY),
            subgroup_sizes: has_subgroups.then_some([info.subgroup_min_size, info.subgroup_max_size]),
            packed_int8_dot: packed_int8_dot(found),
            measured: None,
            fault: None,
        }
    }
}

/// Whether the device multiplies packed int8 by instructions of its own.
fn packed_int8_dot(found: &Found) -> Option<bool> {
    if found.info.backend == Backend::Metal {
        return Some(false);
    }
    // SAFETY: the adapter is only read, and nothing of it outlives the guard.
    #[expect(unsafe_code, reason = "wgpu does not pass this on")]
    let hal = unsafe { found.adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let capabilities = hal.physical_device_capabilities();
    let is_core = capabilities.properties().api_version >= ash::vk::API_VERSION_1_3;
    Some(is_core || capabilities.supports_extension(ash::khr::shader_integer_dot_product::NAME))
}

fn measure(found: &Found, options: &GpuOptions) -> Result<Measured, GpuError> {
    let open = Open::on(found.clone(), options)?;
    let scratch = Scratch::new(std::sync::Arc::clone(&open.device));
    let (subgroups, read) = (subgroups::probe(&scratch)?, bandwidth::measure_on(&scratch, found)?);
    let [hidden, intermediate] = SIZES;
    let key = |weights| ClassKey { outer: weights, inner: weights, hidden, intermediate };
    let mut self_test = Vec::new();
    for weights in Weights::EXACT {
        let fault = match open.readiness.prepare(&open, key(weights)) {
            Ok(()) => None,
            Err(KernelError::Lost { device, reason }) => return Err(GpuError::Lost { adapter: device, reason }),
            Err(error) => Some(error.to_string()),
        };
        self_test.push(TypeResult { weights: weights.to_string(), passed: fault.is_none(), fault });
    }
    let refused = |error: KernelError| GpuError::Device { adapter: found.label(), reason: error.to_string() };
    let throughput = throughput(&open, key(Weights::Q4K), open.readiness.effort()).map_err(refused)?;
    Ok(Measured { subgroups, read, self_test, kernels: open.readiness.variants(), throughput })
}

fn throughput(open: &Open, key: ClassKey, effort: Effort) -> Result<Vec<Throughput>, KernelError> {
    let course = Course::new(open, key, effort)?;
    let mut all = Vec::new();
    for rows in ROWS {
        let (mut walls, mut devices) = (Vec::new(), Vec::new());
        let mut assignments = 0;
        course.run(rows)?;
        for _ in 0..effort.rounds {
            let start = Instant::now();
            let (device, count) = course.run(rows)?;
            walls.push(start.elapsed());
            devices.push(device);
            assignments = count;
        }
        let ms = |mut times: Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e3
        };
        let (ms, device_ms) = (ms(walls), ms(devices));
        all.push(Throughput { rows, assignments, ms, device_ms, assignments_per_s: assignments as f64 / ms * 1e3 });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_covers_an_adapter_from_its_name_to_its_speed() {
        if crate::kernel::gpu::tests::adapter_for_tests().is_none() {
            return;
        }
        let report = report(&GpuOptions { allow_software: true, ..GpuOptions::default() });
        assert_eq!(report.why, None);
        let first = &report.adapters[0];
        let measured = first.measured.as_ref().unwrap_or_else(|| panic!("{:?}", first.fault));
        assert!(measured.self_test.iter().all(|t| t.passed), "{:#?}", measured.self_test);
        assert_eq!(measured.self_test.len(), Weights::EXACT.len());
        assert!(measured.throughput.iter().all(|t| t.assignments_per_s > 0.0));
        let text = report.to_string();
        assert!(text.contains(&first.name) && text.contains("Q4_K"), "{text}");
        println!("{text}\n{}", serde_json::to_string_pretty(&report).expect("JSON"));
    }

    #[test]
    fn software_is_listed_with_the_way_to_allow_it() {
        let Some(found) = crate::kernel::gpu::tests::adapter_for_tests() else { return };
        if !found.is_software() {
            return;
        }
        let report = report(&GpuOptions::default());
        let why = report.why.as_deref().unwrap_or_default();
        assert!(why.contains("--allow-software"), "{why}");
        assert!(report.adapters.iter().all(|a| a.measured.is_none() && a.passed_over.is_some()));
    }
}
