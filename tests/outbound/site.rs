//! A server that answers HTTPS and WebSockets at one port, as a gateway does, under names that only tests know.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kvasir::net::Io;
use kvasir::net::dial::{Connector, DIAL_DEADLINE, DialError, Outbound, Trip};
use kvasir::net::head::{Upgrade, read_head};
use kvasir::net::https::{Gateway, HttpsError};
use kvasir::net::tls::{self, TrialCertificates};
use kvasir::net::ws::{WsConfig, WsStream};
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The name of every site here; nobody else has it (RFC 6761).
pub const HOST: &str = "gateway.test";
const BODY: &str = "{\"answer\":42}";

/// Serves until it is dropped.
pub struct Site {
    pub addr: SocketAddr,
    pub certificates: TrialCertificates,
    accepted: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Site {
    pub async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    pub fn on(listener: TcpListener) -> Self {
        let addr = listener.local_addr().expect("an address");
        let certificates = TrialCertificates::generate(&[HOST]).expect("a certificate");
        let config = tls::server_config_from_pem(&certificates.cert_pem, &certificates.key_pem).expect("a server");
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&config)));
            }
        });
        Self { addr, certificates, accepted, serving }
    }

    pub fn url(&self) -> String {
        format!("wss://{HOST}:{}/v1/worker", self.addr.port())
    }

    /// Connections that came, whatever became of them.
    pub fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(stream: TcpStream, config: Arc<ServerConfig>) {
    let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await else { return };
    let mut stream: Io = Box::new(stream);
    let Ok(head) = read_head(&mut stream, Instant::now() + Duration::from_secs(5)).await else { return };
    if let Ok(upgrade) = Upgrade::check(&head, "/v1/worker") {
        let accepted = WsStream::accept(stream, &upgrade.key, head.rest().to_vec(), WsConfig::hub()).await;
        let Ok(mut socket) = accepted else { return };
        while let Ok(Some(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return;
            }
        }
        return;
    }
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{BODY}", BODY.len());
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Goes the whole way to a WebSocket: each leg that was passed, and why it went no further.
pub async fn travelled(url: &str, connector: &Connector) -> (Trip, Option<DialError>) {
    let mut trip = Trip::default();
    let result = WsStream::travel(url, connector, WsConfig::worker(), DIAL_DEADLINE, &mut trip).await;
    (trip, result.err())
}

/// A message there and back over a WebSocket.
pub async fn by_websocket(url: &str, connector: &Connector) -> Result<(), DialError> {
    let mut socket = WsStream::connect(url, connector, WsConfig::worker()).await?;
    socket.send(vec![7; 3000]).await.expect("a link");
    assert_eq!(socket.recv().await.expect("a link").expect("an echo"), vec![7; 3000]);
    Ok(())
}

/// A question and its answer over HTTPS.
pub async fn by_https(url: &str, connector: Connector) -> Result<(), DialError> {
    let gateway = Gateway::at(url, Arc::new(connector)).expect("a gateway's URL");
    match gateway.get::<serde_json::Value>("/v1/anything").await {
        Ok(answer) => {
            assert_eq!(answer["answer"], 42);
            Ok(())
        }
        Err(HttpsError::Dial { source, .. }) => Err(source),
        Err(other) => panic!("{other}"),
    }
}

/// Both by the same settings; they fare alike, in the same words.
pub async fn by_both(url: &str, outbound: &Outbound) -> Result<(), DialError> {
    let connector = || Connector::new(outbound).expect("a connector");
    let (first, second) = (by_websocket(url, &connector()).await, by_https(url, connector()).await);
    let words = |result: &Result<(), DialError>| result.as_ref().map_err(ToString::to_string).copied();
    assert_eq!(words(&first), words(&second), "HTTPS and WebSockets differ");
    first
}
