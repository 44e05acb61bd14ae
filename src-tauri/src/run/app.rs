//! The desktop app as a mode of the program.

use std::path::PathBuf;
use std::process::ExitCode;

use super::device::{self, Wanted};
use super::{AnyError, all_threads};
use crate::cli::{Device, RoleFlags};
use crate::config::parse_bytes;
use crate::desktop::{self, Options};
use crate::shutdown;

/// WebKit's own switch; see [`spare_the_web_view`].
const DMABUF: &str = "WEBKIT_DISABLE_DMABUF_RENDERER";

/// Runs the app; `open` is the link that the desktop was given, if any.
pub fn run(flags: &RoleFlags, open: Option<String>, hidden: bool) -> Result<ExitCode, AnyError> {
    spare_the_web_view();
    let memory_bytes = flags.memory.as_deref().map(|text| parse_bytes("--memory", text)).transpose()?;
    let cache = flags.state.as_ref().map(|state: &PathBuf| state.join("gpu"));
    let (device, wanted) =
        (flags.device.unwrap_or(Device::Auto), Wanted { gpu: flags.gpu.clone(), memory_bytes, cache });
    // Fires when the app is over.
    let (_over, until) = shutdown::channel();
    let hardware = Box::pin(async move {
        match device::for_worker(device, wanted, all_threads(), &until).await {
            Ok(Some(hardware)) => Ok(hardware),
            Ok(None) => Err("the search was ended".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
    let join = open.or_else(|| flags.join.clone());
    let runtime = super::runtime()?;
    Ok(desktop::run(Options { state: flags.state.clone(), memory_bytes, hardware, join, hidden }, &runtime)?)
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
