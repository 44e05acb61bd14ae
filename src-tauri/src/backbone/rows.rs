//! Rows of f32 that carry their width, and the few things that are done to each row alone.

use super::parallel;
use crate::kernel::float::{Dense, dot};

/// `[rows, width]`, row-major.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rows {
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    /// All zero.
    #[must_use]
    pub fn zeros(rows: usize, width: usize) -> Self {
        Self { width, values: vec![0.0; rows * width] }
    }

    /// None, with the memory of `rows` rows taken at once.
    #[must_use]
    pub fn with_room(rows: usize, width: usize) -> Self {
        Self { width, values: Vec::with_capacity(rows * width) }
    }

    /// Rows that it has memory for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.values.capacity().checked_div(self.width).unwrap_or(0)
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Elements of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Row `r`.
    #[must_use]
    pub fn row(&self, r: usize) -> &[f32] {
        &self.values[r * self.width..(r + 1) * self.width]
    }

    /// Row `r`, to be changed.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.values[r * self.width..(r + 1) * self.width]
    }

    /// The values of `rows` rows from `first` on.
    #[must_use]
    pub fn part(&self, first: usize, rows: usize) -> &[f32] {
        &self.values[first * self.width..(first + rows) * self.width]
    }

    /// The same, to be changed.
    pub fn part_mut(&mut self, first: usize, rows: usize) -> &mut [f32] {
        &mut self.values[first * self.width..(first + rows) * self.width]
    }

    /// All rows, one after the other.
    pub fn iter(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width)
    }

    /// All rows, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.values.chunks_exact_mut(self.width)
    }

    /// All values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All values, to be changed.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// The last row alone.
    #[must_use]
    pub fn last(&self) -> Self {
        let start = self.values.len().saturating_sub(self.width);
        Self { width: self.width, values: self.values[start..].to_vec() }
    }

    /// Becomes `rows` rows of `width`, of no particular values; memory is taken only to grow beyond what was ever held.
    pub fn reshape(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.values.resize(rows * width, 0.0);
    }

    /// Appends rows of this width; without rows, `width` becomes theirs.
    pub fn append(&mut self, width: usize, rows: &[f32]) {
        self.width = width;
        self.values.extend_from_slice(rows);
    }

    /// Forgets all but the last `rows` rows.
    pub fn keep_last(&mut self, rows: usize) {
        let first = self.len().saturating_sub(rows);
        self.values.drain(..first * self.width);
    }

    /// Becomes some of the rows of `from`, in the order of `which`.
    pub fn pick_from(&mut self, from: &Self, which: impl Iterator<Item = usize>) {
        self.width = from.width;
        self.values.clear();
        which.for_each(|r| self.values.extend_from_slice(from.row(r)));
    }

    /// `x Wᵀ`, into `out`.
    pub fn times_into(&self, weights: &Dense, out: &mut Self) {
        out.reshape(self.len(), weights.rows());
        weights.forward(&self.values, self.len(), &mut out.values);
    }

    /// `x Wᵀ` for several matrices at once, each into its own rows: what they read is prepared once.
    pub fn times_all<const N: usize>(&self, mut products: [(&Dense, &mut Self); N]) {
        products.iter_mut().for_each(|(weights, out)| out.reshape(self.len(), weights.rows()));
        let matrices = products.each_ref().map(|(weights, _)| *weights);
        let mut outs = products.each_mut().map(|(_, out)| out.values.as_mut_slice());
        Dense::forward_many(&matrices, &self.values, self.len(), &mut outs);
    }

    /// `x + other`, in place.
    pub fn add(&mut self, other: &Self) {
        let width = self.width;
        parallel::rows(self.values.len(), &mut self.values, width, |r, row| {
            row.iter_mut().zip(other.row(r)).for_each(|(x, y)| *x += y);
        });
    }

    /// RMSNorm of every row with the multiplier `weight`, into `out`.
    pub fn normed_into(&self, weight: &[f32], eps: f32, out: &mut Self) {
        out.reshape(self.len(), self.width);
        parallel::rows(4 * self.values.len(), &mut out.values, self.width, |r, row| {
            row.copy_from_slice(self.row(r));
            rms_norm(row, weight, eps);
        });
    }

    /// Root mean square of every row.
    #[must_use]
    pub fn rms(&self) -> Vec<f32> {
        self.iter().map(|row| mean_square(row).sqrt()).collect()
    }
}

fn mean_square(x: &[f32]) -> f32 {
    dot(x, x) / x.len() as f32
}

/// `x / √(mean(x²) + eps) · weight`, in place.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (mean_square(x) + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
}

/// `x / √(Σ x² + 1e-6) · scale`, in place: the sum, not the mean, and the epsilon inside the root.
pub fn l2_norm(x: &mut [f32], scale: f32) {
    let scale = scale / (dot(x, x) + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}
