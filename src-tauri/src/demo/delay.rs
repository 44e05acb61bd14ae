//! A TCP forwarder that delays every byte by half a round trip and can go dark or be cut: for `kvasir demo --rtt` and
//! `--chaos`.
//!
//! Bytes keep their order and overlap in flight as on a real line; what is not imitated is TCP's own behaviour
//! over distance (slow start, loss), for which a real link or a TUN device is needed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Chunks on the line per direction; with 16 KiB each this is 4 MiB, far above bandwidth × delay of the demo.
const CHUNKS_IN_FLIGHT: usize = 256;
const CHUNK_BYTES: usize = 16 * 1024;

/// A running forwarder; dropping it cuts its connections.
pub(super) struct Line {
    task: JoinHandle<()>,
    dark: Arc<AtomicBool>,
}

impl Line {
    /// Forwards connections on `listener` to `target`, adding `one_way` in each direction.
    pub fn start(listener: TcpListener, target: SocketAddr, one_way: Duration) -> Self {
        let dark = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(serve(listener, target, one_way, Arc::clone(&dark)));
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

async fn serve(listener: TcpListener, target: SocketAddr, one_way: Duration, dark: Arc<AtomicBool>) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let dark = Arc::clone(&dark);
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(target).await else { return };
            if near.set_nodelay(true).and(far.set_nodelay(true)).is_err() {
                return;
            }
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::join!(forward(near_in, far_out, one_way, &dark), forward(far_in, near_out, one_way, &dark));
        });
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration, dark: &AtomicBool) {
    let (sender, mut line) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_IN_FLIGHT);
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
            if sender.send((Instant::now() + one_way, chunk)).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = line.recv().await {
            tokio::time::sleep_until(due).await;
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
