//! Sixteen floats as one value, on each instruction level.
//!
//! Code that is written once over [`Level`] and compiled for each of them gives the same bits on all: every method
//! works on each element by itself, and nothing is fused. A value of a level's type is the proof that its
//! instructions are there.

use half::f16;

/// Elements of a vector.
pub const LANES: usize = 16;

/// One instruction level.
pub trait Level: Copy {
    /// Sixteen floats.
    type Vector: Copy;

    /// The same number everywhere.
    fn splat(self, value: f32) -> Self::Vector;

    /// Reads.
    fn load(self, from: &[f32; LANES]) -> Self::Vector;

    /// Writes.
    fn store(self, vector: Self::Vector, to: &mut [f32; LANES]);

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a · b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Reads half-precision numbers; exact.
    fn load_halves(self, from: &[f16; LANES]) -> Self::Vector;

    /// Writes the nearest half-precision numbers, the even one of two.
    fn store_halves(self, vector: Self::Vector, to: &mut [f16; LANES]);
}

/// Plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Level for Plain {
    type Vector = [f32; LANES];

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Vector {
        *from
    }

    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f32; LANES]) {
        *to = vector;
    }

    #[inline(always)]
    fn add(self, mut a: Self::Vector, b: Self::Vector) -> Self::Vector {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
        a
    }

    #[inline(always)]
    fn mul(self, mut a: Self::Vector, b: Self::Vector) -> Self::Vector {
        for (a, b) in a.iter_mut().zip(b) {
            *a *= b;
        }
        a
    }

    #[inline(always)]
    fn load_halves(self, from: &[f16; LANES]) -> Self::Vector {
        from.map(f16::to_f32)
    }

    #[inline(always)]
    fn store_halves(self, vector: Self::Vector, to: &mut [f16; LANES]) {
        *to = vector.map(f16::from_f32);
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the levels' values prove that their instructions are there")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m512, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_ps, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps,
        _mm256_storeu_si256, _mm512_add_ps, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_ps, _mm512_mul_ps,
        _mm512_set1_ps, _mm512_storeu_ps,
    };

    use super::{LANES, Level, f16};

    /// AVX-512F.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(());

    impl Avx512 {
        /// The level, if this machine has it.
        #[inline]
        pub fn detect() -> Option<Self> {
            is_x86_feature_detected!("avx512f").then_some(Self(()))
        }
    }

    // SAFETY of this implementation: a value of the type exists only where AVX-512F was found; loads and stores are of
    // sixteen elements, which the references have.
    impl Level for Avx512 {
        type Vector = __m512;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            // SAFETY: AVX-512F, see above.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> __m512 {
            // SAFETY: AVX-512F and sixteen floats, see above.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, vector: __m512, to: &mut [f32; LANES]) {
            // SAFETY: AVX-512F and sixteen floats, see above.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) }
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: AVX-512F, see above.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: AVX-512F, see above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn load_halves(self, from: &[f16; LANES]) -> __m512 {
            // SAFETY: AVX-512F and 32 bytes, see above; f16 is its bits.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
        }

        #[inline(always)]
        fn store_halves(self, vector: __m512, to: &mut [f16; LANES]) {
            // SAFETY: AVX-512F and 32 bytes, see above; f16 is its bits.
            unsafe {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
            }
        }
    }

    /// AVX2 with F16C.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// The level, if this machine has it.
        #[inline]
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
        }
    }

    // SAFETY of this implementation: a value of the type exists only where AVX2 and F16C were found; each half of a
    // vector is eight of the sixteen elements that the references have.
    impl Level for Avx2 {
        type Vector = [__m256; 2];

        #[inline(always)]
        fn splat(self, value: f32) -> [__m256; 2] {
            // SAFETY: AVX, see above.
            unsafe { [_mm256_set1_ps(value); 2] }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
            // SAFETY: AVX and sixteen floats, see above.
            unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
        }

        #[inline(always)]
        fn store(self, vector: [__m256; 2], to: &mut [f32; LANES]) {
            // SAFETY: AVX and sixteen floats, see above.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), vector[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), vector[1]);
            }
        }

        #[inline(always)]
        fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: AVX, see above.
            unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: AVX, see above.
            unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn load_halves(self, from: &[f16; LANES]) -> [__m256; 2] {
            // SAFETY: F16C and twice 16 bytes, see above; f16 is its bits.
            unsafe {
                let low = _mm_loadu_si128(from.as_ptr().cast());
                let high = _mm_loadu_si128(from.as_ptr().add(8).cast());
                [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
            }
        }

        #[inline(always)]
        fn store_halves(self, vector: [__m256; 2], to: &mut [f16; LANES]) {
            // SAFETY: F16C and twice 16 bytes, see above; f16 is its bits.
            unsafe {
                let [low, high] = vector.map(|half| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half));
                _mm_storeu_si128(to.as_mut_ptr().cast(), low);
                _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), high);
            }
        }
    }
}
