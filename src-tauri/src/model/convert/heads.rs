//! The order of DeltaNet's value heads: checkpoints keep those of a key head together, GGUF deals them out in turn.

use std::ops::Range;

use crate::model::{DeltaNetShape, HeadOrder};

/// Which stretches of a stored dimension follow each other in GGUF.
pub(super) type Stretches = Vec<Range<usize>>;

/// A dimension that stays as it is.
pub(super) fn whole(len: usize) -> Stretches {
    std::iter::once(0..len).collect()
}

/// `before` elements that stay, then the value heads of `width` elements each in GGUF's order; neighbours that stay
/// neighbours are one stretch.
pub(super) fn tiled(net: &DeltaNetShape, before: usize, width: usize) -> Stretches {
    let group = net.value_heads / net.key_heads;
    let stored = |head: usize| match net.order {
        HeadOrder::Tiled => head,
        HeadOrder::Grouped => head % net.key_heads * group + head / net.key_heads,
    };
    let mut stretches = whole(before);
    for head in (0..net.value_heads).map(stored) {
        let (start, end) = (before + head * width, before + (head + 1) * width);
        match stretches.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => stretches.push(start..end),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_two_of_two_key_heads_is_the_first_ones_second() {
        let net = |order| DeltaNetShape {
            key_heads: 2,
            value_heads: 4,
            key_head_dim: 3,
            value_head_dim: 3,
            conv_kernel: 4,
            order,
        };
        assert_eq!(tiled(&net(HeadOrder::Grouped), 12, 3), [0..15, 18..21, 15..18, 21..24]);
        assert_eq!(tiled(&net(HeadOrder::Tiled), 12, 3), whole(24));
    }
}
