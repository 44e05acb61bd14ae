//! Bodies of `Dispatch` and `Partials`: rows of hidden state out, sums of weighted expert outputs back.
//!
//! Layouts are those of the protocol's work section; the exact form carries 265 bytes per 256 elements
//! (`F i8 | s u4[16] | q i8[256]`), the float form f32. A frame's `rows` and `assignments` live in its header.

use super::frame::{ASSIGNMENTS_MAX, BODY_BYTES_MAX, FLAG_FLOAT, FrameError, Header, ROWS_MAX};
use crate::types::GateWeight;
use bytes::Bytes;

/// Elements of a super-block of a quantised row.
pub const SUPER_BLOCK: usize = 256;
/// Elements that share a scale.
const SCALE_BLOCK: usize = 16;
/// Bytes of a super-block on the wire.
pub const SUPER_BLOCK_BYTES: usize = 1 + 8 + SUPER_BLOCK;
/// Largest hidden size that the exact numerics prove safe.
pub const HIDDEN_MAX: usize = 8192;

/// Where a row's assignments stand and the grid of its sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowHead {
    /// The row's sums are integers times 2^grid.
    pub grid: i8,
    /// Assignments of the row.
    pub count: u16,
    /// Index of its first assignment.
    pub first: u32,
}

/// One (row, expert) pair; the row is the one whose range holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Expert index within the layer.
    pub expert: u16,
    /// Gate weight; in the float form the backbone weighs and this is `{0, 0}`.
    pub gate: GateWeight,
}

/// Hidden rows in the form that their experts read.
#[derive(Clone, PartialEq, Debug)]
pub enum Activations {
    /// `rows × ceil(hidden / 256)` super-blocks of [`SUPER_BLOCK_BYTES`].
    Exact(Bytes),
    /// `rows × hidden`.
    Float(Vec<f32>),
}

/// The work of one request part: some rows of one layer and what to compute for each.
#[derive(Clone, PartialEq, Debug)]
pub struct Dispatch {
    /// Lease that the backbone believes the worker holds.
    pub lease: u32,
    /// Milliseconds that the worker has.
    pub deadline_ms: u32,
    /// Elements of a row.
    pub hidden: usize,
    /// One per row.
    pub rows: Vec<RowHead>,
    /// The rows.
    pub activations: Activations,
    /// Ascending expert id within a row, no duplicates.
    pub assignments: Vec<Assignment>,
}

/// How a row went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RowStatus {
    /// The sums hold.
    Ok = 0,
    /// A weighted output did not fit the row's grid: ask again with a coarser one.
    Range = 1,
    /// An intermediate was NaN, infinite or beyond 2^101: the row needs the float path.
    Poison = 2,
}

/// What comes back for a [`Dispatch`].
#[derive(Clone, PartialEq, Debug)]
pub struct Partials {
    /// One per row.
    pub status: Vec<RowStatus>,
    /// The values.
    pub values: PartialValues,
}

/// The numbers of a [`Partials`]; zeros where the row's status is not `Ok`.
#[derive(Clone, PartialEq, Debug)]
pub enum PartialValues {
    /// `rows × hidden`: per row the sum over its experts, on the row's grid.
    Exact(Vec<i32>),
    /// `assignments × hidden`, not weighted.
    Float(Vec<f32>),
}

/// Super-blocks of a row of `hidden` elements.
#[must_use]
pub fn super_blocks(hidden: usize) -> usize {
    hidden.div_ceil(SUPER_BLOCK)
}

/// Most rows of one exact part, so that neither the request nor the reply passes the frame bound.
#[must_use]
pub fn rows_per_part(hidden: usize) -> usize {
    (BODY_BYTES_MAX / (1 + 4 * hidden)).min(ROWS_MAX as usize)
}

/// The same for the float form, whose reply carries a row per assignment: rows of `per_row` assignments each.
#[must_use]
pub fn float_rows_per_part(hidden: usize, per_row: usize) -> usize {
    let request = 8 + 4 * hidden + 4 * per_row;
    let reply = 1 + 4 * hidden * per_row;
    ((BODY_BYTES_MAX - 8) / request.max(reply)).min(ROWS_MAX as usize)
}

fn body(what: &'static str, expected: impl ToString, got: impl ToString) -> FrameError {
    FrameError::Body { what, expected: expected.to_string(), got: got.to_string() }
}

fn exact_length(bytes: &[u8], expected: usize) -> Result<(), FrameError> {
    match bytes.len() {
        got if got < expected => Err(FrameError::Truncated { expected, got }),
        got if got > expected => Err(FrameError::Trailing { expected, got }),
        _ => Ok(()),
    }
}

impl Dispatch {
    /// Whether the float form is used.
    #[must_use]
    pub fn is_float(&self) -> bool {
        matches!(self.activations, Activations::Float(_))
    }

