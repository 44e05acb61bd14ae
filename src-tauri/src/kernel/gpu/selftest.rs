//! Whether this adapter's kernels return the bytes of the numerics: known work through the pipelines in use.
//!
//! Integer arithmetic is fully specified, compilers are not free of faults. A worker whose kernels were wrong would
//! have its work refused and not know why, so that every pipeline answers known work before it answers requests.

use std::sync::Arc;

use super::compose::{TileRows, Weights};
use super::kernel::Open;
use super::layout::ClassKey;
use super::store::Store;
use super::vectors;
use crate::kernel::experts::{Expert, ExpertSource, KernelError};

/// Experts in a memory of their own, beside the slice.
pub(super) struct Held {
    experts: Vec<Arc<Expert>>,
    _store: Store,
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
        Ok(Self { experts, _store: store })
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

/// The known work of one exact type, on a device.
pub(super) struct SelfTest<'a> {
    open: &'a Open,
    weights: Weights,
    held: Held,
}

impl<'a> SelfTest<'a> {
    /// Places the experts of type `weights`.
    ///
    /// # Errors
    /// The type is not exact, there is no room, or the device is lost.
    pub fn new(open: &'a Open, weights: Weights) -> Result<Self, KernelError> {
        let [hidden, intermediate] = vectors::sizes(weights);
        let key = ClassKey { outer: weights, inner: weights, hidden, intermediate };
        let held = Held::place(open, key, &vectors::experts(weights)?, 1)?;
        Ok(Self { open, weights, held })
    }

    /// Runs the known work for `tile` through the kernels that are chosen now.
    ///
    /// # Errors
    /// They are not fit for use.
    pub fn check(&self, tile: TileRows) -> Result<(), Fault> {
        let request = vectors::request(self.weights, tile);
        let replies = self.open.compute(&self.held, 0, &[request], false);
        let replies = match (replies, self.open.device.lost()) {
            (_, Some(lost)) => return Err(Fault::Device(lost)),
            (Ok((replies, _)), None) => replies,
            (Err(full @ KernelError::Full { .. }), None) => return Err(Fault::Device(full)),
            (Err(error), None) => return Err(Fault::Wrong(error.to_string())),
        };
        let got = replies.first().map(vectors::digest).unwrap_or_default();
        match vectors::expected(self.weights, tile) {
            Some(expected) if expected != got => Err(Fault::Wrong(format!("expected digest {expected}, got {got}"))),
            _ => Ok(()),
        }
    }
}
