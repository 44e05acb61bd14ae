//! The smuggling list of the upgrade, and heads cut, damaged or late.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::types::GatewayRun;

const GOOD: &str = "GET /v1/worker HTTP/1.1\r\nHost: Kvasir.Example:443\r\nUpgrade: WebSocket\r\n\
                    Connection: keep-alive, Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                    Sec-WebSocket-Version: 13\r\n";

const RUN: GatewayRun = crate::types::Hex([7; 16]);

fn received(text: &str) -> Result<Received<Head>, HeadError> {
    let (head, head_bytes) = parse(text.as_bytes())?.ok_or(HeadError::Ended(text.len()))?;
    Ok(Received { head, bytes: text.as_bytes().to_vec(), head_bytes })
}

fn check(text: &str) -> Result<Upgrade, (u16, &'static str)> {
    let received = received(text).map_err(|e| (e.status(), e.code()))?;
    Upgrade::check(&received, "/v1/worker").map_err(|e| (e.status(), e.code()))
}

#[test]
fn a_proper_upgrade_passes_and_is_rebuilt_from_its_validated_fields() {
    let text = format!(
        "{GOOD}Sec-WebSocket-Extensions: permessage-deflate\r\nX-Forwarded-For: 1.2.3.4\r\n\
         X-Kvasir-Peer: 6.6.6.6\r\nContent-Length: 0\r\nCookie: a=b\r\n\r\n"
    );
    let upgrade = check(&text).unwrap();
    let rebuilt = upgrade.rebuild(IpAddr::V4(Ipv4Addr::LOCALHOST), RUN);
    let expected = "GET /v1/worker HTTP/1.1\r\nHost: kvasir.example:443\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nx-kvasir-peer: 127.0.0.1\r\n\
                    x-kvasir-gateway: 07070707070707070707070707070707\r\n\r\n";
    assert_eq!(String::from_utf8(rebuilt.clone()).unwrap(), expected);
    let again = received(std::str::from_utf8(&rebuilt).unwrap()).unwrap();
    assert_eq!(Upgrade::check(&again, "/v1/worker").unwrap(), upgrade);
    assert_eq!(again.head.headers.only(PEER_HEADER), Some("127.0.0.1"));
}

#[test]
fn every_smuggling_trick_is_refused_by_name() {
    let with = |line: &str| format!("{GOOD}{line}\r\n\r\n");
    let swap = |from: &str, to: &str| format!("{}\r\n", GOOD.replace(from, to));
    let cases: Vec<(String, u16, &str)> = vec![
        (swap("GET", "POST"), 405, "method"),
        (swap("HTTP/1.1", "HTTP/1.0"), 505, "http_version"),
        (swap("/v1/worker", "/v1/worker/"), 404, "path"),
        (swap("/v1/worker", "/v1/worker?x=1"), 404, "path"),
        (swap("/v1/worker", "//v1/worker"), 404, "path"),
        (swap("/v1/worker", "/v1/%77orker"), 404, "path"),
        (swap("/v1/worker", "http://a/v1/worker"), 400, "malformed_head"),
        (swap("/v1/worker", "*"), 400, "malformed_head"),
        (swap("/v1/worker", "/v1/worker#f"), 400, "malformed_head"),
        (swap("Version: 13", "Version: 777"), 426, "websocket_version"),
        (with("Sec-WebSocket-Version: 13"), 400, "header"),
        (with("Host: other"), 400, "header"),
        (with("Upgrade: websocket"), 400, "header"),
        (with("Connection: Upgrade"), 400, "header"),
        (with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400, "header"),
        (swap("Host: Kvasir.Example:443\r\n", ""), 400, "header"),
        (swap("Host: Kvasir.Example:443", "Host: a b"), 400, "header"),
        (swap("Upgrade: WebSocket", "Upgrade: h2c"), 400, "header"),
        (swap("keep-alive, Upgrade", "keep-alive"), 400, "header"),
        (swap("keep-alive, Upgrade", "Upgrade, Host"), 400, "header"),
        (swap("jZQ==", "jZR=="), 400, "header"),
        (swap("dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="), 400, "header"),
        (with("Content-Length: 5"), 400, "forbidden_header"),
        (with("Content-Length: 00"), 400, "forbidden_header"),
        (with("Content-Length: 0\r\nContent-Length: 0"), 400, "forbidden_header"),
        (with("Content-Length: +0"), 400, "forbidden_header"),
        (with("Transfer-Encoding: chunked"), 400, "forbidden_header"),
        (with("TE: trailers"), 400, "forbidden_header"),
        (with("Trailer: X"), 400, "forbidden_header"),
        (with("Expect: 100-continue"), 400, "forbidden_header"),
        (with("Transfer-Encoding : chunked"), 400, "malformed_head"),
        (with(" folded: yes"), 400, "malformed_head"),
        (with("X: a\r\n folded"), 400, "malformed_head"),
        (with("X: a\rContent-Length: 5"), 400, "malformed_head"),
        (with("X: a\nContent-Length: 5"), 400, "malformed_head"),
        (with("X: a\0b"), 400, "malformed_head"),
        (with("Tr\u{e4}nsfer: x"), 400, "malformed_head"),
        (format!("\r\n{GOOD}\r\n"), 400, "malformed_head"),
        (swap("GET /v1/worker HTTP/1.1", "GET  /v1/worker HTTP/1.1"), 400, "malformed_head"),
        (swap("GET /v1/worker HTTP/1.1", "GET /v1/worker  HTTP/1.1"), 400, "malformed_head"),
        (swap("HTTP/1.1", "HTTP/1.1 "), 400, "malformed_head"),
        (swap("HTTP/1.1", "HTTP/2.0"), 400, "malformed_head"),
        (format!("{GOOD}\r\nGET /v1/wallets HTTP/1.1\r\n\r\n"), 400, "bytes_after_head"),
        (with(&format!("X: {}", "a".repeat(9000))), 431, "head_too_long"),
        (with(&"X: 1\r\n".repeat(64)), 431, "too_many_headers"),
    ];
    for (text, status, code) in cases {
        assert_eq!(check(&text), Err((status, code)), "{:?}", &text[..text.len().min(300)]);
    }
}

