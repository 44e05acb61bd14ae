//! A desktop session of a test's own: a bus, a home, perhaps a keyring, perhaps somebody who shows tray icons.
//!
//! The bus starts nothing by itself, so what is not put there is not there.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use zbus::Connection;
use zbus::connection::Builder;

use crate::menu::{WATCHER_PATH, Watcher};
use crate::until;

const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:tmpdir=/tmp</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>"#;
/// Password of the test's keyring.
const PASSWORD: &[u8] = b"test";

/// A process that ends with the session.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// See the module.
pub struct Session {
    pub home: TempDir,
    /// The app's program: the one that was built with the tests, unless a test has another.
    pub program: PathBuf,
    bus: String,
    guests: Vec<Guest>,
    host: Option<(Connection, Watcher)>,
    /// Where libraries are looked for first.
    libraries: PathBuf,
    /// Whether the app's directory is on a disk of its own, without room.
    is_disk_full: bool,
    /// What else the environment says.
    pub environment: Vec<(&'static str, PathBuf)>,
}

impl Session {
    /// A session with an open keyring and a tray.
    pub async fn usual() -> Self {
        Self::usual_in("light").await
    }

    /// The same with a desktop that is light or dark.
    pub async fn usual_in(theme: &str) -> Self {
        let mut session = Self::bare();
        let gtk = format!("[Settings]\ngtk-application-prefer-dark-theme={}\n", u8::from(theme == "dark"));
        std::fs::write(session.home.path().join("config/gtk-3.0/settings.ini"), gtk).unwrap();
        session.keyring(true);
        session.tray_host().await;
        session
    }

