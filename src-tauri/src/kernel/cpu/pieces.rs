//! A wave of experts cut into pieces for the threads.
//!
//! Gate and up are cut by (expert, weight rows), down by output columns over all experts, so that every number has
//! one owner and nothing is locked.

use std::ops::Range;

use super::engine::{Dots, Engine, ROWS_PER_PASS};
use super::kernel::{CpuBatch, CpuGroup};
use crate::kernel::batch::Slot;
use crate::kernel::crew::Crew;
use crate::kernel::numerics::ExactMatrix;
use crate::model::BlockType;

/// Weight rows of a piece: small enough to share out, large enough to stream.
const PIECE_ROWS: usize = 64;
/// Room for the dots of one pass over a piece.
type PassDots = [i32; ROWS_PER_PASS * PIECE_ROWS];

/// `0..len` in ranges of up to [`PIECE_ROWS`].
fn ranges(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(PIECE_ROWS).map(move |start| start..(start + PIECE_ROWS).min(len))
}

/// The batch's rows, prepared for each weight type that reads them.
pub(super) struct Inputs<R> {
    by_type: Vec<(BlockType, Vec<Option<R>>)>,
}

impl<R: Send + Sync> Inputs<R> {
    pub fn new<E: Engine<Row = R>>(engine: E, crew: Crew, batch: &CpuBatch<'_>) -> Self {
        let mut types: Vec<BlockType> =
            batch.groups.iter().flat_map(|g| [g.expert.gate.ty(), g.expert.up.ty()]).collect();
        types.sort_unstable();
        types.dedup();
        let prepare = |ty| {
            let mut rows: Vec<_> = batch.rows.iter().map(|row| (row.wire, None)).collect();
            // Preparing an element costs about as much as four multiplications.
            let size = 4 * batch.rows.len() * batch.hidden;
            crew.each(size, &mut rows, || (), |(), (wire, row)| *row = Some(engine.row(ty, wire)));
            (ty, rows.into_iter().map(|(_, row)| row).collect())
        };
        Self { by_type: types.into_iter().map(prepare).collect() }
    }

    /// The rows of `slots` for weights of type `ty`.
    fn of<'a>(&'a self, ty: BlockType, slots: &'a [Slot]) -> impl Iterator<Item = &'a R> {
        let rows = self.by_type.iter().find(|(t, _)| *t == ty).map_or(&[][..], |(_, rows)| rows);
        slots.iter().filter_map(|slot| rows[slot.row].as_ref())
    }
}

/// `silu(gate x) · (up x)` of every assignment of a wave.
///
/// Groups stand one after the other; within a group range after range of weight rows; within a range slot after slot.
pub(super) struct Inner<'a> {
    wave: &'a [CpuGroup],
    values: Vec<f32>,
}

impl<'a> Inner<'a> {
    pub fn new<E: Engine>(engine: E, crew: Crew, wave: &'a [CpuGroup], inputs: &Inputs<E::Row>) -> Self {
        let mut values = vec![0f32; wave.iter().map(|g| g.slots.len() * g.expert.gate.rows()).sum()];
        let mut rest = values.as_mut_slice();
        let mut pieces = Vec::new();
        let mut size = 0;
        for group in wave {
            size += group.slots.len() * 2 * group.expert.gate.rows() * group.expert.gate.cols();
            for rows in ranges(group.expert.gate.rows()) {
                let (own, later) = rest.split_at_mut(group.slots.len() * rows.len());
                pieces.push((group, rows, own));
                rest = later;
            }
        }
        let room = || ([0; ROWS_PER_PASS * PIECE_ROWS], [0; ROWS_PER_PASS * PIECE_ROWS]);
        crew.each(size, &mut pieces, room, |(gate, up): &mut (PassDots, PassDots), (group, rows, out)| {
            let n = rows.len();
            for (slots, out) in group.slots.chunks(ROWS_PER_PASS).zip(out.chunks_mut(ROWS_PER_PASS * n)) {
                let gate_base = pass(engine, &group.expert.gate, rows, inputs.of(group.expert.gate.ty(), slots), gate);
                let up_base = pass(engine, &group.expert.up, rows, inputs.of(group.expert.up.ty(), slots), up);
                for (i, out) in out.chunks_mut(n).enumerate() {
                    let gate = dots(&group.expert.gate, rows, &gate[i * n..(i + 1) * n], gate_base[i]);
                    let up = dots(&group.expert.up, rows, &up[i * n..(i + 1) * n], up_base[i]);
                    engine.swiglu(gate, up, out);
                }
            }
        });
        Self { wave, values }
    }

