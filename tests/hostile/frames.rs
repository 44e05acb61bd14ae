//! WebSocket frames that are cut up, too large, or none at all.

use kvasir::wire::frame::MESSAGE_BYTES_MAX;

use super::{Public, Raw, stranger};
use crate::hub::world::{dispatch, partials};

#[tokio::test]
async fn a_message_in_many_fragments_with_pings_between_arrives_whole() {
    let public = Public::start().await;
    let (mut raw, mut session, mut backbone) = public.raw_session(stranger(1), 7, 40).await;
    let asked = dispatch(1, 3, 5);
    backbone.send(&asked).await;
    let got = session.open.open(raw.message().await.expect("a dispatch").into()).expect("a tagged frame");
    assert_eq!(got, asked);
    let answer = partials(&asked.header);
    let message = session.seal.seal(&answer);
    raw.send_in(&message, 1000).await;
    assert_eq!(backbone.recv().await, Some(answer));
}

#[tokio::test]
async fn fragments_without_end_are_closed_at_the_limit_of_a_message() {
    let public = Public::start().await;
    let (mut raw, _session, mut backbone) = public.raw_session(stranger(1), 7, 1).await;
    let piece = vec![0; 64 << 10];
    for n in 0..MESSAGE_BYTES_MAX / piece.len() + 1 {
        raw.send(if n == 0 { 2 } else { 0 }, &piece).await;
    }
    assert_eq!(backbone.closed().await, "oversize");
    assert_eq!(raw.closed().await, Some(1009));
    public.splices(0).await;
}

#[tokio::test]
async fn frames_that_break_the_rules_end_their_own_session_only() {
    let public = Public::start().await;
    let (mut honest, mut honest_backbone) = public.session(8).await;
    let masked = |first: u8, length: u8| vec![first, 0x80 | length, 0, 0, 0, 0];
    let hostile: [(&str, Vec<u8>); 9] = [
        ("not masked", vec![0x82, 1, 0]),
        ("a reserved bit", masked(0xc2, 0)),
        ("an unknown opcode", masked(0x83, 0)),
        ("a ping in fragments", masked(0x09, 0)),
        ("a ping of 126 bytes", [vec![0x89, 0x80 | 126, 0, 126, 0, 0, 0, 0], vec![0; 126]].concat()),
        ("a continuation of nothing", masked(0x80, 0)),
        ("2^63 bytes", vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("more than a message may have", vec![0x82, 0xff, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]),
        ("text", [masked(0x81, 2), b"hi".to_vec()].concat()),
    ];
    for (n, (what, bytes)) in hostile.iter().enumerate() {
        let (mut raw, _session, mut backbone) = public.raw_session(stranger(n as u8 + 1), 7, 1).await;
        tokio::io::AsyncWriteExt::write_all(&mut raw.tls, bytes).await.unwrap();
        let reason = backbone.closed().await;
        assert!(["link", "oversize"].contains(&reason.as_str()), "{what}: {reason}");
        let code = raw.closed().await;
        assert!(code.is_none_or(|code| (1002..=1009).contains(&code)), "{what}: {code:?}");
        honest_backbone.round(&mut honest, n as u64 + 1, 1).await;
    }
    public.splices(1).await;
}

#[tokio::test]
async fn a_first_message_that_is_no_answer_earns_one_word() {
    let public = Public::start().await;
    for (n, message) in [vec![], vec![0; 3], vec![0xff; 4096]].into_iter().enumerate() {
        let mut raw = Raw::dial(&public.gateway, stranger(n as u8 + 1)).await;
        raw.hello().await;
        raw.send(0x82, &message).await;
        let reason = raw.refused().await;
        assert!(matches!(reason.as_str(), "unauthorised" | "version"), "{reason}");
        assert_eq!(raw.closed().await, Some(1008));
    }
    public.splices(0).await;
}
