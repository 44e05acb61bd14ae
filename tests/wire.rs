//! The wire's bytes, pinned: numbers and layouts that may never change, and what is refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvasir::types::{GateWeight, Hex, PublicKey};
use kvasir::wire::chunk::{CHUNK_BYTES_MAX, ExpertChunk};
use kvasir::wire::control::*;
use kvasir::wire::frame::{BODY_BYTES_MAX, FLAG_FLOAT, FrameError, HEADER_BYTES, ROWS_MAX};
use kvasir::wire::work::{
    Activations, Assignment, Dispatch, PartialValues, Partials, RowHead, RowStatus, float_rows_per_part, rows_per_part,
};
use kvasir::wire::{Frame, Header, Kind};

const WALLET: PublicKey = PublicKey([1; 32]);
const WALLET_TEXT: &str = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi";
const HUB: PublicKey = PublicKey([2; 32]);
const HUB_TEXT: &str = "8qbHbw2BbbTHBW1sbeqakYXVKRQM8Ne7pLK7m6CVfeR";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn work_header(kind: Kind, flags: u16, rows: u32, assignments: u32) -> Header {
    Header { flags, layer: 3, request: 77, rows, assignments, ..Header::control(kind) }
}

fn exact() -> Dispatch {
    let mut blocks = vec![0u8; 2 * 265];
    blocks[..2].copy_from_slice(&[0xf6, 0xf3]);
    blocks[9..11].copy_from_slice(&[1, 0xff]);
    blocks[9 + 31] = 127;
    blocks[265] = 0x80;
    let pair = |expert, mantissa, exponent| Assignment { expert, gate: GateWeight { mantissa, exponent } };
    Dispatch {
        lease: 9,
        deadline_ms: 250,
        hidden: 32,
        rows: vec![RowHead { grid: -20, count: 2, first: 0 }, RowHead { grid: 5, count: 1, first: 2 }],
        activations: Activations::Exact(blocks.into()),
        assignments: vec![pair(1, 32768, -15), pair(7, 65535, -16), pair(300, 40000, 0)],
    }
}

fn float() -> Dispatch {
    let pair = |expert| Assignment { expert, gate: GateWeight { mantissa: 0, exponent: 0 } };
    Dispatch {
        lease: 9,
        deadline_ms: 250,
        hidden: 2,
        rows: vec![RowHead { grid: 0, count: 2, first: 0 }],
        activations: Activations::Float(vec![1.0, -0.5]),
        assignments: vec![pair(1), pair(300)],
    }
}

#[test]
fn the_header_is_these_32_bytes() {
    let header = Header {
        kind: Kind::Dispatch,
        flags: FLAG_FLOAT,
        layer: 0x0203,
        request: 0x0405_0607_0809_0a0b,
        rows: 0x11,
        assignments: 0x88,
        body_bytes: 0x1234,
        part: 1,
        parts: 2,
    };
    let bytes = hex("4b56 01 10 0100 0302 0b0a090807060504 11000000 88000000 34120000 0100 0200");
    assert_eq!(header.encode().to_vec(), bytes);
    assert_eq!(Header::decode(&bytes), Ok(header));
}

