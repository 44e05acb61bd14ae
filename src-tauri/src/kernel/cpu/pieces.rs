//! A wave of experts cut into pieces for the threads.
//!
//! Gate and up are cut by (expert, weight rows), down by output columns over all experts, so that every number has
//! one owner and nothing is locked.

use std::ops::Range;

use super::engine::{Dots, Engine, Pass, ROWS_PER_PASS, piece_rows};
use super::kernel::{CpuBatch, CpuGroup};
use crate::kernel::batch::Slot;
use crate::kernel::crew::Crew;
use crate::kernel::numerics::ExactMatrix;
use crate::model::BlockType;

/// `0..len` in ranges of up to `each`.
fn ranges(len: usize, each: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(each).map(move |start| start..(start + each).min(len))
}

/// Quantised rows that meet most of a wave's experts at once.
fn rows_at_once(wave: &[CpuGroup]) -> usize {
    wave.iter().map(|group| group.slots.len()).max().unwrap_or(0)
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
    /// Weight rows of a range.
    each: usize,
}

impl<'a> Inner<'a> {
    pub fn new<E: Engine>(engine: E, crew: Crew, wave: &'a [CpuGroup], inputs: &Inputs<E::Row>) -> Self {
        let mut values = vec![0f32; wave.iter().map(|g| g.slots.len() * g.expert.gate.rows()).sum()];
        let all_rows = wave.iter().map(|g| g.expert.gate.rows()).sum();
        let each = piece_rows(all_rows, rows_at_once(wave), crew.threads());
        let mut size = 0;
        let mut order = Vec::new();
        for group in wave {
            size += group.slots.len() * 2 * group.expert.gate.rows() * group.expert.gate.cols();
            order.extend(ranges(group.expert.gate.rows(), each).map(|rows| (group, rows)));
        }
        let mut rest = values.as_mut_slice();
        let pieces = order.iter().enumerate().map(|(i, (group, rows))| {
            let (own, later) = std::mem::take(&mut rest).split_at_mut(group.slots.len() * rows.len());
            rest = later;
            // The threads take turns, more or less.
            let next = order.get(i + crew.threads());
            (*group, rows, own, next.map_or(&[][..], |(group, rows)| group.expert.gate.some_rows(rows.clone())))
        });
        let room = || (Vec::new(), Vec::new());
        crew.each(size, pieces, room, |(gate, up), (group, rows, out, next)| {
            let (n, [first, second]) = (rows.len(), [&group.expert.gate, &group.expert.up]);
            let first_pass = Pass { weights: first, rows: rows.clone(), next: second.some_rows(rows.clone()) };
            let second_pass = Pass { weights: second, rows: rows.clone(), next };
            for (slots, out) in group.slots.chunks(ROWS_PER_PASS).zip(out.chunks_mut(ROWS_PER_PASS * n)) {
                let gate_base = meet(engine, &first_pass, inputs.of(first.ty(), slots), gate);
                let up_base = meet(engine, &second_pass, inputs.of(second.ty(), slots), up);
                for (i, out) in out.chunks_mut(n).enumerate() {
                    let gate = dots(first, rows, &gate[i * n..(i + 1) * n], gate_base[i]);
                    let up = dots(second, rows, &up[i * n..(i + 1) * n], up_base[i]);
                    engine.swiglu(gate, up, out);
                }
            }
        });
        Self { wave, values, each }
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
            for rows in ranges(group.expert.gate.rows(), self.each) {
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
    /// Columns of a range.
    each: usize,
}

impl Columns {
    pub fn new(crew: Crew, batch: &CpuBatch<'_>) -> Self {
        let (rows, hidden) = (batch.rows.len(), batch.hidden);
        let each = piece_rows(hidden, rows_at_once(&batch.groups), crew.threads());
        Self { sums: vec![0; rows * hidden], rows, hidden, each }
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
        let (rows, each) = (self.rows, self.each);
        let pieces = ranges(self.hidden, each).map(|columns| {
            let (own, later) = std::mem::take(&mut rest).split_at_mut(rows * columns.len());
            rest = later;
            (columns, own)
        });
        let size = wave.iter().map(|g| g.slots.len() * g.expert.down.rows() * g.expert.down.cols()).sum();
        crew.each(size, pieces, Vec::new, |room, (columns, sums)| {
            let n = columns.len();
            // The threads take turns, more or less.
            let turn = columns.start + crew.threads() * each;
            let after = wave.first().map_or(&[][..], |group| group.expert.down.some_rows(turn..turn + each));
            let mut rest = inner;
            for (g, group) in wave.iter().enumerate() {
                let (own, later) = rest.split_at(group.slots.len());
                rest = later;
                let down = &group.expert.down;
                let next = wave.get(g + 1).map_or(after, |group| group.expert.down.some_rows(columns.clone()));
                let pass = Pass { weights: down, rows: columns.clone(), next };
                for (slots, inner) in group.slots.chunks(ROWS_PER_PASS).zip(own.chunks(ROWS_PER_PASS)) {
                    let bases = meet(engine, &pass, inner.iter().flatten(), room);
                    let present = slots.iter().zip(inner).filter(|(_, row)| row.is_some()).map(|(slot, _)| slot);
                    for (i, slot) in present.enumerate() {
                        let dots = dots(down, &columns, &room[i * n..(i + 1) * n], bases[i]);
                        let sums = &mut sums[slot.row * n..(slot.row + 1) * n];
                        if engine.add_outputs(dots, slot.gate, batch.rows[slot.row].grid, sums).is_err() {
                            range(slot);
                        }
                    }
                }
            }
        });
    }

    /// `rows × hidden`.
    pub fn into_rows(self) -> Vec<i32> {
        if self.rows <= 1 {
            return self.sums;
        }
        let mut out = vec![0; self.sums.len()];
        let mut rest = self.sums.as_slice();
        for columns in ranges(self.hidden, self.each) {
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
fn meet<'a, E: Engine>(
    engine: E,
    pass: &Pass<'_>,
    mut xs: impl Iterator<Item = &'a E::Row>,
    out: &mut Vec<i32>,
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
        *base = Dots::base(E::top(x), pass.weights.ty());
    }
    out.resize(n * pass.rows.len(), 0);
    engine.dots(pass, &own[..n], out);
    bases
}

/// The dots of one quantised row.
fn dots<'a>(weights: &'a ExactMatrix, rows: &Range<usize>, values: &'a [i32], base: i32) -> Dots<'a> {
    Dots { values, exponents: &weights.exponents()[rows.clone()], base }
}
