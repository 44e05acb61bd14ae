//! Signatures that were made for another session, another host or by nobody, sent through the gateway.

use kvasir::types::PublicKey;
use kvasir::wire::Frame;
use kvasir::wire::frame::Kind;
use kvasir::wire::handshake::{AuthMessage, AuthSigner};

use super::{Public, Raw, stranger};
use crate::hub::world::{HOST, Wallet, address};

/// Answers a hello with whatever `answer` makes of it, from an address that nobody failed from; what the hub says.
async fn attempt(public: &Public, from: u8, answer: impl FnOnce(&Frame) -> Vec<u8>) -> (String, Option<u16>) {
    let mut raw = Raw::dial(&public.gateway, stranger(from)).await;
    let hello = raw.hello().await;
    raw.send(0x82, &answer(&hello)).await;
    let reason = raw.refused().await;
    (reason, raw.closed().await)
}

fn unauthorised() -> (String, Option<u16>) {
    ("unauthorised".to_owned(), Some(1008))
}

#[tokio::test]
async fn a_recorded_answer_opens_no_second_session() {
    let public = Public::start().await;
    let mut raw = Raw::dial(&public.gateway, stranger(1)).await;
    let answer = public.world.shake(1, HOST).answer(&raw.hello().await, &Wallet::new(7), 0).expect("a good hello");
    raw.send(0x82, &answer.encode()).await;
    let welcome = Frame::decode(raw.message().await.expect("a welcome").into()).expect("a frame");
    assert_eq!(welcome.header.kind, Kind::Welcome);
    assert_eq!(attempt(&public, 2, |_| answer.encode().to_vec()).await, unauthorised());
    // The session that it was made for goes on.
    let open = public.opened().await.open.expect("an open session");
    assert_eq!(open.wallet, address(7));
    public.splices(1).await;
}

#[tokio::test]
async fn an_answer_made_for_one_connection_is_worth_nothing_on_another() {
    let public = Public::start().await;
    let hello_of_other = Raw::dial(&public.gateway, stranger(1)).await.hello().await;
    let relayed = public.world.shake(1, HOST).answer(&hello_of_other, &Wallet::new(7), 0).expect("a good hello");
    assert_eq!(attempt(&public, 2, |_| relayed.encode().to_vec()).await, unauthorised());
    let lured = |hello: &Frame| {
        let elsewhere = public.world.shake(1, "elsewhere.test").answer(hello, &Wallet::new(7), 0);
        elsewhere.expect("a good hello").encode().to_vec()
    };
    assert_eq!(attempt(&public, 3, lured).await, unauthorised());
}

/// A wallet that is no key of anybody: a point of low order, for which a signature needs no secret.
struct Weak {
    point: [u8; 32],
    signature: [u8; 64],
}

impl AuthSigner for Weak {
    fn address(&self) -> PublicKey {
        PublicKey(self.point)
    }

    fn sign_auth(&self, _: &AuthMessage) -> [u8; 64] {
        self.signature
    }
}

#[tokio::test]
async fn keys_of_low_order_and_signatures_for_them_are_refused() {
    let public = Public::start().await;
    let point = |hex: &str| {
        let bytes =
            hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        <[u8; 32]>::try_from(bytes.collect::<Vec<_>>()).unwrap()
    };
    let mut identity = [0; 32];
    identity[0] = 1;
    // Of order 1, 2, 4 and 8, and an encoding of the first that is not the shortest.
    let points = [
        identity,
        point("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        [0; 32],
        point("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        point("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    ];
    for (n, point) in points.into_iter().enumerate() {
        // R is the point itself or the identity, s is zero: what a lenient equation takes for some messages.
        let signature = |r: [u8; 32]| {
            let mut signature = [0; 64];
            signature[..32].copy_from_slice(&r);
            signature
        };
        let weak = Weak { point, signature: signature(if n % 2 == 0 { identity } else { point }) };
        let answer = |hello: &Frame| {
            let frame = public.world.shake(1, HOST).answer(hello, &weak, 0);
            frame.expect("a good hello").encode().to_vec()
        };
        assert_eq!(attempt(&public, n as u8 + 1, answer).await, unauthorised(), "{n}");
    }
    public.splices(0).await;
}

#[tokio::test]
async fn a_signature_that_was_changed_into_its_twin_is_refused() {
    let public = Public::start().await;
    // Adding the group's order to s gives the same equation: whoever takes both lets a proof be altered.
    let order: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    struct Twin(Wallet, [u8; 32]);
    impl AuthSigner for Twin {
        fn address(&self) -> PublicKey {
            self.0.address()
        }

        fn sign_auth(&self, message: &AuthMessage) -> [u8; 64] {
            let mut signature = self.0.sign_auth(message);
            let mut carry = 0;
            for (byte, add) in signature[32..].iter_mut().zip(self.1) {
                let sum = u16::from(*byte) + u16::from(add) + carry;
                (*byte, carry) = (sum as u8, sum >> 8);
            }
            signature
        }
    }
    let answer = |hello: &Frame| {
        let frame = public.world.shake(1, HOST).answer(hello, &Twin(Wallet::new(7), order), 0);
        frame.expect("a good hello").encode().to_vec()
    };
    assert_eq!(attempt(&public, 1, answer).await, unauthorised());
}
