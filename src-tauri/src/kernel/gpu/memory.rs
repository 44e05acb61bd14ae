//! How much memory an adapter has and how much of it is free, so that a slice is offered that fits and stays.
//!
//! Vulkan tells through `VK_EXT_memory_budget`, Metal through its working set, AMD's Linux driver through files. A GPU
//! that shares the machine's memory, and a program on the CPU, are bounded by what the machine has free as well.
//! DX12 is not asked: it is used only where Vulkan is missing, and then a small offer is made.

use std::path::Path;

use serde::Serialize;
use wgpu::{Adapter, Backend, DeviceType};

use super::surroundings::read_system_file;
use crate::model::room::memory_free;

/// Share of the free memory that is offered: the rest is for the desktop and for what drivers allocate on their own.
const OFFER_PERCENT: u64 = 80;
/// What is offered when the driver tells nothing: every GPU of the last ten years has it.
const OFFER_UNKNOWN_BYTES: u64 = 1 << 30;

/// Memory of an adapter, in bytes; `None` where nobody tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Budget {
    /// The largest heap that is local to the device.
    pub heap_bytes: Option<u64>,
    /// What this process may take of it, its own use included.
    pub budget_bytes: Option<u64>,
    /// What this process, or everybody where only that is known, uses of it.
    pub used_bytes: Option<u64>,
    /// What the machine has free, when the adapter computes in the machine's memory.
    pub host_free_bytes: Option<u64>,
}

impl Budget {
    /// Asks the driver of `adapter` for the figures of this moment.
    #[must_use]
    pub fn of(adapter: &Adapter) -> Self {
        let info = adapter.get_info();
        let told = match info.backend {
            Backend::Vulkan => vulkan(adapter),
            Backend::Metal => metal(adapter),
            _ => Self::default(),
        };
        let is_discrete = info.device_type == DeviceType::DiscreteGpu;
        let told = if is_discrete { told.or_used(amd_used(Path::new("/sys"), &info.device_pci_bus_id)) } else { told };
        let shares_host = matches!(info.device_type, DeviceType::IntegratedGpu | DeviceType::Cpu);
        let host_free_bytes = if shares_host { memory_free() } else { None };
        Self { host_free_bytes, ..told }
    }

    fn or_used(self, used: Option<u64>) -> Self {
        Self { used_bytes: self.used_bytes.or(used), ..self }
    }

    /// Bytes free now; `None` when the driver does not tell how large its memory is.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        let whole = self.budget_bytes.or(self.heap_bytes)?;
        let free = whole.saturating_sub(self.used_bytes.unwrap_or(0));
        Some(free.min(self.host_free_bytes.unwrap_or(u64::MAX)))
    }

    /// Bytes to offer for experts beside the `taken` that experts have already, `cap` at most for both together: what is
    /// offered does not grow by being taken, whether the driver counts it or not.
    #[must_use]
    pub fn room(&self, taken: u64, cap: Option<u64>) -> u64 {
        let used_bytes = self.used_bytes.map(|used| used.saturating_sub(taken));
        let host_free_bytes = self.host_free_bytes.map(|free| free.saturating_add(taken));
        Self { used_bytes, host_free_bytes, ..*self }.offer_bytes(cap).saturating_sub(taken)
    }

    /// Bytes to offer for experts, `cap` at most.
    #[must_use]
    pub fn offer_bytes(&self, cap: Option<u64>) -> u64 {
        let offer = self.free_bytes().map_or(OFFER_UNKNOWN_BYTES, |free| free / 100 * OFFER_PERCENT);
        offer.min(cap.unwrap_or(u64::MAX))
    }
}

/// The largest device-local heap, and its budget and use where the extension is there.
fn vulkan(adapter: &Adapter) -> Budget {
    // SAFETY: the adapter is only read, and nothing of it outlives the guard.
    #[expect(unsafe_code, reason = "wgpu has no query of its own for memory")]
    let Some(hal) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return Budget::default() };
    let (shared, device, capabilities) =
        (hal.shared_instance(), hal.raw_physical_device(), hal.physical_device_capabilities());
    // SAFETY: the physical device belongs to this instance, which the guard keeps alive.
    #[expect(unsafe_code, reason = "a call into the driver")]
    let memory = unsafe { shared.raw_instance().get_physical_device_memory_properties(device) };
    let heaps = memory.memory_heaps_as_slice();
    let local =
        heaps.iter().enumerate().filter(|(_, heap)| heap.flags.contains(ash::vk::MemoryHeapFlags::DEVICE_LOCAL));
    let Some((index, heap)) = local.max_by_key(|(_, heap)| heap.size) else { return Budget::default() };
    let told = Budget { heap_bytes: Some(heap.size), ..Budget::default() };

    let has_query = shared.instance_api_version().min(capabilities.properties().api_version)
        >= ash::vk::API_VERSION_1_1
        && capabilities.supports_extension(ash::ext::memory_budget::NAME);
    if !has_query {
        return told;
    }
    let mut budget = ash::vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = ash::vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: instance and device are of Vulkan 1.1, which has the call, and the device has the extension whose
    // structure is chained; both structures live until the call returns.
    #[expect(unsafe_code, reason = "a call into the driver")]
    unsafe {
        shared.raw_instance().get_physical_device_memory_properties2(device, &mut memory);
    }
    let figure = |figures: &[u64]| figures.get(index).copied();
    // Drivers that leave the structure alone say zero.
    let budget_bytes = figure(&budget.heap_budget).filter(|bytes| *bytes > 0);
    Budget { budget_bytes, used_bytes: budget_bytes.and_then(|_| figure(&budget.heap_usage)), ..told }
}

