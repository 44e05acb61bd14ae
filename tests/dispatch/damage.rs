//! A line between hub and backbone that damages weights on their way.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use kvasir::net::Io;
use kvasir::net::framed::{self, FramedReader, FramedWriter};
use kvasir::wire::control::{Control, ExpertGet};
use kvasir::wire::{Frame, Kind};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Stands between a hub and a backbone, damages the first piece of each of the first `damaged` experts, and notes what
/// was asked for.
pub struct Damage {
    pub addr: SocketAddr,
    pub gets: Arc<Mutex<Vec<ExpertGet>>>,
}

impl Damage {
    pub async fn before(backbone: SocketAddr, damaged: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let gets = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&gets);
        tokio::spawn(async move {
            while let Ok((hub, _)) = listener.accept().await {
                let backbone = TcpStream::connect(backbone).await.expect("a backbone");
                let (from_hub, to_hub) = framed::split(Box::new(hub));
                let (from_backbone, to_backbone) = framed::split(Box::new(backbone));
                let seen = Arc::clone(&seen);
                tokio::spawn(relay(from_hub, to_backbone, move |frame| {
                    if frame.header.kind == Kind::ExpertGet {
                        seen.lock().expect("no panic").push(ExpertGet::read(&frame).expect("a request"));
                    }
                    frame
                }));
                let mut left = damaged;
                tokio::spawn(relay(from_backbone, to_hub, move |frame| {
                    // The manifest has request 1; what follows are experts.
                    let is_first = frame.body.starts_with(&[0; 8]);
                    if frame.header.kind != Kind::ExpertChunk || frame.header.request == 1 || left == 0 || !is_first {
                        return frame;
                    }
                    left -= 1;
                    let mut body = frame.body.to_vec();
                    body[100] ^= 1;
                    Frame::new(frame.header, body).expect("a frame")
                }));
            }
        });
        Self { addr, gets }
    }
}

async fn relay(
    mut from: FramedReader<ReadHalf<Io>>,
    mut to: FramedWriter<WriteHalf<Io>>,
    mut touch: impl FnMut(Frame) -> Frame,
) {
    while let Ok(Some(frame)) = from.recv().await {
        if to.send(&touch(frame)).await.is_err() {
            return;
        }
    }
    let _ = to.finish().await;
}
