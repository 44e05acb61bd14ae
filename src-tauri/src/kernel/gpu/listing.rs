//! The adapters as a list that crosses processes: for people, and for whoever lets another process look.
//!
//! Looking loads every driver of the machine. A driver that crashes or hangs over that would take a program with it that
//! runs all day, and one that does not leaves tens of megabytes behind; so such a program lets a short-lived copy of
//! itself look (`kvasir gpu --list --json`), and loads a driver only to compute with it.
//! **Promise:** a look ends within [`LOOK_MAX`], whatever hangs; that of another process also when nobody waits for it
//! any more.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::adapters::{Found, Survey, survey};
use super::choice::PassedOver;
use super::{GpuError, GpuOptions};

/// Longest look of another process: slow machines take a second for each driver.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Between two questions whether it has ended.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Longest list.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// One adapter, as a look found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The driver's name for it.
    pub name: String,
    /// The same with its back end.
    pub label: String,
    /// What `--gpu` may say.
    pub identity: String,
    /// The driver and its version.
    pub driver: String,
    /// The largest heap that is local to it; `None` where the driver does not tell.
    pub heap_bytes: Option<u64>,
    /// What is free of it.
    pub free_bytes: Option<u64>,
    /// Whether it is a program on the CPU.
    pub is_software: bool,
    /// Why it is not used.
    pub passed_over: Option<String>,
    /// Whether it is hardware of its own: not the same card through another driver, nor a program that nobody asked for.
    pub is_own: bool,
}

/// Everything that one look found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// Usable ones first, best first.
    pub adapters: Vec<Listed>,
    /// Why none is usable, if so.
    pub lacks: Option<Lacks>,
}

/// What was looked for, what was seen, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacks {
    wanted: String,
    seen: String,
    /// What to do.
    pub advice: String,
}

impl From<Lacks> for GpuError {
    fn from(Lacks { wanted, seen, advice }: Lacks) -> Self {
        Self::NoAdapter { wanted, seen, advice }
    }
}

impl Listed {
    fn new(found: &Found, why: Option<&PassedOver>) -> Self {
        let info = &found.info;
        Self {
            name: info.name.clone(),
            label: found.label(),
            identity: found.identity.to_string(),
            driver: [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_owned(),
            heap_bytes: found.budget.heap_bytes,
            free_bytes: found.budget.free_bytes(),
            is_software: found.is_software(),
            passed_over: why.map(ToString::to_string),
            is_own: !matches!(why, Some(PassedOver::SameGpu { .. } | PassedOver::Software)),
        }
    }
}

impl Listing {
    /// What `seen` shows to somebody who asked with `options`.
    #[must_use]
    pub fn of(seen: &Survey, options: &GpuOptions) -> Self {
        let usable = seen.usable.iter().map(|found| Listed::new(found, None));
        let others = seen.passed_over.iter().map(|(found, why)| Listed::new(found, Some(why)));
        let lacks = match seen.no_adapter(options) {
            GpuError::NoAdapter { wanted, seen: all, advice } if seen.usable.is_empty() => {
                Some(Lacks { wanted, seen: all, advice })
            }
            _ => None,
        };
        Self { adapters: usable.chain(others).collect(), lacks }
    }

    /// Those that can be computed on, best first.
    pub fn usable(&self) -> impl Iterator<Item = &Listed> {
        self.adapters.iter().filter(|adapter| adapter.passed_over.is_none())
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, adapter) in self.adapters.iter().enumerate() {
            let Listed { label, identity, passed_over, .. } = adapter;
            let why = passed_over.as_deref().unwrap_or("usable");
            write!(f, "{}{label} [{identity}]: {why}", if at == 0 { "" } else { "\n" })?;
        }
        match &self.lacks {
            Some(lacks) if self.adapters.is_empty() => write!(f, "no GPU: {}", lacks.advice),
            Some(lacks) => write!(f, "\nnone is usable: {}", lacks.advice),
            None => Ok(()),
        }
    }
}

/// Looks once, in the process that `options` want; blocks.
///
/// # Errors
/// [`GpuError::Drivers`] when a look in another process does not come to its end.
pub fn list(options: &GpuOptions) -> Result<Listing, GpuError> {
    match &options.looker {
        Some(program) => list_elsewhere(program, options),
        None => list_here(options),
    }
}

