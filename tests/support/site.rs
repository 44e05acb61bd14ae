//! A web server of a test's own, over TLS on loopback: it has what it was given, and may send its clients elsewhere, stop
//! in the middle, or say nothing at all.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use kvasir::net::tls::{self, TrialCertificates};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What is at a path.
#[derive(Clone)]
pub enum Page {
    File(Vec<u8>),
    /// A file that ends after its first half.
    Half(Vec<u8>),
    /// A status line without the version, and the value of `Location`.
    Status(&'static str, String),
    /// An open connection and no word.
    Silence,
}

type Pages = Arc<Mutex<HashMap<String, Page>>>;

/// See the module.
pub struct Site {
    pub addr: SocketAddr,
    /// What a client must trust.
    pub ca_pem: String,
    pages: Pages,
    asked: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Site {
    /// Starts at a port, or with 0 at any, without pages: 404 for all of them.
    pub async fn at(port: u16) -> Self {
        let certificates = TrialCertificates::generate(&["127.0.0.1"]).expect("certificates");
        let config = tls::server_config_from_pem(&certificates.cert_pem, &certificates.key_pem).expect("a certificate");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("the port");
        let addr = listener.local_addr().expect("an address");
        let (pages, asked) = (Pages::default(), Arc::<Mutex<Vec<String>>>::default());
        let (had, noted) = (Arc::clone(&pages), Arc::clone(&asked));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&config), Arc::clone(&had), Arc::clone(&noted)));
            }
        });
        Self { addr, ca_pem: certificates.ca_pem, pages, asked, serving }
    }

    /// Puts a page in the place of what is at `path`.
    pub fn put(&self, path: &str, page: Page) {
        self.pages.lock().expect("no panic").insert(path.to_owned(), page);
    }

    /// Where `path` is.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.addr)
    }

    /// Paths that were asked for, in their order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(stream: TcpStream, config: Arc<ServerConfig>, pages: Pages, asked: Arc<Mutex<Vec<String>>>) {
    let Ok(mut near) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await else { return };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match near.read_u8().await {
            Ok(byte) if head.len() < 8192 => head.push(byte),
            _ => return,
        }
    }
    let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
    asked.lock().expect("no panic").push(path.clone());
    let page = pages.lock().expect("no panic").get(&path).cloned();
    let (status, location, body, sent) = match page {
        Some(Page::File(file)) => ("200 OK", String::new(), file.clone(), file.len()),
        Some(Page::Half(file)) => ("200 OK", String::new(), file.clone(), file.len() / 2),
        Some(Page::Status(status, location)) => (status, location, Vec::new(), 0),
        Some(Page::Silence) => return std::future::pending().await,
        None => ("404 Not Found", String::new(), Vec::new(), 0),
    };
    let to = if location.is_empty() { String::new() } else { format!("Location: {location}\r\n") };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{to}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client that goes in the middle has its reasons.
    let _ = near.write_all(head.as_bytes()).await;
    let _ = near.write_all(&body[..sent]).await;
    let _ = near.shutdown().await;
}