#[test]
fn a_response_head_gives_status_and_headers() {
    let text = b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\nrest";
    let (head, length) = parse_response(text).unwrap().unwrap();
    assert_eq!((head.status, head.minor_version, length), (101, 1, text.len() - 4));
    assert_eq!(head.headers.only("sec-websocket-accept"), Some("x"));
    assert!(parse_response(b"HTTP/1.1 101 Switching").unwrap().is_none());
    assert!(parse_response(b"\x16\x03\x01 not http\r\n\r\n").is_err());
}

#[tokio::test]
async fn a_head_is_read_the_same_however_it_is_cut() {
    let text = format!("{GOOD}\r\nleft over");
    for step in [1, 2, 3, 7, 64, 4096] {
        let (mut client, mut server) = tokio::io::duplex(16);
        let sent = text.clone().into_bytes();
        let writer = tokio::spawn(async move {
            for piece in sent.chunks(step) {
                client.write_all(piece).await.unwrap();
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let received = read_head(&mut server, deadline).await.unwrap();
        assert_eq!(received.head, parse(text.as_bytes()).unwrap().unwrap().0);
        let mut all = Vec::new();
        Rewind::new(received.bytes, server).read_to_end(&mut all).await.unwrap();
        assert_eq!(all, text.as_bytes());
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn single_bytes_do_not_move_the_deadline() {
    let (mut client, mut server) = tokio::io::duplex(16);
    tokio::spawn(async move {
        while client.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let error = read_head(&mut server, Instant::now() + Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(error, HeadError::Late(_)), "{error}");
}

#[tokio::test]
async fn a_stream_that_ends_or_never_ends_its_head_is_refused() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = read_head(&mut &b"GET / HTTP/1.1\r\n"[..], deadline).await.unwrap_err();
    assert!(matches!(error, HeadError::Ended(16)), "{error}");
    let endless = [b"GET /".to_vec(), vec![b'a'; HEAD_BYTES_MAX]].concat();
    let error = read_head(&mut endless.as_slice(), deadline).await.unwrap_err();
    assert!(matches!(error, HeadError::TooLong), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_panic_the_parsers(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = parse(&bytes);
        let _ = parse_response(&bytes);
    }

    #[test]
    fn a_damaged_head_is_refused_or_still_strict(at in 0usize..200, byte in any::<u8>()) {
        let mut bytes = format!("{GOOD}\r\n").into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(Some((head, head_bytes))) = parse(&bytes) {
            let received = Received { head, bytes, head_bytes };
            if let Ok(upgrade) = Upgrade::check(&received, "/v1/worker") {
                let again = upgrade.rebuild(IpAddr::V4(Ipv4Addr::LOCALHOST), RUN);
                prop_assert!(parse(&again).is_ok_and(|p| p.is_some()));
            }
        }
    }
}
