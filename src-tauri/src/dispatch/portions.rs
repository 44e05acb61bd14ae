//! Cuts work that is computed here into portions that need few experts each, so that a prompt of many rows does not
//! bring a whole layer into memory at once.
//!
//! Sums over experts do not depend on how they are grouped, so the portions add up to the same bits.

use bytes::Bytes;
use std::collections::BTreeSet;

use super::exact::{Part, worse};
use crate::wire::work::{Activations, Dispatch, PartialValues, Partials, RowHead, RowStatus};

/// Requests as parts whose rows are numbered through all of them, for [`whole`].
pub(super) fn numbered(asked: &[Dispatch]) -> Vec<Part> {
    let mut next = 0;
    let part = |dispatch: &Dispatch| {
        let rows = next..next + dispatch.rows.len();
        next = rows.end;
        Part { rows: rows.collect(), dispatch: dispatch.clone() }
    };
    asked.iter().map(part).collect()
}

/// One answer to each of `asked`, put together from those to [`numbered`] parts, however these were cut.
pub(super) fn whole(asked: &[Dispatch], parts: &[Part], came: &[Partials]) -> Vec<Partials> {
    let rows = |(index, dispatch): (usize, &Dispatch)| (0..dispatch.rows.len()).map(move |row| (index, row));
    let places: Vec<(usize, usize)> = asked.iter().enumerate().flat_map(rows).collect();
    let mut answers: Vec<Partials> = asked.iter().map(nothing_yet).collect();
    for (part, came) in parts.iter().zip(came) {
        for (at, (index, row)) in part.rows.iter().map(|row| places[*row]).enumerate() {
            let (dispatch, answer) = (&asked[index], &mut answers[index]);
            answer.status[row] = worse(answer.status[row], came.status[at]);
            let width = dispatch.hidden;
            match (&mut answer.values, &came.values) {
                (PartialValues::Exact(sums), PartialValues::Exact(more)) => {
                    let more = &more[at * width..(at + 1) * width];
                    let sums = &mut sums[row * width..(row + 1) * width];
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
                }
                (PartialValues::Float(outputs), PartialValues::Float(more)) => {
                    for (from, expert) in own(&part.dispatch, at) {
                        let Some((to, _)) = own(dispatch, row).find(|(_, wanted)| *wanted == expert) else { continue };
                        let (to, from) = (to * width, from * width);
                        outputs[to..to + width].copy_from_slice(&more[from..from + width]);
                    }
                }
                // Work and its answer have one form.
                _ => {}
            }
        }
    }
    for (dispatch, answer) in asked.iter().zip(&mut answers) {
        clear_failed(dispatch, answer);
    }
    answers
}

fn nothing_yet(dispatch: &Dispatch) -> Partials {
    let values = match &dispatch.activations {
        Activations::Exact(_) => PartialValues::Exact(vec![0; dispatch.rows.len() * dispatch.hidden]),
        Activations::Float(_) => PartialValues::Float(vec![0.0; dispatch.assignments.len() * dispatch.hidden]),
    };
    Partials { status: vec![RowStatus::Ok; dispatch.rows.len()], values }
}

/// The assignments of a row: their place in the request, and their expert.
fn own(dispatch: &Dispatch, row: usize) -> impl Iterator<Item = (usize, u16)> + '_ {
    let head = dispatch.rows[row];
    let first = head.first as usize;
    (first..first + usize::from(head.count)).map(|at| (at, dispatch.assignments[at].expert))
}

/// A row that failed carries zeros, also where some of its experts had an answer.
fn clear_failed(dispatch: &Dispatch, answer: &mut Partials) {
    let width = dispatch.hidden;
    for (row, _) in answer.status.iter().enumerate().filter(|(_, status)| **status != RowStatus::Ok) {
        match &mut answer.values {
            PartialValues::Exact(sums) => sums[row * width..(row + 1) * width].fill(0),
            PartialValues::Float(outputs) => {
                own(dispatch, row).for_each(|(at, _)| outputs[at * width..(at + 1) * width].fill(0.0));
            }
        }
    }
}

/// The same work as `parts`, in portions of at most `experts_max` experts each.
pub(super) fn portions(parts: Vec<Part>, experts_max: usize) -> Vec<Vec<Part>> {
    let assignments = parts.iter().flat_map(|part| &part.dispatch.assignments);
    let experts: Vec<u16> = assignments.map(|a| a.expert).collect::<BTreeSet<_>>().into_iter().collect();
    if experts.len() <= experts_max {
        return vec![parts];
    }
    let portion = |some: &[u16]| parts.iter().filter_map(|part| only(part, some)).collect();
    experts.chunks(experts_max).map(portion).collect()
}

