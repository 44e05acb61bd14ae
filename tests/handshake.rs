//! The handshake under attack: whatever is changed, replayed or expired is refused, and says why.

use std::time::Duration;

use bytes::Bytes;
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use kvasir::types::{Hex, PublicKey};
use kvasir::wire::control::{Control, Receipt, Refuse};
use kvasir::wire::frame::{FrameError, HEADER_BYTES, Header};
use kvasir::wire::handshake::{
    AuthMessage, AuthSigner, Fault, HandshakeError, HubHandshake, HubIdentity, HubRandom, HubSession, HubTerms, Limits,
    OpenError, WorkerHandshake, WorkerRandom, WorkerSession,
};
use kvasir::wire::receipt::{self, Counters, ReceiptError};
use kvasir::wire::signature::KeyPair;
use kvasir::wire::{Frame, Kind};
use zeroize::Zeroizing;

const NOW: Duration = Duration::from_secs(100);
const NOT_AFTER: u64 = 2_000_000_000;
const TODAY: u64 = 1_900_000_000;

struct TestWallet(SigningKey);

impl AuthSigner for TestWallet {
    fn address(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
        assert!(message.as_bytes().starts_with(b"\xffkvasir/worker-auth/v1\0"));
        self.0.sign(message.as_bytes()).to_bytes()
    }
}

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn wallet() -> TestWallet {
    TestWallet(SigningKey::from_bytes(&[9; 32]))
}

fn hosts() -> Vec<String> {
    vec!["gateway.example".into()]
}

fn identity() -> HubIdentity {
    HubIdentity::issued_by(&key(1), key(2), NOT_AFTER)
}

fn hello(random: u8) -> (HubHandshake, Frame) {
    let random = HubRandom { session_id: [random; 16], nonce: [random; 32], x25519: Zeroizing::new([random; 32]) };
    let terms = HubTerms { hub_epoch: 7, manifest: Hex([5; 32]), limits: Limits::default(), invite_only: false };
    HubHandshake::hello(&identity(), &terms, random, NOW).unwrap()
}

fn worker() -> WorkerHandshake {
    let random =
        WorkerRandom { nonce: [4; 32], x25519: Zeroizing::new([6; 32]), session_seed: Zeroizing::new([8; 32]) };
    WorkerHandshake::new(vec![key(1).public()], "Gateway.Example", Hex([3; 16]), "kvasir/0.1.0", random)
}

fn session() -> (HubSession, WorkerSession) {
    let ((hub, hello), mut worker) = (hello(1), worker());
    let auth = worker.answer(&hello, &wallet(), TODAY).unwrap();
    let (welcome, hub) = hub.accept(&auth, &hosts(), NOW).unwrap();
    (hub, worker.welcomed(&welcome).unwrap())
}

fn flipped(frame: &Frame, at: usize) -> Result<Frame, FrameError> {
    let mut bytes = frame.encode();
    bytes[at] ^= 1;
    Frame::decode(bytes.into())
}

#[test]
fn both_ends_agree_on_the_session() {
    let (mut hub, mut worker) = session();
    assert_eq!((hub.session_id, hub.worker_id), (worker.session_id, Hex([3; 16])));
    assert_eq!((hub.wallet, hub.session_key), (wallet().address(), worker.session_signer.public()));
    assert_eq!((worker.manifest, worker.hub_epoch, worker.limits), (Hex([5; 32]), 7, Limits::default()));
    assert_eq!((hub.agent.as_str(), worker.hub_key), ("kvasir/0.1.0", key(2).public()));
    for n in 0..3u8 {
        let frame = Frame::new(Header::control(Kind::Pause), vec![n; 100]).unwrap();
        assert_eq!(worker.open.open(hub.seal.seal(&frame).into()).unwrap(), frame);
        assert_eq!(hub.open.open(worker.seal.seal(&frame).into()).unwrap(), frame);
    }
}

#[test]
fn a_changed_byte_anywhere_in_any_frame_is_refused() {
    let (_, hello_frame) = hello(1);
    for at in 0..hello_frame.encode().len() {
        let changed = flipped(&hello_frame, at);
        assert!(changed.is_err() || worker().answer(&changed.unwrap(), &wallet(), TODAY).is_err(), "hello byte {at}");
    }
    let auth = worker().answer(&hello_frame, &wallet(), TODAY).unwrap();
    for at in 0..auth.encode().len() {
        let changed = flipped(&auth, at);
        assert!(changed.is_err() || hello(1).0.accept(&changed.unwrap(), &hosts(), NOW).is_err(), "auth byte {at}");
    }
    let (welcome, _) = hello(1).0.accept(&auth, &hosts(), NOW).unwrap();
    for at in 0..welcome.encode().len() {
        let mut worker = worker();
        worker.answer(&hello_frame, &wallet(), TODAY).unwrap();
        let changed = flipped(&welcome, at);
        assert!(changed.is_err() || worker.welcomed(&changed.unwrap()).is_err(), "welcome byte {at}");
    }
}