/// A driver that hangs keeps its thread; the process that looks may end.
fn list_here(options: &GpuOptions) -> Result<Listing, GpuError> {
    let (found, looked) = sync_channel(1);
    let asked = options.clone();
    std::thread::spawn(move || {
        // Nobody may be waiting any more.
        let _ = found.send(Listing::of(&survey(&asked), &asked));
    });
    looked.recv_timeout(LOOK_MAX).map_err(|_| too_late())
}

fn too_late() -> GpuError {
    GpuError::Drivers { got: format!("no answer in {} s", LOOK_MAX.as_secs()) }
}

fn list_elsewhere(program: &Path, options: &GpuOptions) -> Result<Listing, GpuError> {
    let drivers = |got: String| GpuError::Drivers { got };
    let (status, text) = match look(program, options, LOOK_MAX) {
        Ok(Some(ended)) => ended,
        Ok(None) => return Err(too_late()),
        // Without another process there is this one.
        Err(error) => {
            tracing::info!(%error, "no process of its own to look for GPUs");
            return list_here(options);
        }
    };
    if !status.success() {
        return Err(drivers(format!("a process that ended with {status}")));
    }
    serde_json::from_str(&text).map_err(|error| drivers(format!("another answer: {error}")))
}

/// How a look of `program` ended, and what it printed; `None` when it took longer than `patience` and was ended.
fn look(program: &Path, options: &GpuOptions, patience: Duration) -> io::Result<Option<(ExitStatus, String)>> {
    // A file takes everything that is printed at once; a pipe would want somebody to read it meanwhile.
    let mut printed: File = tempfile::tempfile()?;
    let mut command = Command::new(program);
    command.args(["gpu", "--list", "--json"]);
    if options.allow_software {
        command.arg("--allow-software");
    }
    if let Some(name) = &options.adapter {
        command.arg(format!("--gpu={name}"));
    }
    command.args(options.off.iter().map(|id| format!("--off={id}")));
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(Stdio::null());
    #[cfg(windows)]
    {
        /// Without a console of its own, which would flash up.
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        std::os::windows::process::CommandExt::creation_flags(&mut command, CREATE_NO_WINDOW);
    }
    let (mut child, start) = (command.spawn()?, Instant::now());
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if start.elapsed() > patience => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            None => std::thread::sleep(ASK_EVERY),
        }
    };
    let mut text = String::new();
    printed.rewind()?;
    printed.take(LIST_BYTES_MAX).read_to_string(&mut text)?;
    Ok(Some((status, text)))
}

#[cfg(all(test, unix))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A program of one line, written by another process: what this one has open for writing cannot be started.
    fn program(dir: &Path, line: &str) -> std::path::PathBuf {
        let path = dir.join("kvasir");
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        assert!(Command::new("sh").arg("-c").arg(write).arg(&path).arg(line).status().expect("a shell").success());
        path
    }

    fn listed(line: &str) -> Result<Listing, GpuError> {
        let dir = tempfile::tempdir().expect("a directory");
        let looker = Some(program(dir.path(), line));
        list(&GpuOptions { looker, off: BTreeSet::from(["1:2@3".to_owned()]), ..GpuOptions::default() })
    }

    #[test]
    fn a_list_comes_whole_from_another_process_which_is_told_what_is_off() {
        let lacks = Some(Lacks { wanted: "a GPU".into(), seen: "none".into(), advice: "plug one in".into() });
        let empty = Listing { adapters: Vec::new(), lacks };
        let json = serde_json::to_string(&empty).unwrap();
        let line = format!("[ \"$*\" = 'gpu --list --json --off=1:2@3' ] && echo '{json}'");
        assert_eq!(listed(&line), Ok(empty.clone()));
        assert_eq!(empty.to_string(), "no GPU: plug one in");
    }

    #[test]
    fn a_driver_that_crashes_is_named_and_takes_nothing_with_it() {
        let crashed = listed("kill -SEGV $$").unwrap_err().to_string();
        assert!(crashed.contains("signal: 11"), "{crashed}");
        assert!(matches!(listed("echo not a list"), Err(GpuError::Drivers { .. })));
    }

    #[test]
    fn a_driver_that_hangs_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let hanging = program(dir.path(), "exec sleep 600");
        let ended = look(&hanging, &GpuOptions::default(), Duration::from_millis(100)).unwrap();
        assert!(ended.is_none());
    }
}
