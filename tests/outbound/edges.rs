//! Behind an edge: nginx with its default idle limits before the gateway, and one that takes messages apart.
//!
//! The limits are scaled by 1:30 unless the soak is asked for, pings with them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use kvasir::demo::network::Waits;
use kvasir::hub::HubTiming;
use kvasir::net::dial::Outbound;
use kvasir::net::ws::Ping;
use kvasir::shutdown;
use kvasir::wallet::Wallet;
use kvasir::worker::{self, Hardware, Source, WorkerConfig, WorkerStatus};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::{WebSocketStream, accept_async, client_async};

use crate::dispatch::world::{Backbone, Hub, exact_model, kernel, step};
use crate::elastic::world::{Stream, hardware, patient, until};
use crate::support::nginx::Nginx;

/// The model remembers 2048 tokens.
const STEPS_MAX: u32 = 1500;
/// nginx's own limit.
const MINUTE: Duration = Duration::from_secs(60);

/// A worker of the stream's network behind an nginx.
struct Behind {
    nginx: Nginx,
    status: watch::Receiver<WorkerStatus>,
    stop: shutdown::ShutdownTrigger,
    running: JoinHandle<Result<(), worker::WorkerError>>,
    dir: tempfile::TempDir,
}

impl Behind {
    /// One that pings this often, behind an idle limit of a minute; all times divided by `scale`.
    fn start(stream: &Stream, ping: Duration, scale: u32) -> Self {
        let invite = stream.network.invite();
        let host = invite.gateways[0].trim_start_matches("wss://").split(':').next().expect("a host").to_owned();
        let nginx = Nginx::before(stream.network.gateway(), &host, MINUTE / scale);
        let dir = tempfile::tempdir().expect("a directory");
        let ca = dir.path().join("nginx-ca.pem");
        std::fs::write(&ca, &nginx.ca_pem).expect("a file");
        let invited = WorkerConfig::invited(invite, dir.path().join("worker"), Some(1 << 30));
        let mut config = WorkerConfig {
            gateways: vec![format!("wss://{host}:{}", nginx.addr.port())],
            outbound: Outbound { extra_ca: vec![ca], ..invited.outbound },
            ..invited
        };
        config.timers.ping = Ping { every: ping / scale, ..Ping::worker() };
        let wallet = Arc::new(Wallet::generate().expect("a wallet"));
        let (sender, status) = watch::channel(WorkerStatus::default());
        let (stop, shutdown) = shutdown::channel();
        let running = tokio::spawn(worker::run(config, wallet, hardware().fixed(), sender, shutdown));
        Self { nginx, status, stop, running, dir }
    }

    async fn stop(self) {
        self.stop.fire();
        timeout(Duration::from_secs(20), self.running).await.expect("it stops").expect("no panic").expect("no error");
        drop(self.dir);
    }
}

/// A stream whose hub never pings by itself, so that the worker's pings are all that keeps a link alive.
async fn stream() -> Stream {
    let ping = Ping { every: Duration::from_secs(3600), ..Ping::hub() };
    let hub = HubTiming { ping, ..HubTiming::default() };
    Stream::start(vec![], Waits { hub, ..patient() }).await
}

/// Idles and then works behind nginx, each for `spell`; gives sessions, cuts, and nginx's own count of cuts.
async fn idle_and_busy(ping: Duration, scale: u32, spell: Duration) -> (u64, u64, usize) {
    let mut stream = stream().await;
    let behind = Behind::start(&stream, ping, scale);
    stream.ready(1).await;
    sleep(spell).await;
    let end = Instant::now() + spell;
    while Instant::now() < end {
        // Whatever is cut meanwhile, every token is the one of a local run.
        stream.step().await;
        sleep(spell / STEPS_MAX).await;
    }
    let served = behind.status.clone();
    until(|| served.borrow().trouble.is_none() && served.borrow().assignments > 0).await;
    let (sessions, cuts) = (served.borrow().sessions, served.borrow().cuts);
    let counted = behind.nginx.cuts();
    behind.stop().await;
    stream.network.stop().await.expect("a clean stop");
    (sessions, cuts, counted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_with_its_default_limits_cuts_no_link_that_pings_and_one_that_does_not_comes_back() {
    let (scale, spell) = (30, 2 * MINUTE / 30);
    let (with, without) = tokio::join!(
        idle_and_busy(Duration::from_secs(20), scale, spell),
        idle_and_busy(Duration::from_secs(3600), scale, spell),
    );
    assert_eq!(with, (1, 0, 0), "no cut in idleness, none under load");
    let (sessions, cuts, counted) = without;
    assert!(counted >= 1 && cuts >= 1, "{without:?}");
    assert_eq!(sessions, cuts + 1, "each cut is resumed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes ten minutes"]
async fn ten_minutes_behind_nginx_idle_and_under_load() {
    let (sessions, cuts, counted) = idle_and_busy(Duration::from_secs(20), 1, 5 * MINUTE).await;
    eprintln!("10 minutes behind nginx: {sessions} sessions, {cuts} cuts, {counted} by nginx");
    assert_eq!((sessions, cuts, counted), (1, 0, 0));
}

/// An edge that ends the WebSocket and makes another: messages come in other frames, under other masks, later and
/// together, and pings are answered on the spot.
async fn edge(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let far = TcpStream::connect(target).await.expect("the hub");
                let url = format!("ws://127.0.0.1:{}/v1/worker", target.port());
                let (far, _) = client_async(url, far).await.expect("an upgrade");
                let near = accept_async(near).await.expect("an upgrade");
                let ((near_out, near_in), (far_out, far_in)) = (near.split(), far.split());
                tokio::join!(relay(near_in, far_out), relay(far_in, near_out));
            });
        }
    });
    addr
}

type From = futures_util::stream::SplitStream<WebSocketStream<TcpStream>>;
type To = futures_util::stream::SplitSink<WebSocketStream<TcpStream>, Message>;

async fn relay(mut from: From, mut to: To) {
    let mut sizes = [1, 4096, 700, 65_536, 3].into_iter().cycle();
    while let Some(Ok(message)) = from.next().await {
        let Message::Binary(bytes) = message else { continue };
        // Held for a moment, so that what follows leaves with it.
        sleep(Duration::from_millis(2)).await;
        let (mut at, mut code) = (0, OpCode::Data(Data::Binary));
        loop {
            let end = bytes.len().min(at + sizes.next().unwrap_or(1));
            let is_last = end == bytes.len();
            let frame = Frame::message(bytes.slice(at..end), code, is_last);
            if to.feed(Message::Frame(frame)).await.is_err() {
                return;
            }
            (at, code) = (end, OpCode::Data(Data::Continue));
            if is_last {
                break;
            }
        }
        if to.flush().await.is_err() {
            return;
        }
    }
    let _ = to.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edge_that_takes_messages_apart_and_holds_them_changes_nothing() {
    let backbone = Backbone::start(exact_model(), vec![1]).await;
    let hub = Hub::start(&backbone).await;
    let edge = edge(hub.addr).await;
    let worker = hub.worker_as("edge", Source::Fetch, Hardware::from(kernel()).fixed(), |config| {
        config.gateways = vec![format!("ws://{edge}")];
    });
    backbone.ready(1).await;
    for seed in 1..=5 {
        backbone.check(step(&backbone.model, 1, 3, seed)).await;
    }
    assert_eq!(worker.status.borrow().sessions, 1);
    assert!(worker.status.borrow().assignments > 0, "the worker answered");
    worker.stop().await;
}
