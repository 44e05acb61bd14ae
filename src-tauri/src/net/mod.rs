//! Sockets: TCP, TLS, WebSocket and framed streams. They carry bytes and know no meaning.
//!
//! **Promises:** every read is bounded, every wait has a deadline, every queue has a size; one message is one write;
//! plain TCP never leaves the machine.

pub mod backoff;
pub mod bind;
pub mod certificate;
mod der;
pub mod descriptors;
pub mod dial;
pub mod download;
pub mod framed;
pub mod head;
pub mod health;
pub mod https;
pub mod in_hand;
pub mod peer;
mod pinned;
pub mod proxy;
pub mod resolve;
pub mod route;
pub mod tcp;
pub mod tls;
pub mod trust;
pub mod ws;

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Duplex for T {}

/// Any such stream: plain, TLS, or a test's pipe.
pub type Io = Box<dyn Duplex>;