#[cfg(target_vendor = "apple")]
fn metal(adapter: &Adapter) -> Budget {
    use objc2_metal::MTLDevice as _;
    // SAFETY: the adapter is only read, and nothing of it outlives the guard.
    #[expect(unsafe_code, reason = "wgpu has no query of its own for memory")]
    let Some(hal) = (unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }) else { return Budget::default() };
    let bytes = hal.raw_device().recommendedMaxWorkingSetSize();
    let used = u64::try_from(hal.raw_device().currentAllocatedSize()).ok();
    Budget { heap_bytes: Some(bytes), budget_bytes: Some(bytes), used_bytes: used, ..Budget::default() }
}

#[cfg(not(target_vendor = "apple"))]
fn metal(_adapter: &Adapter) -> Budget {
    Budget::default()
}

/// What everybody uses of the memory of an AMD card, from its Linux driver: its Vulkan drivers' own figure is not
/// passed on by wgpu, because some count wrongly.
fn amd_used(sys: &Path, pci: &str) -> Option<u64> {
    let is_address =
        pci.len() <= 16 && !pci.is_empty() && pci.bytes().all(|b| b.is_ascii_hexdigit() || b":.".contains(&b));
    let path = is_address.then(|| sys.join("bus/pci/devices").join(pci).join("mem_info_vram_used"))?;
    read_system_file(&path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_offer_is_four_fifths_of_what_is_free_and_never_more_than_the_cap() {
        let budget = Budget {
            heap_bytes: Some(24 * GIB),
            budget_bytes: Some(20 * GIB),
            used_bytes: Some(10 * GIB),
            ..Budget::default()
        };
        assert_eq!(budget.offer_bytes(None), 10 * GIB / 100 * 80);
        assert_eq!(budget.offer_bytes(Some(3 * GIB)), 3 * GIB);
        let crowded = Budget { used_bytes: Some(30 * GIB), ..budget };
        assert_eq!(crowded.offer_bytes(None), 0);
    }

    #[test]
    fn without_a_query_the_heap_counts_and_without_a_heap_a_small_default() {
        let budget = Budget { heap_bytes: Some(8 * GIB), ..Budget::default() };
        assert_eq!(budget.offer_bytes(None), 8 * GIB / 100 * 80);
        assert_eq!(budget.or_used(Some(6 * GIB)).offer_bytes(None), 2 * GIB / 100 * 80);
        assert_eq!(Budget::default().offer_bytes(None), OFFER_UNKNOWN_BYTES);
    }

    #[test]
    fn a_gpu_in_the_machines_memory_offers_no_more_than_the_machine_has_free() {
        let shared = Budget { heap_bytes: Some(64 * GIB), host_free_bytes: Some(5 * GIB), ..Budget::default() };
        assert_eq!(shared.offer_bytes(None), 5 * GIB / 100 * 80);
    }

    #[test]
    fn the_drivers_figure_is_read_as_written() {
        let sys = tempfile::tempdir().expect("a directory");
        let card = sys.path().join("bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&card).expect("a directory");
        std::fs::write(card.join("mem_info_vram_used"), "123456\n").expect("a file");
        assert_eq!(amd_used(sys.path(), "0000:03:00.0"), Some(123_456));
        assert_eq!(amd_used(sys.path(), ""), None);
        assert_eq!(amd_used(sys.path(), "../../etc"), None);
    }

    #[test]
    fn what_is_offered_does_not_grow_by_being_taken() {
        const GIB: u64 = 1 << 30;
        let counted = |used| Budget { budget_bytes: Some(10 * GIB), used_bytes: Some(used), ..Budget::default() };
        let uncounted = Budget { heap_bytes: Some(10 * GIB), ..Budget::default() };
        let first = counted(2 * GIB).room(0, None);
        for taken in [GIB, 3 * GIB, first] {
            assert_eq!(taken + counted(2 * GIB + taken).room(taken, None), first);
            assert_eq!(taken + uncounted.room(taken, None), uncounted.room(0, None));
            assert_eq!(taken + counted(2 * GIB + taken).room(taken, Some(6 * GIB)), (6 * GIB).max(taken));
        }
        // Somebody else took what was free: nothing more is offered.
        assert_eq!(counted(9 * GIB).room(3 * GIB, None), 4 * GIB / 100 * 80 - 3 * GIB);
    }
}