#[test]
fn a_cut_or_lengthened_frame_is_refused() {
    let (_, hello_frame) = hello(1);
    let auth = worker().answer(&hello_frame, &wallet(), TODAY).unwrap();
    for length in 0..auth.body.len() {
        let cut = Frame::new(Header::control(Kind::WorkerAuth), auth.body.slice(..length)).unwrap();
        assert!(hello(1).0.accept(&cut, &hosts(), NOW).is_err(), "{length}");
    }
    let longer = [auth.body.as_ref(), &[0]].concat();
    let longer = Frame::new(Header::control(Kind::WorkerAuth), longer).unwrap();
    assert!(hello(1).0.accept(&longer, &hosts(), NOW).is_err());
}

#[test]
fn a_recorded_answer_is_worth_nothing_in_another_session() {
    let auth = worker().answer(&hello(1).1, &wallet(), TODAY).unwrap();
    assert!(matches!(hello(2).0.accept(&auth, &hosts(), NOW), Err(HandshakeError::Signature(_))));
}

#[test]
fn a_recorded_welcome_is_worth_nothing_to_another_worker() {
    let (_, hello_frame) = hello(1);
    let auth = worker().answer(&hello_frame, &wallet(), TODAY).unwrap();
    let (welcome, _) = hello(1).0.accept(&auth, &hosts(), NOW).unwrap();
    let random =
        WorkerRandom { nonce: [44; 32], x25519: Zeroizing::new([66; 32]), session_seed: Zeroizing::new([88; 32]) };
    let operators = vec![key(1).public()];
    let mut other = WorkerHandshake::new(operators, "gateway.example", Hex([3; 16]), "kvasir/0.1.0", random);
    other.answer(&hello_frame, &wallet(), TODAY).unwrap();
    assert!(matches!(other.welcomed(&welcome), Err(HandshakeError::Signature(_))));
}

#[test]
fn what_goes_wrong_is_named_and_says_whose_fault_it_is() {
    let answer = |operators: Vec<PublicKey>, host: &str, agent: &str, now: u64| {
        let random = WorkerRandom::draw().unwrap();
        let mut worker = WorkerHandshake::new(operators, host, Hex([3; 16]), agent, random);
        worker.answer(&hello(1).1, &wallet(), now)
    };
    let pinned = || vec![key(1).public()];

    let error = answer(vec![key(2).public()], "gateway.example", "k", TODAY).unwrap_err();
    assert_eq!(error, HandshakeError::OperatorNotPinned { hub: key(2).public(), pinned: 1 });
    assert_eq!(error.fault(false), Fault::Path);

    let error = answer(pinned(), "gateway.example", "k", NOT_AFTER + 1).unwrap_err();
    assert_eq!(error, HandshakeError::CertificateExpired { not_after_unix_s: NOT_AFTER, now_unix_s: NOT_AFTER + 1 });
    assert_eq!(error.fault(false), Fault::Hub);

    for agent in ["", "two\nlines", &"x".repeat(65)] {
        assert!(matches!(answer(pinned(), "h", agent, TODAY), Err(HandshakeError::Text { what: "agent", .. })));
    }

    let lured = answer(pinned(), "evil.example", "k", TODAY).unwrap();
    let error = hello(1).0.accept(&lured, &hosts(), NOW).err().unwrap();
    assert_eq!(error, HandshakeError::HostNotAllowed { host: "evil.example".into() });
    assert_eq!((error.fault(true), error.refusal().reason.as_str()), (Fault::Worker, "unauthorised"));

    let late = answer(pinned(), "gateway.example", "k", TODAY).unwrap();
    let error = hello(1).0.accept(&late, &hosts(), NOW + Duration::from_secs(11)).err().unwrap();
    assert!(matches!(error, HandshakeError::Late { .. }) && error.is_temporary());

    let refuse = Refuse { reason: "busy".into(), retry_after_ms: Some(500) }.frame().unwrap();
    let error = worker().answer(&refuse, &wallet(), TODAY).unwrap_err();
    assert_eq!(error, HandshakeError::Refused { reason: "busy".into(), retry_after_ms: Some(500) });

    let error = worker().answer(&late, &wallet(), TODAY).unwrap_err();
    assert_eq!(error, HandshakeError::Unexpected { expected: Kind::HubHello, got: Kind::WorkerAuth });

    let version = HandshakeError::from(FrameError::Version { got: 2 });
    assert_eq!(
        (version.to_string().as_str(), version.refusal().reason.as_str()),
        ("wrong version: expected 1, got 2", "version")
    );
}

