//! A TCP forwarder that delays every byte by half a round trip, and can be cut: for `kvasir demo --rtt` and `--chaos`.
//!
//! Bytes keep their order and overlap in flight as on a real line; what is not imitated is TCP's own behaviour
//! over distance (slow start, loss), for which a real link or a TUN device is needed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Chunks on the line per direction; with 16 KiB each this is 4 MiB, far above bandwidth × delay of the demo.
const CHUNKS_IN_FLIGHT: usize = 256;
const CHUNK_BYTES: usize = 16 * 1024;

/// Forwards connections on `listener` to `target`, adding `one_way` in each direction. Dropping the future cuts them.
pub async fn serve(listener: TcpListener, target: SocketAddr, one_way: Duration) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        connections.spawn(async move {
            let Ok(far) = TcpStream::connect(target).await else { return };
            if near.set_nodelay(true).and(far.set_nodelay(true)).is_err() {
                return;
            }
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::join!(forward(near_in, far_out, one_way), forward(far_in, near_out, one_way));
        });
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let (sender, mut line) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_IN_FLIGHT);
    let read = async move {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            match from.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
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
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        // The far side may still be sending: only this direction ends.
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
