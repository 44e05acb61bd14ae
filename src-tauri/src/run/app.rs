//! The desktop app as a mode of the program.

use std::process::ExitCode;

use super::{AnyError, all_threads, kernel};
use crate::cli::{Device, RoleFlags};
use crate::config::{WORKER_MEMORY, parse_bytes};
use crate::desktop::{self, Options};
use crate::engine::Computer;

/// WebKit's own switch; see [`spare_the_web_view`].
const DMABUF: &str = "WEBKIT_DISABLE_DMABUF_RENDERER";

/// Runs the app; `open` is the link that the desktop was given, if any.
pub fn run(flags: &RoleFlags, open: Option<String>, hidden: bool) -> Result<ExitCode, AnyError> {
    spare_the_web_view();
    let memory_bytes = flags.memory.as_deref().map_or(Ok(WORKER_MEMORY), |text| parse_bytes("--memory", text))?;
    let device = flags.device.unwrap_or(Device::Auto);
    let computer = Box::new(move || {
        let compute = kernel(device, all_threads()).map_err(|error| error.to_string())?;
        let why = match device {
            Device::Auto => "chosen automatically",
            Device::Cpu | Device::Gpu => "as the command line asked",
        };
        Ok(Computer { compute, why: why.to_owned() })
    });
    let join = open.or_else(|| flags.join.clone());
    let runtime = super::runtime()?;
    Ok(desktop::run(Options { state: flags.state.clone(), memory_bytes, computer, join, hidden }, &runtime)?)
}

/// WebKit's DMA-BUF renderer leaves windows white on many machines with an NVIDIA card, which are those that come here.
fn spare_the_web_view() {
    if !cfg!(target_os = "linux") || std::env::var_os(DMABUF).is_some() {
        return;
    }
    #[expect(unsafe_code, reason = "a library reads its switches from the environment only")]
    // SAFETY: the program has started no thread yet, so nobody else reads or writes the environment.
    unsafe {
        std::env::set_var(DMABUF, "1");
    }
}
