//! Dot products, weighted sums of rows and rank-one updates in a fixed order.

/// Partial sums of a dot product; element k belongs to lane `k % 16`.
const LANES: usize = 16;
type Lanes = [f32; LANES];

/// Lanes to one number: 16 → 8 → 4 → 2 → 1.
#[inline(always)]
fn tree(mut lanes: Lanes) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn multiply_add(sums: &mut Lanes, a: &Lanes, b: &Lanes) {
    for l in 0..LANES {
        sums[l] += a[l] * b[l];
    }
}

// The register tiles are written with `if` over constants: loops over them stay loops and spill the sums.
#[inline(always)]
fn against_each<const X: usize>(sums: &mut [Lanes; X], w: &Lanes, x: &[&[Lanes]; X], block: usize) {
    if X > 0 {
        multiply_add(&mut sums[0], w, &x[0][block]);
    }
    if X > 1 {
        multiply_add(&mut sums[1], w, &x[1][block]);
    }
    if X > 2 {
        multiply_add(&mut sums[2], w, &x[2][block]);
    }
    if X > 3 {
        multiply_add(&mut sums[3], w, &x[3][block]);
    }
}

/// Dot products of W rows with X rows, all of one length.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "one index walks all rows of the tile")]
fn tile<const W: usize, const X: usize>(w: [&[f32]; W], x: [&[f32]; X]) -> [[f32; X]; W] {
    let length = w[0].len();
    let (w, x) = (w.map(|row| &row[..length]), x.map(|row| &row[..length]));
    let (wide_w, wide_x) = (w.map(|row| row.as_chunks::<LANES>().0), x.map(|row| row.as_chunks::<LANES>().0));
    let mut sums = [[[0f32; LANES]; X]; W];
    let blocks = length / LANES;
    for block in 0..blocks {
        if W > 0 {
            against_each(&mut sums[0], &wide_w[0][block], &wide_x, block);
        }
        if W > 1 {
            against_each(&mut sums[1], &wide_w[1][block], &wide_x, block);
        }
        if W > 2 {
            against_each(&mut sums[2], &wide_w[2][block], &wide_x, block);
        }
        if W > 3 {
            against_each(&mut sums[3], &wide_w[3][block], &wide_x, block);
        }
    }
    for k in blocks * LANES..length {
        for i in 0..W {
            for j in 0..X {
                sums[i][j][k % LANES] += w[i][k] * x[j][k];
            }
        }
    }
    sums.map(|row| row.map(tree))
}

#[inline(always)]
fn products_body<const W: usize, const X: usize>(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let (w_rows, x_rows) = (w.len() / cols, x.len() / cols);
    let w_row = |r: usize| &w[r * cols..(r + 1) * cols];
    let x_row = |r: usize| &x[r * cols..(r + 1) * cols];
    let mut i = 0;
    while i + W <= w_rows {
        let rows: [&[f32]; W] = std::array::from_fn(|k| w_row(i + k));
        let mut j = 0;
        while j + X <= x_rows {
            let sums = tile::<W, X>(rows, std::array::from_fn(|k| x_row(j + k)));
            for a in 0..W {
                out[(i + a) * x_rows + j..][..X].copy_from_slice(&sums[a]);
            }
            j += X;
        }
        for j in j..x_rows {
            let sums = tile::<W, 1>(rows, [x_row(j)]);
            for a in 0..W {
                out[(i + a) * x_rows + j] = sums[a][0];
            }
        }
        i += W;
    }
    for i in i..w_rows {
        for j in 0..x_rows {
            out[i * x_rows + j] = tile::<1, 1>([w_row(i)], [x_row(j)])[0][0];
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

#[inline(always)]
fn decay_and_add_body(state: &mut [f32], decay: f32, key: &[f32], value: &[f32]) {
    for (row, k) in state.chunks_exact_mut(value.len()).zip(key) {
        for (s, v) in row.iter_mut().zip(value) {
            *s = *s * decay + k * v;
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
                #[target_feature(enable = "avx2")]
                fn middle($($arg: $ty),*) {
                    $middle($($arg),*);
                }
                if is_x86_feature_detected!("avx512f") {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the line above found AVX-512F.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the line above found AVX2.
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
    products_body::<4, 4>, products_body::<4, 1>, products_body::<2, 1>
}

at_the_widest_level! {
    /// `out += Σ weights_i · rows_i`, in ascending i; rows are as wide as `out`.
    weighted_rows(weights: &[f32], rows: &[f32], out: &mut [f32]),
    weighted_rows_body, weighted_rows_body, weighted_rows_body
}

at_the_widest_level! {
    /// `state = decay · state + key ⊗ value`, state being `[key, value]`.
    decay_and_add(state: &mut [f32], decay: f32, key: &[f32], value: &[f32]),
    decay_and_add_body, decay_and_add_body, decay_and_add_body
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
            let narrow = run(products_body::<1, 1>);
            assert_eq!(narrow, run(products_body::<2, 1>));
            assert_eq!(narrow, run(products_body::<4, 4>));
            assert_eq!(narrow, run(products));
            assert_eq!(narrow[7 * 3 + 5], dot(&w[3 * cols..4 * cols], &x[5 * cols..6 * cols]));
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
            let (mut wide, mut narrow) = (rows.clone(), rows.clone());
            decay_and_add(&mut wide, 0.9, &weights, &numbers(cols, 6));
            decay_and_add_body(&mut narrow, 0.9, &weights, &numbers(cols, 6));
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
