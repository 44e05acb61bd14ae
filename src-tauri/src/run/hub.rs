//! `kvasir hub …`: an operator's join codes, and what a running hub is told over its admin socket.

use std::path::Path;
use std::process::ExitCode;

use super::{AnyError, say};
use crate::cli::{HubCommand, InviteArgs};
use crate::clock::{Clock, SystemClock};
use crate::config::parse_duration;
use crate::net::tls;
use crate::wallet::keyfile;
use crate::wire::admin::{AdminAnswer, AdminQuestion, WorkersView};
use crate::wire::invite::Invite;

/// `kvasir hub …`.
pub fn run(command: HubCommand) -> Result<ExitCode, AnyError> {
    match command {
        HubCommand::Invite(args) => {
            let code = invite(&args)?;
            if let Some(path) = &args.file {
                let written = std::fs::write(path, format!("{code}\n"));
                written.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            }
            say(code)?;
        }
        HubCommand::Workers { state, json } => {
            let AdminAnswer::Workers(view) = ask(&state, &AdminQuestion::Workers {})? else { return Err(strange()) };
            if json {
                say(serde_json::to_string(&view)?)?;
            } else {
                say(table(&view))?;
            }
        }
        HubCommand::Drain { wallet, all: _, state, lasts } => {
            let seconds = parse_duration("--for", &lasts)?.as_secs();
            let question = match wallet {
                Some(wallet) => AdminQuestion::Drain { wallet, seconds },
                None => AdminQuestion::Close { seconds },
            };
            done(&state, &question, "sent away")?;
        }
        HubCommand::Resume { state } => {
            ask(&state, &AdminQuestion::Close { seconds: 0 })?;
            say("workers are taken again")?;
        }
        HubCommand::Kick(whose) => done(&whose.state, &AdminQuestion::Kick { wallet: whose.wallet }, "ended")?,
        HubCommand::Ban { whose, reason } => {
            done(&whose.state, &AdminQuestion::Ban { wallet: whose.wallet, reason }, "ended, wallet banned")?;
        }
        HubCommand::Unban(whose) => {
            ask(&whose.state, &AdminQuestion::Unban { wallet: whose.wallet })?;
            say(format_args!("{} may come again", whose.wallet))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Has something done and says how many sessions it met.
fn done(state: &Path, question: &AdminQuestion, what: &str) -> Result<(), AnyError> {
    let AdminAnswer::Done { sessions } = ask(state, question)? else { return Err(strange()) };
    Ok(say(format_args!("{sessions} sessions {what}"))?)
}

fn strange() -> AnyError {
    "expected another answer from the hub: is it of this program's version?".into()
}

/// Asks the hub that runs in `state`; a refusal is an error.
#[cfg(unix)]
fn ask(state: &Path, question: &AdminQuestion) -> Result<AdminAnswer, AnyError> {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use crate::wire::admin::{ADMIN_SOCKET, ANSWER_BYTES_MAX};

    /// Longer than the hub takes for anything.
    const PATIENCE: Duration = Duration::from_secs(15);

    let path = state.join(ADMIN_SOCKET);
    let mut socket = UnixStream::connect(&path).map_err(|e| {
        format!("no hub answers at {} ({e}): is it running, and is this its --state directory?", path.display())
    })?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(question)?;
    line.push('\n');
    socket.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(socket.take(ANSWER_BYTES_MAX as u64)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err("the hub closed its admin socket unanswered: only its own user and root are heard".into());
    }
    match serde_json::from_str(&answer)? {
        AdminAnswer::Refused { reason } => Err(reason.into()),
        answer => Ok(answer),
    }
}

#[cfg(not(unix))]
fn ask(_state: &Path, _question: &AdminQuestion) -> Result<AdminAnswer, AnyError> {
    Err("a running hub is asked over a Unix socket, which this system does not have: run hubs on Linux or macOS".into())
}

/// The view for people, one line a session and one a wallet that is kept out.
fn table(view: &WorkersView) -> String {
    let mut lines = vec![format!("{} sessions", view.sessions.len())];
    lines.extend(view.sessions.iter().map(|s| {
        let (worker, minutes) = (s.worker_id.to_string(), s.age_ms / 60_000);
        let (work, voided) = (s.work_bytes, s.voided_bytes);
        format!("{} {} {} {minutes} min, {work} work bytes, {voided} voided", s.wallet, &worker[..8], s.agent)
    }));
    if !view.banned.is_empty() {
        lines.push(format!("{} wallets kept out", view.banned.len()));
    }
    let now = SystemClock::default().unix_ms();
    lines.extend(view.banned.iter().map(|ban| {
        let days = now.saturating_sub(ban.since_unix_ms) / (24 * 3_600_000);
        let since = if ban.since_unix_ms == 0 { String::new() } else { format!(" for {days} days") };
        format!("{} by the {}{since}: {}", ban.wallet, ban.by, ban.reason)
    }));
    lines.join("\n")
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
