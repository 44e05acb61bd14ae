//! A line between two ends of TCP: as fast, as long and as reliable as it is told to be.
//!
//! Bytes leave at the line's rate, wait in its queue as in a router's, arrive after its delay, and keep their order.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

const CHUNK_BYTES: usize = 2048;
/// Chunks that the line's queue holds: 2 MiB, as home routers do.
const QUEUE_CHUNKS: usize = 1024;

/// What a line is like.
#[derive(Clone, Copy)]
pub struct Nature {
    /// Bits per second, each way.
    pub bits_per_s: f64,
    /// Each way.
    pub delay: Duration,
}

/// What happens to a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    /// Its connections break; new ones are taken.
    Cut,
    /// Its connections stay open and carry nothing more; new ones work.
    Stall,
}

struct State {
    nature: Nature,
    /// Bytes that went down to the near end.
    down: AtomicU64,
    /// When the trouble comes: after how many bytes in all.
    trouble: Mutex<Option<(u64, Trouble)>>,
    /// Troubles so far, and the latest.
    troubled: watch::Sender<(usize, Option<Trouble>)>,
}

/// A line to some listener.
pub struct Line {
    /// Its near end.
    pub addr: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Line {
    /// A line whose far end is `far`.
    pub async fn to(far: SocketAddr, nature: Nature) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (down, trouble, troubled) = (AtomicU64::new(0), Mutex::default(), watch::Sender::new((0, None)));
        let state = Arc::new(State { nature, down, trouble, troubled });
        let task = tokio::spawn(serve(listener, far, Arc::clone(&state)));
        Self { addr, state, task }
    }

    /// Bytes that came down to the near end so far.
    pub fn bytes(&self) -> u64 {
        self.state.down.load(SeqCst)
    }

    /// Arranges a trouble once `bytes` more have come down.
    pub fn trouble_after(&self, bytes: u64, trouble: Trouble) {
        *self.state.trouble.lock().expect("no panic") = Some((self.bytes() + bytes, trouble));
    }

    /// Waits until the line had `count` troubles.
    pub async fn troubled(&self, count: usize) {
        let mut troubled = self.state.troubled.subscribe();
        troubled.wait_for(|(so_far, _)| *so_far >= count).await.expect("the line lives");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, far: SocketAddr, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            Ok((near, _)) = listener.accept() => {
                let state = Arc::clone(&state);
                connections.spawn(async move {
                    let Ok(far) = TcpStream::connect(far).await else { return };
                    let mut troubled = state.troubled.subscribe();
                    let so_far = troubled.borrow_and_update().0;
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (near_in, near_out) = near.into_split();
                    let (far_in, far_out) = far.into_split();
                    let both = async {
                        tokio::join!(forward(near_in, far_out, &state, false), forward(far_in, near_out, &state, true))
                    };
                    tokio::pin!(both);
                    let trouble = tokio::select! {
                        _ = &mut both => None,
                        seen = troubled.wait_for(|(count, _)| *count > so_far) => seen.ok().and_then(|seen| seen.1),
                    };
                    if trouble == Some(Trouble::Stall) {
                        std::future::pending::<()>().await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
            else => return,
        }
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, state: &State, down: bool) {
    let (sender, mut line) = mpsc::channel::<(Instant, Vec<u8>)>(QUEUE_CHUNKS);
    let read = async move {
        let mut free_at = Instant::now();
        let mut chunk = [0; CHUNK_BYTES];
        while let Ok(n @ 1..) = from.read(&mut chunk).await {
            let takes = Duration::from_secs_f64(n as f64 * 8.0 / state.nature.bits_per_s);
            free_at = free_at.max(Instant::now()) + takes;
            if sender.send((free_at + state.nature.delay, chunk[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = line.recv().await {
            sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
            if down {
                let bytes = state.down.fetch_add(chunk.len() as u64, SeqCst) + chunk.len() as u64;
                let due = state.trouble.lock().expect("no panic").take_if(|(after, _)| bytes >= *after);
                if let Some((_, trouble)) = due {
                    state.troubled.send_modify(|(count, latest)| (*count, *latest) = (*count + 1, Some(trouble)));
                }
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
