//! A whole session of wire version 1 as it was on the wire: today's hub serves that worker, today's worker that hub.
//!
//! The messages in `tests/data/wire_v1` were recorded once and never change; their names say their order and who sent
//! them. A version that cannot serve them has to refuse with `version` or `update_required`. What is recorded is drawn
//! from fixed randomness, so that its signatures and tags hold again; `KVASIR_RECORD_WIRE=1` writes files that are missing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey};
use kvasir::types::{GateWeight, Hex, PublicKey};
use kvasir::wire::chunk::ExpertChunk;
use kvasir::wire::control::*;
use kvasir::wire::handshake::{
    AuthMessage, AuthSigner, HandshakeError, HubHandshake, HubIdentity, HubRandom, HubSession, HubTerms, Limits,
    WorkerHandshake, WorkerRandom, WorkerSession,
};
use kvasir::wire::receipt::{self, Counters};
use kvasir::wire::signature::KeyPair;
use kvasir::wire::work::{Activations, Assignment, Dispatch, PartialValues, Partials, RowHead, RowStatus};
use kvasir::wire::{Frame, Header, Kind};
use zeroize::Zeroizing;

const HIDDEN: usize = 32;
const TODAY: u64 = 1_900_000_000;
const NOW: Duration = Duration::from_secs(100);

struct TestWallet(SigningKey);

impl AuthSigner for TestWallet {
    fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        self.0.sign(message.as_bytes()).to_bytes()
    }
}

fn wallet() -> TestWallet {
    TestWallet(SigningKey::from_bytes(&[9; 32]))
}

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn hub() -> (HubHandshake, Frame) {
    let random = HubRandom { session_id: [1; 16], nonce: [2; 32], x25519: Zeroizing::new([3; 32]) };
    let terms = HubTerms { hub_epoch: 7, manifest: Hex([5; 32]), limits: Limits::default(), invite_only: true };
    let identity = HubIdentity::issued_by(&key(1), key(2), 2_000_000_000);
    HubHandshake::hello(&identity, &terms, random, NOW).unwrap()
}

fn worker() -> WorkerHandshake {
    let random =
        WorkerRandom { nonce: [4; 32], x25519: Zeroizing::new([6; 32]), session_seed: Zeroizing::new([8; 32]) };
    let operators = vec![key(1).public()];
    WorkerHandshake::new(operators, "gateway.example", Hex([3; 16]), "kvasir/0.1.0", random)
        .with_invite(Some("kvasir://join#a-code".to_owned()))
}

fn hosts() -> [String; 1] {
    ["gateway.example".to_owned()]
}

