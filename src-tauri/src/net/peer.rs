//! Links between our own servers: both ends show an ed25519 key and accept only keys that their operator pinned.
//!
//! TLS 1.3 with raw public keys (RFC 7250): there is no certificate, hence no name, date or authority to get wrong;
//! a key is right or it is not. Without pinned keys the link is plain TCP, and only within this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig, ServerConnection};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::bind::is_loopback;
use super::dial::{DIAL_DEADLINE, Destination, DialError, Trip, Way};
use super::pinned::{PinnedKeys, key_of, spki};
use super::{Duplex, Io, tcp, tls};
use crate::types::PublicKey;
use crate::wire::rendezvous;
use crate::wire::signature::KeyPair;

/// How long TLS between our own servers may take.
const TLS_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes before the seed in a PKCS #8 ed25519 key (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Stands for an end whose address the system does not tell.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Why two servers of ours do not talk.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// An address that is not `host:port`.
    #[error("expected host:port, got {got:?}")]
    Address {
        /// The text.
        got: String,
    },
    /// Plain TCP to or from another machine.
    #[error("plain TCP with {peer} would leave this machine: give both servers a peer key and pin each other's")]
    PlainOffLoopback {
        /// The other end.
        peer: SocketAddr,
    },
    /// DNS or TCP.
    #[error(transparent)]
    Tcp(#[from] tcp::ConnectError),
    /// The way to a public listener.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The socket broke.
    #[error("connection lost: {0}")]
    Lost(#[from] std::io::Error),
    /// The other end is no server of ours, or its key is not pinned here, or ours not there.
    #[error("TLS with peer {peer}: {source}")]
    Handshake {
        /// The other end.
        peer: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The other end did not finish in time.
    #[error("peer {peer} did not finish TLS within {deadline_ms} ms")]
    Deadline {
        /// The other end.
        peer: SocketAddr,
        /// The bound.
        deadline_ms: u128,
    },
    /// A hub that dials out proves itself by its key, and there is none.
    #[error(
        "expected a peer key for a gateway's public listener, got none: give both servers one and pin each other's"
    )]
    NoKeys,
    /// A key that rustls does not take.
    #[error("peer key: {0}")]
    Key(#[from] rustls::Error),
}

/// How our servers recognise each other.
#[derive(Clone)]
pub enum PeerSecurity {
    /// Plain TCP, within this machine only.
    Loopback,
    /// Own key, pinned keys.
    Pinned(PinnedPeers),
}

/// Own key and pinned keys, ready for both directions.
#[derive(Clone)]
pub struct PinnedPeers {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// The same under the rendezvous' name, by which a public listener tells our hubs from the public.
    hub_client: Arc<ClientConfig>,
    hub_server: Arc<ServerConfig>,
}

impl PeerSecurity {
    /// Shows `own` and accepts only `pinned`.
    ///
    /// # Errors
    /// [`PeerError::Key`].
    pub fn pinned(own: &KeyPair, pinned: &[PublicKey]) -> Result<Self, PeerError> {
        let mut pkcs8 = PKCS8_PREFIX.to_vec();
        pkcs8.extend_from_slice(own.seed().as_ref());
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
        let shown = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki(&own.public()).to_vec())], signer));
        let verifier = Arc::new(PinnedKeys::new(pinned));
        let mut client = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(shown.clone())));
        client.enable_sni = false;
        let server = ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(shown)));
        let (mut hub_client, mut hub_server) = (client.clone(), server.clone());
        hub_client.alpn_protocols = vec![rendezvous::PROTOCOL.into()];
        hub_server.alpn_protocols = vec![rendezvous::PROTOCOL.into()];
        Ok(Self::Pinned(PinnedPeers {
            client: Arc::new(client),
            server: Arc::new(server),
            hub_client: Arc::new(hub_client),
            hub_server: Arc::new(hub_server),
        }))
    }

    /// Dials another server of ours at `host:port`.
    ///
    /// # Errors
    /// [`PeerError`], within [`tcp::CONNECT_DEADLINE`] and ten seconds for TLS.
    pub async fn connect(&self, address: &str) -> Result<Io, PeerError> {
        let stream = dial(address).await?;
        match self {
            Self::Loopback => only_loopback(stream),
            Self::Pinned(keys) => {
                let peer = stream.peer_addr()?;
                secured(stream, peer, &keys.client).await
            }
        }
    }

    /// Dials the public listener of a gateway of ours at `host:port`, as a hub, by the way that leads to the public.
    ///
    /// # Errors
    /// As [`PeerSecurity::connect`]; [`PeerError::NoKeys`] without pinned keys, since that listener is open to all.
    pub async fn connect_as_hub(&self, address: &str, way: &Way) -> Result<Io, PeerError> {
        let Self::Pinned(keys) = self else { return Err(PeerError::NoKeys) };
        let (host, port) = split(address)?;
        let to = Destination::new(host, port, DIAL_DEADLINE);
        let mut trip = Trip::default();
        let io = way.open(&to, None, &mut trip).await?;
        let peer = trip.ends.map_or(NOBODY, |(_, peer)| peer);
        secured(io, peer, &keys.hub_client).await
    }

    /// How a public listener takes our own hubs; it takes none without pinned keys.
    #[must_use]
    pub fn hub_server(&self) -> Option<Arc<ServerConfig>> {
        match self {
            Self::Loopback => None,
            Self::Pinned(keys) => Some(Arc::clone(&keys.hub_server)),
        }
    }

    /// Takes a connection of another server of ours; the key is `None` on loopback without keys.
    ///
    /// # Errors
    /// [`PeerError`], within ten seconds.
    pub async fn accept(&self, stream: TcpStream) -> Result<(Io, Option<PublicKey>), PeerError> {
        tcp::tune(&stream);
        match self {
            Self::Loopback => Ok((only_loopback(stream)?, None)),
            Self::Pinned(keys) => {
                let peer = stream.peer_addr()?;
                let accept = TlsAcceptor::from(keys.server.clone()).accept(stream);
                let stream = within_deadline(peer, accept).await?;
                let key = key_shown(stream.get_ref().1);
                Ok((Box::new(stream), key))
            }
        }
    }
}

