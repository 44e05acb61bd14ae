//! Chooses what computes: the GPU that is asked for, or the CPU and a line that says why.
//!
//! **Promises:** a GPU that was asked for is never replaced by the CPU; one GPU is opened once, however many workers
//! use it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::{AnyError, tell};
use crate::cli::{Device, GpuFlags};
#[cfg(feature = "desktop")]
use crate::engine::{self, DeviceKind, Search};
use crate::kernel::{CpuKernel, CpuPath, ExpertCompute};
use crate::shutdown::Shutdown;
use crate::worker::Hardware;

/// How long a worker looks for its GPU: drivers may come up minutes after the machine.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// Between two looks; each one loads drivers.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Why hardware computes, unless something was missing.
const ASKED_FOR: &str = "it was asked for";
const FOUND: &str = "a GPU comes first";

/// The CPU's kernel with `threads` threads.
pub(super) fn cpu(threads: usize) -> Result<Arc<dyn ExpertCompute>, AnyError> {
    Ok(Arc::new(CpuKernel::new(CpuPath::detect()?, threads)?))
}

/// This program, as it can be started again: on Linux also after an update has put another file in its place.
#[cfg(any(feature = "gpu", feature = "desktop"))]
pub(super) fn own_program() -> Option<PathBuf> {
    if cfg!(target_os = "linux") { Some(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe().ok() }
}

/// Which GPU, and how much of it.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "wishes that only a GPU can meet"))]
pub(super) struct Wanted {
    pub gpu: GpuFlags,
    /// Identities of GPUs that are switched off.
    pub off: BTreeSet<String>,
    /// Most bytes of its memory.
    pub memory_bytes: Option<u64>,
    /// Where tuning results are kept.
    pub cache: Option<PathBuf>,
    /// This program, which looks at drivers in a process of its own; they are looked at here when absent.
    pub looker: Option<PathBuf>,
}

impl Wanted {
    #[cfg(feature = "gpu")]
    pub fn options(&self) -> crate::kernel::gpu::GpuOptions {
        let Self { gpu: GpuFlags { name, allow_software }, off, memory_bytes, cache, looker } = self.clone();
        let checked = false;
        crate::kernel::gpu::GpuOptions { adapter: name, off, allow_software, memory_bytes, cache, checked, looker }
    }

    /// Opens the GPU, or says why there is none; blocks.
    #[cfg(feature = "gpu")]
    fn open(&self) -> Result<Arc<dyn ExpertCompute>, String> {
        use crate::kernel::gpu::{GpuError, GpuKernel};
        match GpuKernel::open(&self.options()) {
            Ok(kernel) => Ok(Arc::new(kernel)),
            Err(error @ GpuError::NoAdapter { .. }) => Err(format!("no GPU was found: {error}")),
            Err(error) => Err(format!("the GPU cannot be used: {error}")),
        }
    }

    #[cfg(not(feature = "gpu"))]
    fn open(&self) -> Result<Arc<dyn ExpertCompute>, String> {
        Err("this program was built without its feature gpu".to_owned())
    }

    /// Every GPU that could be wished for, switched off or not; blocks. Where looking fails, opening says why.
    #[cfg(all(feature = "desktop", feature = "gpu"))]
    pub fn gpus(&self) -> Vec<engine::Found> {
        use crate::kernel::gpu::listing::list;
        let listing = list(&Self { off: BTreeSet::new(), ..self.clone() }.options());
        let own = listing.into_iter().flat_map(|listing| listing.adapters).filter(|adapter| adapter.is_own);
        own.map(|adapter| engine::Found {
            id: adapter.identity,
            name: adapter.name,
            kind: DeviceKind::Gpu,
            memory_bytes: adapter.heap_bytes.unwrap_or(0),
            unusable: adapter.passed_over,
        })
        .collect()
    }

    #[cfg(all(feature = "desktop", not(feature = "gpu")))]
    pub fn gpus(&self) -> Vec<engine::Found> {
        Vec::new()
    }

    async fn look(&self) -> Result<Arc<dyn ExpertCompute>, String> {
        let wanted = self.clone();
        spawn_blocking(move || wanted.open()).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Says on stderr what computes.
fn announce(hardware: &Hardware, on_cpu: bool) -> std::io::Result<()> {
    if on_cpu {
        return tell(format_args!("CPU because {}", hardware.why));
    }
    let device = hardware.kernel.device();
    let name = device.strip_prefix("gpu (").and_then(|rest| rest.strip_suffix(')')).unwrap_or(&device);
    tell(format_args!("GPU: {name}"))
}

/// The hardware of commands, which do not wait for it.
pub(super) struct Devices {
    wanted: Wanted,
    gpu: Option<Result<Arc<dyn ExpertCompute>, String>>,
    announced: [bool; 2],
}

impl Devices {
    pub fn new(gpu: GpuFlags) -> Self {
        Self { wanted: Wanted { gpu, ..Wanted::default() }, gpu: None, announced: [false; 2] }
    }

    /// Hardware of the kind of `device`; a CPU's has `threads` threads.
    pub fn open(&mut self, device: Device, threads: usize) -> Result<Hardware, AnyError> {
        let gpu = match device {
            Device::Cpu => Err(ASKED_FOR.to_owned()),
            Device::Gpu | Device::Auto => self.gpu.get_or_insert_with(|| self.wanted.open()).clone(),
        };
        let on_cpu = gpu.is_err();
        let hardware = match (gpu, device) {
            (Ok(kernel), Device::Gpu) => Hardware { kernel, why: ASKED_FOR.to_owned() },
            (Ok(kernel), _) => Hardware { kernel, why: FOUND.to_owned() },
            (Err(why), Device::Gpu) => return Err(why.into()),
            (Err(why), _) => Hardware { kernel: cpu(threads)?, why },
        };
        if !std::mem::replace(&mut self.announced[usize::from(on_cpu)], true) {
            announce(&hardware, on_cpu)?;
        }
        Ok(hardware)
    }
}

/// A worker's hardware, newest first to be used: a GPU that is asked for is looked for until `shutdown` or for five
/// minutes; where any will do, the CPU computes until one is found. `None` when the worker is told to stop.
pub(super) async fn for_worker(
    device: Device,
    wanted: Wanted,
    threads: usize,
    shutdown: &Shutdown,
) -> Result<Option<watch::Receiver<Hardware>>, AnyError> {
    let why = match device {
        Device::Cpu => ASKED_FOR.to_owned(),
        Device::Auto => match wanted.look().await {
            Ok(kernel) => return on_gpu(kernel, FOUND).map(Some),
            Err(why) => why,
        },
        Device::Gpu => {
            return match found(&wanted, shutdown, |why| {
                tell(format_args!("no GPU yet, looking for {} s: {why}", PATIENCE.as_secs()))
            })
            .await
            {
                Found::Gpu(kernel) => on_gpu(kernel, ASKED_FOR).map(Some),
                Found::Nothing(why) => Err(why.into()),
                Found::Stopped => Ok(None),
            };
        }
    };
    let hardware = Hardware { kernel: cpu(threads)?, why };
    announce(&hardware, true)?;
    let (newest, receiver) = watch::channel(hardware);
    if device == Device::Auto && cfg!(feature = "gpu") {
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            let looked = tokio::select! {
                looked = found(&wanted, &shutdown, |_| Ok(())) => looked,
                // Whoever asked has asked anew, for other devices perhaps.
                () = newest.closed() => Found::Stopped,
            };
            match looked {
                Found::Gpu(kernel) => {
                    tracing::info!(device = kernel.device(), "a GPU appeared; moving to it");
                    newest.send_replace(Hardware { kernel, why: FOUND.to_owned() });
                }
                Found::Nothing(why) => tracing::info!(why, "staying on the CPU"),
                Found::Stopped => {}
            }
        });
    }
    Ok(Some(receiver))
}

/// Id of the processor among devices.
#[cfg(feature = "desktop")]
const CPU_ID: &str = "cpu";

/// What the app computes on, and everything that it could: devices in `wanted.off`, and the processor where it is in
/// there, are left alone.
#[cfg(feature = "desktop")]
pub(super) async fn search(device: Device, wanted: Wanted, threads: usize, shutdown: &Shutdown) -> Search {
    let looking = wanted.clone();
    let mut found = spawn_blocking(move || looking.gpus()).await.unwrap_or_default();
    let cpu_name = CpuPath::detect().ok().and_then(|path| CpuKernel::new(path, threads).ok()).map(|cpu| cpu.device());
    found.push(engine::Found {
        id: CPU_ID.to_owned(),
        name: cpu_name.unwrap_or_else(|| CPU_ID.to_owned()),
        kind: DeviceKind::Cpu,
        memory_bytes: 0,
        unusable: None,
    });
    let is_off = |id: &str| wanted.off.contains(id);
    let gpus = || found.iter().filter(|found| found.kind == DeviceKind::Gpu);
    let (has_gpu, gpu_left) = (gpus().next().is_some(), gpus().any(|gpu| !is_off(&gpu.id)));
    let device = match (device, is_off(CPU_ID), gpu_left) {
        (_, true, false) if has_gpu || device == Device::Cpu => {
            return Search { found, best: Err("every device is switched off: switch one on".to_owned()) };
        }
        (Device::Cpu, true, _) | (Device::Auto, true, _) => Device::Gpu,
        // Every GPU that there is was switched off: nobody waits for one.
        (Device::Auto, false, false) if has_gpu => Device::Cpu,
        (device, ..) => device,
    };
    let best = match for_worker(device, wanted, threads, shutdown).await {
        Ok(Some(hardware)) => Ok(hardware),
        Ok(None) => Err("the search was ended".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    Search { found, best }
}

fn on_gpu(kernel: Arc<dyn ExpertCompute>, why: &str) -> Result<watch::Receiver<Hardware>, AnyError> {
    let hardware = Hardware { kernel, why: why.to_owned() };
    announce(&hardware, false)?;
    Ok(hardware.fixed())
}

/// What looking for a GPU came to.
enum Found {
    Gpu(Arc<dyn ExpertCompute>),
    Nothing(String),
    Stopped,
}

/// Looks for a GPU until there is one; `missed` hears each new reason why there is none.
async fn found(wanted: &Wanted, shutdown: &Shutdown, missed: impl Fn(&str) -> std::io::Result<()>) -> Found {
    let (start, mut last) = (Instant::now(), String::new());
    loop {
        let why = tokio::select! {
            found = wanted.look() => match found {
                Ok(kernel) => return Found::Gpu(kernel),
                Err(why) => why,
            },
            () = shutdown.wait() => return Found::Stopped,
        };
        if start.elapsed() >= PATIENCE {
            return Found::Nothing(why);
        }
        if why != last {
            // Nobody may be reading; the search goes on for the worker's sake.
            let _ = missed(&why);
            last = why;
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = shutdown.wait() => return Found::Stopped,
        }
    }
}
