//! The net as a peer sees it: TLS WebSockets, limits, half-open links, framed streams and pinned peers.

use std::time::Duration;

use kvasir::net::dial::{Connector, DialError, Leg};
use kvasir::net::framed::{self, FramedError};
use kvasir::net::head::{Upgrade, read_head};
use kvasir::net::tls::{self, TrialCertificates};
use kvasir::net::trust::Trust;
use kvasir::net::ws::{Ping, WsConfig, WsError, WsStream};
use kvasir::net::{Io, tcp};
use kvasir::wire::frame::{Frame, Header, Kind, MESSAGE_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// A `wss://` server for one connection, its URL, and what a client must trust.
async fn secure_server(config: WsConfig) -> (String, Connector, tokio::task::JoinHandle<WsStream>) {
    let trial = TrialCertificates::generate(&["localhost", "127.0.0.1"]).unwrap();
    let server = tls::server_config_from_pem(&trial.cert_pem, &trial.key_pem).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://127.0.0.1:{}/v1/worker", listener.local_addr().unwrap().port());
    let accepted = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        tcp::tune(&stream);
        let stream = tokio_rustls::TlsAcceptor::from(server).accept(stream).await.unwrap();
        upgraded(Box::new(stream), config).await
    });
    (url, trusting(&trial.ca_pem), accepted)
}

/// Trusts this authority alone.
fn trusting(ca_pem: &str) -> Connector {
    Connector::direct(Trust::only(ca_pem).unwrap())
}

/// For servers without TLS.
fn anyway() -> Connector {
    trusting(&TrialCertificates::generate(&["localhost"]).unwrap().ca_pem)
}

async fn upgraded(mut stream: Io, config: WsConfig) -> WsStream {
    let head = read_head(&mut stream, Instant::now() + Duration::from_secs(5)).await.unwrap();
    let upgrade = Upgrade::check(&head, "/v1/worker").unwrap();
    WsStream::accept(stream, &upgrade.key, head.rest().to_vec(), config).await.unwrap()
}

/// Two ends over loopback TCP, without TLS.
async fn plain_pair(client: WsConfig, server: WsConfig) -> (WsStream, WsStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://127.0.0.1:{}/v1/worker", listener.local_addr().unwrap().port());
    let trust = anyway();
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        upgraded(Box::new(stream), server).await
    };
    let (client, server) = tokio::join!(WsStream::connect(&url, &trust, client), accept);
    (client.unwrap(), server)
}

fn short(every_ms: u64, only_when_silent: bool) -> WsConfig {
    let ping = Ping { every: Duration::from_millis(every_ms), spread: 0.2, only_when_silent, strikes: 3 };
    WsConfig { ping, ..WsConfig::worker() }
}

#[tokio::test]
async fn a_tls_websocket_echoes_messages_from_empty_to_the_limit() {
    let (url, trust, server) = secure_server(WsConfig::hub()).await;
    let mut client = WsStream::connect(&url, &trust, WsConfig::worker()).await.unwrap();
    let mut server = server.await.unwrap();
    let echo = tokio::spawn(async move {
        while let Some(message) = server.recv().await.unwrap() {
            server.send(message).await.unwrap();
        }
    });
    for size in [0, 1, 12 * 1024, 300_000, MESSAGE_BYTES_MAX] {
        let message: Vec<u8> = (0..size).map(|i| (i * 31 + i / 251) as u8).collect();
        client.send(message.clone()).await.unwrap();
        assert_eq!(client.recv().await.unwrap().unwrap(), message, "{size} bytes");
    }
    client.close(1000, "done").await;
    echo.await.unwrap();
}

#[tokio::test]
async fn twelve_kibibytes_go_back_and_forth_many_times() {
    let (url, trust, server) = secure_server(WsConfig::hub()).await;
    let mut client = WsStream::connect(&url, &trust, WsConfig::worker()).await.unwrap();
    let mut server = server.await.unwrap();
    tokio::spawn(async move {
        while let Ok(Some(message)) = server.recv().await {
            server.send(message).await.unwrap();
        }
    });
    let message = vec![7u8; 12 * 1024];
    let start = Instant::now();
    for _ in 0..200 {
        client.send(message.clone()).await.unwrap();
        assert_eq!(client.recv().await.unwrap().unwrap().len(), message.len());
    }
    eprintln!("12 KiB over TLS WebSocket: {:?} per round trip", start.elapsed() / 200);
}

