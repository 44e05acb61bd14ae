//! Dot products and weighted sums of rows in a fixed order.

use crate::kernel::cpu::formats::{Brain, Format, Half, Native, Single};

/// Partial sums of a dot product; element k belongs to lane `k % 16`.
const LANES: usize = 16;
type Lanes = [f32; LANES];

/// Lanes to one number: 16 → 8 → 4 → 2 → 1.
#[inline(always)]
fn tree(lanes: &Lanes) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = lanes[i] + lanes[i + 8];
    }
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Adds what is left of two rows behind their whole blocks.
#[cold]
#[inline(never)]
fn with_tail<F: Format>(lanes: &Lanes, w: &[F::Stored], x: &[f32]) -> Lanes {
    let mut lanes = *lanes;
    for (lane, (w, x)) in lanes.iter_mut().zip(w.iter().zip(x)) {
        *lane += F::value(*w) * x;
    }
    lanes
}

/// The whole blocks of each row.
#[inline(always)]
fn blocks<'a, T, const N: usize>(rows: &[&'a [T]; N]) -> [&'a [[T; LANES]]; N] {
    let mut blocks: [&[[T; LANES]]; N] = [&[]; N];
    for (blocks, row) in blocks.iter_mut().zip(rows) {
        *blocks = row.as_chunks().0;
    }
    blocks
}

/// Rows `first..first + N` of a matrix.
#[inline(always)]
fn rows_of<T, const N: usize>(matrix: &[T], cols: usize, first: usize) -> [&[T]; N] {
    let mut rows: [&[T]; N] = [&[]; N];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = &matrix[(first + i) * cols..][..cols];
    }
    rows
}

/// How the sixteen partial sums of W rows with X rows are kept.
trait Level {
    /// Over the whole blocks of rows of one length.
    fn sums<F: Format, const W: usize, const X: usize>(
        w: &[&[[F::Stored; LANES]]; W],
        x: &[&[Lanes]; X],
    ) -> [[Lanes; X]; W];
}

/// Plain Rust.
struct Narrow;

impl Level for Narrow {
    #[inline(always)]
    fn sums<F: Format, const W: usize, const X: usize>(
        w: &[&[[F::Stored; LANES]]; W],
        x: &[&[Lanes]; X],
    ) -> [[Lanes; X]; W] {
        let mut sums = [[[0.0; LANES]; X]; W];
        for (sums, w) in sums.iter_mut().zip(w) {
            for (sums, x) in sums.iter_mut().zip(x) {
                let mut kept = [0.0; LANES];
                for (w, x) in w.iter().zip(*x) {
                    for l in 0..LANES {
                        kept[l] += F::value(w[l]) * x[l];
                    }
                }
                *sums = kept;
            }
        }
        sums
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Format, LANES, Lanes, Level};
    use crate::kernel::cpu::lanes::{sums_avx2, sums_avx512};

    /// AVX2 and F16C, for functions that run because the machine has them.
    pub(super) struct Avx2;
    /// AVX-512F, for functions that run because the machine has it.
    pub(super) struct Avx512;

    impl Level for Avx2 {
        #[inline(always)]
        #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
        fn sums<F: Format, const W: usize, const X: usize>(
            w: &[&[[F::Stored; LANES]]; W],
            x: &[&[Lanes]; X],
        ) -> [[Lanes; X]; W] {
            // SAFETY: only `products` and its kin name this level, after they found AVX2 and F16C.
            unsafe { sums_avx2::<F, W, X>(w, x) }
        }
    }

    impl Level for Avx512 {
        #[inline(always)]
        #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
        fn sums<F: Format, const W: usize, const X: usize>(
            w: &[&[[F::Stored; LANES]]; W],
            x: &[&[Lanes]; X],
        ) -> [[Lanes; X]; W] {
            // SAFETY: only `products` and its kin name this level, after they found AVX-512F.
            unsafe { sums_avx512::<F, W, X>(w, x) }
        }
    }
}

