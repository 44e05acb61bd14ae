//! Outputs `[rows, width]` cut into bands of columns, so that each thread owns the columns whose weights it reads.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Some columns of every row, owned by whoever holds the band.
///
/// **Invariant:** no two bands of one matrix share a column.
pub(super) struct Band<'a> {
    first: NonNull<f32>,
    width: usize,
    rows: usize,
    columns: Range<usize>,
    _values: PhantomData<&'a mut [f32]>,
}

#[expect(unsafe_code, reason = "a part of a borrowed slice crosses threads")]
// SAFETY: a band is an exclusive borrow of floats that nobody else has.
unsafe impl Send for Band<'_> {}

impl Band<'_> {
    /// Which columns.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The band's part of row `r`.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.rows, "expected one of {} rows, got {r}", self.rows);
        #[expect(unsafe_code, reason = "a part of a borrowed slice")]
        // SAFETY: row r lies inside the slice that the bands borrow, and these columns of it are this band's alone.
        unsafe {
            let start = self.first.add(r * self.width + self.columns.start);
            std::slice::from_raw_parts_mut(start.as_ptr(), self.columns.len())
        }
    }
}

/// The bands of one matrix, of up to `each` columns.
pub(super) struct Bands<'a> {
    whole: Band<'a>,
    each: usize,
}

#[expect(unsafe_code, reason = "a part of a borrowed slice crosses threads")]
// SAFETY: as for a band.
unsafe impl Send for Bands<'_> {}

/// Cuts `values`, whole rows of `width`.
pub(super) fn bands(values: &mut [f32], width: usize, each: usize) -> Bands<'_> {
    let rows = values.len().checked_div(width).unwrap_or(0);
    let columns = if rows == 0 { 0..0 } else { 0..width };
    let first = NonNull::from(values).cast();
    Bands { whole: Band { first, width, rows, columns, _values: PhantomData }, each: each.max(1) }
}

impl<'a> Iterator for Bands<'a> {
    type Item = Band<'a>;

    fn next(&mut self) -> Option<Band<'a>> {
        let Range { start, end } = self.whole.columns;
        if start == end {
            return None;
        }
        let cut = (start + self.each).min(end);
        self.whole.columns.start = cut;
        Some(Band { columns: start..cut, ..self.whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_cover_every_value_once() {
        let mut values = vec![0.0; 3 * 10];
        for mut band in bands(&mut values, 10, 4).collect::<Vec<_>>() {
            for r in 0..3 {
                let columns = band.columns();
                band.row_mut(r).iter_mut().zip(columns).for_each(|(v, c)| *v += (10 * r + c) as f32 + 1.0);
            }
        }
        assert!(values.iter().enumerate().all(|(i, v)| *v == i as f32 + 1.0));
        assert_eq!((bands(&mut [], 10, 4).count(), bands(&mut [], 0, 4).count()), (0, 0));
    }
}
