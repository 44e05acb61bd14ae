//! The experts that were needed last, up to a number of bytes.

use crate::kernel::Expert;
use crate::types::ExpertId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module. **Invariant:** what it holds is never more than its bound.
pub(super) struct Shelf {
    bytes_max: u64,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    experts: HashMap<ExpertId, Kept>,
    /// Last use → expert.
    by_use: BTreeMap<u64, ExpertId>,
    uses: u64,
    bytes: u64,
}

struct Kept {
    expert: Arc<Expert>,
    bytes: u64,
    used: u64,
}

impl Shelf {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, content: Mutex::default() }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bound.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.content().bytes
    }

    pub fn get(&self, id: ExpertId) -> Option<Arc<Expert>> {
        let Content { experts, by_use, uses, .. } = &mut *self.content();
        let kept = experts.get_mut(&id)?;
        *uses += 1;
        by_use.remove(&std::mem::replace(&mut kept.used, *uses));
        by_use.insert(*uses, id);
        Some(Arc::clone(&kept.expert))
    }

    /// Keeps an expert of `bytes` bytes in place of those that were used longest ago; one that is larger than the
    /// bound is not kept.
    pub fn put(&self, id: ExpertId, expert: &Arc<Expert>, bytes: u64) {
        let mut content = self.content();
        if bytes > self.bytes_max || content.experts.contains_key(&id) {
            return;
        }
        while content.bytes + bytes > self.bytes_max {
            let Some((_, oldest)) = content.by_use.pop_first() else { return };
            if let Some(gone) = content.experts.remove(&oldest) {
                content.bytes -= gone.bytes;
            }
        }
        content.uses += 1;
        let used = content.uses;
        content.bytes += bytes;
        content.by_use.insert(used, id);
        content.experts.insert(id, Kept { expert: Arc::clone(expert), bytes, used });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first_and_the_bound_holds() {
        let model = crate::model::embedded().unwrap();
        let expert = Arc::new(Expert::new(&model.weights.layers[0].experts[0]).unwrap());
        let shelf = Shelf::new(30);
        let id = |expert| ExpertId { layer: 0, expert };
        for n in 0..3 {
            shelf.put(id(n), &expert, 10);
        }
        assert!(shelf.get(id(0)).is_some());
        shelf.put(id(3), &expert, 15);
        let held: Vec<u16> = (0..4).filter(|n| shelf.get(id(*n)).is_some()).collect();
        assert_eq!((held, shelf.bytes()), (vec![0, 3], 25));
        shelf.put(id(3), &expert, 15);
        shelf.put(id(4), &expert, 31);
        assert_eq!((shelf.bytes(), shelf.get(id(4)).is_none()), (25, true));
    }
}
