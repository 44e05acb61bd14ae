//! `kvasir hub invite`: an operator's join code.

use std::process::ExitCode;

use super::{AnyError, say};
use crate::cli::{HubCommand, InviteArgs};
use crate::clock::{Clock, SystemClock};
use crate::config::parse_duration;
use crate::net::tls;
use crate::wallet::keyfile;
use crate::wire::invite::Invite;

/// `kvasir hub …`.
pub fn hub(command: HubCommand) -> Result<ExitCode, AnyError> {
    let HubCommand::Invite(args) = command;
    let code = invite(&args)?;
    if let Some(path) = &args.file {
        std::fs::write(path, format!("{code}\n")).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    say(code)?;
    Ok(ExitCode::SUCCESS)
}

fn invite(args: &InviteArgs) -> Result<String, AnyError> {
    let lasts = parse_duration("--expires", &args.expires)?;
    let key = args.state.join("operator.key");
    // Made by nobody but the hub: a key from a mistyped directory would invite to a network that does not exist.
    let operator =
        keyfile::load(&key).map_err(|e| format!("{e}: the hub makes its operator key when it first starts there"))?;
    let ca_pem = match &args.ca {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?),
        None => None,
    };
    if let Some(pem) = &ca_pem {
        tls::client_config_from_pem(pem)?;
    }
    let now_s = SystemClock::default().unix_ms() / 1000;
    let (gateways, expires_unix_s) = (args.gateways.clone(), now_s + lasts.as_secs());
    Ok(Invite { operator: operator.public(), gateways, ca_pem, expires_unix_s }.sign(&operator)?)
}
