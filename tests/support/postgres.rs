//! PostgreSQL servers of the tests' own: a data directory of their own, reached over a Unix socket, gone with the tests.
//!
//! Servers live behind a shell that waits for the test process: when that ends, however it does, the pipe between them
//! closes and the shell stops the server, with a signal that a server which is only just starting does not hear: so again
//! and again. As root, which PostgreSQL refuses to be, the account `postgres` runs it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions, Connection};

/// Longest wait for a server to be up or down.
const PATIENCE: Duration = Duration::from_secs(60);
/// $1 = data directory, $2 = socket directory, $3 = directory to remove at the end or nothing; the rest are settings.
const KEEPER: &str = r#"
data=$1 sockets=$2 remove=$3; shift 3
"$KVASIR_POSTGRES/postgres" -D "$data" -k "$sockets" -c listen_addresses= "$@" >>"$data.log" 2>&1 &
server=$!
cat >/dev/null
while kill -INT $server 2>/dev/null; do sleep 0.1; done
[ -z "$remove" ] || rm -rf "$remove"
"#;

/// A server that this process started.
pub struct Server {
    programs: PathBuf,
    dir: PathBuf,
    settings: Vec<String>,
    removes: bool,
    keeper: Option<Child>,
}

/// Where PostgreSQL's programs are: on the path, or where Debian keeps them.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut homes: Vec<PathBuf> = debian.map(|version| version.path().join("bin")).collect();
    homes.sort();
    homes.into_iter().rev().chain(std::env::split_paths(&path)).find(|dir| dir.join("initdb").exists())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id runs");
    id.stdout.trim_ascii() == b"0"
}

/// `program` with `args`, as an account that PostgreSQL runs under.
fn unprivileged(program: &Path, args: &[&std::ffi::OsStr]) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(args).current_dir("/");
    command
}

impl Server {
    /// A new server with more `settings`, such as `-c fsync=off`; `None` where PostgreSQL is not installed, which is a
    /// failure where the tests were told that it is.
    pub fn start(settings: &[&str], removes: bool) -> Option<Self> {
        let Some(programs) = programs() else {
            let told = std::env::var_os("KVASIR_TEST_POSTGRES").is_some();
            assert!(!told, "KVASIR_TEST_POSTGRES is set, and there is no initdb");
            eprintln!("skipped: PostgreSQL is not installed; tests/run installs it");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("kvasir-postgres-").tempdir().expect("a directory").keep();
        if is_root() {
            let owned = Command::new("chown").arg("postgres:").arg(&dir).status().expect("chown runs");
            assert!(owned.success(), "the directory is given to the account postgres");
        }
        let data = dir.join("data");
        let args = ["-D".as_ref(), data.as_os_str(), "-U".as_ref(), "kvasir".as_ref(), "--auth=trust".as_ref()];
        let made = unprivileged(&programs.join("initdb"), &[&args[..], &["--no-sync".as_ref()]].concat()).output();
        let made = made.expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let settings = settings.iter().map(|&s| s.to_owned()).collect();
        let mut server = Self { programs, dir, settings, removes, keeper: None };
        server.run();
        Some(server)
    }

    /// Starts the server on its data, and waits until it answers.
    pub fn run(&mut self) {
        let start = Instant::now();
        loop {
            let attempt = Instant::now();
            let data = self.dir.join("data");
            let remove = if self.removes { self.dir.as_os_str() } else { "".as_ref() };
            let mut args = vec!["-c".as_ref(), KEEPER.as_ref(), "keeper".as_ref(), data.as_os_str()];
            args.extend([self.dir.as_os_str(), remove]);
            args.extend(self.settings.iter().map(|setting| std::ffi::OsStr::new(setting.as_str())));
            let mut keeper = unprivileged(Path::new("/bin/sh"), &args);
            let keeper = keeper.env("KVASIR_POSTGRES", &self.programs).stdin(Stdio::piped()).spawn();
            self.keeper = Some(keeper.expect("a shell starts"));
            while start.elapsed() < PATIENCE {
                let mut ask = Command::new(self.programs.join("pg_isready"));
                if ask.arg("-q").arg("-h").arg(&self.dir).status().expect("pg_isready runs").success() {
                    return;
                }
                if attempt.elapsed() > Duration::from_secs(1) && !self.is_alive() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let log = std::fs::read_to_string(self.dir.join("data.log")).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "PostgreSQL does not answer: {log}");
            // What a killed server left behind may hold its memory for a moment.
            self.stop_keeper();
        }
    }

    /// Whether the server that the data directory names is there; a killed one leaves its name.
    fn is_alive(&self) -> bool {
        let alive = |pid: u32| Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status();
        self.pid().is_some_and(|pid| alive(pid).is_ok_and(|status| status.success()))
    }

    fn pid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).ok()?;
        text.lines().next()?.trim().parse().ok()
    }

    /// SIGKILL to the server, whose own processes end when they notice.
    pub fn kill(&mut self) {
        let pid = self.pid().expect("a server that runs").to_string();
        let killed = Command::new("kill").args(["-9", &pid]).status().expect("kill runs");
        assert!(killed.success());
        self.stop_keeper();
    }

    fn stop_keeper(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take().map(|mut pipe| pipe.flush()));
            let _ = keeper.wait();
        }
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://kvasir@localhost/{database}?host={}", self.dir.display())
    }

    /// A new, empty database: its URL.
    pub async fn database(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("ledger_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let options: sqlx::postgres::PgConnectOptions = self.url("postgres").parse().expect("a URL");
        let mut connection = options.connect().await.expect("a server that answers");
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut connection).await.expect("a database");
        connection.close().await.expect("a close");
        self.url(&name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_keeper();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The server that all tests of this process share; `None` without PostgreSQL. It keeps nothing through a power cut,
/// which no test makes.
pub fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED.get_or_init(|| Server::start(&["-c", "fsync=off", "-c", "max_connections=200"], true)).as_ref()
}
