//! A MoE step while it is being computed: what to ask of whom, and the sums that come back.
//!
//! Before: the router's choice for every row ([`MoeStep`]). After: one [`RowSum`] per row. Local and remote dispatch
//! share this, so a row's bits cannot depend on who computed what.
//!
//! A step goes in rounds: ask every open row's experts of their holders ([`OpenStep::parts`]), add what they answer
//! ([`OpenStep::add`]), close the round. A row that left its grid is asked again, all of it, on a coarser one; a row
//! that the integers cannot hold ends in the f32 path here.
//!
//! **Invariant:** integers only add, so the sums are the same for any arrival order and any split over holders.

mod form;

pub use form::{Form, Shape};

use super::experts::ModelExperts;
use super::{DispatchError, MoeStep, Route, RowSum};
use crate::kernel::float::weighted_rows;
use crate::kernel::numerics;
use crate::types::{GateWeight, GenerationId};
use crate::wire::work::{
    Activations, Assignment, Dispatch, PartialValues, Partials, RowHead, RowStatus, float_rows_per_part, rows_per_part,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// How often a row may ask for a coarser grid.
const RETRIES_MAX: u8 = 3;
/// Powers of two by which a retry's grid is coarser.
const RETRY_STEP: i8 = 8;
/// A weighted output of one expert is smaller than this, or its row is out of range.
const OUTPUT_BITS: u32 = 27;

/// Some rows of a step and the experts that one holder computes for them.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// Per row of the request: its index in the step.
    pub rows: Vec<usize>,
    /// The request; lease and deadline are 0 until the sender fills them in.
    pub dispatch: Dispatch,
}

/// Partials that do not answer what was asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected {expected} {what}, got {got}")]
pub struct PartialsError {
    what: &'static str,
    expected: usize,
    got: usize,
}

/// A step between its first request and its last sum.
#[derive(Debug)]
pub struct OpenStep {
    layer: u16,
    width: usize,
    hidden: Vec<f32>,
    form: Form,
    rows: Vec<Row>,
    generations: Vec<GenerationId>,
    trusted_only: bool,
}

#[derive(Debug)]
struct Row {
    /// Ascending expert id, weights that count.
    routes: Vec<Route>,
    gates: Vec<GateWeight>,
    /// Super-blocks of the row; empty unless exact.
    quantised: Bytes,
    grid: i8,
    retries: u8,
    /// The worst that a holder said in this round.
    status: RowStatus,
    state: State,
    /// Exact form: the round's sum.
    sum: Vec<i32>,
    /// Float form: `routes × width`, unweighted.
    outputs: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Summed,
    Here,
}

impl OpenStep {
    /// Quantises the step's rows and encodes its gate weights; assignments whose weight is too small to count are
    /// dropped here, before anybody is asked.
    ///
    /// # Errors
    /// A weight that is NaN, infinite or negative, or an expert that the layer does not have.
    pub fn prepare(step: MoeStep, form: Form, experts: &ModelExperts) -> Result<Self, DispatchError> {
        let width = step.hidden.len().checked_div(step.rows).unwrap_or(0);
        let per_row = step.routes.len().checked_div(step.rows).unwrap_or(0);
        let mut rows = Vec::with_capacity(step.rows);
        for r in 0..step.rows {
            let chosen = &step.routes[r * per_row..(r + 1) * per_row];
            let (routes, gates) = weights_that_count(step.layer, r, chosen, experts.count(step.layer))?;
            let mut row = Row {
                routes,
                gates,
                quantised: Bytes::new(),
                grid: numerics::grid(step.rms[r]),
                retries: 0,
                status: RowStatus::Ok,
                state: State::Open,
                sum: Vec::new(),
                outputs: Vec::new(),
            };
            match form {
                Form::Here => row.state = State::Here,
                Form::Float => row.outputs = vec![0.0; row.routes.len() * width],
                Form::Exact => {
                    let mut bytes = Vec::new();
                    match numerics::quantise_row(&step.hidden[r * width..(r + 1) * width], &mut bytes) {
                        Ok(()) => (row.quantised, row.sum) = (bytes.into(), vec![0; width]),
                        Err(_poison) => row.state = State::Here,
                    }
                }
            }
            rows.push(row);
        }
        let (layer, hidden, generations, trusted_only) = (step.layer, step.hidden, step.generations, step.trusted_only);
        Ok(Self { layer, width, hidden, form, rows, generations, trusted_only })
    }

    /// The layer.
    #[must_use]
    pub fn layer(&self) -> u16 {
        self.layer
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Whether its experts are computed in integers, so that every holder gives the same bytes.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.form == Form::Exact
    }

    /// Whether only workers of trusted wallets may be asked.
    #[must_use]
    pub fn is_for_trusted(&self) -> bool {
        self.trusted_only
    }