/// The recorded message of a name. What is not there is written from `today`, if that was asked for.
fn recorded(name: &str, today: &[u8]) -> Bytes {
    let path: PathBuf = crate::support::data("wire_v1").join(format!("{name}.bin"));
    if !path.exists() && std::env::var_os("KVASIR_RECORD_WIRE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, today).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The recorded handshake, told by today's hub and today's worker.
fn session() -> (HubSession, WorkerSession) {
    let (hub, hello) = hub();
    let mut worker = worker();
    let said = recorded("01-hub-hello", &hello.encode());
    assert_eq!(hello.encode(), said, "a worker of version 1 expects exactly this hello");
    let auth = worker.answer(&Frame::decode(said).unwrap(), &wallet(), TODAY).unwrap();
    let said = recorded("02-worker-auth", &auth.encode());
    assert_eq!(auth.encode(), said, "a hub of version 1 expects exactly this answer");
    let (welcome, hub) = hub.accept(&Frame::decode(said).unwrap(), &hosts(), NOW).unwrap();
    let said = recorded("03-hub-welcome", &welcome.encode());
    assert_eq!(welcome.encode(), said);
    (hub, worker.welcomed(&Frame::decode(said).unwrap()).unwrap())
}

fn dispatch() -> Dispatch {
    let mut blocks = vec![0u8; 2 * 265];
    blocks[..2].copy_from_slice(&[0xf6, 0xf3]);
    (blocks[9], blocks[10], blocks[40], blocks[265]) = (1, 0xff, 127, 0x80);
    let pair = |expert, mantissa, exponent| Assignment { expert, gate: GateWeight { mantissa, exponent } };
    Dispatch {
        lease: 9,
        deadline_ms: 250,
        hidden: HIDDEN,
        rows: vec![RowHead { grid: -20, count: 2, first: 0 }, RowHead { grid: 5, count: 1, first: 2 }],
        activations: Activations::Exact(blocks.into()),
        assignments: vec![pair(1, 32768, -15), pair(7, 65535, -16), pair(300, 40000, 0)],
    }
}

fn partials() -> Partials {
    let values = (0..2 * HIDDEN as i32).map(|n| (n - 9) * 1_000_003).collect();
    Partials { status: vec![RowStatus::Ok, RowStatus::Ok], values: PartialValues::Exact(values) }
}

fn work(kind: Kind, body: Vec<u8>) -> Frame {
    let header = Header { layer: 3, request: 77, rows: 2, assignments: 3, ..Header::control(kind) };
    Frame::new(header, body).unwrap()
}

fn the_receipt() -> Receipt {
    let counters = Counters {
        hub_epoch: 7,
        session_id: Hex([1; 16]),
        wallet: wallet().address(),
        assignments: 3,
        work_bytes: 384,
        voided_bytes: 128,
        sequence: 1,
        r#final: false,
    };
    receipt::sign(&key(2), &counters)
}

/// Every frame of the session after the handshake: its name and what it says. Those of the hub begin with `hub`.
fn frames(acknowledgement: ReceiptAck) -> Vec<(&'static str, Frame)> {
    let experts = BTreeMap::from([(2, vec![(0, 7), (9, 9)])]);
    let offer = Offer { device: "CPU avx2".into(), memory_bytes: 1 << 31, assignments_per_s: 2.5, wants: vec![3] };
    let lease = Lease { lease: 9, manifest: Hex([5; 32]), experts: experts.clone(), expires_ms: 60_000 };
    let get = ExpertGet { layer: 2, expert: 7, offset: 4, length: 5 };
    let chunk = ExpertChunk { offset: 4, bytes: Bytes::from_static(b"bytes") };
    let pause = Pause { reason: "battery".into() };
    let decline = Decline { reason: "deadline".into() };
    vec![
        ("04-worker-offer", offer.frame().unwrap()),
        ("05-hub-lease", lease.frame().unwrap()),
        ("06-worker-expert-get", get.reply(1).unwrap()),
        ("07-hub-expert-chunk", chunk.reply(1, 2).unwrap()),
        ("08-worker-slice-ready", SliceReady { lease: 9, bytes: 5, experts: experts.clone() }.frame().unwrap()),
        ("09-hub-challenge", work(Kind::Challenge, dispatch().encode())),
        ("10-worker-challenge-reply", work(Kind::ChallengeReply, partials().encode(HIDDEN))),
        ("11-hub-dispatch", work(Kind::Dispatch, dispatch().encode())),
        ("12-worker-partials", work(Kind::Partials, partials().encode(HIDDEN))),
        ("13-worker-decline", decline.reply(78).unwrap()),
        ("14-hub-receipt", the_receipt().frame().unwrap()),
        ("15-worker-receipt-ack", acknowledgement.frame().unwrap()),
        ("16-worker-pause", pause.frame().unwrap()),
        ("17-worker-resume", Resume {}.frame().unwrap()),
        ("18-hub-go-away", GoAway { reconnect_after_ms: 1_500 }.frame().unwrap()),
        ("19-worker-release", Release { lease: 9, experts }.frame().unwrap()),
    ]
}

/// What a frame's body says, read and written by today's code.
fn read_and_written(frame: &Frame) -> Frame {
    fn control<C: Control>(frame: &Frame) -> Frame {
        C::read(frame).unwrap().reply(frame.header.request).unwrap()
    }
    let header = &frame.header;
    let again = |body| Frame::new(*header, body).unwrap();
    match header.kind {
        Kind::Offer => control::<Offer>(frame),
        Kind::Lease => control::<Lease>(frame),
        Kind::ExpertGet => control::<ExpertGet>(frame),
        Kind::ExpertChunk => ExpertChunk::read(frame).unwrap().reply(header.request, header.layer).unwrap(),
        Kind::SliceReady => control::<SliceReady>(frame),
        Kind::Challenge | Kind::Dispatch => again(Dispatch::decode(header, &frame.body, HIDDEN).unwrap().encode()),
        Kind::ChallengeReply | Kind::Partials => {
            let (rows, assignments) = (header.rows, header.assignments);
            let partials = Partials::decode(header, &frame.body, HIDDEN, rows as usize, assignments as usize).unwrap();
            again(partials.encode(HIDDEN))
        }
        Kind::Decline => control::<Decline>(frame),
        Kind::Receipt => control::<Receipt>(frame),
        Kind::ReceiptAck => control::<ReceiptAck>(frame),
        Kind::Pause => control::<Pause>(frame),
        Kind::Resume => control::<Resume>(frame),
        Kind::GoAway => control::<GoAway>(frame),
        Kind::Release => control::<Release>(frame),
        other => panic!("{other:?} is not between worker and hub"),
    }
}

#[test]
fn a_recorded_session_of_version_1_is_served_to_its_last_byte() {
    let (mut hub, mut worker) = session();
    assert_eq!((hub.agent.as_str(), hub.invite.as_deref()), ("kvasir/0.1.0", Some("kvasir://join#a-code")));
    for (name, frame) in frames(receipt::ack(&worker.session_signer, &the_receipt())) {
        let (sealed, receiver) = match name.contains("hub") {
            true => (hub.seal.seal(&frame), &mut worker.open),
            false => (worker.seal.seal(&frame), &mut hub.open),
        };
        let said = recorded(name, &sealed);
        assert_eq!(sealed, said, "{name}: today's program says it otherwise");
        let opened = receiver.open(said).unwrap();
        assert_eq!(opened, frame, "{name}: today's program hears something else");
        assert_eq!(read_and_written(&opened), frame, "{name}");
    }
    let acknowledged = receipt::ack(&worker.session_signer, &the_receipt());
    assert_eq!(receipt::verify(&the_receipt(), &worker.hub_key), Ok(()));
    assert_eq!(receipt::verify_ack(&acknowledged, &the_receipt(), &hub.session_key), Ok(()));
}

#[test]
fn a_worker_of_another_version_is_refused_by_name_on_either_side() {
    let (hub, hello) = hub();
    let mut newer = recorded("01-hub-hello", &hello.encode()).to_vec();
    newer[2] = 2;
    let error = Frame::decode(newer.into()).map_err(HandshakeError::from).unwrap_err();
    assert!(error.wants_update() && error.to_string() == "wrong version: expected 1, got 2", "{error}");
    let mut older = recorded("01-hub-hello", &hello.encode()).to_vec();
    older[2] = 0;
    let error = Frame::decode(older.into()).map_err(HandshakeError::from).unwrap_err();
    assert!(!error.wants_update(), "an older hub is not mended by a newer worker: {error}");

    let auth = Frame::decode(recorded("02-worker-auth", &[])).unwrap();
    assert!(hub.accept(&auth, &hosts(), NOW).is_ok());
    for (reason, wants_update) in [("update_required", true), ("version", true), ("busy", false)] {
        let frame = Refuse { reason: reason.into(), retry_after_ms: None }.frame().unwrap();
        let said = recorded(&format!("20-hub-refuse-{}", reason.replace('_', "-")), &frame.encode());
        assert_eq!(frame.encode(), said);
        let error = worker().answer(&Frame::decode(said).unwrap(), &wallet(), TODAY).err().unwrap();
        assert_eq!((error.wants_update(), error.to_string()), (wants_update, format!("refused: {reason}")));
    }
}