#[tokio::test]
async fn both_directions_at_once_do_not_wait_for_each_other() {
    let (client, server) = plain_pair(WsConfig::worker(), WsConfig::hub()).await;
    let flow = |stream: WsStream| async move {
        let (sender, mut receiver) = stream.split();
        let send = async {
            for _ in 0..16 {
                sender.send(vec![1u8; 1 << 20]).await.unwrap();
            }
        };
        let recv = async {
            for _ in 0..16 {
                assert_eq!(receiver.recv().await.unwrap().unwrap().len(), 1 << 20);
            }
        };
        tokio::join!(send, recv);
        (sender, receiver)
    };
    tokio::join!(flow(client), flow(server));
}

#[tokio::test]
async fn an_oversize_message_is_closed_with_1009_and_both_sizes() {
    let (url, trust, server) = secure_server(WsConfig::hub()).await;
    let hostile = WsConfig { message_bytes_max: 32 << 20, ..WsConfig::worker() };
    let mut client = WsStream::connect(&url, &trust, hostile).await.unwrap();
    let mut server = server.await.unwrap();
    let size = 17 << 20;
    client.send(vec![0u8; size]).await.unwrap();
    let expected = format!("message of {size} bytes is over the limit of {MESSAGE_BYTES_MAX}");
    assert_eq!(server.recv().await, Err(WsError::TooLarge { got: size, max: MESSAGE_BYTES_MAX }));
    assert_eq!(client.recv().await, Err(WsError::Closed { code: 1009, reason: expected }));
}

#[tokio::test]
async fn a_message_over_the_limit_is_not_sent() {
    let (client, _server) = plain_pair(WsConfig::worker(), WsConfig::hub()).await;
    let refused = client.send(vec![0u8; MESSAGE_BYTES_MAX + 1]).await;
    assert_eq!(refused, Err(WsError::TooLarge { got: MESSAGE_BYTES_MAX + 1, max: MESSAGE_BYTES_MAX }));
}

#[tokio::test]
async fn a_half_open_link_is_given_up_after_three_pings() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://127.0.0.1:{}/v1/worker", listener.local_addr().unwrap().port());
    let black_hole = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_head(&mut stream, Instant::now() + Duration::from_secs(5)).await.unwrap();
        let key = Upgrade::check(&head, "/v1/worker").unwrap().key;
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes())
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        received
    });
    let mut client = WsStream::connect(&url, &anyway(), short(20, false)).await.unwrap();
    assert!(matches!(client.recv().await, Err(WsError::Silent { strikes: 3, .. })));
    drop(client);
    let received = black_hole.await.unwrap();
    let pings = received.windows(2).filter(|w| *w == [0x89, 0x80]).count();
    assert_eq!(pings, 3, "{received:02x?}");
}

#[tokio::test]
async fn pings_keep_an_idle_link_alive_both_ways() {
    let (mut client, mut server) = plain_pair(short(200, false), short(200, true)).await;
    let quiet = Duration::from_millis(1500);
    let (a, b) = tokio::join!(tokio::time::timeout(quiet, client.recv()), tokio::time::timeout(quiet, server.recv()));
    assert!(a.is_err() && b.is_err(), "{a:?} {b:?}");
    client.send(vec![1]).await.unwrap();
    assert_eq!(server.recv().await.unwrap().unwrap(), vec![1]);
}

#[tokio::test]
async fn a_close_carries_its_code_and_reason_behind_what_was_queued() {
    let (mut client, server) = plain_pair(WsConfig::worker(), WsConfig::hub()).await;
    server.send(vec![1, 2, 3]).await.unwrap();
    let close = tokio::spawn(async move { server.close(4001, "replaced").await });
    assert_eq!(client.recv().await.unwrap().unwrap(), vec![1, 2, 3]);
    let closed = client.recv().await;
    assert_eq!(closed, Err(WsError::Closed { code: 4001, reason: "replaced".into() }));
    drop(client);
    close.await.unwrap();
}

