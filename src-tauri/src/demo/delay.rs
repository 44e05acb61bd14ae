//! A TCP forwarder that delays every byte by half a round trip, carries so much and no more, and can go dark or be cut:
//! for `kvasir demo --rtt` and `--chaos`, and for benches.
//!
//! Bytes keep their order and overlap in flight as on a real line; what is not imitated is TCP's own behaviour
//! over distance (slow start, loss), for which a real link or a TUN device is needed. Why a thread keeps the time: the
//! runtime's timers count whole milliseconds, and rounded up twice they would be a tenth of a short round trip.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc as blocking;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// Chunks on the line per direction; with 16 KiB each this is 4 MiB, far above bandwidth × delay of the demo.
const CHUNKS_IN_FLIGHT: usize = 256;
const CHUNK_BYTES: usize = 16 * 1024;

/// One direction of a line: tells when what is sent arrives at its other end.
struct Ferry {
    one_way: Duration,
    bits_per_s: Option<u64>,
    /// When what was sent so far has left.
    free: Instant,
    questions: blocking::Sender<(Instant, oneshot::Sender<()>)>,
}

impl Ferry {
    /// `None` where the system gives no thread.
    fn start(one_way: Duration, bits_per_s: Option<u64>) -> Option<Self> {
        let (questions, asked) = blocking::channel::<(Instant, oneshot::Sender<()>)>();
        let keep = move || {
            for (due, arrived) in asked {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // Nobody listens any more on a line that was cut.
                let _ = arrived.send(());
            }
        };
        thread::Builder::new().name("line".into()).spawn(keep).ok()?;
        Some(Self { one_way, bits_per_s, free: Instant::now(), questions })
    }

    /// Resolves when `bytes` that are sent now have arrived; later ones never do so earlier.
    fn across(&mut self, bytes: usize) -> oneshot::Receiver<()> {
        let (arrived, arrives) = oneshot::channel();
        let takes = self.bits_per_s.map_or(0.0, |rate| 8.0 * bytes as f64 / rate as f64);
        self.free = self.free.max(Instant::now()) + Duration::from_secs_f64(takes);
        // An ended thread drops the sender: then the receiver resolves at once.
        let _ = self.questions.send((self.free + self.one_way, arrived));
        arrives
    }
}

/// A running forwarder; dropping it cuts its connections.
pub(super) struct Line {
    task: JoinHandle<()>,
    dark: Arc<AtomicBool>,
}

impl Line {
    /// Forwards connections on `listener` to `target`, adding `one_way` in each direction, where each connection carries
    /// `bits_per_s`.
    pub fn start(listener: TcpListener, target: SocketAddr, one_way: Duration, bits_per_s: Option<u64>) -> Self {
        let dark = Arc::new(AtomicBool::new(false));
        let ferries = move || Some([Ferry::start(one_way, bits_per_s)?, Ferry::start(one_way, bits_per_s)?]);
        let task = tokio::spawn(serve(listener, target, ferries, Arc::clone(&dark)));
        Self { task, dark }
    }

    /// From now on nothing gets through, and nothing is closed.
    pub fn darken(&self) {
        self.dark.store(true, Relaxed);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    ferries: impl Fn() -> Option<[Ferry; 2]>,
    dark: Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let Some([there, back]) = ferries() else { continue };
        let dark = Arc::clone(&dark);
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(target).await else { return };
            if near.set_nodelay(true).and(far.set_nodelay(true)).is_err() {
                return;
            }
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::join!(forward(near_in, far_out, there, &dark), forward(far_in, near_out, back, &dark));
        });
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut ferry: Ferry, dark: &AtomicBool) {
    let (sender, mut line) = mpsc::channel::<(oneshot::Receiver<()>, Vec<u8>)>(CHUNKS_IN_FLIGHT);
    let read = async move {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            match from.read(&mut chunk).await {
                // The far side of a dark line hears nothing, not even an end.
                Ok(0) | Err(_) if dark.load(Relaxed) => std::future::pending().await,
                Ok(0) | Err(_) => return,
                Ok(_) if dark.load(Relaxed) => continue,
                Ok(n) => chunk.truncate(n),
            }
            if sender.send((ferry.across(chunk.len()), chunk)).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((arrives, chunk)) = line.recv().await {
            let _ = arrives.await;
            if dark.load(Relaxed) {
                continue;
            }
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        // The far side may still be sending: only this direction ends.
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
