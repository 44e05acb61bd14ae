//! A TCP forwarder that does on purpose what networks do by accident.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Faults that last from the start.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Connections on which nothing passed for this long are reset, as by a proxy with an idle limit.
    pub idle_limit: Option<Duration>,
    /// The address of this machine from which the target is dialled.
    pub source: Option<Ipv4Addr>,
}

/// Forwards to a target until it is dropped, which cuts what passes through it.
pub struct FaultProxy {
    pub addr: SocketAddr,
    state: Arc<State>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    faults: Faults,
    accepted: AtomicUsize,
    black: AtomicBool,
    /// The next byte towards the target is flipped.
    flip: AtomicBool,
    /// Counts the resets.
    resets: watch::Sender<usize>,
}

impl FaultProxy {
    pub async fn before(target: SocketAddr) -> Self {
        Self::with(target, Faults::default()).await
    }

    pub async fn with(target: SocketAddr, faults: Faults) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let state = Arc::new(State { faults, ..State::default() });
        let serving = tokio::spawn(serve(listener, target, Arc::clone(&state)));
        Self { addr, state, serving }
    }

    /// Connections that came so far.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    /// From now on nothing passes and nothing ends: links look alive and are not.
    pub fn go_black(&self) {
        self.state.black.store(true, SeqCst);
    }

    /// Resets every connection.
    pub fn reset(&self) {
        self.state.resets.send_modify(|n| *n += 1);
    }

    /// Damages one byte on its way to the target.
    pub fn flip_a_byte(&self) {
        self.state.flip.store(true, SeqCst);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        state.accepted.fetch_add(1, SeqCst);
        connections.spawn(forward(near, target, Arc::clone(&state)));
    }
}

async fn forward(near: TcpStream, target: SocketAddr, state: Arc<State>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    if let Some(source) = state.faults.source {
        socket.bind((source, 0).into()).expect("an address of this machine");
    }
    let Ok(far) = socket.connect(target).await else { return };
    near.set_nodelay(true).and(far.set_nodelay(true)).expect("sockets");
    // A socket that is dropped with a linger of zero resets its connection.
    for socket in [&near, &far] {
        socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("a socket");
    }
    let mut resets = state.resets.subscribe();
    let (last, start) = (AtomicUsize::new(0), Instant::now());
    let idle = async {
        let Some(limit) = state.faults.idle_limit else { return std::future::pending().await };
        loop {
            let seen = Duration::from_micros(last.load(SeqCst) as u64);
            let until = start + seen + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    };
    let touch = || last.store(start.elapsed().as_micros() as usize, SeqCst);
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    let both = async {
        let flip = Some(&state.flip);
        tokio::join!(
            copy(near_in, far_out, &state.black, flip, touch),
            copy(far_in, near_out, &state.black, None, touch)
        )
    };
    tokio::select! {
        _ = both => {}
        _ = resets.changed() => {}
        () = idle => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    black: &AtomicBool,
    flip: Option<&AtomicBool>,
    touch: impl Fn(),
) {
    let mut buffer = vec![0; 64 << 10];
    let mut met_black = false;
    loop {
        let read = from.read(&mut buffer).await;
        met_black |= black.load(SeqCst);
        match read {
            _ if met_black => match read {
                Ok(0) | Err(_) => return std::future::pending().await,
                Ok(_) => continue,
            },
            Ok(0) | Err(_) => break,
            Ok(n) => {
                touch();
                if flip.is_some_and(|flip| flip.swap(false, SeqCst)) {
                    buffer[n / 2] ^= 1;
                }
                if to.write_all(&buffer[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.shutdown().await;
}
