//! The join code: all that somebody needs to work for an operator's network, in one text to paste, click or keep in a file.
//!
//! `kvasir://join#<base64url>` of
//! `version u8 = 1 | operator 32 | expires_unix_s u64 | gateways u8 | (length u8, URL)… | ca u16, PEM | signature 64`,
//! little-endian, the signature by the operator over everything before it. What follows `#` stays in the program that
//! opens the link.
//!
//! **Promises:** every length is checked before it is used; a changed byte is refused; there is one text per invitation.
//! The signature does not say that the operator is honest – whoever gave the code vouches for that – only that its
//! gateways and authority are the operator's choice.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::signature::{Context, KeyPair, SignatureError};
use crate::types::{Hex, PublicKey};

/// What a join code starts with; the scheme is registered with the desktop.
pub const INVITE_PREFIX: &str = "kvasir://join#";
/// The same link after a browser has put it into its normal form.
const PREFIX_WITH_PATH: &str = "kvasir://join/#";
/// Longest text: [`BYTES_MAX`] in base64, its prefix, and room for line ends in a file.
pub const INVITE_CHARS_MAX: usize = 16 * 1024;
/// Gateways of one network that a worker may dial.
pub const GATEWAYS_MAX: usize = 8;
/// Longest gateway URL; its length is one byte.
const URL_BYTES_MAX: usize = 255;
/// Longest certificate authority: several times the usual chain of two.
const CA_BYTES_MAX: usize = 8 * 1024;
const BYTES_MAX: usize = 1 + 32 + 8 + 1 + GATEWAYS_MAX * (1 + URL_BYTES_MAX) + 2 + CA_BYTES_MAX + SIGNATURE_BYTES;
const SIGNATURE_BYTES: usize = 64;
const VERSION: u8 = 1;
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// Ends the first line of every key in PEM; files that hold a certificate and its key must not become public.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// Why a text is no invitation, or none any more.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InviteError {
    /// Something else, such as an address or half a code.
    #[error("expected a join code such as kvasir://join#…, whole and from one line; got {got}")]
    Text {
        /// What is wrong with it.
        got: &'static str,
    },
    /// A code of a later program.
    #[error("expected a join code of version {VERSION}, got {0}: update Kvasir")]
    Version(u8),
    /// A part that is not what it should be.
    #[error("the join code's {what}: expected {expected}, got {got}")]
    Part {
        /// The part.
        what: &'static str,
        /// What would do.
        expected: &'static str,
        /// What there is.
        got: String,
    },
    /// Changed on its way, or made by somebody else in the operator's name.
    #[error("the join code is not signed by the operator that it names ({0}); ask for a new one")]
    Signature(#[from] SignatureError),
    /// Too late.
    #[error("the join code expired {} ago; ask for a new one", rough(now_unix_s.saturating_sub(*expires_unix_s)))]
    Expired {
        /// When it ended, seconds since 1970.
        expires_unix_s: u64,
        /// Now, the same.
        now_unix_s: u64,
    },
    /// Somebody else's network.
    #[error("the join code is of operator {got}, expected {}", .expected.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "))]
    OtherOperator {
        /// Who is trusted.
        expected: Vec<PublicKey>,
        /// Who invites.
        got: PublicKey,
    },
}

impl InviteError {
    /// A stable code for the user interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Text { .. } | Self::Part { .. } => "invite_malformed",
            Self::Version(_) => "invite_version",
            Self::Signature(_) => "invite_unsigned",
            Self::Expired { .. } => "invite_expired",
            Self::OtherOperator { .. } => "invite_other_operator",
        }
    }
}

/// An operator's invitation to its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// Whose hubs are trusted.
    pub operator: PublicKey,
    /// Where to dial, in this order; `wss://host[:port]`.
    pub gateways: Vec<String>,
    /// A certificate authority (PEM) beside the usual ones.
    pub ca_pem: Option<String>,
    /// Until when the code may be taken, seconds since 1970; who has joined stays.
    pub expires_unix_s: u64,
}

