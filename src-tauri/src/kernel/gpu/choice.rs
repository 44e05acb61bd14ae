//! Which of the adapters that drivers show is the one to compute on, decided from what they say of themselves.
//!
//! One GPU may show under several back ends, and under two drivers of one back end. A choice names it by part of its
//! name or by its identity, which outlives a new card in another slot as an index would not.

use std::fmt;

use serde::Serialize;
use wgpu::{AdapterInfo, Backend, DeviceType};

use super::GpuOptions;

/// Which hardware an adapter is: `10de:2684@0000:01:00.0` (vendor, device, PCI address); where the driver tells no
/// address, its name stands in its place and cards alike share an identity.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize)]
pub struct Identity(String);

impl Identity {
    /// The identity of the hardware that `info` describes.
    #[must_use]
    pub fn of(info: &AdapterInfo) -> Self {
        let place = if info.device_pci_bus_id.is_empty() { &info.name } else { &info.device_pci_bus_id };
        Self(format!("{:04x}:{:04x}@{place}", info.vendor, info.device))
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What there is to know of an adapter before a device is asked of it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What the driver says.
    pub info: AdapterInfo,
    /// Bytes of its memory; `None` when the driver does not tell.
    pub heap_bytes: Option<u64>,
    /// What the kernels need and it does not have.
    pub lacks: Option<String>,
}

/// Why an adapter is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PassedOver {
    /// The kernels cannot run on it.
    #[error("lacks {0}")]
    Lacks(String),
    /// Another entry is the same hardware through a better back end.
    #[error("the same GPU through {better:?}")]
    SameGpu {
        /// The better back end.
        better: Backend,
    },
    /// Nobody allowed a program on the CPU in place of a GPU.
    #[error("a program on the CPU, which --allow-software takes")]
    Software,
    /// Another adapter was asked for.
    #[error("another was asked for")]
    NotWanted,
    /// Its owner switched it off.
    #[error("switched off")]
    Off,
}

/// The order in which adapters are taken, and why the rest is not; numbers are places in the list of candidates.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Judgement {
    /// Best first.
    pub usable: Vec<usize>,
    /// In the order of the list.
    pub passed_over: Vec<(usize, PassedOver)>,
}

/// Judges every candidate.
///
/// Best is a GPU with memory of its own, then one that shares the machine's, then a virtual one; among equals the
/// one with more memory, then the one that the driver names first.
#[must_use]
pub fn judge(candidates: &[Candidate], options: &GpuOptions) -> Judgement {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|i| rank(&candidates[*i]));
    let (mut judgement, mut kept) = (Judgement::default(), Vec::<usize>::new());
    for i in order {
        let candidate = &candidates[i];
        let twin = kept.iter().find(|k| is_same_gpu(&candidates[**k].info, &candidate.info));
        let verdict = if let Some(what) = &candidate.lacks {
            Some(PassedOver::Lacks(what.clone()))
        } else if let Some(twin) = twin {
            Some(PassedOver::SameGpu { better: candidates[*twin].info.backend })
        } else {
            kept.push(i);
            if !options.adapter.as_ref().is_none_or(|wanted| is_named(&candidate.info, wanted)) {
                Some(PassedOver::NotWanted)
            } else if options.off.contains(Identity::of(&candidate.info).as_str()) {
                Some(PassedOver::Off)
            } else if candidate.info.device_type == DeviceType::Cpu && !options.allow_software {
                Some(PassedOver::Software)
            } else {
                None
            }
        };
        match verdict {
            Some(why) => judgement.passed_over.push((i, why)),
            None => judgement.usable.push(i),
        }
    }
    judgement.passed_over.sort_by_key(|(i, _)| *i);
    judgement
}

/// Whether `wanted` is part of the adapter's name or identity; case does not matter.
fn is_named(info: &AdapterInfo, wanted: &str) -> bool {
    let wanted = wanted.to_lowercase();
    [&info.name, Identity::of(info).as_str()].iter().any(|text| text.to_lowercase().contains(&wanted))
}

/// Lower is better.
fn rank(candidate: &Candidate) -> (u8, std::cmp::Reverse<u64>, u8) {
    let kind = match candidate.info.device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    };
    (kind, std::cmp::Reverse(memory_class(candidate)), backend_rank(candidate.info.backend))
}

/// Back ends of one GPU tell slightly different sizes, which must not decide between them.
fn memory_class(candidate: &Candidate) -> u64 {
    const CLASS_BYTES: u64 = 2 << 30;
    // Unknown counts as plenty, so that a back end which does not tell is compared by its other merits.
    candidate.heap_bytes.map_or(u64::MAX, |bytes| bytes / CLASS_BYTES)
}

fn backend_rank(backend: Backend) -> u8 {
    match backend {
        Backend::Vulkan => 0,
        Backend::Metal => 1,
        Backend::Dx12 => 2,
        _ => 3,
    }
}

