//! Starts the real program and reads what it prints.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longest wait for a line or an exit; generous, since machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `kvasir`, killed when dropped.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

/// The program with `args`, to be run in `dir`.
pub fn kvasir(dir: &Path, args: &[&str]) -> Command {
    program(Path::new(env!("CARGO_BIN_EXE_kvasir")), dir, args)
}

/// The same from a file of its own.
fn program(path: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(args).current_dir(dir);
    for name in ["CONFIG", "STATE", "LEDGER", "GATEWAY", "OPERATOR", "JOIN", "LOG"] {
        command.env_remove(format!("KVASIR_{name}"));
    }
    command
}

/// A command that ends: its exit code, and what it said on stdout and stderr.
pub fn ended(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = kvasir(dir, args).output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

impl Process {
    /// Starts the program in `dir`.
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        Self::of(kvasir(dir, args))
    }

    /// Starts a copy of the program in `dir`.
    pub fn start_program(path: &Path, dir: &Path, args: &[&str]) -> Self {
        Self::of(program(path, dir, args))
    }

    /// Starts a command and listens to its stdout.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that holds `mark` and gives what follows the mark, trimmed.
    pub fn after(&mut self, mark: &str) -> String {
        loop {
            if let Some(rest) = self.seen.iter().find_map(|l| l.split_once(mark)) {
                return rest.1.trim().to_owned();
            }
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("no line with {mark:?} in {:?}", self.seen),
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("the process is there");
        self.child.wait().expect("the process ends");
    }

    fn sigterm(&self) {
        let status = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(status.success());
    }

    /// SIGTERM, then the exit status.
    pub fn terminate(mut self) -> ExitStatus {
        self.sigterm();
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the process is ours") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "still running {PATIENCE:?} after SIGTERM: {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM by somebody who does not wait for the drain, then the exit status.
    pub fn terminate_twice(self) -> ExitStatus {
        self.sigterm();
        // Two signals at once may count as one.
        std::thread::sleep(Duration::from_millis(500));
        self.terminate()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