    /// The inner rows, quantised and prepared for down; `None` and a call of `poison` where that is impossible.
    pub fn quantise<E: Engine>(self, engine: E, crew: Crew, poison: impl Fn(&Slot) + Sync) -> Vec<Option<E::Row>> {
        let mut rest = self.values.as_slice();
        let mut pieces = Vec::new();
        for group in self.wave {
            let (own, later) = rest.split_at(group.slots.len() * group.expert.gate.rows());
            pieces.extend((0..group.slots.len()).map(|slot| (group, own, slot, None)));
            rest = later;
        }
        let scratch = || (Vec::new(), Vec::new());
        crew.each(4 * self.values.len(), &mut pieces, scratch, |(h, wire), (group, values, slot, row)| {
            h.clear();
            wire.clear();
            for rows in ranges(group.expert.gate.rows()) {
                let start = rows.start * group.slots.len() + *slot * rows.len();
                h.extend_from_slice(&values[start..start + rows.len()]);
            }
            match engine.quantise(h, wire) {
                Ok(()) => *row = Some(engine.row(group.expert.down.ty(), wire)),
                Err(_) => poison(&group.slots[*slot]),
            }
        });
        pieces.into_iter().map(|(_, _, _, row)| row).collect()
    }
}

/// The batch's sums: range after range of columns; within a range row after row.
pub(super) struct Columns {
    sums: Vec<i32>,
    rows: usize,
    hidden: usize,
}

impl Columns {
    pub fn new(batch: &CpuBatch<'_>) -> Self {
        Self { sums: vec![0; batch.rows.len() * batch.hidden], rows: batch.rows.len(), hidden: batch.hidden }
    }

    /// Adds the wave's weighted outputs; `inner` = one row per assignment of the wave, `range` is called for the
    /// assignments that do not fit their row's grid.
    pub fn add_down<E: Engine>(
        &mut self,
        engine: E,
        crew: Crew,
        batch: &CpuBatch<'_>,
        wave: &[CpuGroup],
        inner: &[Option<E::Row>],
        range: impl Fn(&Slot) + Sync,
    ) {
        let mut rest = self.sums.as_mut_slice();
        let mut pieces = Vec::new();
        for columns in ranges(self.hidden) {
            let (own, later) = rest.split_at_mut(self.rows * columns.len());
            pieces.push((columns, own));
            rest = later;
        }
        let size = wave.iter().map(|g| g.slots.len() * g.expert.down.rows() * g.expert.down.cols()).sum();
        crew.each(
            size,
            &mut pieces,
            || [0; ROWS_PER_PASS * PIECE_ROWS],
            |room: &mut PassDots, (columns, sums)| {
                let n = columns.len();
                let mut rest = inner;
                for group in wave {
                    let (own, later) = rest.split_at(group.slots.len());
                    rest = later;
                    for (slots, inner) in group.slots.chunks(ROWS_PER_PASS).zip(own.chunks(ROWS_PER_PASS)) {
                        let down = &group.expert.down;
                        let bases = pass(engine, down, columns, inner.iter().flatten(), room);
                        let present = slots.iter().zip(inner).filter(|(_, row)| row.is_some()).map(|(slot, _)| slot);
                        for (i, slot) in present.enumerate() {
                            let dots = dots(down, columns, &room[i * n..(i + 1) * n], bases[i]);
                            let sums = &mut sums[slot.row * n..(slot.row + 1) * n];
                            if engine.add_outputs(dots, slot.gate, batch.rows[slot.row].grid, sums).is_err() {
                                range(slot);
                            }
                        }
                    }
                }
            },
        );
    }

    /// `rows × hidden`.
    pub fn into_rows(self) -> Vec<i32> {
        if self.rows <= 1 {
            return self.sums;
        }
        let mut out = vec![0; self.sums.len()];
        let mut rest = self.sums.as_slice();
        for columns in ranges(self.hidden) {
            let (own, later) = rest.split_at(self.rows * columns.len());
            for (r, sums) in own.chunks_exact(columns.len()).enumerate() {
                out[r * self.hidden..][columns.clone()].copy_from_slice(sums);
            }
            rest = later;
        }
        out
    }
}

/// One pass over weight rows for up to [`ROWS_PER_PASS`] quantised rows; returns the base of each row's dots.
fn pass<'a, E: Engine>(
    engine: E,
    weights: &ExactMatrix,
    rows: &Range<usize>,
    mut xs: impl Iterator<Item = &'a E::Row>,
    out: &mut PassDots,
) -> [i32; ROWS_PER_PASS]
where
    E::Row: 'a,
{
    let mut bases = [0; ROWS_PER_PASS];
    let Some(first) = xs.next() else { return bases };
    let mut own = [first; ROWS_PER_PASS];
    let mut n = 1;
    for (place, x) in own[1..].iter_mut().zip(xs) {
        *place = x;
        n += 1;
    }
    for (base, x) in bases.iter_mut().zip(&own[..n]) {
        *base = Dots::base(E::top(x), weights.ty());
    }
    engine.dots(weights, rows.clone(), &own[..n], &mut out[..n * rows.len()]);
    bases
}

/// The dots of one quantised row.
fn dots<'a>(weights: &'a ExactMatrix, rows: &Range<usize>, values: &'a [i32], base: i32) -> Dots<'a> {
    Dots { values, exponents: &weights.exponents()[rows.clone()], base }
}