    /// The body's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let activation_bytes = match &self.activations {
            Activations::Exact(bytes) => bytes.len(),
            Activations::Float(values) => 4 * values.len(),
        };
        let mut out = Vec::with_capacity(8 + 8 * self.rows.len() + activation_bytes + 6 * self.assignments.len());
        out.extend_from_slice(&self.lease.to_le_bytes());
        out.extend_from_slice(&self.deadline_ms.to_le_bytes());
        for row in &self.rows {
            out.extend_from_slice(&[row.grid as u8, 0]);
            out.extend_from_slice(&row.count.to_le_bytes());
            out.extend_from_slice(&row.first.to_le_bytes());
        }
        match &self.activations {
            Activations::Exact(bytes) => out.extend_from_slice(bytes),
            Activations::Float(values) => values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        }
        for a in &self.assignments {
            out.extend_from_slice(&a.expert.to_le_bytes());
            if self.is_float() {
                out.extend_from_slice(&[0, 0]);
            } else {
                out.extend_from_slice(&a.gate.mantissa.to_le_bytes());
                out.extend_from_slice(&[a.gate.exponent as u8, 0]);
            }
        }
        out
    }

    /// Reads a body; `hidden` is the model's hidden size.
    ///
    /// # Errors
    /// Lengths that disagree with the header, a reply that no frame would hold, a row table that is not contiguous, unordered or repeated experts,
    /// an illegal gate weight or an illegal quantised row.
    pub fn decode(header: &Header, body_bytes: &Bytes, hidden: usize) -> Result<Self, FrameError> {
        let float = header.flags & FLAG_FLOAT != 0;
        let (n_rows, n_assignments) = (header.rows as usize, header.assignments as usize);
        if header.rows == 0 || header.rows > ROWS_MAX || header.assignments > ASSIGNMENTS_MAX {
            return Err(body("rows", format!("1..={ROWS_MAX}"), header.rows));
        }
        if hidden == 0 || hidden > HIDDEN_MAX {
            return Err(body("hidden", format!("1..={HIDDEN_MAX}"), hidden));
        }
        let reply = if float { n_rows + 4 * n_assignments * hidden } else { n_rows * (1 + 4 * hidden) };
        if reply > BODY_BYTES_MAX {
            return Err(FrameError::Over { what: "reply bytes", got: reply as u64, max: BODY_BYTES_MAX as u64 });
        }
        let row_bytes = if float { 4 * hidden } else { super_blocks(hidden) * SUPER_BLOCK_BYTES };
        let assignment_bytes = if float { 4 } else { 6 };
        exact_length(body_bytes, 8 + n_rows * (8 + row_bytes) + n_assignments * assignment_bytes)?;
        let u16_at = |i: usize| u16::from_le_bytes([body_bytes[i], body_bytes[i + 1]]);
        let u32_at =
            |i: usize| u32::from_le_bytes([body_bytes[i], body_bytes[i + 1], body_bytes[i + 2], body_bytes[i + 3]]);

        let mut rows = Vec::with_capacity(n_rows);
        let mut next = 0u32;
        for r in 0..n_rows {
            let at = 8 + 8 * r;
            let row = RowHead { grid: body_bytes[at] as i8, count: u16_at(at + 2), first: u32_at(at + 4) };
            if body_bytes[at + 1] != 0 {
                return Err(body("row padding", 0, body_bytes[at + 1]));
            }
            if row.first != next {
                return Err(body("row start", next, row.first));
            }
            next = next.saturating_add(row.count.into());
            rows.push(row);
        }
        if next != header.assignments {
            return Err(body("assignments of the row table", header.assignments, next));
        }

        let at = 8 + 8 * n_rows;
        let rows_bytes = body_bytes.slice(at..at + n_rows * row_bytes);
        let activations = if float {
            Activations::Float(
                rows_bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
            )
        } else {
            check_exact_rows(&rows_bytes, hidden)?;
            Activations::Exact(rows_bytes)
        };

        let at = at + n_rows * row_bytes;
        let mut assignments = Vec::with_capacity(n_assignments);
        for i in 0..n_assignments {
            let at = at + i * assignment_bytes;
            let pad = body_bytes[at + assignment_bytes - 1];
            if pad != 0 || (float && body_bytes[at + 2] != 0) {
                return Err(body("assignment padding", 0, pad));
            }
            let gate = if float {
                GateWeight { mantissa: 0, exponent: 0 }
            } else {
                GateWeight { mantissa: u16_at(at + 2), exponent: body_bytes[at + 4] as i8 }
            };
            if !float && gate.mantissa < 32768 {
                return Err(body("gate weight mantissa", "32768..=65535", gate.mantissa));
            }
            assignments.push(Assignment { expert: u16_at(at), gate });
        }
        for row in &rows {
            let own = &assignments[row.first as usize..row.first as usize + row.count as usize];
            if let Some(pair) = own.windows(2).find(|p| p[0].expert >= p[1].expert) {
                return Err(body("expert order", format!("more than {}", pair[0].expert), pair[1].expert));
            }
        }
        Ok(Self { lease: u32_at(0), deadline_ms: u32_at(4), hidden, rows, activations, assignments })
    }
}

