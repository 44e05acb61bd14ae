//! The programs that `bench splice` puts between its two ends: this gateway, nginx and haproxy, each a process of its own.
//!
//! The others are used where they are installed, with 64 KiB buffers as ours has, since their defaults are smaller.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::SpliceBenchError;
use crate::net::tls::TrialCertificates;

/// Longest wait for a program to listen.
const UP: Duration = Duration::from_secs(20);
/// Where system programs may be that are not on a user's path.
const SBIN: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// This program's gateway.
    Ours,
    /// nginx.
    Nginx,
    /// haproxy.
    Haproxy,
}

/// A running proxy, killed when dropped.
pub struct Proxy {
    /// Where it takes TLS.
    pub addr: SocketAddr,
    child: Child,
    /// Kept open: a program may not like to lose it.
    _stdout: Option<BufReader<ChildStdout>>,
}

impl Program {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "kvasir gateway",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Its executable; `None` when it is not installed.
    #[must_use]
    pub fn executable(self) -> Option<PathBuf> {
        if self == Self::Ours {
            return std::env::current_exe().ok();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(SBIN.iter().map(PathBuf::from));
        places.map(|place| place.join(self.name())).find(|file| file.is_file())
    }

    /// What it says of its version.
    #[must_use]
    pub fn version(self) -> String {
        if self == Self::Ours {
            return env!("CARGO_PKG_VERSION").to_owned();
        }
        let said = self.executable().and_then(|program| Command::new(program).arg("-v").output().ok());
        let text = said.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    }

    /// Starts it in front of `hub`, for so many connections of one address.
    ///
    /// # Errors
    /// A program that is missing or does not come up.
    pub fn start(
        self,
        dir: &Path,
        certificates: &TrialCertificates,
        hub: SocketAddr,
        connections: usize,
    ) -> Result<Proxy, SpliceBenchError> {
        let name = self.name();
        let program = self.executable().ok_or(SpliceBenchError::Missing { name })?;
        let mut command = Command::new(program);
        command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let write = |file: &str, text: &str| std::fs::write(dir.join(file), text);
        write("cert.pem", &certificates.cert_pem)?;
        write("key.pem", &certificates.key_pem)?;
        if self == Self::Ours {
            command.args(["--headless", "gateway", "--listen", "127.0.0.1:0", "--state", "state"]);
            command.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--hub", &hub.to_string()]);
            command.args(["--connections-per-address", &connections.to_string()]);
            let mut child = command.stdout(Stdio::piped()).spawn()?;
            let mut stdout = child.stdout.take().map(BufReader::new);
            let addr = stdout.as_mut().and_then(announced);
            let mut proxy = Proxy { addr: addr.unwrap_or(hub), child, _stdout: stdout };
            return match addr {
                Some(_) => Ok(proxy),
                None => Err(proxy.failed(name)),
            };
        }
        // Both want a number; nobody else on this machine should take it in the meantime.
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        if self == Self::Nginx {
            write("nginx.conf", &nginx(addr, hub, connections))?;
            command.arg("-p").arg(dir).args(["-e", "nginx.log", "-c", "nginx.conf"]);
        } else {
            write("both.pem", &format!("{}{}", certificates.cert_pem, certificates.key_pem))?;
            write("haproxy.cfg", &haproxy(addr, hub, connections))?;
            command.args(["-db", "-f", "haproxy.cfg"]);
        }
        let mut proxy = Proxy { addr, child: command.spawn()?, _stdout: None };
        let start = Instant::now();
        while TcpStream::connect(addr).is_err() {
            if start.elapsed() > UP || proxy.child.try_wait()?.is_some() {
                return Err(proxy.failed(name));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(proxy)
    }
}

/// The address that our gateway says it listens on; `None` when it ends before.
fn announced(stdout: &mut BufReader<ChildStdout>) -> Option<SocketAddr> {
    let mut lines = stdout.lines();
    lines.find_map(|line| Some(line.ok()?.strip_prefix("listening on https://")?.parse().ok()))?
}

fn nginx(addr: SocketAddr, hub: SocketAddr, connections: usize) -> String {
    let connections = 2 * connections + 64;
    format!(
        "daemon off;\nworker_processes 1;\nworker_rlimit_nofile {connections};\npid nginx.pid;\nerror_log nginx.log error;\n\
         events {{ worker_connections {connections}; }}\n\
         http {{\n access_log off;\n client_body_temp_path t;\n proxy_temp_path t;\n fastcgi_temp_path t;\n uwsgi_temp_path t;\n \
         scgi_temp_path t;\n server {{\n  listen {addr} ssl;\n  ssl_certificate cert.pem;\n  ssl_certificate_key key.pem;\n  \
         ssl_protocols TLSv1.3;\n  location / {{\n   proxy_pass http://{hub};\n   proxy_http_version 1.1;\n   \
         proxy_set_header Host $host;\n   proxy_set_header Upgrade $http_upgrade;\n   proxy_set_header Connection upgrade;\n   \
         proxy_buffer_size 64k;\n   proxy_buffers 8 64k;\n   proxy_busy_buffers_size 128k;\n   proxy_read_timeout 1h;\n   \
         proxy_send_timeout 1h;\n  }}\n }}\n}}\n"
    )
}

fn haproxy(addr: SocketAddr, hub: SocketAddr, connections: usize) -> String {
    format!(
        "global\n maxconn {}\n tune.bufsize 65536\ndefaults\n mode http\n timeout connect 10s\n timeout client 1h\n \
         timeout server 1h\n timeout tunnel 1h\nfrontend f\n bind {addr} ssl crt both.pem ssl-min-ver TLSv1.3 alpn http/1.1\n \
         default_backend b\nbackend b\n server s {hub}\n",
        connections + 64
    )
}

impl Proxy {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn failed(&mut self, name: &'static str) -> SpliceBenchError {
        let _gone = self.child.kill();
        let ended = self.child.wait().map(|status| status.to_string()).unwrap_or_default();
        SpliceBenchError::NotUp { name, ended }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