impl Invite {
    /// The join code, signed by the operator, whose key it names.
    ///
    /// # Errors
    /// [`InviteError::Part`] for what no reader would take.
    pub fn sign(&self, operator: &KeyPair) -> Result<String, InviteError> {
        let mut bytes = Self { operator: operator.public(), ..self.clone() }.body()?;
        let signature = operator.sign(Context::Invite, &[&bytes]);
        bytes.extend_from_slice(&signature.0);
        Ok(format!("{INVITE_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads a join code, with or without its prefix, perhaps broken into lines, and checks its signature. Whether it
    /// may still be taken is asked with [`Invite::accept`].
    ///
    /// # Errors
    /// [`InviteError`].
    pub fn read(text: &str) -> Result<Self, InviteError> {
        if text.len() > INVITE_CHARS_MAX {
            return Err(InviteError::Text { got: "a text that is far too long" });
        }
        let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let rest = [INVITE_PREFIX, PREFIX_WITH_PATH].iter().find_map(|prefix| text.strip_prefix(prefix));
        let code = rest.unwrap_or(&text);
        if code.is_empty() {
            return Err(InviteError::Text { got: "nothing" });
        }
        let bytes = URL_SAFE_NO_PAD.decode(code).map_err(|_| InviteError::Text { got: "a text of another kind" })?;
        Self::decode(&bytes)
    }

    /// This invitation, if one of `operators` (when any are named) made it and it holds at `now_unix_s`.
    ///
    /// # Errors
    /// [`InviteError::OtherOperator`] or [`InviteError::Expired`].
    pub fn accept(self, operators: &[PublicKey], now_unix_s: u64) -> Result<Self, InviteError> {
        if !operators.is_empty() && !operators.contains(&self.operator) {
            return Err(InviteError::OtherOperator { expected: operators.to_vec(), got: self.operator });
        }
        if now_unix_s > self.expires_unix_s {
            return Err(InviteError::Expired { expires_unix_s: self.expires_unix_s, now_unix_s });
        }
        Ok(self)
    }

    /// Everything that is signed.
    fn body(&self) -> Result<Vec<u8>, InviteError> {
        self.check()?;
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.operator.0);
        out.extend_from_slice(&self.expires_unix_s.to_le_bytes());
        out.push(self.gateways.len() as u8);
        for url in &self.gateways {
            out.push(url.len() as u8);
            out.extend_from_slice(url.as_bytes());
        }
        let ca = self.ca_pem.as_deref().unwrap_or_default();
        out.extend_from_slice(&(ca.len() as u16).to_le_bytes());
        out.extend_from_slice(ca.as_bytes());
        Ok(out)
    }

    fn decode(bytes: &[u8]) -> Result<Self, InviteError> {
        const SHORT: InviteError = InviteError::Text { got: "one that ends early" };
        if bytes.len() > BYTES_MAX {
            return Err(InviteError::Text { got: "one that is too long" });
        }
        let (body, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(SHORT)?;
        let mut rest = body;
        let mut take = |count: usize| {
            let (part, after) = rest.split_at_checked(count).ok_or(SHORT)?;
            rest = after;
            Ok::<&[u8], InviteError>(part)
        };
        match take(1)?[0] {
            VERSION => {}
            other => return Err(InviteError::Version(other)),
        }
        let operator = PublicKey(take(32)?.try_into().map_err(|_| SHORT)?);
        let expires_unix_s = u64::from_le_bytes(take(8)?.try_into().map_err(|_| SHORT)?);
        let count = usize::from(take(1)?[0]);
        if count > GATEWAYS_MAX {
            return Err(too_many(count));
        }
        let mut gateways = Vec::with_capacity(count);
        for _ in 0..count {
            let length = usize::from(take(1)?[0]);
            gateways.push(text_of("gateway", take(length)?)?);
        }
        let length = take(2)?;
        let ca = take(usize::from(u16::from_le_bytes([length[0], length[1]])))?;
        let ca_pem = if ca.is_empty() { None } else { Some(text_of("certificate authority", ca)?) };
        if !rest.is_empty() {
            return Err(InviteError::Text { got: "one with bytes behind its end" });
        }
        Context::Invite.verify(&operator, &[body], &Hex(*signature))?;
        let invite = Self { operator, gateways, ca_pem, expires_unix_s };
        invite.check()?;
        Ok(invite)
    }

    /// The rules for its parts, the same for who writes and who reads.
    fn check(&self) -> Result<(), InviteError> {
        if !(1..=GATEWAYS_MAX).contains(&self.gateways.len()) {
            return Err(too_many(self.gateways.len()));
        }
        if let Some(url) = self.gateways.iter().find(|url| !is_gateway(url)) {
            let expected = "wss://host[:port], at most 255 bytes";
            return Err(InviteError::Part { what: "gateway", expected, got: super::text::plain(url) });
        }
        match &self.ca_pem {
            Some(pem)
                if pem.len() > CA_BYTES_MAX
                    || !pem.is_ascii()
                    || !pem.contains(CERTIFICATE)
                    || pem.contains(PRIVATE_KEY) =>
            {
                let got = format!("{} bytes", pem.len());
                let expected = "certificates in PEM and no private key, at most 8 KiB";
                Err(InviteError::Part { what: "certificate authority", expected, got })
            }
            _ => Ok(()),
        }
    }
}

/// A time in the largest whole unit, for people.
fn rough(seconds: u64) -> String {
    match seconds {
        0..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn too_many(got: usize) -> InviteError {
    InviteError::Part { what: "gateways", expected: "1 to 8", got: got.to_string() }
}

fn text_of(what: &'static str, bytes: &[u8]) -> Result<String, InviteError> {
    let fail = |_| InviteError::Part { what, expected: "text", got: "bytes".to_owned() };
    String::from_utf8(bytes.to_vec()).map_err(fail)
}

/// Whether a worker can dial it: TLS, a host, and no character that means something else elsewhere.
fn is_gateway(url: &str) -> bool {
    let plain = |c: u8| c.is_ascii_graphic() && !matches!(c, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'@' | b'#');
    let host = url.strip_prefix("wss://").and_then(|rest| rest.split(['/', ':', '?']).next());
    url.len() <= URL_BYTES_MAX && url.bytes().all(plain) && host.is_some_and(|host| !host.is_empty())
}

#[cfg(test)]
mod tests;
