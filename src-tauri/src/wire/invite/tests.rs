//! What a join code carries, and every way in which it is refused.

use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_800_000_000;

fn operator() -> KeyPair {
    KeyPair::from_seed(&[1; 32])
}

fn invite() -> Invite {
    Invite {
        operator: operator().public(),
        gateways: vec!["wss://gateway.example".into(), "wss://[::1]:7443/v1/worker".into()],
        ca_pem: Some(format!("{CERTIFICATE}\nMA==\n-----END CERTIFICATE-----\n")),
        expires_unix_s: NOW,
    }
}

#[test]
fn a_join_code_is_this_text() {
    let short = Invite { gateways: vec!["wss://g".into()], ca_pem: None, ..invite() };
    let code = short.sign(&operator()).unwrap();
    let expected = "kvasir://join#AYqI4910CfGV_VLbLTy6XXLKZwm_HZQSG_N0iAG0D29cANJJawAAAAABB3dzczovL2cAAHx270";
    assert!(code.starts_with(expected), "{code}");
    assert_eq!(code.len(), INVITE_PREFIX.len() + (1 + 32 + 8 + 1 + 8 + 2 + 64_usize).div_ceil(3) * 4 - 1);
}

#[test]
fn a_code_reads_as_written_from_a_link_a_file_and_a_paste() {
    let code = invite().sign(&operator()).unwrap();
    let bare = code.strip_prefix(INVITE_PREFIX).unwrap().to_owned();
    let lines: Vec<&str> = bare.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    for text in [code.clone(), format!(" {code}\r\n"), bare.clone(), lines.join("\n"), format!("kvasir://join/#{bare}")]
    {
        assert_eq!(Invite::read(&text), Ok(invite()), "{text}");
    }
}

#[test]
fn an_expired_code_is_refused_and_one_in_its_last_second_is_not() {
    assert_eq!(invite().accept(&[], NOW), Ok(invite()));
    let error = invite().accept(&[], NOW + 1).unwrap_err();
    assert_eq!(error.code(), "invite_expired");
    assert!(error.to_string().contains("ask for a new one"));
}

#[test]
fn a_code_of_another_operator_than_the_pinned_ones_is_refused() {
    let other = KeyPair::from_seed(&[2; 32]).public();
    assert_eq!(invite().accept(&[other, operator().public()], NOW), Ok(invite()));
    let error = invite().accept(&[other], NOW).unwrap_err();
    assert_eq!(error.code(), "invite_other_operator");
    assert!(error.to_string().contains(&other.to_string()));
}

#[test]
fn a_code_that_names_an_operator_who_did_not_sign_it_is_refused() {
    let mut bytes = invite().body().unwrap();
    let forged = KeyPair::from_seed(&[2; 32]).sign(Context::Invite, &[&bytes]);
    bytes.extend_from_slice(&forged.0);
    let error = Invite::read(&URL_SAFE_NO_PAD.encode(bytes)).unwrap_err();
    assert_eq!(error.code(), "invite_unsigned");
}

#[test]
fn what_no_reader_takes_is_not_signed() {
    let sign = |change: fn(&mut Invite)| {
        let mut invite = invite();
        change(&mut invite);
        invite.sign(&operator()).unwrap_err().code()
    };
    assert_eq!(sign(|i| i.gateways.clear()), "invite_malformed");
    assert_eq!(sign(|i| i.gateways = vec!["wss://g".into(); 9]), "invite_malformed");
    assert_eq!(sign(|i| i.ca_pem = Some("not a certificate".into())), "invite_malformed");
    assert_eq!(sign(|i| i.ca_pem = Some(CERTIFICATE.repeat(400))), "invite_malformed");
    for url in ["ws://plain", "https://g", "wss://", "wss:///path", "wss://a b", "wss://u@g", "wss://g#x", "wss://é"] {
        let wrong = Invite { gateways: vec![url.into()], ..invite() };
        assert_eq!(wrong.sign(&operator()).unwrap_err().code(), "invite_malformed", "{url}");
    }
}

#[test]
fn texts_of_another_kind_are_named() {
    let long = "A".repeat(INVITE_CHARS_MAX + 1);
    for text in ["", INVITE_PREFIX, "hello", "https://example.com", "kvasir://join#é", "AAAA", &long] {
        assert!(matches!(Invite::read(text), Err(InviteError::Text { .. } | InviteError::Version(_))), "{text:.40}");
    }
    let mut later = invite().body().unwrap();
    later[0] = 2;
    later.extend_from_slice(&[0; 64]);
    assert_eq!(Invite::read(&URL_SAFE_NO_PAD.encode(later)), Err(InviteError::Version(2)));
}

proptest! {
    #[test]
    fn every_invitation_comes_back(
        hosts in proptest::collection::vec("[a-z0-9.-]{1,60}(:[0-9]{1,5})?(/[a-z0-9/]{0,40})?", 1..=GATEWAYS_MAX),
        ca in proptest::option::of("[A-Za-z0-9+/=\n]{0,2000}"),
        expires_unix_s in any::<u64>(),
        seed in any::<[u8; 32]>(),
    ) {
        let operator = KeyPair::from_seed(&seed);
        let invite = Invite {
            operator: operator.public(),
            gateways: hosts.iter().map(|host| format!("wss://{host}")).collect(),
            ca_pem: ca.map(|text| format!("{CERTIFICATE}{text}")),
            expires_unix_s,
        };
        prop_assert_eq!(Invite::read(&invite.sign(&operator).unwrap()), Ok(invite));
    }

    #[test]
    fn a_changed_byte_is_always_refused(at in any::<prop::sample::Index>(), flip in 1u8..) {
        let code = invite().sign(&operator()).unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(code.strip_prefix(INVITE_PREFIX).unwrap()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(Invite::read(&URL_SAFE_NO_PAD.encode(bytes)).is_err());
    }

    #[test]
    fn a_part_of_a_code_is_always_refused(cut in any::<prop::sample::Index>()) {
        let code = invite().sign(&operator()).unwrap();
        prop_assert!(Invite::read(&code[..cut.index(code.len())]).is_err());
    }
}
