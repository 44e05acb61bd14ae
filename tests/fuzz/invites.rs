//! Target for join codes: what strangers paste, mail and link to.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kvasir::wire::invite::{INVITE_PREFIX, Invite, InviteError};
use kvasir::wire::signature::KeyPair;

use super::Target;

const INVITE: Target = Target { name: "invite", run: invite };

/// Reads `input` as the bytes of a code, and as its text.
fn invite(input: &[u8]) -> String {
    let words = |read: Result<Invite, InviteError>| match read {
        Ok(_) => "taken".to_owned(),
        Err(InviteError::Text { got }) => got.to_owned(),
        Err(InviteError::Part { what, expected, .. }) => format!("{what} {expected}"),
        Err(error) => error.code().to_owned(),
    };
    let bytes = words(Invite::read(&URL_SAFE_NO_PAD.encode(input)));
    format!("{bytes}, {}", words(Invite::read(&String::from_utf8_lossy(input))))
}

#[test]
fn the_corpus_holds_a_code_that_is_taken() {
    let operator = KeyPair::from_seed(&[1; 32]);
    let invite = Invite {
        operator: operator.public(),
        gateways: vec!["wss://gateway.example".into(), "wss://127.0.0.1:7443".into()],
        ca_pem: Some("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n".into()),
        expires_unix_s: 1_800_000_000,
    };
    let code = invite.sign(&operator).unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(code.strip_prefix(INVITE_PREFIX).unwrap()).unwrap();
    let path = INVITE.corpus_dir().join("taken");
    if std::env::var_os("KVASIR_FUZZ_WRITE").is_some() {
        std::fs::create_dir_all(INVITE.corpus_dir()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(std::fs::read(path).unwrap(), bytes, "KVASIR_FUZZ_WRITE=1 writes the corpus anew");
    assert!((INVITE.run)(&bytes).starts_with("taken"));
}

#[test]
fn join_codes_never_panic() {
    INVITE.check();
}

#[test]
fn a_defect_behind_the_length_of_a_gateway_would_be_found() {
    INVITE.finds(|outcome| outcome.contains("gateway text"));
}
