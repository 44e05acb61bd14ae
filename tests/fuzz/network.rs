//! Targets for what arrives over a cable: frames with their bodies, and the request head at the gateway.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvasir::net::head::{self, Received, Upgrade};
use kvasir::types::GateWeight;
use kvasir::wire::control::{
    Control, Decline, ExpertGet, Lease, Offer, Receipt, ReceiptAck, Refuse, Release, SliceReady, Verdict,
};
use kvasir::wire::work::{Activations, Assignment, Dispatch, PartialValues, Partials, RowHead, RowStatus};
use kvasir::wire::{Frame, FrameError, Header, Kind, WORKER_PATH};

use super::Target;

const FRAME: Target = Target { name: "frame", run: frame };
const HEAD: Target = Target { name: "head", run: request_head };

/// Elements of a row in this target: two super-blocks.
const HIDDEN: usize = 512;

/// The kind of refusal, without the numbers that come from the input.
fn words(error: &FrameError) -> String {
    match error {
        FrameError::Truncated { .. } => "truncated".into(),
        FrameError::Trailing { .. } => "trailing".into(),
        FrameError::Over { what, .. } => format!("over {what}"),
        FrameError::Body { what, .. } => format!("body {what}"),
        FrameError::Magic { .. } => "magic".into(),
        FrameError::Version { .. } => "version".into(),
        FrameError::Kind { .. } => "kind".into(),
        FrameError::Flags { .. } => "flags".into(),
        FrameError::Part { .. } => "part".into(),
    }
}

/// Reads a frame and its body as the receiving end of its kind would.
fn frame(input: &[u8]) -> String {
    let frame = match Frame::decode(Bytes::copy_from_slice(input)) {
        Err(error) => return words(&error),
        Ok(frame) => frame,
    };
    assert_eq!(frame.encode(), input, "a frame that is read writes the same bytes");
    let header = &frame.header;
    let body = match header.kind {
        Kind::Dispatch => Dispatch::decode(header, &frame.body, HIDDEN).map(|work| {
            assert_eq!(work.encode(), frame.body, "work that is read writes the same bytes");
        }),
        Kind::Partials => {
            let (rows, assignments) = (header.rows as usize, header.assignments as usize);
            Partials::decode(header, &frame.body, HIDDEN, rows, assignments).map(drop)
        }
        Kind::Refuse => Refuse::read(&frame).map(drop),
        Kind::Offer => Offer::read(&frame).map(drop),
        Kind::Lease => Lease::read(&frame).map(drop),
        Kind::Release => Release::read(&frame).map(drop),
        Kind::ExpertGet => ExpertGet::read(&frame).map(drop),
        Kind::SliceReady => SliceReady::read(&frame).map(drop),
        Kind::Decline => Decline::read(&frame).map(drop),
        Kind::Receipt => Receipt::read(&frame).map(drop),
        Kind::ReceiptAck => ReceiptAck::read(&frame).map(drop),
        Kind::Verdict => Verdict::read(&frame).map(drop),
        other => return format!("read {other:?}"),
    };
    match body {
        Ok(()) => format!("read {:?}", header.kind),
        Err(error) => format!("{:?}: {}", header.kind, words(&error)),
    }
}

/// Reads a request head as the gateway does.
fn request_head(input: &[u8]) -> String {
    match head::parse(input) {
        Err(error) => error.code().into(),
        Ok(None) => "incomplete".into(),
        Ok(Some((parsed, head_bytes))) => {
            assert!(head_bytes <= input.len());
            let received = Received { head: parsed, bytes: input.to_vec(), head_bytes };
            match Upgrade::check(&received, WORKER_PATH) {
                Err(error) => format!("refused {}", error.code()),
                Ok(upgrade) => {
                    // What goes on to the hub must be one strict head and nothing else.
                    let rebuilt = upgrade.rebuild("192.0.2.1".parse().unwrap(), kvasir::types::Hex([7; 16]));
                    let (_, length) = head::parse(&rebuilt).unwrap().expect("a whole head");
                    assert_eq!(length, rebuilt.len());
                    "upgrade".into()
                }
            }
        }
    }
}