/// Dot products of W rows with X rows, all of one length.
#[inline(always)]
fn tile<L: Level, F: Format, const W: usize, const X: usize>(w: [&[F::Stored]; W], x: [&[f32]; X]) -> [[f32; X]; W] {
    let sums = L::sums::<F, W, X>(&blocks(&w), &blocks(&x));
    let done = w[0].len() / LANES * LANES;
    let mut out = [[0.0; X]; W];
    for ((out, sums), w) in out.iter_mut().zip(&sums).zip(&w) {
        for ((out, sums), x) in out.iter_mut().zip(sums).zip(&x) {
            let whole = w.len() == done;
            *out = if whole { tree(sums) } else { tree(&with_tail::<F>(sums, &w[done..], &x[done..])) };
        }
    }
    out
}

#[inline(always)]
fn products_body<L: Level, F: Format, const W: usize, const X: usize>(
    w: &[F::Stored],
    x: &[f32],
    cols: usize,
    out: &mut [f32],
) {
    let (w_rows, x_rows) = (w.len() / cols, x.len() / cols);
    let mut i = 0;
    while i + W <= w_rows {
        let rows = rows_of::<_, W>(w, cols, i);
        let mut j = 0;
        while j + X <= x_rows {
            let sums = tile::<L, F, W, X>(rows, rows_of(x, cols, j));
            for (a, sums) in sums.iter().enumerate() {
                out[(i + a) * x_rows + j..][..X].copy_from_slice(sums);
            }
            j += X;
        }
        for j in j..x_rows {
            let sums = tile::<L, F, W, 1>(rows, rows_of(x, cols, j));
            for (a, sum) in sums.iter().enumerate() {
                out[(i + a) * x_rows + j] = sum[0];
            }
        }
        i += W;
    }
    for i in i..w_rows {
        for j in 0..x_rows {
            out[i * x_rows + j] = tile::<L, F, 1, 1>(rows_of(w, cols, i), rows_of(x, cols, j))[0][0];
        }
    }
}

#[inline(always)]
fn weighted_rows_body(weights: &[f32], rows: &[f32], out: &mut [f32]) {
    let cols = out.len();
    let (wide, tail) = out.as_chunks_mut::<{ 4 * LANES }>();
    for (c, sums) in wide.iter_mut().enumerate() {
        let mut kept = *sums;
        for (weight, row) in weights.iter().zip(rows.chunks_exact(cols)) {
            let row = &row[c * 4 * LANES..][..4 * LANES];
            for l in 0..4 * LANES {
                kept[l] += weight * row[l];
            }
        }
        *sums = kept;
    }
    let done = cols - tail.len();
    for (weight, row) in weights.iter().zip(rows.chunks_exact(cols)) {
        for (sum, v) in tail.iter_mut().zip(&row[done..]) {
            *sum += weight * v;
        }
    }
}

/// Compiles one body for the instruction levels of x86-64 and picks the widest that the machine has.
macro_rules! at_the_widest_level {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*), $wide:expr, $middle:expr, $narrow:expr) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f")]
                fn wide($($arg: $ty),*) {
                    $wide($($arg),*);
                }
                #[target_feature(enable = "avx2,f16c")]
                fn middle($($arg: $ty),*) {
                    $middle($($arg),*);
                }
                if is_x86_feature_detected!("avx512f") {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the line above found AVX-512F.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the line above found AVX2 and F16C.
                    return unsafe { middle($($arg),*) };
                }
            }
            $narrow($($arg),*);
        }
    };
}

at_the_widest_level! {
    /// Every row of `w` times every row of `x`, both `cols` wide: `out[i · x_rows + j] = w_i · x_j`.
    products(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]),
    products_body::<wide::Avx512, Native, 4, 4>, products_body::<wide::Avx2, Native, 2, 3>,
    products_body::<Narrow, Native, 1, 1>
}

at_the_widest_level! {
    /// [`products`] of weights in F32 as a file stores them.
    products_single(w: &[[u8; 4]], x: &[f32], cols: usize, out: &mut [f32]),
    products_body::<wide::Avx512, Single, 4, 4>, products_body::<wide::Avx2, Single, 2, 3>,
    products_body::<Narrow, Single, 1, 1>
}

