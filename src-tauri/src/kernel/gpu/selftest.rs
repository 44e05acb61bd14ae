//! Whether this adapter's kernels return the bytes of the numerics: known work through the pipelines in use.
//!
//! Integer arithmetic is fully specified, compilers are not free of faults. A worker whose kernels were wrong would
//! have its work refused and not know why, so that every pipeline answers known work before it answers requests. Floats
//! are compared with the CPU's, within what rounding explains.

use std::sync::Arc;

use super::compose::{TileRows, Weights};
use super::kernel::Open;
use super::layout::ClassKey;
use super::store::Store;
use super::vectors;
use crate::kernel::experts::{Expert, ExpertSource, KernelError};
use crate::kernel::float_form;
use crate::wire::work::{PartialValues, Partials};

/// Part of the largest output by which outputs of floats may differ from the CPU's: more is no rounding.
const FLOAT_TOLERANCE: f32 = 1e-3;

/// Experts beside the slice.
pub(super) struct Held {
    experts: Vec<Arc<Expert>>,
    /// Their memory on the device.
    _store: Option<Store>,
}

impl Held {
    /// Places `experts`, all of class `key`, `copies` times.
    ///
    /// # Errors
    /// There is no room, or the device is lost.
    pub fn place(open: &Open, key: ClassKey, experts: &[Expert], copies: usize) -> Result<Self, KernelError> {
        let whole = (experts.len() * copies * key.expert_bytes()) as u64;
        let store = Store::new(Arc::clone(&open.device), Box::new(move |taken| whole.saturating_sub(taken)));
        let all = std::iter::repeat_n(experts, copies).flatten();
        let experts = all.map(|e| open.place_in(&store, e).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(Self { experts, _store: Some(store) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.experts.len()
    }
}

impl ExpertSource for Held {
    fn expert(&self, _layer: u16, expert: u16) -> Option<Arc<Expert>> {
        self.experts.get(usize::from(expert)).cloned()
    }
}

/// Why kernels cannot be used.
#[derive(Debug)]
pub(super) enum Fault {
    /// They do not compile, or return other bytes.
    Wrong(String),
    /// The device is lost, or has no room.
    Device(KernelError),
}

/// The known work of one type, on a device.
pub(super) struct SelfTest<'a> {
    open: &'a Open,
    weights: Weights,
    held: Held,
    /// The same experts in host memory.
    host: Held,
}

impl<'a> SelfTest<'a> {
    /// Places the experts of type `weights`.
    ///
    /// # Errors
    /// There is no room, or the device is lost.
    pub fn new(open: &'a Open, weights: Weights) -> Result<Self, KernelError> {
        let [hidden, intermediate] = vectors::sizes(weights);
        let key = ClassKey { outer: weights, inner: weights, hidden, intermediate };
        let experts = vectors::experts(weights)?;
        let held = Held::place(open, key, &experts, 1)?;
        let host = Held { experts: experts.into_iter().map(Arc::new).collect(), _store: None };
        Ok(Self { open, weights, held, host })
    }

    /// Runs the known work for `tile` through the kernels that are chosen now.
    ///
    /// # Errors
    /// They are not fit for use.
    pub fn check(&self, tile: TileRows) -> Result<(), Fault> {
        let request = [vectors::request(self.weights, tile)];
        let replies = self.open.compute(&self.held, 0, &request, false);
        let replies = match (replies, self.open.device.lost()) {
            (_, Some(lost)) => return Err(Fault::Device(lost)),
            (Ok((replies, _)), None) => replies,
            (Err(full @ KernelError::Full { .. }), None) => return Err(Fault::Device(full)),
            (Err(error), None) => return Err(Fault::Wrong(error.to_string())),
        };
        match vectors::expected(self.weights, tile) {
            Some(expected) => is_digest(&replies, expected),
            None => {
                let expected = float_form::compute(&self.host, 0, &request).map_err(Fault::Device)?;
                are_near(&replies, &expected)
            }
        }
    }
}

fn is_digest(replies: &[Partials], expected: &str) -> Result<(), Fault> {
    let got = replies.first().map(vectors::digest).unwrap_or_default();
    if got == expected { Ok(()) } else { Err(Fault::Wrong(format!("expected digest {expected}, got {got}"))) }
}

fn are_near(replies: &[Partials], expected: &[Partials]) -> Result<(), Fault> {
    let values = |replies: &[Partials]| match replies {
        [Partials { values: PartialValues::Float(values), .. }] => values.clone(),
        _ => Vec::new(),
    };
    let (got, expected) = (values(replies), values(expected));
    let largest = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
    // Written so that NaN is not near.
    let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= FLOAT_TOLERANCE * largest;
    if got.len() == expected.len() && got.iter().zip(&expected).all(is_near) {
        return Ok(());
    }
    Err(Fault::Wrong(format!("expected outputs within {FLOAT_TOLERANCE} of the CPU's, got others")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::work::RowStatus;

    fn floats(values: &[f32]) -> [Partials; 1] {
        [Partials { status: vec![RowStatus::Ok], values: PartialValues::Float(values.to_vec()) }]
    }

    #[test]
    fn floats_may_round_differently_and_be_neither_wrong_nor_nan_nor_missing() {
        let expected = floats(&[1.0, -8.0, 0.001]);
        assert!(are_near(&floats(&[1.001, -8.001, 0.0]), &expected).is_ok());
        for wrong in [&[1.0, -8.0, 0.1][..], &[f32::NAN, -8.0, 0.001], &[1.0, -8.0]] {
            assert!(matches!(are_near(&floats(wrong), &expected), Err(Fault::Wrong(_))), "{wrong:?}");
        }
    }
}