/// The key that the other end has shown and proved to hold.
#[must_use]
pub fn key_shown(connection: &ServerConnection) -> Option<PublicKey> {
    connection.peer_certificates().and_then(|shown| key_of(shown.first()?))
}

async fn dial(address: &str) -> Result<TcpStream, PeerError> {
    let (host, port) = split(address)?;
    Ok(tcp::connect(host, port, tcp::CONNECT_DEADLINE).await?)
}

fn split(address: &str) -> Result<(&str, u16), PeerError> {
    let fail = || PeerError::Address { got: address.to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(fail)?;
    Ok((host, port.parse().map_err(|_| fail())?))
}

async fn secured(stream: impl Duplex, peer: SocketAddr, config: &Arc<ClientConfig>) -> Result<Io, PeerError> {
    // Raw keys have no name; rustls wants one anyway.
    let name = ServerName::from(peer.ip());
    let connect = TlsConnector::from(Arc::clone(config)).connect(name, stream);
    Ok(Box::new(within_deadline(peer, connect).await?))
}

fn only_loopback(stream: TcpStream) -> Result<Io, PeerError> {
    let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
    if is_loopback(peer.ip()) && is_loopback(local.ip()) {
        return Ok(Box::new(stream));
    }
    Err(PeerError::PlainOffLoopback { peer })
}

async fn within_deadline<T>(
    peer: SocketAddr,
    handshake: impl Future<Output = std::io::Result<T>>,
) -> Result<T, PeerError> {
    match timeout(TLS_DEADLINE, handshake).await {
        Err(_) => Err(PeerError::Deadline { peer, deadline_ms: TLS_DEADLINE.as_millis() }),
        Ok(done) => done.map_err(|source| PeerError::Handshake { peer, source }),
    }
}