at_the_widest_level! {
    /// [`products`] of weights in F16.
    products_half(w: &[[u8; 2]], x: &[f32], cols: usize, out: &mut [f32]),
    products_body::<wide::Avx512, Half, 4, 4>, products_body::<wide::Avx2, Half, 2, 3>,
    products_body::<Narrow, Half, 1, 1>
}

at_the_widest_level! {
    /// [`products`] of weights in BF16.
    products_brain(w: &[[u8; 2]], x: &[f32], cols: usize, out: &mut [f32]),
    products_body::<wide::Avx512, Brain, 4, 4>, products_body::<wide::Avx2, Brain, 2, 3>,
    products_body::<Narrow, Brain, 1, 1>
}

at_the_widest_level! {
    /// `out += Σ weights_i · rows_i`, in ascending i; rows are as wide as `out`.
    weighted_rows(weights: &[f32], rows: &[f32], out: &mut [f32]),
    weighted_rows_body, weighted_rows_body, weighted_rows_body
}

/// `a · b` over their common length.
#[must_use]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let length = a.len().min(b.len());
    let mut out = [0.0];
    if length > 0 {
        products(&a[..length], &b[..length], length, &mut out);
    }
    out[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    #[test]
    fn every_register_tile_gives_the_same_bits() {
        for cols in [1, 15, 16, 33, 256] {
            let (w, x) = (numbers(9 * cols, 1), numbers(7 * cols, 2));
            let run = |body: fn(&[f32], &[f32], usize, &mut [f32])| {
                let mut out = vec![0.0; 63];
                body(&w, &x, cols, &mut out);
                out
            };
            let narrow = run(products_body::<Narrow, Native, 1, 1>);
            assert_eq!(narrow, run(products_body::<Narrow, Native, 3, 2>));
            assert_eq!(narrow, run(products));
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                #[target_feature(enable = "avx2,f16c")]
                fn avx2(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
                    products_body::<wide::Avx2, Native, 2, 3>(w, x, cols, out);
                }
                #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                // SAFETY: the line above found AVX2 and F16C.
                let middle = run(|w, x, cols, out| unsafe { avx2(w, x, cols, out) });
                assert_eq!(narrow, middle);
            }
            assert_eq!(narrow[7 * 3 + 5], dot(&w[3 * cols..4 * cols], &x[5 * cols..6 * cols]));
        }
    }

    #[test]
    fn stored_floats_give_the_bits_of_their_values() {
        for cols in [1, 16, 37, 128] {
            let (w, x) = (numbers(9 * cols, 1), numbers(7 * cols, 2));
            let expected = |w: &[f32]| {
                let mut out = vec![0.0; 63];
                products(w, &x, cols, &mut out);
                out
            };
            let mut out = vec![0.0; 63];
            products_single(&w.iter().map(|w| w.to_le_bytes()).collect::<Vec<_>>(), &x, cols, &mut out);
            assert_eq!(out, expected(&w));
            let halves: Vec<f16> = w.iter().map(|w| f16::from_f32(*w)).collect();
            products_half(&halves.iter().map(|w| w.to_le_bytes()).collect::<Vec<_>>(), &x, cols, &mut out);
            assert_eq!(out, expected(&halves.iter().map(|w| w.to_f32()).collect::<Vec<_>>()));
            let brains: Vec<bf16> = w.iter().map(|w| bf16::from_f32(*w)).collect();
            products_brain(&brains.iter().map(|w| w.to_le_bytes()).collect::<Vec<_>>(), &x, cols, &mut out);
            assert_eq!(out, expected(&brains.iter().map(|w| w.to_f32()).collect::<Vec<_>>()));
        }
    }

    #[test]
    fn wide_levels_give_the_bits_of_the_narrow_one() {
        for cols in [3, 64, 130] {
            let (weights, rows) = (numbers(11, 3), numbers(11 * cols, 4));
            let (mut wide, mut narrow) = (numbers(cols, 5), numbers(cols, 5));
            weighted_rows(&weights, &rows, &mut wide);
            weighted_rows_body(&weights, &rows, &mut narrow);
            assert_eq!(wide, narrow);
        }
    }

    #[test]
    fn a_dot_product_is_close_to_its_value() {
        let (a, b) = (numbers(1000, 7), numbers(1000, 8));
        let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-4);
    }
}
