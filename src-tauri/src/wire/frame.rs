//! The 32-byte frame header that every leg shares, and a frame = header + body.
//!
//! ```text
//! magic u16 = 0x564B | version u8 | kind u8 | flags u16 | layer u16 | request u64
//! rows u32 | assignments u32 | body_bytes u32 | part u16 | parts u16          (little-endian)
//! ```

use bytes::Bytes;

/// "KV", read as a little-endian number.
pub const MAGIC: u16 = 0x564B;
/// The only version so far.
pub const VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Largest body of one frame.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Largest WebSocket message: header, body and the 16-byte tag, with room to spare.
pub const MESSAGE_BYTES_MAX: usize = BODY_BYTES_MAX + 64;
/// Most rows of one request, over all its parts.
pub const ROWS_MAX: u32 = 2048;
/// Most assignments of one frame: `ROWS_MAX` rows × 16 experts.
pub const ASSIGNMENTS_MAX: u32 = ROWS_MAX * 16;

/// Header flag: float-weight experts (rows and partials are f32).
pub const FLAG_FLOAT: u16 = 1;
/// Header flag: two int8 planes; reserved and refused in version 1.
pub const FLAG_PLANES2: u16 = 2;

/// What a frame carries. The numbers are permanent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the protocol's own")]
pub enum Kind {
    HubHello = 1,
    WorkerAuth = 2,
    Welcome = 3,
    Refuse = 4,
    Offer = 5,
    Lease = 6,
    Release = 7,
    ExpertGet = 8,
    ExpertChunk = 9,
    SliceReady = 10,
    Challenge = 11,
    ChallengeReply = 12,
    Dispatch = 16,
    Partials = 17,
    Decline = 18,
    Receipt = 20,
    ReceiptAck = 21,
    GoAway = 22,
    Pause = 23,
    Resume = 24,
    SessionOpen = 32,
    SessionClosed = 33,
    Verdict = 34,
    Quarantine = 35,
    BackboneHello = 36,
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the body is.
    pub kind: Kind,
    /// `FLAG_*`.
    pub flags: u16,
    /// Layer of the work, else 0.
    pub layer: u16,
    /// Id that ties a reply to its request, else 0.
    pub request: u64,
    /// Rows in this frame.
    pub rows: u32,
    /// Assignments in this frame.
    pub assignments: u32,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Index of this part.
    pub part: u16,
    /// Parts of the request, at least 1.
    pub parts: u16,
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    /// Fewer bytes than the header, or than the header promises.
    #[error("truncated frame: expected {expected} bytes, got {got}")]
    Truncated {
        /// Bytes needed.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// More bytes than the header promises.
    #[error("frame of {got} bytes, but its header says {expected}")]
    Trailing {
        /// Bytes promised.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// Not a Kvasir frame.
    #[error("wrong magic: expected 0x564b, got {got:#06x}")]
    Magic {
        /// What stands there.
        got: u16,
    },
    /// Another protocol version.
    #[error("wrong version: expected 1, got {got}")]
    Version {
        /// What stands there.
        got: u8,
    },
    /// No such kind.
    #[error("unknown frame kind {got}")]
    Kind {
        /// What stands there.
        got: u8,
    },
    /// Flags that version 1 does not know or refuses.
    #[error("unsupported flags {got:#06x}")]
    Flags {
        /// What stands there.
        got: u16,
    },
    /// A length beyond its bound.
    #[error("{what} {got} is over the limit of {max}")]
    Over {
        /// Which field.
        what: &'static str,
        /// Its value.
        got: u64,
        /// Its bound.
        max: u64,
    },
    /// Part index and count that do not fit together.
    #[error("part {part} of {parts} parts")]
    Part {
        /// Index.
        part: u16,
        /// Count.
        parts: u16,
    },
    /// A body that disagrees with its header or with itself.
    #[error("bad {what}: expected {expected}, got {got}")]
    Body {
        /// Which field.
        what: &'static str,
        /// What was expected.
        expected: String,
        /// What was there.
        got: String,
    },
}

impl Kind {
    /// The kind with number `n`.
    ///
    /// # Errors
    /// [`FrameError::Kind`] when there is none.
    pub fn from_number(n: u8) -> Result<Self, FrameError> {
        use Kind::*;
        const ALL: [Kind; 25] = [
            HubHello,
            WorkerAuth,
            Welcome,
            Refuse,
            Offer,
            Lease,
            Release,
            ExpertGet,
            ExpertChunk,
            SliceReady,
            Challenge,
            ChallengeReply,
            Dispatch,
            Partials,
            Decline,
            Receipt,
            ReceiptAck,
            GoAway,
            Pause,
            Resume,
            SessionOpen,
            SessionClosed,
            Verdict,
            Quarantine,
            BackboneHello,
        ];
        ALL.into_iter().find(|k| *k as u8 == n).ok_or(FrameError::Kind { got: n })
    }
}

impl Header {
    /// A header without rows, for control frames; `body_bytes` is filled in by [`Frame::new`].
    #[must_use]
    pub fn control(kind: Kind) -> Self {
        Self { kind, flags: 0, layer: 0, request: 0, rows: 0, assignments: 0, body_bytes: 0, part: 0, parts: 1 }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0u8; HEADER_BYTES];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = VERSION;
        out[3] = self.kind as u8;
        out[4..6].copy_from_slice(&self.flags.to_le_bytes());
        out[6..8].copy_from_slice(&self.layer.to_le_bytes());
        out[8..16].copy_from_slice(&self.request.to_le_bytes());
        out[16..20].copy_from_slice(&self.rows.to_le_bytes());
        out[20..24].copy_from_slice(&self.assignments.to_le_bytes());
        out[24..28].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[28..30].copy_from_slice(&self.part.to_le_bytes());
        out[30..32].copy_from_slice(&self.parts.to_le_bytes());
        out
    }

    /// Reads and checks a header; `bytes` may go on behind it.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let Some(b) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated { expected: HEADER_BYTES, got: bytes.len() });
        };
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        if u16_at(0) != MAGIC {
            return Err(FrameError::Magic { got: u16_at(0) });
        }
        if b[2] != VERSION {
            return Err(FrameError::Version { got: b[2] });
        }
        let mut request = [0u8; 8];
        request.copy_from_slice(&b[8..16]);
        let header = Self {
            kind: Kind::from_number(b[3])?,
            flags: u16_at(4),
            layer: u16_at(6),
            request: u64::from_le_bytes(request),
            rows: u32_at(16),
            assignments: u32_at(20),
            body_bytes: u32_at(24),
            part: u16_at(28),
            parts: u16_at(30),
        };
        if header.flags & !FLAG_FLOAT != 0 {
            return Err(FrameError::Flags { got: header.flags });
        }
        let bound = |what, got: u32, max: u32| {
            if got > max { Err(FrameError::Over { what, got: got.into(), max: max.into() }) } else { Ok(()) }
        };
        bound("rows", header.rows, ROWS_MAX)?;
        bound("assignments", header.assignments, ASSIGNMENTS_MAX)?;
        bound("body_bytes", header.body_bytes, BODY_BYTES_MAX as u32)?;
        bound("parts", header.parts.into(), ROWS_MAX)?;
        if header.part >= header.parts {
            return Err(FrameError::Part { part: header.part, parts: header.parts });
        }
        Ok(header)
    }
}

