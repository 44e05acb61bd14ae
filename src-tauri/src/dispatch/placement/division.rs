//! Decides which layers stay on the backbone and which go out, where the operator leaves that open.
//!
//! A layer of which anything is elsewhere costs a token one round trip: a row meets several experts, and one that is
//! missed is enough. So layers stay or go whole, and as many stay as the memory takes, the smallest first. Of equals the
//! first ones stay: what enters them says most about the text. **Promise:** no other division within the memory costs
//! fewer round trips.

use std::fmt;

use super::LayerSize;

/// Which layers stay and which go, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Division {
    /// Layers whose experts are computed by the backbone, ascending.
    pub here: Vec<u16>,
    /// Layers that workers may hold, ascending.
    pub away: Vec<u16>,
    /// Stored bytes of the experts that stay.
    pub here_bytes: u64,
    /// Bytes that they could have taken.
    pub memory_bytes: u64,
    /// Stored bytes of the experts of the smallest layer that goes.
    pub next_bytes: Option<u64>,
}

/// Divides `layers` so that a token pays the fewest round trips that `memory_bytes` for experts allow.
#[must_use]
pub fn divide(layers: &[LayerSize], memory_bytes: u64) -> Division {
    let mut smallest: Vec<&LayerSize> = layers.iter().collect();
    smallest.sort_by_key(|size| (size.bytes(), size.layer));
    let mut division = Division { here: vec![], away: vec![], here_bytes: 0, memory_bytes, next_bytes: None };
    for size in smallest {
        let sum = division.here_bytes.saturating_add(size.bytes());
        if division.next_bytes.is_none() && sum <= memory_bytes {
            division.here.push(size.layer);
            division.here_bytes = sum;
        } else {
            division.next_bytes.get_or_insert(size.bytes());
            division.away.push(size.layer);
        }
    }
    division.here.sort_unstable();
    division.away.sort_unstable();
    division
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (stay, all) = (self.here.len(), self.here.len() + self.away.len());
        write!(f, "{stay} of {all} layers stay: their experts take {:.2} GiB", gib(self.here_bytes))?;
        write!(f, " of the {:.2} GiB that experts may take", gib(self.memory_bytes))?;
        match self.next_bytes {
            Some(next) => write!(
                f,
                "; {} go out whole, each for one round trip a token, and the next to stay would take {:.2} GiB more",
                self.away.len(),
                gib(next)
            ),
            None => write!(f, "; nothing goes out"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layers(bytes: &[u64]) -> Vec<LayerSize> {
        (0u16..).zip(bytes).map(|(layer, bytes)| LayerSize { layer, experts: 4, expert_bytes: *bytes }).collect()
    }

    #[test]
    fn of_equal_layers_the_first_stay_as_far_as_memory_goes() {
        let sizes = layers(&[10, 10, 10, 10]);
        let of = |memory| divide(&sizes, memory);
        assert_eq!((of(79).here, of(79).away), (vec![0], vec![1, 2, 3]));
        assert_eq!((of(80).here, of(80).here_bytes, of(80).next_bytes), (vec![0, 1], 80, Some(40)));
        assert_eq!((of(39).here, of(39).away.len()), (vec![], 4));
        assert_eq!((of(u64::MAX).away, of(u64::MAX).next_bytes), (vec![], None));
    }

    #[test]
    fn the_choice_is_told_with_its_numbers() {
        let sizes = layers(&[1 << 28, 1 << 29, 1 << 29]);
        assert_eq!(
            divide(&sizes, 3 << 29).to_string(),
            "1 of 3 layers stay: their experts take 1.00 GiB of the 1.50 GiB that experts may take; 2 go out whole, \
             each for one round trip a token, and the next to stay would take 2.00 GiB more"
        );
        assert!(divide(&sizes, 5 << 30).to_string().ends_with("; nothing goes out"));
    }

    proptest! {
        #[test]
        fn no_choice_within_the_memory_keeps_more_layers(
            bytes in prop::collection::vec(0u64..40, 1..9), memory in 0u64..600,
        ) {
            let sizes = layers(&bytes);
            let division = divide(&sizes, memory);
            let most = (0u32..1 << bytes.len())
                .filter(|set| (0..bytes.len()).filter(|i| set >> i & 1 == 1).map(|i| 4 * bytes[i]).sum::<u64>() <= memory)
                .map(u32::count_ones)
                .max();
            prop_assert_eq!(Some(division.here.len() as u32), most);
            prop_assert!(division.here_bytes <= memory);
            let mut all = [division.here, division.away].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..bytes.len() as u16).collect::<Vec<_>>());
        }
    }
}
