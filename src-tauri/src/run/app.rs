//! The desktop app as a mode of the program.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::device::{self, Wanted};
use super::{AnyError, all_threads};
use crate::cli::{Device, RoleFlags};
use crate::config::parse_bytes;
use crate::desktop::{self, Options};
use crate::engine::FindHardware;
use crate::net::dial::Outbound;
use crate::shutdown;

/// WebKit's own switch; see [`spare_the_web_view`].
const DMABUF: &str = "WEBKIT_DISABLE_DMABUF_RENDERER";
/// The toolkit's own switch.
const GL: &str = "GDK_GL";
/// How long threads may finish what they do after Quit.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Runs the app; `open` is the link that the desktop was given, if any.
pub fn run(flags: &RoleFlags, open: Option<String>, hidden: bool) -> Result<ExitCode, AnyError> {
    spare_the_web_view();
    let memory_bytes = flags.memory.as_deref().map(|text| parse_bytes("--memory", text)).transpose()?;
    let (device, gpu) = (flags.device.unwrap_or(Device::Auto), flags.gpu.clone());
    let wanted = Wanted { gpu, memory_bytes, looker: device::own_program(), ..Wanted::default() };
    #[cfg(feature = "gpu")]
    let gpu = wanted.options();
    // Fires when the app is over.
    let (_over, until) = shutdown::channel();
    let hardware = Box::new(move |state: &Path| -> FindHardware {
        let wanted = Wanted { cache: Some(state.join("gpu")), ..wanted };
        Box::new(move |off| {
            let (wanted, until) = (Wanted { off, ..wanted.clone() }, until.clone());
            Box::pin(async move { device::search(device, wanted, all_threads(), &until).await })
        })
    });
    let join = open.or_else(|| flags.network.join.clone());
    let runtime = super::runtime()?;
    let proxy = flags.network.proxy.clone().unwrap_or_default();
    let outbound = Outbound { proxy, extra_ca: flags.network.ca.iter().cloned().collect(), ..Outbound::default() };
    let state = flags.state.clone();
    let options = Options {
        state,
        memory_bytes,
        outbound,
        hardware,
        #[cfg(feature = "gpu")]
        gpu,
        join,
        hidden,
    };
    let ended = desktop::run(options, &runtime);
    // A keyring may still ask for its password, or a driver look for its card: nobody waits for them any more.
    runtime.shutdown_timeout(LAST_WORK);
    Ok(ended?)
}

/// WebKit's DMA-BUF renderer leaves windows white on many machines with an NVIDIA card, which are those that come here.
/// Without it nothing here draws with OpenGL, whose driver the toolkit would load for good.
fn spare_the_web_view() {
    if !cfg!(target_os = "linux") || std::env::var_os(DMABUF).is_some() {
        return;
    }
    #[expect(unsafe_code, reason = "a library reads its switches from the environment only")]
    // SAFETY: the program has started no thread yet, so nobody else reads or writes the environment.
    unsafe {
        std::env::set_var(DMABUF, "1");
        if std::env::var_os(GL).is_none() {
            std::env::set_var(GL, "disable");
        }
    }
}
