//! The float form of a request: f32 rows, unweighted outputs per assignment, for experts stored as floats.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::{expect, find, mixed_forms, own_assignments};
use super::experts::{Expert, ExpertSource, KernelError};
use crate::wire::work::{Activations, Dispatch, PartialValues, Partials, RowStatus};

/// One assignment: its row and where its output goes.
struct Slot<'a> {
    part: usize,
    row: usize,
    assignment: usize,
    x: &'a [f32],
}

/// The rows that need one expert.
pub(super) struct FloatGroup {
    pub id: u16,
    pub expert: Arc<Expert>,
    /// `n × hidden`.
    pub x: Vec<f32>,
}

/// Answers `parts` as one batch. A row whose outputs are not all finite is poison.
///
/// # Errors
/// An expert that is not held or not stored as floats, or a request that contradicts itself.
pub(super) fn compute(
    experts: &dyn ExpertSource,
    layer: u16,
    parts: &[Dispatch],
) -> Result<Vec<Partials>, KernelError> {
    compute_with(experts, layer, parts, |groups| {
        let forward = |group: &FloatGroup| {
            let not_placed = || KernelError::NotPlaced { expert: group.id, device: "the CPU".to_owned() };
            let mut out = vec![0.0; group.x.len()];
            group.expert.float().ok_or_else(not_placed)?.forward(&group.x, &mut out);
            Ok(out)
        };
        groups.iter().map(forward).collect()
    })
}

/// The same with a kernel's own `forward`: for each group its outputs, `n × hidden`.
///
/// # Errors
/// As [`compute`], and those of `forward`.
pub(super) fn compute_with(
    experts: &dyn ExpertSource,
    layer: u16,
    parts: &[Dispatch],
    forward: impl FnOnce(&[FloatGroup]) -> Result<Vec<Vec<f32>>, KernelError>,
) -> Result<Vec<Partials>, KernelError> {
    let hidden = parts.first().map_or(0, |p| p.hidden);
    let mut outputs: Vec<_> = parts.iter().map(|p| vec![0f32; p.assignments.len() * hidden]).collect();
    let mut status: Vec<_> = parts.iter().map(|p| vec![RowStatus::Ok; p.rows.len()]).collect();
    let slots = group(parts, hidden)?;
    let groups = slots.iter().map(|(id, slots)| {
        let expert = find(experts, layer, *id, hidden)?;
        if !expert.is_float() {
            return Err(no_float_form(*id, &expert));
        }
        Ok(FloatGroup { id: *id, expert, x: slots.iter().flat_map(|slot| slot.x).copied().collect() })
    });
    let computed = forward(&groups.collect::<Result<Vec<_>, _>>()?)?;
    for (slots, out) in slots.values().zip(computed) {
        for (slot, out) in slots.iter().zip(out.chunks_exact(hidden.max(1))) {
            outputs[slot.part][slot.assignment * hidden..][..hidden].copy_from_slice(out);
            if !out.iter().all(|v| v.is_finite()) {
                status[slot.part][slot.row] = RowStatus::Poison;
            }
        }
    }
    let replies = parts.iter().zip(outputs).zip(status);
    Ok(replies.map(|((part, outputs), status)| reply(part, outputs, status, hidden)).collect())
}

fn group(parts: &[Dispatch], hidden: usize) -> Result<BTreeMap<u16, Vec<Slot<'_>>>, KernelError> {
    let mut groups = BTreeMap::<u16, Vec<Slot<'_>>>::new();
    for (p, part) in parts.iter().enumerate() {
        expect("hidden", hidden, part.hidden)?;
        let Activations::Float(values) = &part.activations else { return Err(mixed_forms(part, "float", "exact")) };
        expect("elements of the rows", part.rows.len() * hidden, values.len())?;
        for row in 0..part.rows.len() {
            let first = part.rows[row].first as usize;
            for (i, assignment) in own_assignments(part, row)?.iter().enumerate() {
                let slot = Slot { part: p, row, assignment: first + i, x: &values[row * hidden..(row + 1) * hidden] };
                groups.entry(assignment.expert).or_default().push(slot);
            }
        }
    }
    Ok(groups)
}

fn no_float_form(id: u16, expert: &Expert) -> KernelError {
    if expert.is_exact() {
        KernelError::Form { expert: id, expected: "exact", got: "float" }
    } else {
        KernelError::LocalOnly { expert: id, types: expert.types() }
    }
}

fn reply(part: &Dispatch, mut outputs: Vec<f32>, status: Vec<RowStatus>, hidden: usize) -> Partials {
    for (head, status) in part.rows.iter().zip(&status) {
        if *status != RowStatus::Ok {
            outputs[head.first as usize * hidden..][..usize::from(head.count) * hidden].fill(0.0);
        }
    }
    Partials { status, values: PartialValues::Float(outputs) }
}