    /// The generations of some rows, each once.
    #[must_use]
    pub fn generations(&self, rows: &[usize]) -> BTreeSet<GenerationId> {
        rows.iter().filter_map(|row| self.generations.get(*row)).copied().collect()
    }

    /// Whether a row still waits for a round.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.rows.iter().any(|row| row.state == State::Open)
    }

    /// The rows that this round asks for.
    #[must_use]
    pub fn open_rows(&self) -> Vec<usize> {
        let open = self.rows.iter().enumerate().filter(|(_, row)| row.state == State::Open);
        open.map(|(r, _)| r).collect()
    }

    /// The assignments of some rows: per expert that `counts`, its rows.
    pub fn by_expert(&self, rows: &[usize], counts: impl Fn(u16) -> bool) -> BTreeMap<u16, Vec<usize>> {
        let mut by_expert = BTreeMap::<u16, Vec<usize>>::new();
        for r in rows {
            for route in self.rows[*r].routes.iter().filter(|route| counts(route.expert)) {
                by_expert.entry(route.expert).or_default().push(*r);
            }
        }
        by_expert
    }

    /// What its requests and their answers look like.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape { hidden: self.width, exact: self.form == Form::Exact }
    }

    /// The requests of this round to a holder of the experts that `holds` names, each within the frame bound.
    #[must_use]
    pub fn parts(&self, holds: impl Fn(u16) -> bool) -> Vec<Part> {
        self.parts_of(&self.open_rows(), holds)
    }

    /// The same for some of the round's rows only.
    #[must_use]
    pub fn parts_of(&self, rows: &[usize], holds: impl Fn(u16) -> bool) -> Vec<Part> {
        let per_row = self.rows.iter().map(|row| row.routes.len()).max().unwrap_or(0).max(1);
        let rows_max = match self.form {
            Form::Float => float_rows_per_part(self.width, per_row).max(1),
            _ => rows_per_part(self.width),
        };
        let is_asked = |r: &usize| self.rows[*r].routes.iter().any(|route| holds(route.expert));
        let asked: Vec<usize> = rows.iter().copied().filter(is_asked).collect();
        asked.chunks(rows_max).map(|rows| self.part(rows, &holds)).collect()
    }

    fn part(&self, rows: &[usize], holds: impl Fn(u16) -> bool) -> Part {
        let mut heads = Vec::with_capacity(rows.len());
        let mut assignments = Vec::new();
        for row in rows.iter().map(|r| &self.rows[*r]) {
            let first = assignments.len();
            let pairs = row.routes.iter().zip(&row.gates).filter(|(route, _)| holds(route.expert));
            assignments.extend(pairs.map(|(route, gate)| Assignment { expert: route.expert, gate: *gate }));
            heads.push(RowHead { grid: row.grid, count: (assignments.len() - first) as u16, first: first as u32 });
        }
        let activations = if self.form == Form::Float {
            assignments.iter_mut().for_each(|a| a.gate = GateWeight { mantissa: 0, exponent: 0 });
            Activations::Float(rows.iter().flat_map(|r| self.hidden_row(*r)).copied().collect())
        } else if let [row] = rows {
            Activations::Exact(self.rows[*row].quantised.clone())
        } else {
            Activations::Exact(rows.iter().flat_map(|r| &self.rows[*r].quantised).copied().collect())
        };
        let dispatch = Dispatch { lease: 0, deadline_ms: 0, hidden: self.width, rows: heads, activations, assignments };
        Part { rows: rows.to_vec(), dispatch }
    }

    fn hidden_row(&self, r: usize) -> &[f32] {
        &self.hidden[r * self.width..(r + 1) * self.width]
    }

    /// Whether `partials` can answer `part`.
    ///
    /// # Errors
    /// Another number of rows or values than asked for, another form, or a sum that no legal holder can return.
    pub fn check(&self, part: &Part, partials: &Partials) -> Result<(), PartialsError> {
        let Dispatch { rows: heads, assignments, .. } = &part.dispatch;
        let check = |what, expected, got| {
            if expected == got { Ok(()) } else { Err(PartialsError { what, expected, got }) }
        };
        check("rows", part.rows.len(), partials.status.len())?;
        match &partials.values {
            PartialValues::Exact(sums) => {
                check("exact values", if self.form == Form::Exact { heads.len() * self.width } else { 0 }, sums.len())?;
                for (head, sums) in heads.iter().zip(sums.chunks_exact(self.width)) {
                    let bound = u64::from(head.count) << OUTPUT_BITS;
                    let largest = sums.iter().map(|v| u64::from(v.unsigned_abs())).max().unwrap_or(0);
                    check("at most in a sum", bound as usize, bound.max(largest) as usize)?;
                }
            }
            PartialValues::Float(values) => {
                let expected = if self.form == Form::Float { assignments.len() * self.width } else { 0 };
                check("float values", expected, values.len())?;
            }
        }
        Ok(())
    }

    /// Adds the answer to `part`. Each part of a round must be added exactly once, by whoever computed it.
    ///
    /// # Errors
    /// As [`OpenStep::check`]; nothing was added then.
    pub fn add(&mut self, part: &Part, partials: &Partials) -> Result<(), PartialsError> {
        self.check(part, partials)?;
        let Dispatch { rows: heads, assignments, .. } = &part.dispatch;
        match &partials.values {
            PartialValues::Exact(sums) => {
                for ((r, status), sums) in part.rows.iter().zip(&partials.status).zip(sums.chunks_exact(self.width)) {
                    let row = &mut self.rows[*r];
                    row.status = worse(row.status, *status);
                    row.sum.iter_mut().zip(sums).for_each(|(sum, v)| *sum = sum.wrapping_add(*v));
                }
            }
            PartialValues::Float(values) => {
                for ((r, status), head) in part.rows.iter().zip(&partials.status).zip(heads) {
                    let row = &mut self.rows[*r];
                    row.status = worse(row.status, *status);
                    for i in head.first as usize..head.first as usize + head.count as usize {
                        let slot = row.routes.iter().position(|route| route.expert == assignments[i].expert);
                        let Some(slot) = slot else { continue };
                        row.outputs[slot * self.width..(slot + 1) * self.width]
                            .copy_from_slice(&values[i * self.width..(i + 1) * self.width]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the answers of one holder to all of `parts`.
    ///
    /// # Errors
    /// As [`OpenStep::add`], or another number of answers.
    pub fn add_all(&mut self, parts: &[Part], answers: &[Partials]) -> Result<(), PartialsError> {
        if parts.len() != answers.len() {
            return Err(PartialsError { what: "answers", expected: parts.len(), got: answers.len() });
        }
        parts.iter().zip(answers).try_for_each(|(part, partials)| self.add(part, partials))
    }

    /// Ends the round, once every part of it was added: rows are done, go again on a coarser grid, or end here in f32.
    pub fn close_round(&mut self) {
        for row in self.rows.iter_mut().filter(|row| row.state == State::Open) {
            row.state = match row.status {
                RowStatus::Ok => State::Summed,
                RowStatus::Range if self.form == Form::Exact && row.retries < RETRIES_MAX => {
                    row.retries += 1;
                    row.grid += RETRY_STEP;
                    row.sum.fill(0);
                    State::Open
                }
                RowStatus::Range | RowStatus::Poison => State::Here,
            };
            row.status = RowStatus::Ok;
        }
    }

    /// The sums, computing in f32 the rows that need it.
    ///
    /// # Errors
    /// An expert that `experts` does not have.
    pub fn finish(self, experts: &ModelExperts) -> Result<Vec<RowSum>, DispatchError> {
        let here = self.rows.iter().enumerate().filter(|(_, row)| row.state == State::Here);
        let here: Vec<(&[f32], &[Route])> = here.map(|(r, row)| (self.hidden_row(r), &row.routes[..])).collect();
        let mut here = experts.float_sums(self.layer, &here)?.into_iter();
        let sums = self.rows.into_iter().map(|row| match row.state {
            State::Here => RowSum::Float(here.next().unwrap_or_default()),
            _ if self.form == Form::Float => RowSum::Float(weigh(&row.routes, &row.outputs, self.width)),
            _ => RowSum::Exact { grid: row.grid, sum: row.sum },
        });
        Ok(sums.collect())
    }
}

/// `Σ weight · output` in ascending expert id, which is the order of `routes`.
pub(super) fn weigh(routes: &[Route], outputs: &[f32], width: usize) -> Vec<f32> {
    let weights: Vec<f32> = routes.iter().map(|route| route.weight).collect();
    let mut sum = vec![0.0; width];
    weighted_rows(&weights, outputs, &mut sum);
    sum
}

/// The worse of two statuses.
pub(super) fn worse(a: RowStatus, b: RowStatus) -> RowStatus {
    if a as u8 >= b as u8 { a } else { b }
}

fn weights_that_count(
    layer: u16,
    row: usize,
    chosen: &[Route],
    experts: usize,
) -> Result<(Vec<Route>, Vec<GateWeight>), DispatchError> {
    let mut kept = Vec::with_capacity(chosen.len());
    for route in chosen {
        let Route { expert, weight } = *route;
        if usize::from(expert) >= experts {
            return Err(DispatchError::NoExpert { layer, expert });
        }
        let gate = numerics::gate_weight(weight).map_err(|_illegal| DispatchError::GateWeight {
            layer,
            row,
            expert,
            weight,
        })?;
        kept.extend(gate.map(|gate| (*route, gate)));
    }
    kept.sort_by_key(|(route, _)| route.expert);
    Ok(kept.into_iter().unzip())
}

#[cfg(test)]
mod tests;
