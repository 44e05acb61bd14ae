//! Where hubs come in: a TCP listener, or streams that somebody else has opened.

use std::io;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::net::Io;
use crate::net::peer::{PeerError, PeerSecurity};
use crate::types::PublicKey;

/// See the module.
pub(super) enum Door {
    /// Connections to be secured here.
    Tcp(TcpListener),
    /// Streams that are what they claim to be.
    Streams(mpsc::Receiver<Io>),
}

/// Who came.
pub(super) enum Caller {
    Tcp(TcpStream),
    Stream(Io),
}

impl Door {
    /// The next one and its name for the log; a call that is dropped loses nobody. Nobody comes any more once all
    /// senders of streams are gone.
    pub async fn next(&mut self) -> io::Result<(Caller, String)> {
        match self {
            Self::Tcp(listener) => {
                listener.accept().await.map(|(stream, from)| (Caller::Tcp(stream), from.to_string()))
            }
            Self::Streams(streams) => match streams.recv().await {
                Some(stream) => Ok((Caller::Stream(stream), "a stream".into())),
                None => std::future::pending().await,
            },
        }
    }
}

impl Caller {
    /// The stream, once it is known to be a server of ours, and that server's key if it has one.
    pub async fn secured(self, peers: &PeerSecurity) -> Result<(Io, Option<PublicKey>), PeerError> {
        match self {
            Self::Tcp(stream) => peers.accept(stream).await,
            Self::Stream(stream) => Ok((stream, None)),
        }
    }
}
