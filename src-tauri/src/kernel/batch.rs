//! The parts of a request, turned round: from rows that name experts to experts that name rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::experts::{Expert, ExpertSource, KernelError};
use crate::types::GateWeight;
use crate::wire::work::{
    Activations, Assignment, Dispatch, PartialValues, Partials, RowStatus, SUPER_BLOCK_BYTES, super_blocks,
};

/// A row of the batch.
pub(super) struct BatchRow<'a> {
    /// Its super-blocks.
    pub wire: &'a [u8],
    /// Its sums are integers times 2^grid.
    pub grid: i8,
}

/// One assignment, seen from its expert.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Index of the row in the batch.
    pub row: usize,
    /// Gate weight.
    pub gate: GateWeight,
}

/// An expert and the rows that need it; `E` is what a kernel reads of an expert.
pub(super) struct Group<E> {
    /// The expert's matrices.
    pub expert: E,
    /// Ascending rows.
    pub slots: Vec<Slot>,
}

/// All exact rows of a request.
///
/// **Invariant:** every expert reads rows of `hidden` elements; every row has ⌈hidden / 256⌉ super-blocks.
pub(super) struct ExactBatch<'a, E> {
    /// Elements of a row.
    pub hidden: usize,
    /// Rows of all parts, one part after the other.
    pub rows: Vec<BatchRow<'a>>,
    /// Ascending expert id.
    pub groups: Vec<Group<E>>,
}

impl<'a, E> ExactBatch<'a, E> {
    /// Groups the rows of `parts` by expert; `read` gives what the kernel reads of an exact expert.
    pub fn new(
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &'a [Dispatch],
        read: impl Fn(u16, &Expert) -> Result<E, KernelError>,
    ) -> Result<Self, KernelError> {
        let hidden = parts.first().map_or(0, |p| p.hidden);
        let mut rows = Vec::new();
        let mut slots = BTreeMap::<u16, Vec<Slot>>::new();
        for part in parts {
            expect("hidden", hidden, part.hidden)?;
            let Activations::Exact(wire) = &part.activations else { return Err(mixed_forms(part, "exact", "float")) };
            let row_bytes = super_blocks(hidden) * SUPER_BLOCK_BYTES;
            expect("bytes of the rows", part.rows.len() * row_bytes, wire.len())?;
            for (r, head) in part.rows.iter().enumerate() {
                for assignment in own_assignments(part, r)? {
                    let slot = Slot { row: rows.len(), gate: assignment.gate };
                    slots.entry(assignment.expert).or_default().push(slot);
                }
                rows.push(BatchRow { wire: &wire[r * row_bytes..(r + 1) * row_bytes], grid: head.grid });
            }
        }
        let group = |(id, slots)| {
            let expert = find(experts, layer, id, hidden)?;
            if !expert.is_exact() {
                return Err(match expert.is_float() {
                    true => KernelError::Form { expert: id, expected: "float", got: "exact" },
                    false => KernelError::LocalOnly { expert: id, types: expert.types() },
                });
            }
            Ok(Group { expert: read(id, &expert)?, slots })
        };
        Ok(Self { hidden, rows, groups: slots.into_iter().map(group).collect::<Result<_, _>>()? })
    }
}

/// The assignments of row `r` of `part`.
pub(super) fn own_assignments(part: &Dispatch, r: usize) -> Result<&[Assignment], KernelError> {
    let (first, count) = (part.rows[r].first as usize, usize::from(part.rows[r].count));
    let end = first.saturating_add(count);
    part.assignments.get(first..end).ok_or(KernelError::Request {
        what: "assignments of the row table",
        expected: part.assignments.len(),
        got: end,
    })
}

/// An expert that reads rows of `hidden` elements.
pub(super) fn find(experts: &dyn ExpertSource, layer: u16, id: u16, hidden: usize) -> Result<Arc<Expert>, KernelError> {
    let expert = experts.expert(layer, id).ok_or(KernelError::NoExpert { layer, expert: id })?;
    expect("hidden", expert.hidden(), hidden)?;
    Ok(expert)
}

/// The error for a request whose parts do not share one form.
pub(super) fn mixed_forms(part: &Dispatch, expected: &'static str, got: &'static str) -> KernelError {
    KernelError::Form { expert: part.assignments.first().map_or(0, |a| a.expert), expected, got }
}

/// Refuses a number that contradicts the others.
pub(super) fn expect(what: &'static str, expected: usize, got: usize) -> Result<(), KernelError> {
    if expected == got { Ok(()) } else { Err(KernelError::Request { what, expected, got }) }
}

/// Cuts the batch's sums (`rows × hidden`) back into parts; rows without [`RowStatus::Ok`] become zeros.
pub(super) fn into_parts(parts: &[Dispatch], status: &[RowStatus], mut sums: Vec<i32>, hidden: usize) -> Vec<Partials> {
    for (sums, status) in sums.chunks_exact_mut(hidden.max(1)).zip(status) {
        if *status != RowStatus::Ok {
            sums.fill(0);
        }
    }
    if let [_] = parts {
        return vec![Partials { status: status.to_vec(), values: PartialValues::Exact(sums) }];
    }
    let mut first = 0;
    let part = |part: &Dispatch| {
        let rows = first..first + part.rows.len();
        first = rows.end;
        Partials {
            status: status[rows.clone()].to_vec(),
            values: PartialValues::Exact(sums[rows.start * hidden..rows.end * hidden].to_vec()),
        }
    };
    parts.iter().map(part).collect()
}