/// A header and its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The header; `body_bytes` equals the body's length.
    pub header: Header,
    /// The body.
    pub body: Bytes,
}

impl Frame {
    /// A frame of `header` and `body`; sets `header.body_bytes`.
    ///
    /// # Errors
    /// [`FrameError::Over`] when the body is too large for one frame.
    pub fn new(mut header: Header, body: impl Into<Bytes>) -> Result<Self, FrameError> {
        let body = body.into();
        if body.len() > BODY_BYTES_MAX {
            return Err(FrameError::Over { what: "body_bytes", got: body.len() as u64, max: BODY_BYTES_MAX as u64 });
        }
        header.body_bytes = body.len() as u32;
        Ok(Self { header, body })
    }

    /// The frame as one buffer, so that it leaves in one write.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.body.len());
        out.extend_from_slice(&self.header.encode());
        out.extend_from_slice(&self.body);
        out
    }

    /// Reads a frame that fills `bytes` exactly.
    ///
    /// # Errors
    /// A bad header, or a length that is not the one the header says.
    pub fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        let header = Header::decode(&bytes)?;
        let expected = HEADER_BYTES + header.body_bytes as usize;
        match bytes.len() {
            got if got < expected => Err(FrameError::Truncated { expected, got }),
            got if got > expected => Err(FrameError::Trailing { expected, got }),
            _ => Ok(Self { header, body: bytes.slice(HEADER_BYTES..) }),
        }
    }
}