fn is_same_gpu(a: &AdapterInfo, b: &AdapterInfo) -> bool {
    let (a_pci, b_pci) = (&a.device_pci_bus_id, &b.device_pci_bus_id);
    let same_place = if a_pci.is_empty() || b_pci.is_empty() { a.backend != b.backend } else { a_pci == b_pci };
    (a.vendor, a.device) == (b.vendor, b.device) && (a.vendor != 0 || a.name == b.name) && same_place
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn candidate(name: &str, kind: DeviceType, backend: Backend, ids: (u32, u32, &str)) -> Candidate {
        let (vendor, device, pci) = (ids.0, ids.1, ids.2.to_string());
        let name = name.to_string();
        let info = AdapterInfo { name, vendor, device, device_pci_bus_id: pci, ..AdapterInfo::new(kind, backend) };
        Candidate { info, heap_bytes: Some(8 * GIB), lacks: None }
    }

    fn rtx(backend: Backend, pci: &str) -> Candidate {
        candidate("NVIDIA GeForce RTX 4090", DeviceType::DiscreteGpu, backend, (0x10de, 0x2684, pci))
    }

    fn iris(backend: Backend) -> Candidate {
        candidate("Intel Iris Xe", DeviceType::IntegratedGpu, backend, (0x8086, 0x46a6, "0000:00:02.0"))
    }

    fn llvmpipe() -> Candidate {
        candidate("llvmpipe (LLVM 15)", DeviceType::Cpu, Backend::Vulkan, (0x10005, 0, ""))
    }

    #[test]
    fn an_identity_is_the_place_of_the_card_or_its_name() {
        assert_eq!(Identity::of(&rtx(Backend::Vulkan, "0000:01:00.0").info).as_str(), "10de:2684@0000:01:00.0");
        assert_eq!(Identity::of(&llvmpipe().info).as_str(), "10005:0000@llvmpipe (LLVM 15)");
    }

    #[test]
    fn a_discrete_gpu_comes_first_and_a_program_on_the_cpu_only_when_allowed() {
        let all = [llvmpipe(), iris(Backend::Vulkan), rtx(Backend::Vulkan, "0000:01:00.0")];
        let judged = judge(&all, &GpuOptions::default());
        assert_eq!(judged.usable, [2, 1]);
        assert_eq!(judged.passed_over, [(0, PassedOver::Software)]);
        let options = GpuOptions { allow_software: true, ..GpuOptions::default() };
        assert_eq!(judge(&all, &options).usable, [2, 1, 0]);
    }

    #[test]
    fn one_gpu_behind_two_back_ends_is_one_and_two_cards_alike_are_two() {
        let all = [
            rtx(Backend::Dx12, ""),
            rtx(Backend::Vulkan, "0000:01:00.0"),
            rtx(Backend::Vulkan, "0000:41:00.0"),
            rtx(Backend::Dx12, "0000:41:00.0"),
        ];
        let judged = judge(&all, &GpuOptions::default());
        assert_eq!(judged.usable, [1, 2]);
        let same = PassedOver::SameGpu { better: Backend::Vulkan };
        assert_eq!(judged.passed_over, [(0, same.clone()), (3, same)]);
    }

    #[test]
    fn a_second_driver_of_the_same_back_end_is_no_second_gpu() {
        let mut other = rtx(Backend::Vulkan, "0000:01:00.0");
        other.info.driver = "another".into();
        let judged = judge(&[rtx(Backend::Vulkan, "0000:01:00.0"), other], &GpuOptions::default());
        assert_eq!(judged.usable, [0]);
    }

    #[test]
    fn a_back_end_that_cannot_run_the_kernels_does_not_hide_one_that_can() {
        let lacks = Some("compute shaders".to_string());
        let all = [Candidate { lacks, ..rtx(Backend::Vulkan, "0000:01:00.0") }, rtx(Backend::Dx12, "0000:01:00.0")];
        let judged = judge(&all, &GpuOptions::default());
        assert_eq!(judged.usable, [1]);
        assert_eq!(judged.passed_over, [(0, PassedOver::Lacks("compute shaders".into()))]);
    }

    #[test]
    fn a_name_or_an_identity_chooses() {
        let all = [iris(Backend::Vulkan), rtx(Backend::Vulkan, "0000:01:00.0"), rtx(Backend::Vulkan, "0000:41:00.0")];
        let judged =
            |wanted: &str| judge(&all, &GpuOptions { adapter: Some(wanted.into()), ..GpuOptions::default() }).usable;
        assert_eq!(judged("iris"), [0]);
        assert_eq!(judged("10de:2684@0000:41:00.0"), [2]);
        assert_eq!(judged("10DE:"), [1, 2]);
        assert_eq!(judged("radeon"), [0usize; 0]);
    }

    #[test]
    fn among_discrete_gpus_the_one_with_more_memory_wins() {
        let small = Candidate { heap_bytes: Some(6 * GIB), ..rtx(Backend::Vulkan, "0000:01:00.0") };
        let large = Candidate { heap_bytes: Some(24 * GIB), ..rtx(Backend::Vulkan, "0000:41:00.0") };
        assert_eq!(judge(&[small, large], &GpuOptions::default()).usable, [1, 0]);
    }
}
