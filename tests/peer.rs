//! Links between our own servers: pinned keys open them, everything else stays outside.

use std::net::{IpAddr, UdpSocket};

use kvasir::net::bind::{self, BindError};
use kvasir::net::peer::{PeerError, PeerSecurity};
use kvasir::types::PublicKey;
use kvasir::wire::signature::KeyPair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn pinned(own: u8, peers: &[u8]) -> PeerSecurity {
    let peers: Vec<PublicKey> = peers.iter().map(|seed| key(*seed).public()).collect();
    PeerSecurity::pinned(&key(own), &peers).unwrap()
}

/// Connects, sends one byte each way, and tells whose key the server saw.
async fn meet(client: PeerSecurity, server: PeerSecurity) -> Result<Option<PublicKey>, PeerError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = async {
        let (stream, _) = listener.accept().await?;
        let (mut stream, key) = server.accept(stream).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte + 1).await?;
        stream.shutdown().await?;
        Ok::<_, PeerError>(key)
    };
    let dial = async || -> Result<(), PeerError> {
        let mut stream = client.connect(&address).await?;
        stream.write_u8(41).await?;
        match stream.read_u8().await? {
            42 => Ok(()),
            other => Err(std::io::Error::other(format!("expected 42, got {other}")))?,
        }
    };
    let (served, dialled) = tokio::join!(serve, dial());
    dialled?;
    served
}

#[tokio::test]
async fn peers_that_pin_each_other_meet_and_know_who_it_is() {
    assert_eq!(meet(pinned(1, &[2]), pinned(2, &[3, 1])).await.unwrap(), Some(key(1).public()));
}

#[tokio::test]
async fn a_key_that_is_not_pinned_stays_outside_on_either_side() {
    assert!(meet(pinned(9, &[2]), pinned(2, &[1])).await.is_err(), "the server does not know the client");
    assert!(meet(pinned(1, &[3]), pinned(2, &[1])).await.is_err(), "the client does not know the server");
    assert!(meet(pinned(1, &[]), pinned(2, &[1])).await.is_err(), "nothing pinned means nobody");
}

#[tokio::test]
async fn plain_and_pinned_do_not_mix() {
    assert!(meet(PeerSecurity::Loopback, pinned(2, &[1])).await.is_err());
}

#[tokio::test]
async fn plain_tcp_is_for_this_machine_only() {
    assert_eq!(meet(PeerSecurity::Loopback, PeerSecurity::Loopback).await.unwrap(), None);
    let Some(ip) = own_address() else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let refused = PeerSecurity::Loopback.connect(&address.to_string()).await;
    assert!(matches!(refused, Err(PeerError::PlainOffLoopback { .. })));
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let refused = PeerSecurity::Loopback.accept(accepted.unwrap().0).await.err().unwrap();
    assert!(refused.to_string().contains("plain TCP with"), "{refused}");
    drop(dialled);
}

/// An address of this machine that is not loopback; no packet is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[tokio::test]
async fn inner_servers_refuse_public_addresses_unless_told_otherwise() {
    let open = "0.0.0.0:0".parse().unwrap();
    let error = bind::listen_private(open, false, "--allow-public").await.unwrap_err();
    assert!(matches!(error, BindError::Public { .. }) && error.to_string().contains("--allow-public"), "{error}");
    assert!(bind::listen_private(open, true, "--allow-public").await.is_ok());
    assert!(bind::listen_private("127.0.0.1:0".parse().unwrap(), false, "--allow-public").await.is_ok());
    // The operator's listener has neither keys nor TLS: a private network is too many.
    for wide in ["0.0.0.0:0", "10.0.0.1:0", "[::]:0"] {
        let error = bind::listen_loopback(wide.parse().unwrap(), false, "--allow-public").await.unwrap_err();
        assert!(
            matches!(error, BindError::NotLoopback { .. }) && error.to_string().contains("--allow-public"),
            "{error}"
        );
    }
    assert!(bind::listen_loopback(open, true, "--allow-public").await.is_ok());
    assert!(bind::listen_loopback("127.0.0.1:0".parse().unwrap(), false, "--allow-public").await.is_ok());
}

#[tokio::test]
async fn an_address_without_a_port_is_named() {
    for address in ["localhost", "localhost:", "localhost:x", "localhost:99999"] {
        let error = PeerSecurity::Loopback.connect(address).await.err().unwrap();
        assert!(matches!(error, PeerError::Address { .. }), "{address}: {error}");
    }
}
