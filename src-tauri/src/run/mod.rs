//! The composition root: builds the parts of each mode and hands them to each other.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 fine, 1 failed, 2 usage.

#[cfg(feature = "desktop")]
mod app;
mod bench;
mod commands;
mod device;
mod doctor;
mod hub;
mod ledger;
mod lent;
mod loading;
mod model;
mod progress;
mod roles;
mod serving;
mod trust;
mod wallet;
mod worker;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use crate::backbone::{Drafters, Speculation};
use crate::cli::{Cli, Command, Speculate};
use crate::config::ConfigError;

/// Any error, on its way to the person who typed the command.
pub type AnyError = Box<dyn Error + Send + Sync>;

/// Exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// A mistake in what was typed that only became clear later.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

fn usage(message: String) -> AnyError {
    UsageError(message).into()
}

/// The exit code that an error stands for.
#[must_use]
pub fn exit_code(error: &AnyError) -> ExitCode {
    let typed_wrong = match error.downcast_ref::<ConfigError>() {
        Some(config) => matches!(config, ConfigError::Missing { .. } | ConfigError::Value { .. }),
        None => error.is::<UsageError>(),
    };
    if typed_wrong { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Does what the command line says.
///
/// # Errors
/// Whatever went wrong, for stderr.
pub fn run(cli: Cli) -> Result<ExitCode, AnyError> {
    match (cli.headless, cli.command) {
        (Some(role), _) => roles::run(role, &cli.flags).map(|()| ExitCode::SUCCESS),
        (None, Some(Command::Demo(args))) => commands::demo(args),
        (None, Some(Command::Generate(args))) => commands::generate(args),
        (None, Some(Command::Bench(command))) => bench::bench(command),
        (None, Some(Command::Gpu(args))) => commands::gpu(args),
        (None, Some(Command::Doctor(args))) => doctor::run(&args),
        (None, Some(Command::Hub(command))) => hub::run(command),
        (None, Some(Command::Model(command))) => model::model(command),
        (None, Some(Command::Keys(command))) => serving::keys(command),
        (None, Some(Command::Wallet(command))) => wallet::run(command),
        (None, Some(Command::Ledger(command))) => ledger::run(command),
        #[cfg(feature = "desktop")]
        (None, None) => app::run(&cli.flags, cli.open.flatten(), cli.hidden),
        #[cfg(not(feature = "desktop"))]
        (None, None) => {
            crate::cli::print_help()?;
            Ok(ExitCode::from(USAGE))
        }
    }
}

/// The one async runtime of the process. Two threads at least, so that a role's network goes on beside its timers.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// Who drafts, as it was typed.
fn speculation(who: Speculate) -> Speculation {
    let drafters = match who {
        Speculate::Auto => Drafters::Auto,
        Speculate::Off => Drafters::Off,
        Speculate::Mtp => Drafters::Mtp,
        Speculate::Lookup => Drafters::Lookup,
    };
    Speculation { drafters, always: None }
}

/// All processors.
fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// One line for people, on stderr.
fn tell(line: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stderr().lock(), "{line}")
}

/// One line, or one document, on stdout.
fn say(line: impl std::fmt::Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
