//! The `kvasir` program: parse, pick the mode, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use kvasir::cli::Cli;
use kvasir::{run, telemetry};

fn main() -> ExitCode {
    let cli = Cli::parse();
    telemetry::init(if cli.headless.is_some() { "info" } else { "warn" });
    match run::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvasir: {error}");
            run::exit_code(&error)
        }
    }
}