#[test]
fn limits_that_a_worker_cannot_live_with_are_refused() {
    let fine = Limits::default();
    for limits in [
        Limits { body_bytes_max: 0, ..fine },
        Limits { body_bytes_max: u32::MAX, ..fine },
        Limits { rows_max: 0, ..fine },
        Limits { in_flight_max: 1 << 20, ..fine },
        Limits { ping_interval_ms: 0, ..fine },
    ] {
        let terms = HubTerms { hub_epoch: 7, manifest: Hex([5; 32]), limits, invite_only: false };
        let (_, frame) = HubHandshake::hello(&identity(), &terms, HubRandom::draw().unwrap(), NOW).unwrap();
        let refused = worker().answer(&frame, &wallet(), TODAY);
        assert!(matches!(refused, Err(HandshakeError::Limit { .. })), "{limits:?}");
    }
}

/// A wallet whose key is of low order: anybody could sign for it if verification were not strict.
struct WeakWallet;

impl AuthSigner for WeakWallet {
    fn address(&self) -> PublicKey {
        let mut identity = [0u8; 32];
        identity[0] = 1;
        PublicKey(identity)
    }

    fn sign_auth(&self, _: &AuthMessage) -> [u8; 64] {
        let mut signature = [0u8; 64];
        signature[0] = 1;
        signature
    }
}

#[test]
fn a_wallet_of_low_order_is_refused() {
    let (hub, hello_frame) = hello(1);
    let auth = worker().answer(&hello_frame, &WeakWallet, TODAY).unwrap();
    assert!(matches!(hub.accept(&auth, &hosts(), NOW), Err(HandshakeError::Signature(_))));
}

#[test]
fn a_certificate_for_another_key_makes_no_identity() {
    let cert = kvasir::wire::handshake::HubCert::issue(&key(1), key(3).public(), NOT_AFTER);
    assert!(HubIdentity::new(key(2), cert.clone()).is_none());
    assert!(HubIdentity::new(key(3), cert).is_some());
}

#[test]
fn sealed_frames_that_were_changed_dropped_repeated_or_turned_around_end_the_session() {
    let frame = |n: u8| Frame::new(Header::control(Kind::Pause), vec![n; 20]).unwrap();
    let bad = |counter| Err(OpenError::BadTag { counter });
    let sealed_bytes = HEADER_BYTES + 20 + 16;
    for at in 0..sealed_bytes {
        let (mut hub, mut worker) = session();
        let mut sealed = hub.seal.seal(&frame(1));
        sealed[at] ^= 0x80;
        assert_eq!(worker.open.open(sealed.into()), bad(0), "byte {at}");
        assert_eq!(worker.open.open(hub.seal.seal(&frame(2)).into()), bad(0), "after a bad tag nothing is read");
    }
    let (mut hub, mut worker) = session();
    let sealed: [Bytes; 3] = [1, 2, 3].map(|n| hub.seal.seal(&frame(n)).into());
    assert_eq!(worker.open.open(sealed[0].clone()), Ok(frame(1)));
    assert_eq!(worker.open.open(sealed[2].clone()), bad(1), "dropped");
    let (mut hub, mut worker) = session();
    let once = Bytes::from(hub.seal.seal(&frame(1)));
    assert_eq!(worker.open.open(once.clone()), Ok(frame(1)));
    assert_eq!(worker.open.open(once), bad(1), "repeated");
    let (mut hub, _) = session();
    let own = hub.seal.seal(&frame(1));
    assert_eq!(hub.open.open(own.into()), bad(0), "turned around");
    let (mut hub, _) = session();
    assert_eq!(hub.open.open(Bytes::from_static(b"short")), bad(0));
}

fn counters(sequence: u64, work_bytes: u64) -> Counters {
    Counters {
        hub_epoch: 7,
        session_id: Hex([1; 16]),
        wallet: wallet().address(),
        assignments: work_bytes / 12_288,
        work_bytes,
        voided_bytes: 0,
        sequence,
        r#final: false,
    }
}