/// The rows of a part that need any of `experts` (ascending), and those experts alone; `None` when no row does.
fn only(part: &Part, experts: &[u16]) -> Option<Part> {
    let Dispatch { lease, deadline_ms, hidden, rows, activations, assignments } = &part.dispatch;
    let (mut heads, mut kept, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for (at, head) in rows.iter().enumerate() {
        let first = kept.len();
        let own = assignments.iter().skip(head.first as usize).take(head.count.into());
        kept.extend(own.filter(|a| experts.binary_search(&a.expert).is_ok()).copied());
        if kept.len() > first {
            heads.push(RowHead { count: (kept.len() - first) as u16, first: first as u32, ..*head });
            taken.push(at);
        }
    }
    if taken.is_empty() {
        return None;
    }
    let activations = match activations {
        Activations::Exact(bytes) => {
            let width = bytes.len() / rows.len();
            let row = |at: &usize| &bytes[at * width..(at + 1) * width];
            Activations::Exact(Bytes::from(taken.iter().flat_map(row).copied().collect::<Vec<u8>>()))
        }
        Activations::Float(values) => {
            let row = |at: &usize| &values[at * hidden..(at + 1) * hidden];
            Activations::Float(taken.iter().flat_map(row).copied().collect())
        }
    };
    let (lease, deadline_ms, hidden) = (*lease, *deadline_ms, *hidden);
    let dispatch = Dispatch { lease, deadline_ms, hidden, rows: heads, activations, assignments: kept };
    Some(Part { rows: taken.iter().map(|at| part.rows[*at]).collect(), dispatch })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::exact::{Form, OpenStep};
    use crate::dispatch::{ModelExperts, MoeStep, Route};
    use crate::types::GenerationId;
    use std::sync::Arc;

    #[test]
    fn every_assignment_is_in_one_portion_with_its_row() {
        let model = Arc::new(crate::model::embedded().unwrap());
        let (width, rows) = (model.hyper.hidden_size, 5usize);
        let experts = ModelExperts::new(model);
        for form in [Form::Exact, Form::Float] {
            let step = MoeStep {
                layer: 0,
                rows,
                hidden: (0..rows * width).map(|i| (i / width) as f32 + 1.0).collect(),
                rms: vec![1.0; rows],
                routes: (0..3 * rows).map(|i| Route { expert: (i * 5 % 16) as u16, weight: 0.5 }).collect(),
                generations: vec![GenerationId(1); rows],
                trusted_only: false,
            };
            let whole = OpenStep::prepare(step, form, &experts).unwrap().parts(|_| true);
            let pairs = |parts: &[Part]| -> BTreeSet<(usize, u16)> {
                let of_row = |part: &Part, at: usize| {
                    let (row, head) = (part.rows[at], part.dispatch.rows[at]);
                    let own = head.first as usize..head.first as usize + usize::from(head.count);
                    part.dispatch.assignments[own].iter().map(|a| (row, a.expert)).collect::<Vec<_>>()
                };
                parts.iter().flat_map(|part| (0..part.rows.len()).flat_map(|at| of_row(part, at))).collect()
            };
            let cut = portions(whole.clone(), 4);
            let all: BTreeSet<(usize, u16)> = cut.iter().flat_map(|portion| pairs(portion)).collect();
            assert!(cut.len() > 1 && all == pairs(&whole));
            assert_eq!(cut.iter().map(|portion| pairs(portion).len()).sum::<usize>(), all.len(), "none twice");
            for part in cut.iter().flatten() {
                let row = |activations: &Activations, at: usize| match activations {
                    Activations::Exact(bytes) => {
                        bytes.chunks_exact(bytes.len() / part.rows.len()).nth(at).unwrap().to_vec()
                    }
                    Activations::Float(values) => {
                        values[at * width..][..1].iter().flat_map(|v| v.to_le_bytes()).collect()
                    }
                };
                for (at, whole_row) in part.rows.iter().enumerate() {
                    let alone = OpenRow { activations: &whole[0].dispatch.activations, rows, width, at: *whole_row };
                    assert_eq!(row(&part.dispatch.activations, at), alone.bytes());
                }
            }
            assert_eq!(portions(whole.clone(), 16), vec![whole]);
        }
    }

    struct OpenRow<'a> {
        activations: &'a Activations,
        rows: usize,
        width: usize,
        at: usize,
    }

    impl OpenRow<'_> {
        fn bytes(&self) -> Vec<u8> {
            match self.activations {
                Activations::Exact(bytes) => bytes.chunks_exact(bytes.len() / self.rows).nth(self.at).unwrap().to_vec(),
                Activations::Float(values) => values[self.at * self.width].to_le_bytes().to_vec(),
            }
        }
    }

    #[test]
    fn a_request_that_was_cut_is_answered_as_one_that_was_not() {
        let model = Arc::new(crate::model::embedded().unwrap());
        let (width, rows) = (model.hyper.hidden_size, 5usize);
        let experts = ModelExperts::new(model);
        let path = crate::kernel::CpuPath::detect().unwrap();
        let kernel = crate::kernel::CpuKernel::new(path, 1).unwrap();
        let step = MoeStep {
            layer: 0,
            rows,
            hidden: (0..rows * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect(),
            rms: vec![1.0; rows],
            routes: (0..3 * rows).map(|i| Route { expert: (i * 5 % 16) as u16, weight: 0.5 }).collect(),
            generations: vec![GenerationId(1); rows],
            trusted_only: false,
        };
        let open = OpenStep::prepare(step, Form::Exact, &experts).unwrap();
        let asked: Vec<Dispatch> = [|e: u16| e < 9, |e: u16| e >= 9]
            .into_iter()
            .flat_map(|holds| open.parts(holds))
            .map(|part| part.dispatch)
            .collect();
        let expected = crate::kernel::ExpertCompute::compute(&kernel, &experts, 0, &asked).unwrap();
        let (mut parts, mut came) = (Vec::new(), Vec::new());
        for portion in portions(numbered(&asked), 2) {
            let requests: Vec<Dispatch> = portion.iter().map(|part| part.dispatch.clone()).collect();
            came.extend(crate::kernel::ExpertCompute::compute(&kernel, &experts, 0, &requests).unwrap());
            parts.extend(portion);
        }
        assert!(parts.len() > asked.len(), "it was cut");
        assert_eq!(whole(&asked, &parts, &came), expected);
    }
}
