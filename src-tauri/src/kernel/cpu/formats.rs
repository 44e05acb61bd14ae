//! Float weights as they are stored, and how they come into vector registers as f32: exactly, whatever the format.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::{bf16, f16};

/// How a float weight is stored.
pub trait Format {
    /// Its bytes.
    type Stored: Copy + Sync;

    /// Its value.
    fn value(stored: Self::Stored) -> f32;

    /// Sixteen values.
    ///
    /// # Safety
    /// The machine has AVX-512F, and sixteen stored weights can be read.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a load through a pointer, for a detected instruction level")]
    unsafe fn load512(from: *const Self::Stored) -> __m512;

    /// Eight values.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C, and eight stored weights can be read.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "a load through a pointer, for a detected instruction level")]
    unsafe fn load256(from: *const Self::Stored) -> __m256;
}

/// f32 in memory of our own.
pub struct Native;
/// F32 in a file.
pub struct Single;
/// F16.
pub struct Half;
/// BF16.
pub struct Brain;

macro_rules! format {
    ($name:ident, $stored:ty, |$bytes:ident| $value:expr, |$from:ident| $wide:expr, $narrow:expr) => {
        impl Format for $name {
            type Stored = $stored;

            #[inline(always)]
            fn value($bytes: $stored) -> f32 {
                $value
            }

            #[cfg(target_arch = "x86_64")]
            #[inline]
            #[target_feature(enable = "avx512f")]
            #[expect(unsafe_code, reason = "a load through a pointer, for a detected instruction level")]
            unsafe fn load512($from: *const $stored) -> __m512 {
                // SAFETY: the caller keeps the trait's promise.
                unsafe { $wide }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            #[expect(unsafe_code, reason = "a load through a pointer, for a detected instruction level")]
            unsafe fn load256($from: *const $stored) -> __m256 {
                // SAFETY: the caller keeps the trait's promise.
                unsafe { $narrow }
            }
        }
    };
}

format!(Native, f32, |v| v, |from| _mm512_loadu_ps(from), _mm256_loadu_ps(from));
format!(
    Single,
    [u8; 4],
    |bytes| f32::from_le_bytes(bytes),
    |from| _mm512_loadu_ps(from.cast()),
    _mm256_loadu_ps(from.cast())
);
format!(
    Half,
    [u8; 2],
    |bytes| f16::from_le_bytes(bytes).to_f32(),
    |from| _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())),
    _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))
);
format!(
    Brain,
    [u8; 2],
    |bytes| bf16::from_le_bytes(bytes).to_f32(),
    |from| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))),
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
);