    /// A session with a bus and nothing on it.
    pub fn bare() -> Self {
        let home = tempfile::tempdir().unwrap();
        for dir in ["run", "config/gtk-3.0", "data", "lib"] {
            std::fs::create_dir_all(home.path().join(dir)).unwrap();
        }
        std::fs::set_permissions(home.path().join("run"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let config = home.path().join("bus.conf");
        std::fs::write(&config, BUS).unwrap();
        let mut daemon = Command::new("dbus-daemon")
            .args(["--nofork", "--print-address", "--config-file"])
            .arg(&config)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut bus = String::new();
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut bus).unwrap();
        let libraries = home.path().join("lib");
        Self {
            home,
            program: PathBuf::from(env!("CARGO_BIN_EXE_kvasir")),
            bus: bus.trim().to_owned(),
            guests: vec![Guest(daemon)],
            host: None,
            libraries,
            is_disk_full: false,
            environment: Vec::new(),
        }
    }

    /// `program` within this session.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let home = self.home.path();
        command
            .current_dir(home)
            .env("HOME", home)
            .env("XDG_RUNTIME_DIR", home.join("run"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_DATA_HOME", home.join("data"))
            .env("DBUS_SESSION_BUS_ADDRESS", &self.bus)
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("LIBGL_ALWAYS_SOFTWARE", "1")
            .env("NO_AT_BRIDGE", "1")
            .env("GTK_A11Y", "none")
            .envs(self.environment.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// Starts a Secret Service: open, or with a login keyring that nobody unlocks.
    pub fn keyring(&mut self, unlocked: bool) {
        let mut daemon = self.command("gnome-keyring-daemon");
        daemon.args(["--foreground", "--components=secrets"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        daemon.stderr(Stdio::null());
        if unlocked {
            daemon.arg("--unlock");
        } else {
            daemon.arg("--start");
        }
        let mut daemon = daemon.spawn().unwrap();
        daemon.stdin.take().unwrap().write_all(PASSWORD).unwrap();
        // It prints its control directory once it serves.
        BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        self.guests.push(Guest(daemon));
    }

    /// Ends the keyring that was started last.
    pub fn end_keyring(&mut self) {
        drop(self.guests.pop());
    }

    /// Starts somebody who shows tray icons.
    pub async fn tray_host(&mut self) {
        self.tray_watcher().await;
        let (connection, watcher) = self.host();
        watcher.show(connection, true).await;
    }

    /// Starts somebody who keeps a list of tray icons, which nobody shows yet.
    pub async fn tray_watcher(&mut self) {
        let watcher = Watcher::default();
        let connection = self.connection();
        let connection = connection.serve_at(WATCHER_PATH, watcher.clone()).unwrap();
        let connection = connection.name("org.kde.StatusNotifierWatcher").unwrap().build().await.unwrap();
        self.host = Some((connection, watcher));
    }

    /// The tray's host and the items that came to it.
    pub fn host(&self) -> (&Connection, &Watcher) {
        let (connection, watcher) = self.host.as_ref().unwrap();
        (connection, watcher)
    }

    fn connection(&self) -> Builder<'_> {
        Builder::address(self.bus.as_str()).unwrap()
    }

    /// Makes a library as good as not installed: what is found first is no library.
    pub fn without_library(&self, name: &str) {
        std::fs::write(self.libraries.join(name), "").unwrap();
    }

    /// Leaves the app's directory no room: a disk of its own, filled up, which only the app sees.
    pub fn fill_disk(&mut self) {
        std::fs::create_dir_all(self.state()).unwrap();
        self.is_disk_full = true;
    }

    /// Starts `program` for as long as the session lasts.
    pub fn invite(&mut self, command: &mut Command) -> u32 {
        let guest = command.spawn().unwrap();
        let id = guest.id();
        self.guests.push(Guest(guest));
        id
    }

    /// The app's directory.
    pub fn state(&self) -> PathBuf {
        self.home.path().join("data/net.kvasir.app")
    }

    /// A program that runs the app and writes its exit code to the file beside it.
    pub fn app(&self) -> PathBuf {
        let path = self.home.path().join("app");
        let exe = self.program.display();
        let home = self.home.path().display();
        let state = self.state();
        let fill = if self.is_disk_full {
            let (state, filler) = (state.display(), state.join("filler").display().to_string());
            format!("mount -t tmpfs -o size=64k tmpfs '{state}'\ncat /dev/zero >'{filler}' 2>/dev/null\n")
        } else {
            String::new()
        };
        let start = format!(
            "{fill}'{exe}' \"$@\" 2>>'{home}/log' &\necho $! >'{home}/pid'\nwait $!\necho $? >'{home}/ended'\n"
        );
        // What is mounted in a namespace of its own is gone with it.
        let shell = if self.is_disk_full { "/usr/bin/env -S unshare -m sh" } else { "/bin/sh" };
        let script = format!("#!{shell}\n{start}");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// Waits until the app has ended, and forgets it; gives its exit code.
    pub async fn end(&self) -> i32 {
        let code = until("the end", async || self.noted("ended")).await;
        std::fs::remove_file(self.home.path().join("ended")).unwrap();
        code
    }

    /// The number in a file that [`Session::app`] writes.
    pub fn noted(&self, name: &str) -> Option<i32> {
        std::fs::read_to_string(self.home.path().join(name)).ok()?.trim().parse().ok()
    }
}

/// Memory of a process and of all that it started, in bytes: what is its own, and with it all of the files that it
/// has mapped, which are shared with others and given back when memory is short.
pub fn resident_bytes(pid: i32) -> [u64; 2] {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let status = read(format!("/proc/{pid}/status"));
    let kilobytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let own = kilobytes("RssAnon:") + kilobytes("RssShmem:");
    let mut sum = [own * 1024, (own + kilobytes("RssFile:")) * 1024];
    for child in read(format!("/proc/{pid}/task/{pid}/children")).split_whitespace() {
        let [own, all] = resident_bytes(child.parse().unwrap());
        sum = [sum[0] + own, sum[1] + all];
    }
    sum
}

/// Processor time that a process has used, in hundredths of a second.
pub fn used_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
