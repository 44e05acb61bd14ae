//! A forward proxy: takes CONNECT, knows where names lead, and keeps what was asked of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kvasir::net::Io;
use kvasir::net::tls::{self, TrialCertificates};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What it does.
#[derive(Default)]
pub struct Rules {
    /// `user:password` that it wants.
    pub password: Option<&'static str>,
    /// The ways to prove who one is that it offers, when it wants a password.
    pub schemes: Option<&'static str>,
    /// The only place that it leads to, whatever it is called.
    pub target: Option<SocketAddr>,
    /// What it answers instead of leading there.
    pub refuses: Option<&'static str>,
    /// Its certificate, when it speaks TLS itself.
    pub certificate: Option<TrialCertificates>,
}

/// Serves until it is dropped.
pub struct ForwardProxy {
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl ForwardProxy {
    pub async fn start(rules: Rules) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (rules, log) = (Arc::new(rules), Arc::clone(&seen));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&rules), Arc::clone(&log)));
            }
        });
        Self { addr, seen, serving }
    }

    /// What was asked, in order: `CONNECT host:port`, and what the first bytes behind it were.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").clone()
    }
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(stream: TcpStream, rules: Arc<Rules>, seen: Arc<Mutex<Vec<String>>>) {
    let note = |what: String| seen.lock().expect("no panic").push(what);
    let mut near: Io = match &rules.certificate {
        None => Box::new(stream),
        Some(certificate) => {
            let config =
                tls::server_config_from_pem(&certificate.cert_pem, &certificate.key_pem).expect("a certificate");
            let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await else { return };
            Box::new(stream)
        }
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match near.read_u8().await {
            Ok(byte) if head.len() < 8192 => head.push(byte),
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("a head in ASCII");
    let target = head.split(' ').nth(1).unwrap_or_default();
    note(format!("{} {target}", head.split(' ').next().unwrap_or_default()));
    let shown = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: Basic "));
    let wanted = rules.password.map(|password| BASE64_STANDARD.encode(password));
    let refusal = if wanted.as_deref() != shown && wanted.is_some() {
        let schemes = rules.schemes.unwrap_or("Basic realm=\"corp\"");
        Some(format!("407 Proxy Authentication Required\r\nProxy-Authenticate: {schemes}"))
    } else {
        rules.refuses.map(str::to_owned)
    };
    if let Some(refusal) = refusal {
        let answer = format!("HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n");
        let _ = near.write_all(answer.as_bytes()).await;
        let _ = near.shutdown().await;
        return;
    }
    let Some(target) = rules.target else { return };
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    if near.write_all(b"HTTP/1.0 200 Connection established\r\n\r\n").await.is_err() || near.flush().await.is_err() {
        return;
    }
    let Ok(first) = near.read_u8().await else { return };
    note(if first == 22 { "a TLS handshake".to_owned() } else { format!("byte {first} in the clear") });
    if far.write_u8(first).await.is_ok() {
        let _ = copy_bidirectional(&mut near, &mut far).await;
    }
}
