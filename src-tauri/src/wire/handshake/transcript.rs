//! Signed frames: `u32 json_len | json | sig[64]`, each bound to every frame before it.

use serde::{Serialize, de::DeserializeOwned};

use super::HandshakeError;
use crate::types::{Hex, PublicKey};
use crate::wire::control::{Control, Refuse, json_error};
use crate::wire::frame::{Frame, FrameError, HEADER_BYTES, Header, Kind};
use crate::wire::signature::Context;

/// Largest JSON of a handshake frame.
const JSON_BYTES_MAX: usize = 4096;
const LENGTH_BYTES: usize = 4;
const SIGNATURE_BYTES: usize = 64;

/// Running digest of the handshake's frames.
#[derive(Clone, Default)]
pub(super) struct Transcript(blake3::Hasher);

/// A frame whose parts are found, but whose signature is not checked yet.
pub(super) struct Unverified<'a, T> {
    pub(super) body: T,
    json: &'a [u8],
    header: [u8; HEADER_BYTES],
    signature: Hex<64>,
}

impl Transcript {
    /// Adds a frame that both ends have seen.
    pub(super) fn add(&mut self, frame: &Frame) {
        self.0.update(&frame.header.encode());
        self.0.update(&frame.body);
    }

    fn digest(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }

    /// A frame of `body`; `sign` gets this transcript's digest, the header and the JSON.
    pub(super) fn sign<T: Serialize>(
        &self,
        kind: Kind,
        body: &T,
        sign: impl FnOnce(&[&[u8]]) -> Hex<64>,
    ) -> Result<Frame, HandshakeError> {
        let json = serde_json::to_vec(body).map_err(|e| json_error(kind, &e))?;
        if json.len() > JSON_BYTES_MAX {
            return Err(over(json.len()).into());
        }
        let bytes = LENGTH_BYTES + json.len() + SIGNATURE_BYTES;
        let header = Header { body_bytes: bytes as u32, ..Header::control(kind) };
        let signature = sign(&[&self.digest(), &header.encode(), &json]);
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&(json.len() as u32).to_le_bytes());
        out.extend_from_slice(&json);
        out.extend_from_slice(&signature.0);
        Ok(Frame::new(header, out)?)
    }

    /// Takes a signed frame apart.
    ///
    /// # Errors
    /// A refusal by the other end, another kind, a header with anything else in it, or a body that does not parse.
    pub(super) fn parse<T: DeserializeOwned>(frame: &Frame, kind: Kind) -> Result<Unverified<'_, T>, HandshakeError> {
        if frame.header.kind == Kind::Refuse {
            let Refuse { reason, retry_after_ms } = Refuse::read(frame)?;
            return Err(HandshakeError::Refused { reason, retry_after_ms });
        }
        if frame.header.kind != kind {
            return Err(HandshakeError::Unexpected { expected: kind, got: frame.header.kind });
        }
        let header = Header { body_bytes: frame.header.body_bytes, ..Header::control(kind) };
        if frame.header != header || frame.body.len() != header.body_bytes as usize {
            return Err(body("header of a handshake frame", "zeros", "other values").into());
        }
        let truncated = |expected| FrameError::Truncated { expected, got: frame.body.len() };
        let Some((length, rest)) = frame.body.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(truncated(LENGTH_BYTES).into());
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > JSON_BYTES_MAX {
            return Err(over(length).into());
        }
        let expected = LENGTH_BYTES + length + SIGNATURE_BYTES;
        let Some((json, signature)) = rest.split_at_checked(length) else {
            return Err(truncated(expected).into());
        };
        let Ok(signature) = <[u8; SIGNATURE_BYTES]>::try_from(signature) else {
            return Err(body("handshake body", format!("{expected} bytes"), format!("{}", frame.body.len())).into());
        };
        Ok(Unverified {
            body: serde_json::from_slice(json).map_err(|e| json_error(kind, &e))?,
            json,
            header: header.encode(),
            signature: Hex(signature),
        })
    }
}

impl<T> Unverified<'_, T> {
    /// The body, once `key` has signed it right after the frames of `transcript`.
    pub(super) fn verify(
        self,
        transcript: &Transcript,
        context: Context,
        key: &PublicKey,
    ) -> Result<T, HandshakeError> {
        context.verify(key, &[&transcript.digest(), &self.header, self.json], &self.signature)?;
        Ok(self.body)
    }
}

fn over(got: usize) -> FrameError {
    FrameError::Over { what: "handshake JSON", got: got as u64, max: JSON_BYTES_MAX as u64 }
}

fn body(what: &'static str, expected: impl ToString, got: impl ToString) -> FrameError {
    FrameError::Body { what, expected: expected.to_string(), got: got.to_string() }
}
