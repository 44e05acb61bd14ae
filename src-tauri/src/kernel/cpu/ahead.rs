//! Weights are asked for before they are needed, across the end of a pass into what its thread reads next.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::engine::Pass;

/// How far ahead of the dots weights are fetched: about the time that memory takes to answer.
pub(super) const PREFETCH_BYTES: usize = 8 << 10;

/// Bytes that are fetched ahead of some dots, a part now and then: all at once they would keep the dots' own reads
/// waiting.
#[derive(Clone, Copy)]
pub(super) struct Soon<'a> {
    pub ahead: &'a Ahead<'a>,
    /// Where the first part begins.
    pub at: usize,
    /// From part to part.
    pub stride: usize,
    /// Bytes of a part.
    pub part: usize,
}

impl Soon<'_> {
    /// Asks for part `i`.
    #[inline]
    pub fn fetch(self, i: usize) {
        self.ahead.fetch(self.at + i * self.stride, self.part);
    }
}

/// What is fetched ahead of the dots: the rest of the pass, then what comes after it.
pub(super) struct Ahead<'a> {
    own: &'a [u8],
    next: &'a [u8],
}

impl<'a> Ahead<'a> {
    pub fn new(pass: &Pass<'a>) -> Self {
        Self { own: pass.weights.some_rows(pass.rows.clone()), next: pass.next }
    }

    /// Asks for `len` bytes from `at` on, counted from the start of the pass.
    #[inline]
    pub fn fetch(&self, at: usize, len: usize) {
        let from = match at.checked_sub(self.own.len()) {
            None => self.own.as_ptr().wrapping_add(at),
            Some(after) if after < self.next.len() => self.next.as_ptr().wrapping_add(after),
            Some(_) => return,
        };
        for line in (0..len).step_by(64) {
            #[expect(unsafe_code, reason = "a hint to the cache")]
            // SAFETY: a prefetch never faults, whatever the address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
            }
        }
    }
}
