//! nginx as people put it before a server: it ends TLS, speaks TLS to the server, and keeps its own idle limits.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvasir::net::tls::TrialCertificates;

/// Longest wait for it to listen.
const UP: Duration = Duration::from_secs(20);

/// A running nginx, stopped when dropped.
pub struct Nginx {
    pub addr: SocketAddr,
    /// What a client must trust.
    pub ca_pem: String,
    dir: tempfile::TempDir,
    child: Child,
}

fn executable() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = places.map(|place: PathBuf| place.join("nginx")).find(|file| file.is_file());
    found.expect("nginx, which tests/run installs")
}

impl Nginx {
    /// Before `server` under `host`, with its default limits but for the idle limit, which nginx sets to 60 s.
    pub fn before(server: SocketAddr, host: &str, idle: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let certificates = TrialCertificates::generate(&[host]).expect("a certificate");
        // It wants a number; nobody else on this machine should take it in the meantime.
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address");
        let idle = format!("{}ms", idle.as_millis());
        let conf = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log nginx.log info;\n\
             events {{ worker_connections 64; }}\n\
             http {{\n access_log off;\n client_body_temp_path t;\n proxy_temp_path t;\n fastcgi_temp_path t;\n \
             uwsgi_temp_path t;\n scgi_temp_path t;\n server {{\n  listen {addr} ssl;\n  ssl_certificate cert.pem;\n  \
             ssl_certificate_key key.pem;\n  location / {{\n   proxy_pass https://{server};\n   \
             proxy_http_version 1.1;\n   proxy_set_header Host $host;\n   proxy_set_header Upgrade $http_upgrade;\n   \
             proxy_set_header Connection upgrade;\n   proxy_read_timeout {idle};\n   proxy_send_timeout {idle};\n  \
             }}\n }}\n}}\n"
        );
        for (name, text) in
            [("cert.pem", &certificates.cert_pem), ("key.pem", &certificates.key_pem), ("nginx.conf", &conf)]
        {
            std::fs::write(dir.path().join(name), text).expect("a file");
        }
        let mut command = Command::new(executable());
        command.arg("-p").arg(dir.path()).args(["-e", "nginx.log", "-c"]).arg(dir.path().join("nginx.conf"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut nginx = Self { addr, ca_pem: certificates.ca_pem, dir, child: child.expect("nginx starts") };
        let start = Instant::now();
        while TcpStream::connect(addr).is_err() {
            let is_over = nginx.child.try_wait().expect("a process").is_some();
            assert!(start.elapsed() < UP && !is_over, "nginx did not come up: {}", nginx.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    /// What it wrote down.
    pub fn log(&self) -> String {
        std::fs::read_to_string(Path::new(self.dir.path()).join("nginx.log")).unwrap_or_default()
    }

    /// Idle connections that it cut.
    pub fn cuts(&self) -> usize {
        self.log().matches("upstream timed out").count()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