fn work(rows: usize, float: bool) -> Vec<u8> {
    let mut values = vec![0u8; rows * 2 * 265];
    // Every super-block: exponent -20, steps 1, values 1.
    for block in values.chunks_exact_mut(265) {
        block[0] = -20i8 as u8;
        block[1..9].fill(0x11);
        block[9..].fill(1);
    }
    let gate =
        if float { GateWeight { mantissa: 0, exponent: 0 } } else { GateWeight { mantissa: 40_000, exponent: -16 } };
    let activations = match float {
        true => Activations::Float(vec![0.5; rows * HIDDEN]),
        false => Activations::Exact(values.into()),
    };
    let work = Dispatch {
        lease: 1,
        deadline_ms: 500,
        hidden: HIDDEN,
        rows: (0..rows as u32).map(|r| RowHead { grid: -20, count: 2, first: 2 * r }).collect(),
        activations,
        assignments: (0..2 * rows as u16).map(|i| Assignment { expert: i % 2, gate }).collect(),
    };
    let header = Header {
        flags: u16::from(float),
        request: 7,
        rows: rows as u32,
        assignments: 2 * rows as u32,
        ..Header::control(Kind::Dispatch)
    };
    Frame::new(header, work.encode()).unwrap().encode()
}

fn partials() -> Vec<u8> {
    let partials = Partials {
        status: vec![RowStatus::Ok, RowStatus::Range],
        values: PartialValues::Exact([vec![9; HIDDEN], vec![0; HIDDEN]].concat()),
    };
    let header = Header { request: 7, rows: 2, assignments: 4, ..Header::control(Kind::Partials) };
    Frame::new(header, partials.encode(HIDDEN)).unwrap().encode()
}

/// The valid examples; `KVASIR_FUZZ_WRITE=1` writes them when the formats have changed.
fn examples() -> Vec<(&'static Target, &'static str, Vec<u8>)> {
    let control = |frame: Result<Frame, FrameError>| frame.unwrap().encode();
    let upgrade = format!(
        "GET {WORKER_PATH} HTTP/1.1\r\nHost: gateway.example\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nUser-Agent: kvasir\r\n\r\n"
    );
    let public = "GET /v1/wallets/abc?after=3 HTTP/1.1\r\nHost: gateway.example\r\nAccept: */*\r\n\r\n";
    vec![
        (&FRAME, "dispatch-exact", work(2, false)),
        (&FRAME, "dispatch-float", work(1, true)),
        (&FRAME, "partials-exact", partials()),
        (&FRAME, "refuse", control(Refuse { reason: "busy".into(), retry_after_ms: Some(10) }.frame())),
        (&FRAME, "expert-get", control(ExpertGet { layer: 1, expert: 2, offset: 3, length: 4 }.frame())),
        (&FRAME, "slice-ready", control(SliceReady { lease: 1, bytes: 2, experts: BTreeMap::new() }.frame())),
        (&HEAD, "upgrade", upgrade.into_bytes()),
        (&HEAD, "public", public.as_bytes().to_vec()),
    ]
}

#[test]
fn the_corpus_holds_valid_frames_and_heads() {
    for (target, name, bytes) in examples() {
        let path = target.corpus_dir().join(name);
        if std::env::var_os("KVASIR_FUZZ_WRITE").is_some() {
            std::fs::create_dir_all(target.corpus_dir()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{}", path.display());
        let outcome = (target.run)(&bytes);
        assert!(outcome.starts_with("read") || outcome == "upgrade" || name == "public", "{name}: {outcome}");
    }
}

#[test]
fn no_bytes_make_the_frame_decoder_panic() {
    FRAME.check();
}

#[test]
fn no_bytes_make_the_request_head_panic() {
    HEAD.check();
}

#[test]
fn a_defect_behind_the_frame_decoders_checks_is_found() {
    let finding = FRAME.finds(|outcome| outcome == "Dispatch: body expert order");
    assert!(finding.iteration > 0 && finding.message.contains("planted"));
}

#[test]
fn a_defect_behind_the_request_heads_checks_is_found() {
    let finding = HEAD.finds(|outcome| outcome.starts_with("refused") && outcome.contains("header"));
    assert!(finding.iteration > 0 && finding.message.contains("planted"));
}