#[test]
fn a_receipt_holds_only_unchanged_and_from_its_hub() {
    let hub = key(2);
    let good = receipt::sign(&hub, &counters(1, 1_277_952));
    assert_eq!(receipt::verify(&good, &hub.public()), Ok(()));
    assert!(matches!(receipt::verify(&good, &key(3).public()), Err(ReceiptError::Foreign { what: "hub", .. })));
    let changes: [fn(&mut Receipt); 8] = [
        |r| r.hub_epoch += 1,
        |r| r.session_id.0[0] ^= 1,
        |r| r.wallet.0[0] ^= 1,
        |r| r.assignments += 1,
        |r| r.work_bytes += 1,
        |r| r.voided_bytes += 1,
        |r| r.sequence += 1,
        |r| r.r#final = true,
    ];
    let session = key(8);
    let ack = receipt::ack(&session, &good);
    assert_eq!(receipt::verify_ack(&ack, &good, &session.public()), Ok(()));
    assert!(receipt::verify_ack(&ack, &good, &key(7).public()).is_err());
    for (n, change) in changes.iter().enumerate() {
        let mut changed = good.clone();
        change(&mut changed);
        assert!(receipt::verify(&changed, &hub.public()).is_err(), "change {n}");
        assert!(receipt::verify_ack(&ack, &changed, &session.public()).is_err(), "change {n}");
    }
}

#[test]
fn receipts_only_go_forward() {
    let at = |sequence, bytes| receipt::sign(&key(2), &counters(sequence, bytes));
    assert_eq!(receipt::follows(&at(1, 100_000), &at(2, 100_000)), Ok(()));
    assert_eq!(receipt::follows(&at(1, 100_000), &at(5, 200_000)), Ok(()));
    let same = receipt::follows(&at(2, 100_000), &at(2, 200_000));
    assert_eq!(same, Err(ReceiptError::Backwards { what: "sequence", got: 2, last: 2 }));
    let less = receipt::follows(&at(1, 100_001), &at(2, 100_000));
    assert_eq!(less, Err(ReceiptError::Backwards { what: "work bytes", got: 100_000, last: 100_001 }));
}

/// The signed bytes and the keys, built once more from the protocol's words.
#[test]
fn what_is_signed_and_tagged_is_what_the_protocol_says() {
    let (hub, hello_frame) = hello(1);
    let auth = worker().answer(&hello_frame, &wallet(), TODAY).unwrap();
    let (welcome, mut session) = hub.accept(&auth, &hosts(), NOW).unwrap();
    let signed = [
        (&hello_frame, "hub-hello", key(2).public(), Vec::new()),
        (&auth, "worker-auth", wallet().address(), hello_frame.encode()),
        (&welcome, "welcome", key(2).public(), [hello_frame.encode(), auth.encode()].concat()),
    ];
    for (frame, context, signer, earlier) in signed {
        let length = u32::from_le_bytes(frame.body[..4].try_into().unwrap()) as usize;
        let (json, signature) = frame.body[4..].split_at(length);
        let mut message = b"\xffkvasir/".to_vec();
        message.extend_from_slice(context.as_bytes());
        message.extend_from_slice(b"/v1\0");
        message.extend_from_slice(blake3::hash(&earlier).as_bytes());
        message.extend_from_slice(&frame.header.encode());
        message.extend_from_slice(json);
        let key = VerifyingKey::from_bytes(&signer.0).unwrap();
        assert!(key.verify_strict(&message, &signature.try_into().unwrap()).is_ok(), "{context}");
    }

    let base = x25519_dalek::X25519_BASEPOINT_BYTES;
    let shared = x25519_dalek::x25519([1; 32], x25519_dalek::x25519([6; 32], base));
    let hashes = [&hello_frame, &auth].map(|frame| blake3::hash(&frame.encode()));
    let material = [&shared[..], hashes[0].as_bytes(), hashes[1].as_bytes()].concat();
    let mut keys = [0u8; 64];
    blake3::Hasher::new_derive_key("kvasir frame v1").update(&material).finalize_xof().fill(&mut keys);
    let frame = Frame::new(Header::control(Kind::Pause), vec![7; 20]).unwrap();
    for counter in 0..2u64 {
        let tagged = [&counter.to_le_bytes()[..], &frame.encode()].concat();
        let tag = blake3::keyed_hash(keys[..32].try_into().unwrap(), &tagged);
        assert_eq!(session.seal.seal(&frame), [&frame.encode()[..], &tag.as_bytes()[..16]].concat());
    }
    let tag = blake3::keyed_hash(keys[32..].try_into().unwrap(), &[&[0u8; 8][..], &frame.encode()].concat());
    let from_worker = [&frame.encode()[..], &tag.as_bytes()[..16]].concat();
    assert_eq!(session.open.open(from_worker.into()), Ok(frame));
}