/// Legal input of the exact function: F = −128 with all zero, or −110..=91; q ≠ −128 (s ≤ 15 by its width).
/// A short last super-block carries zeros behind the row's end.
fn check_exact_rows(rows: &[u8], hidden: usize) -> Result<(), FrameError> {
    let tail = hidden % SUPER_BLOCK;
    if tail != 0 {
        for row in rows.chunks_exact(super_blocks(hidden) * SUPER_BLOCK_BYTES) {
            let last = &row[row.len() - SUPER_BLOCK_BYTES..];
            let scale = |block: usize| last[1 + block / 2] >> (4 * (block % 2)) & 0xf;
            let scaled = (tail.div_ceil(SCALE_BLOCK)..SUPER_BLOCK / SCALE_BLOCK).any(|block| scale(block) != 0);
            if scaled || last[9 + tail..].iter().any(|q| *q != 0) {
                return Err(body("elements behind the row's end", "zeros", "values"));
            }
        }
    }
    for block in rows.chunks_exact(SUPER_BLOCK_BYTES) {
        let exponent = block[0] as i8;
        let zero = block[1..].iter().all(|b| *b == 0);
        match exponent {
            -128 if zero => {}
            -110..=91 => {}
            -128 => return Err(body("super-block with F = -128", "all zero", "values")),
            other => return Err(body("super-block exponent", "-128 or -110..=91", other)),
        }
        if block[9..].contains(&0x80) {
            return Err(body("quantised value", "-127..=127", -128));
        }
    }
    Ok(())
}

impl Partials {
    /// The body's bytes.
    #[must_use]
    pub fn encode(&self, hidden: usize) -> Vec<u8> {
        match &self.values {
            PartialValues::Exact(sums) => {
                let mut out = Vec::with_capacity(self.status.len() * (1 + 4 * hidden));
                for (status, row) in self.status.iter().zip(sums.chunks_exact(hidden)) {
                    out.push(*status as u8);
                    row.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
                }
                out
            }
            PartialValues::Float(values) => {
                let mut out: Vec<u8> = self.status.iter().map(|s| *s as u8).collect();
                out.reserve(4 * values.len());
                values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
                out
            }
        }
    }

    /// Reads the reply to a request of `rows` rows and `assignments` assignments.
    ///
    /// # Errors
    /// A header that does not repeat the request's shape, a wrong length, an unknown status, values beside a
    /// status that is not `Ok`, or a float that is not finite.
    pub fn decode(
        header: &Header,
        bytes: &Bytes,
        hidden: usize,
        rows: usize,
        assignments: usize,
    ) -> Result<Self, FrameError> {
        let float = header.flags & FLAG_FLOAT != 0;
        if (header.rows as usize, header.assignments as usize) != (rows, assignments) {
            let shape = |r, a| format!("{r} rows × {a} assignments");
            return Err(body(
                "partials",
                shape(rows, assignments),
                shape(header.rows as usize, header.assignments as usize),
            ));
        }
        let f32_at = |c: &[u8]| f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        if float {
            exact_length(bytes, rows + 4 * assignments * hidden)?;
            let status = bytes[..rows].iter().map(|s| row_status(*s)).collect::<Result<Vec<_>, _>>()?;
            let values: Vec<f32> = bytes[rows..].chunks_exact(4).map(f32_at).collect();
            if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
                return Err(body("partial", "finite", bad));
            }
            return Ok(Self { status, values: PartialValues::Float(values) });
        }
        exact_length(bytes, rows * (1 + 4 * hidden))?;
        let mut status = Vec::with_capacity(rows);
        let mut sums = Vec::with_capacity(rows * hidden);
        for row in bytes.chunks_exact(1 + 4 * hidden) {
            status.push(row_status(row[0])?);
            if row[0] != 0 && row[1..].iter().any(|b| *b != 0) {
                return Err(body("row with a status other than ok", "zeros", "values"));
            }
            sums.extend(row[1..].chunks_exact(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])));
        }
        Ok(Self { status, values: PartialValues::Exact(sums) })
    }
}

fn row_status(n: u8) -> Result<RowStatus, FrameError> {
    match n {
        0 => Ok(RowStatus::Ok),
        1 => Ok(RowStatus::Range),
        2 => Ok(RowStatus::Poison),
        other => Err(body("row status", "0..=2", other)),
    }
}
