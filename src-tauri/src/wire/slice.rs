//! A slice: the set of experts that a worker holds, in the form that `Lease` and `Release` carry.
//!
//! **Invariant:** a layer's ranges are inclusive, ascending, and neither empty, overlapping nor adjacent, so two
//! equal sets are equal values and print the same text.

use std::collections::BTreeMap;
use std::fmt;

use super::frame::FrameError;
use crate::types::ExpertId;

/// Most ranges of a slice over all its layers; more would not fit a control body.
pub const RANGES_MAX: usize = 4096;

/// Layer → inclusive ranges of expert ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice(BTreeMap<u16, Vec<(u16, u16)>>);

impl Slice {
    /// Reads the ranges that a peer sent; ranges that touch are joined.
    ///
    /// # Errors
    /// More than [`RANGES_MAX`] ranges, or ranges that do not ascend.
    pub fn from_ranges(ranges: &BTreeMap<u16, Vec<(u16, u16)>>) -> Result<Self, FrameError> {
        let count: usize = ranges.values().map(Vec::len).sum();
        if count > RANGES_MAX {
            return Err(FrameError::Over { what: "ranges of a slice", got: count as u64, max: RANGES_MAX as u64 });
        }
        let mut slice = Self::default();
        for (layer, list) in ranges {
            let mut next = 0u32;
            for (first, last) in list {
                if u32::from(*first) < next || last < first {
                    return Err(FrameError::Body {
                        what: "expert range",
                        expected: format!("ascending from {next}"),
                        got: format!("{first}-{last}"),
                    });
                }
                next = u32::from(*last) + 1;
                slice.push_range(*layer, *first, *last);
            }
        }
        Ok(slice)
    }

    /// Appends a range that starts behind everything the layer already has.
    fn push_range(&mut self, layer: u16, first: u16, last: u16) {
        let list = self.0.entry(layer).or_default();
        match list.last_mut() {
            Some(previous) if u32::from(previous.1) + 1 == u32::from(first) => previous.1 = last,
            _ => list.push((first, last)),
        }
    }

    /// The ranges, as the control bodies carry them.
    #[must_use]
    pub fn to_ranges(&self) -> BTreeMap<u16, Vec<(u16, u16)>> {
        self.0.clone()
    }

    /// Whether the slice holds `expert` of `layer`.
    #[must_use]
    pub fn contains(&self, id: ExpertId) -> bool {
        self.0.get(&id.layer).is_some_and(|list| list.iter().any(|(a, b)| (*a..=*b).contains(&id.expert)))
    }

    /// All experts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ExpertId> + '_ {
        self.0.iter().flat_map(|(layer, list)| {
            let layer = *layer;
            list.iter().flat_map(move |(a, b)| (*a..=*b).map(move |expert| ExpertId { layer, expert }))
        })
    }

    /// Experts in the slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts().map(|(_, count)| count).sum()
    }

    /// Layers and how many of their experts are held, ascending.
    pub fn counts(&self) -> impl Iterator<Item = (u16, usize)> + '_ {
        let count = |list: &Vec<(u16, u16)>| list.iter().map(|(a, b)| usize::from(b - a) + 1).sum();
        self.0.iter().map(move |(layer, list)| (*layer, count(list)))
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every expert of this slice is in `other` too.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.iter().all(|id| other.contains(id))
    }

    /// This slice without some layers.
    #[must_use]
    pub fn without_layers(&self, layers: &[u16]) -> Self {
        let kept = self.0.iter().filter(|(layer, _)| !layers.contains(layer));
        Self(kept.map(|(layer, list)| (*layer, list.clone())).collect())
    }

    /// This slice without the experts of `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.iter().filter(|id| !other.contains(*id)).collect()
    }
}

impl FromIterator<ExpertId> for Slice {
    fn from_iter<I: IntoIterator<Item = ExpertId>>(experts: I) -> Self {
        let mut sorted: Vec<ExpertId> = experts.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut slice = Self::default();
        for id in sorted {
            slice.push_range(id.layer, id.expert, id.expert);
        }
        slice
    }
}

impl fmt::Display for Slice {
    /// `layer:first-last`, joined by commas: `0:0-15,1:0-7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (layer, list) in &self.0 {
            for (first, last) in list {
                write!(f, "{separator}{layer}:{first}-{last}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(pairs: &[(u16, u16)]) -> Vec<ExpertId> {
        pairs.iter().map(|(layer, expert)| ExpertId { layer: *layer, expert: *expert }).collect()
    }

    #[test]
    fn equal_sets_are_equal_slices_however_they_were_built() {
        let built: Slice = ids(&[(1, 5), (0, 2), (0, 1), (0, 0), (1, 3), (0, 2)]).into_iter().collect();
        let read = Slice::from_ranges(&BTreeMap::from([(0, vec![(0, 1), (2, 2)]), (1, vec![(3, 3), (5, 5)])])).unwrap();
        assert_eq!(built, read);
        assert_eq!(built.to_string(), "0:0-2,1:3-3,1:5-5");
        assert_eq!(built.len(), 5);
        assert!(built.contains(ExpertId { layer: 1, expert: 5 }) && !built.contains(ExpertId { layer: 1, expert: 4 }));
    }

    #[test]
    fn ranges_that_overlap_or_run_backwards_are_refused() {
        for list in [vec![(3, 2)], vec![(0, 4), (4, 5)], vec![(5, 6), (0, 1)]] {
            assert!(matches!(Slice::from_ranges(&BTreeMap::from([(0, list)])), Err(FrameError::Body { .. })));
        }
        let many = BTreeMap::from([(0, vec![(0, 0); RANGES_MAX + 1])]);
        assert!(matches!(Slice::from_ranges(&many), Err(FrameError::Over { .. })));
    }

    #[test]
    fn without_leaves_what_the_other_does_not_hold() {
        let all: Slice = ids(&[(0, 0), (0, 1), (0, 2), (2, 0)]).into_iter().collect();
        let some: Slice = ids(&[(0, 1), (2, 0)]).into_iter().collect();
        assert_eq!(all.without(&some).to_string(), "0:0-0,0:2-2");
        assert_eq!(all.without_layers(&[0, 1]).to_string(), "2:0-0");
        assert!(some.is_within(&all) && !all.is_within(&some));
        assert!(Slice::default().is_within(&some));
    }
}