#[tokio::test]
async fn a_dropped_end_is_a_peaceful_end() {
    let (client, mut server) = plain_pair(WsConfig::worker(), WsConfig::hub()).await;
    drop(client);
    assert_eq!(server.recv().await, Ok(None));
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_stuck_whoever_notices_first() {
    let config = WsConfig { queue: 2, write_deadline: Duration::from_millis(100), ..WsConfig::worker() };
    let (client, _server) = plain_pair(config, WsConfig::hub()).await;
    let outcome = async {
        loop {
            if let Err(error) = client.send(vec![0u8; 1 << 20]).await {
                return error;
            }
        }
    };
    let error = outcome.await;
    assert_eq!(error, WsError::Stuck { deadline_ms: 100 });
}

#[tokio::test]
async fn an_untrusted_certificate_and_a_wrong_url_name_their_leg() {
    let (url, _, _server) = secure_server(WsConfig::hub()).await;
    let stranger = TrialCertificates::generate(&["localhost"]).unwrap();
    let trust = trusting(&stranger.ca_pem);
    let error = WsStream::connect(&url, &trust, WsConfig::worker()).await.err().unwrap();
    assert!(matches!(error, DialError::Tls(_)) && error.leg() == Leg::Tls, "{error}");
    assert!(error.to_string().contains("issued by Kvasir trial authority, which is not trusted here"), "{error}");
    for url in ["http://127.0.0.1/", "wss://", "no url", "ws:///v1/worker"] {
        let error = WsStream::connect(url, &trust, WsConfig::worker()).await.err().unwrap();
        assert!(matches!(error, DialError::Url { .. }), "{url}: {error}");
    }
}

#[tokio::test]
async fn framed_streams_survive_any_split_and_refuse_lying_lengths() {
    let frame = |n: u8| Frame::new(Header::control(Kind::Pause), vec![n; 3 * n as usize]).unwrap();
    let (mut raw, far) = tokio::io::duplex(64);
    let (mut reader, _writer) = framed::split(Box::new(far));
    let mut bytes = Vec::new();
    for n in 0..40 {
        let encoded = frame(n).encode();
        bytes.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&encoded);
    }
    let writing = tokio::spawn(async move {
        for piece in bytes.chunks(7) {
            raw.write_all(piece).await.unwrap();
        }
        raw
    });
    for n in 0..40 {
        assert_eq!(reader.recv().await.unwrap().unwrap(), frame(n));
    }
    let mut raw = writing.await.unwrap();
    raw.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    assert!(matches!(reader.recv().await, Err(FramedError::Length { .. })));
}

#[tokio::test]
async fn framed_streams_end_between_frames_or_are_cut() {
    let frame = Frame::new(Header::control(Kind::Pause), vec![1, 2, 3]).unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    let (_, mut writer) = framed::split(Box::new(near));
    let (mut reader, _) = framed::split(Box::new(far));
    writer.send(&frame).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(reader.recv().await.unwrap(), Some(frame));
    assert!(reader.recv().await.unwrap().is_none());

    let (mut near, far) = tokio::io::duplex(64);
    let (mut reader, _) = framed::split(Box::new(far));
    near.write_all(&40u32.to_le_bytes()).await.unwrap();
    drop(near);
    assert!(matches!(reader.recv().await, Err(FramedError::Cut { missing: 40 })));
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_stuck() {
    let (near, _far) = tokio::io::duplex(16);
    let (_, writer) = framed::split(Box::new(near));
    let mut writer = writer.with_deadline(Duration::from_millis(20));
    let frame = Frame::new(Header::control(Kind::Pause), vec![0; 100]).unwrap();
    assert!(matches!(writer.send(&frame).await, Err(FramedError::Stuck { deadline_ms: 20 })));
}

#[tokio::test]
async fn every_dialled_socket_sends_small_writes_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream: TcpStream = tcp::connect("localhost", port, tcp::CONNECT_DEADLINE).await.unwrap();
    assert!(stream.nodelay().unwrap());
}