/// Every control kind: its number and its JSON.
#[test]
fn every_control_frame_is_these_bytes() {
    fn check<C: Control + PartialEq + std::fmt::Debug>(number: u8, body: &C, json: &str) {
        let frame = body.reply(0x0102).unwrap();
        let mut header = hex(&format!("4b5601{number:02x} 00000000 0201000000000000 0000000000000000"));
        header.extend_from_slice(&(json.len() as u32).to_le_bytes());
        header.extend_from_slice(&[0, 0, 1, 0]);
        assert_eq!(frame.encode()[..HEADER_BYTES], header, "{body:?}");
        assert_eq!(std::str::from_utf8(&frame.body), Ok(json));
        assert_eq!(C::read(&Frame::decode(frame.encode().into()).unwrap()).as_ref(), Ok(body));
        let unknown = format!("{{\"extra\":1,{}", &json[1..]).replace(",}", "}");
        let unknown = Frame::new(Header::control(C::KIND), unknown).unwrap();
        assert!(C::read(&unknown).is_err(), "unknown fields are refused");
    }
    let ones = "01".repeat(16);
    let threes = "03".repeat(32);
    let experts = BTreeMap::from([(2, vec![(0, 7), (9, 9)])]);
    check(4, &Refuse { reason: "busy".into(), retry_after_ms: Some(5) }, r#"{"reason":"busy","retry_after_ms":5}"#);
    check(
        5,
        &Offer { device: "CPU".into(), memory_bytes: 1, assignments_per_s: 2.5, wants: vec![3] },
        r#"{"device":"CPU","memory_bytes":1,"assignments_per_s":2.5,"wants":[3]}"#,
    );
    check(
        6,
        &Lease { lease: 1, manifest: Hex([3; 32]), experts: experts.clone(), expires_ms: 4 },
        &format!(r#"{{"lease":1,"manifest":"{threes}","experts":{{"2":[[0,7],[9,9]]}},"expires_ms":4}}"#),
    );
    check(7, &Release { lease: 1, experts }, r#"{"lease":1,"experts":{"2":[[0,7],[9,9]]}}"#);
    check(
        8,
        &ExpertGet { layer: 1, expert: 65535, offset: 2, length: 3 },
        r#"{"layer":1,"expert":65535,"offset":2,"length":3}"#,
    );
    let all = SliceReady { lease: 1, bytes: 2, experts: BTreeMap::new() };
    check(10, &all, r#"{"lease":1,"bytes":2}"#);
    let some = SliceReady { experts: BTreeMap::from([(3, vec![(0, 7)])]), ..all };
    check(10, &some, r#"{"lease":1,"bytes":2,"experts":{"3":[[0,7]]}}"#);
    check(18, &Decline { reason: "lease".into() }, r#"{"reason":"lease"}"#);
    let receipt = Receipt {
        hub_key: HUB,
        hub_epoch: 1,
        session_id: Hex([1; 16]),
        wallet: WALLET,
        assignments: 2,
        work_bytes: 3,
        voided_bytes: 4,
        sequence: 5,
        r#final: true,
        signature: Hex([3; 64]),
    };
    let json = format!(
        "{{\"hub_key\":\"{HUB_TEXT}\",\"hub_epoch\":1,\"session_id\":\"{ones}\",\"wallet\":\"{WALLET_TEXT}\",\
         \"assignments\":2,\"work_bytes\":3,\"voided_bytes\":4,\"sequence\":5,\"final\":true,\
         \"signature\":\"{threes}{threes}\"}}"
    );
    check(20, &receipt, &json);
    check(
        21,
        &ReceiptAck { sequence: 1, signature: Hex([3; 64]) },
        &format!(r#"{{"sequence":1,"signature":"{threes}{threes}"}}"#),
    );
    check(22, &GoAway { reconnect_after_ms: 1 }, r#"{"reconnect_after_ms":1}"#);
    check(23, &Pause { reason: "battery".into() }, r#"{"reason":"battery"}"#);
    check(24, &Resume {}, "{}");
    check(
        32,
        &SessionOpen {
            session_id: Hex([1; 16]),
            wallet: WALLET,
            worker_id: Hex([1; 16]),
            peer_ip_hash: Hex([1; 16]),
            round_trip_us: 7,
        },
        &format!(
            r#"{{"session_id":"{ones}","wallet":"{WALLET_TEXT}","worker_id":"{ones}","peer_ip_hash":"{ones}","round_trip_us":7}}"#
        ),
    );
    check(33, &SessionClosed { reason: "gone".into() }, r#"{"reason":"gone"}"#);
    check(
        34,
        &Verdict { request: 1, part: 2, accepted: 3, refused: 4, reason: "ok".into() },
        r#"{"request":1,"part":2,"accepted":3,"refused":4,"reason":"ok"}"#,
    );
    check(
        35,
        &Quarantine { wallet: WALLET, session_id: Hex([1; 16]), void_from_request: 2, reason: "audit".into() },
        &format!(r#"{{"wallet":"{WALLET_TEXT}","session_id":"{ones}","void_from_request":2,"reason":"audit"}}"#),
    );
    check(
        36,
        &BackboneHello { manifest: Hex([3; 32]), hidden_size: 3072 },
        &format!(r#"{{"manifest":"{threes}","hidden_size":3072}}"#),
    );
}

#[test]
fn the_kinds_without_json_keep_their_numbers() {
    let numbers = [
        (Kind::HubHello, 1),
        (Kind::WorkerAuth, 2),
        (Kind::Welcome, 3),
        (Kind::ExpertChunk, 9),
        (Kind::Challenge, 11),
        (Kind::ChallengeReply, 12),
        (Kind::Dispatch, 16),
        (Kind::Partials, 17),
    ];
    for (kind, number) in numbers {
        assert_eq!((kind as u8, Kind::from_number(number)), (number, Ok(kind)));
    }
}

#[test]
fn an_expert_chunk_is_its_offset_and_bytes() {
    let chunk = ExpertChunk { offset: 0x0102, bytes: Bytes::from_static(&[7, 8]) };
    let frame = chunk.reply(5, 3).unwrap();
    assert_eq!(frame.body, hex("0201000000000000 0708"));
    assert_eq!((frame.header.request, frame.header.layer), (5, 3));
    assert_eq!(ExpertChunk::read(&frame), Ok(chunk));
    let large = ExpertChunk { offset: 0, bytes: vec![0; CHUNK_BYTES_MAX + 1].into() };
    assert!(matches!(large.reply(5, 3), Err(FrameError::Over { what: "chunk bytes", .. })));
    let short = Frame::new(Header::control(Kind::ExpertChunk), vec![0; 7]).unwrap();
    assert_eq!(ExpertChunk::read(&short), Err(FrameError::Truncated { expected: 8, got: 7 }));
}

#[test]
fn an_exact_dispatch_is_these_bytes() {
    let mut bytes = hex("09000000 fa000000   ec 00 0200 00000000   05 00 0100 02000000");
    bytes.extend(hex("f6 f300000000000000 01ff"));
    bytes.extend([0; 29]);
    bytes.push(0x7f);
    bytes.extend([0; 224]);
    bytes.push(0x80);
    bytes.extend([0; 264]);
    bytes.extend(hex("0100 0080 f1 00   0700 ffff f0 00   2c01 409c 00 00"));
    assert_eq!(exact().encode(), bytes);
    let header = work_header(Kind::Dispatch, 0, 2, 3);
    assert_eq!(Dispatch::decode(&header, &bytes.into(), 32), Ok(exact()));
}

#[test]
fn a_float_dispatch_is_these_bytes() {
    let bytes = hex("09000000 fa000000   00 00 0200 00000000   0000803f 000000bf   0100 0000 2c01 0000");
    assert_eq!(float().encode(), bytes);
    let header = work_header(Kind::Dispatch, FLAG_FLOAT, 1, 2);
    assert_eq!(Dispatch::decode(&header, &bytes.into(), 2), Ok(float()));
}

#[test]
fn partials_are_these_bytes() {
    let partials = Partials {
        status: vec![RowStatus::Ok, RowStatus::Range, RowStatus::Poison],
        values: PartialValues::Exact(vec![1, -2, 0, 0, 0, 0]),
    };
    let bytes = hex("00 01000000 feffffff   01 0000000000000000   02 0000000000000000");
    assert_eq!(partials.encode(2), bytes);
    let header = work_header(Kind::Partials, 0, 3, 4);
    assert_eq!(Partials::decode(&header, &bytes.into(), 2, 3, 4), Ok(partials));

    let partials = Partials {
        status: vec![RowStatus::Ok, RowStatus::Poison],
        values: PartialValues::Float(vec![1.5, -2.0, 0.0, 0.0]),
    };
    let bytes = hex("00 02   0000c03f 000000c0   00000000 00000000");
    assert_eq!(partials.encode(2), bytes);
    let header = work_header(Kind::Partials, FLAG_FLOAT, 2, 2);
    assert_eq!(Partials::decode(&header, &bytes.into(), 2, 2, 2), Ok(partials));
}

#[test]
fn headers_that_lie_are_refused_by_name() {
    let good = work_header(Kind::Dispatch, 0, 1, 1).encode();
    let table: &[(usize, &[u8], &str)] = &[
        (0, &[0], "wrong magic: expected 0x564b, got 0x5600"),
        (2, &[2], "wrong version: expected 1, got 2"),
        (3, &[19], "unknown frame kind 19"),
        (3, &[0], "unknown frame kind 0"),
        (4, &[2], "unsupported flags 0x0002"),
        (5, &[0x80], "unsupported flags 0x8000"),
        (16, &[1, 8], "rows 2049 is over the limit of 2048"),
        (20, &[1, 0x80], "assignments 32769 is over the limit of 32768"),
        (24, &[1, 0, 16], "body_bytes 1048577 is over the limit of 1048576"),
        (24, &[255; 4], "body_bytes 4294967295 is over the limit of 1048576"),
        (28, &[1, 0, 1, 0], "part 1 of 1 parts"),
        (28, &[0, 0, 0, 0], "part 0 of 0 parts"),
        (30, &[255, 255], "parts 65535 is over the limit of 2048"),
    ];
    for (at, change, expected) in table {
        let mut bytes = good;
        bytes[*at..at + change.len()].copy_from_slice(change);
        assert_eq!(Header::decode(&bytes).unwrap_err().to_string(), *expected);
    }
    assert_eq!(Header::decode(&good[..31]), Err(FrameError::Truncated { expected: 32, got: 31 }));
    let frame = Frame::new(Header::control(Kind::Pause), vec![1, 2, 3]).unwrap().encode();
    let cut = Frame::decode(Bytes::copy_from_slice(&frame[..34]));
    assert_eq!(cut, Err(FrameError::Truncated { expected: 35, got: 34 }));
    let longer = Frame::decode([frame.as_slice(), &[0]].concat().into());
    assert_eq!(longer, Err(FrameError::Trailing { expected: 35, got: 36 }));
    let large = Frame::new(Header::control(Kind::Pause), vec![0; BODY_BYTES_MAX + 1]);
    assert!(matches!(large, Err(FrameError::Over { what: "body_bytes", .. })));
}

#[test]
fn dispatches_that_lie_are_refused_by_name() {
    let good = exact().encode();
    let (second_row, blocks, assignments) = (16, 24, 24 + 2 * 265);
    let table: &[(usize, u8, &str)] = &[
        (9, 1, "bad row padding: expected 0, got 1"),
        (10, 1, "bad row start: expected 1, got 2"),
        (10, 3, "bad row start: expected 3, got 2"),
        (12, 1, "bad row start: expected 0, got 1"),
        (second_row + 2, 2, "bad assignments of the row table: expected 3, got 4"),
        (second_row + 2, 0, "bad assignments of the row table: expected 3, got 2"),
        (blocks, 0x81, "bad super-block exponent: expected -128 or -110..=91, got -127"),
        (blocks, 92, "bad super-block exponent: expected -128 or -110..=91, got 92"),
        (blocks, 0x80, "bad super-block with F = -128: expected all zero, got values"),
        (blocks + 9, 0x80, "bad quantised value: expected -127..=127, got -128"),
        (blocks + 2, 1, "bad elements behind the row's end: expected zeros, got values"),
        (blocks + 9 + 32, 1, "bad elements behind the row's end: expected zeros, got values"),
        (blocks + 264, 1, "bad elements behind the row's end: expected zeros, got values"),
        (assignments + 3, 0x7f, "bad gate weight mantissa: expected 32768..=65535, got 32512"),
        (assignments + 5, 1, "bad assignment padding: expected 0, got 1"),
        (assignments, 7, "bad expert order: expected more than 7, got 7"),
        (assignments, 8, "bad expert order: expected more than 8, got 7"),
    ];
    let header = work_header(Kind::Dispatch, 0, 2, 3);
    for (at, value, expected) in table {
        let mut bytes = good.clone();
        bytes[*at] = *value;
        assert_eq!(Dispatch::decode(&header, &bytes.into(), 32).unwrap_err().to_string(), *expected, "byte {at}");
    }
    for length in 0..good.len() {
        let cut = Dispatch::decode(&header, &Bytes::copy_from_slice(&good[..length]), 32);
        assert_eq!(cut, Err(FrameError::Truncated { expected: good.len(), got: length }));
    }
    let longer = Dispatch::decode(&header, &[good.as_slice(), &[0]].concat().into(), 32);
    assert_eq!(longer, Err(FrameError::Trailing { expected: good.len(), got: good.len() + 1 }));
    let shapes =
        [(0, 3, 32), (1, 3, 32), (3, 3, 32), (ROWS_MAX + 1, 3, 32), (2, 2, 32), (2, u32::MAX, 32), (2, 3, 288)];
    for (rows, count, hidden) in shapes {
        let header = work_header(Kind::Dispatch, 0, rows, count);
        assert!(Dispatch::decode(&header, &good.clone().into(), hidden).is_err(), "{rows} × {count} × {hidden}");
    }
    for hidden in [0, 8193, usize::MAX] {
        assert!(Dispatch::decode(&header, &good.clone().into(), hidden).is_err(), "hidden {hidden}");
    }
}

#[test]
fn a_request_whose_reply_would_fit_no_frame_is_refused() {
    // 8192 elements: 31 exact rows, or 31 float assignments, fill a reply; the request itself is a quarter of that.
    for (flags, rows, count, reply) in [(0, 32, 32, 32 * 32_769), (FLAG_FLOAT, 1, 32, 1 + 32 * 32_768)] {
        let header = work_header(Kind::Dispatch, flags, rows, count);
        let refused = Dispatch::decode(&header, &Bytes::new(), 8192);
        assert_eq!(refused, Err(FrameError::Over { what: "reply bytes", got: reply, max: BODY_BYTES_MAX as u64 }));
        let header = work_header(Kind::Dispatch, flags, rows.min(31), 31);
        assert!(matches!(Dispatch::decode(&header, &Bytes::new(), 8192), Err(FrameError::Truncated { .. })));
    }
}

#[test]
fn texts_of_a_peer_are_plain_once_they_are_read() {
    let frame =
        Refuse { reason: format!("\u{1b}[31mbusy\n{}", "x".repeat(500)), retry_after_ms: None }.frame().unwrap();
    let reason = Refuse::read(&frame).unwrap().reason;
    assert!(reason.starts_with("[31mbusyx") && reason.len() == 128, "{reason}");
    let unknown = Frame::new(Header::control(Kind::Pause), r#"{"\u001b[2J":1}"#).unwrap();
    assert!(!Pause::read(&unknown).unwrap_err().to_string().contains('\u{1b}'));
}

#[test]
fn partials_that_lie_are_refused_by_name() {
    let header = work_header(Kind::Partials, 0, 2, 3);
    let refused = |header: &Header, bytes: &str, rows, count| {
        Partials::decode(header, &hex(bytes).into(), 1, rows, count).unwrap_err().to_string()
    };
    let good = "00 01000000 00 02000000";
    let shape = "bad partials: expected 3 rows × 3 assignments, got 2 rows × 3 assignments";
    assert_eq!(refused(&header, good, 3, 3), shape);
    assert!(refused(&header, good, 2, 4).starts_with("bad partials"));
    assert_eq!(refused(&header, "03 00000000 00 02000000", 2, 3), "bad row status: expected 0..=2, got 3");
    let values = "bad row with a status other than ok: expected zeros, got values";
    assert_eq!(refused(&header, "01 01000000 00 02000000", 2, 3), values);
    assert_eq!(refused(&header, "00 01000000 00 020000", 2, 3), "truncated frame: expected 10 bytes, got 9");
    assert_eq!(refused(&header, "00 01000000 00 0200000000", 2, 3), "frame of 11 bytes, but its header says 10");
    let float = work_header(Kind::Partials, FLAG_FLOAT, 1, 1);
    assert_eq!(refused(&float, "00 0000c07f", 1, 1), "bad partial: expected finite, got NaN");
    assert_eq!(refused(&float, "00 000080ff", 1, 1), "bad partial: expected finite, got -inf");
}

#[test]
fn every_part_fits_its_frame_both_ways() {
    for hidden in [1, 32, 64, 256, 288, 3072, 8192] {
        let (rows, blocks) = (rows_per_part(hidden), hidden.div_ceil(256));
        assert!(rows >= 1 && rows * (1 + 4 * hidden) <= BODY_BYTES_MAX, "{hidden}");
        assert!(8 + rows * (8 + blocks * 265 + 16 * 6) <= BODY_BYTES_MAX, "{hidden}");
        for per_row in [1, 8, 16] {
            let rows = float_rows_per_part(hidden, per_row);
            assert!(rows >= 1 && rows * (1 + 4 * hidden * per_row) <= BODY_BYTES_MAX, "{hidden} × {per_row}");
            assert!(8 + rows * (8 + 4 * hidden + 4 * per_row) <= BODY_BYTES_MAX, "{hidden} × {per_row}");
        }
    }
}
