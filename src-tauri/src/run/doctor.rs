//! `kvasir doctor`: one screen about the network and the machine, and a file for somebody who helps.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "gpu")]
use super::device::{self, Wanted};
use super::{AnyError, runtime, say, tell};
use crate::cli::DoctorArgs;
use crate::config::Site;
use crate::doctor::{self, Options, Verdict, WalletFound};
use crate::net::dial::Outbound;
use crate::wire::invite::Invite;
use crate::worker::network;

/// How long a driver that does not answer is waited for at the end.
const LAST_WORK: Duration = Duration::from_millis(100);

/// `kvasir doctor`; fails when a check does.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, AnyError> {
    let config = Site::to_examine(args)?;
    let options = options(config)?;
    let runtime = runtime()?;
    let report = runtime.block_on(doctor::examine(options));
    // A driver or a keyring may hang; the verdict does not wait for it.
    runtime.shutdown_timeout(LAST_WORK);
    if args.json {
        say(serde_json::to_string_pretty(&report)?)?;
    } else {
        say(&report)?;
    }
    if let Some(path) = &args.report {
        let saved = doctor::save_report(&report, path, args.log.as_deref(), home().as_deref());
        saved.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        tell(format_args!("report in {}", path.display()))?;
    }
    Ok(if report.verdict == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn home() -> Option<PathBuf> {
    ["HOME", "USERPROFILE"].into_iter().find_map(std::env::var_os).map(PathBuf::from)
}

/// What was typed, and where it says nothing, the network that was joined.
fn options(config: Site) -> Result<Options, AnyError> {
    let invite = match &config.join {
        // Expired or not: it is only looked at.
        Some(text) => Some(Invite::read(&network::code_of(text)?)?),
        None if config.gateways.is_empty() => network::join(&config.state, None, &config.operators, 0)?,
        None => None,
    };
    let code = match &config.join {
        Some(text) => Some(network::code_of(text)?),
        None => invite.is_some().then(|| network::code(&config.state)).flatten(),
    };
    let (mut gateways, mut operators, mut network_ca_pem) = (config.gateways, config.operators, None);
    if let Some(invite) = invite {
        network_ca_pem = invite.ca_pem;
        if gateways.is_empty() {
            gateways = invite.gateways;
        }
        if operators.is_empty() {
            operators.push(invite.operator);
        }
    }
    let extra_ca = config.ca.into_iter().collect();
    let outbound = Outbound { proxy: config.proxy, extra_ca, network_ca_pem, ..Outbound::default() };
    let wallet = wallet(&config.state);
    Ok(Options {
        gateways,
        operators,
        invite: code,
        outbound,
        cache_dir: Some(config.cache),
        wallet,
        rules: config.rules,
        #[cfg(feature = "gpu")]
        gpu: Wanted { gpu: config.gpu, looker: device::own_program(), ..Wanted::default() }.options(),
        ..Options::new(config.state)
    })
}

/// The wallet of the state directory, which is not made here.
fn wallet(state: &Path) -> WalletFound {
    match super::wallet::exists(state) {
        Ok(false) => WalletFound::None,
        Ok(true) => match super::wallet::open_wallet(state) {
            Ok(wallet) => WalletFound::Here(Arc::new(wallet)),
            Err(error) => WalletFound::Trouble(error.to_string()),
        },
        Err(error) => WalletFound::Trouble(error.to_string()),
    }
}
