//! A step cut into parts that go through the layers one behind the other: while the routed experts of one are away, the
//! others are computed.
//!
//! A prompt's later rows need what its earlier ones leave in the same layer, and nothing of the layers behind it, so the
//! order of the parts is enough. **Promise:** no bit depends on the cuts, because a sequence is cut only where a chunk of
//! the delta rule ends.

use std::ops::Range;

use super::buffers::Loan;
use super::delta_rule::CHUNK;
use super::layer::Left;
use super::sequence::Span;

/// Fewest rows that are worth a part: what a step costs whatever its rows is paid anew for each.
pub(super) const ROWS_MIN: usize = 2 * CHUNK;

/// A part of a step on its way through the layers.
pub(super) struct Part<'a> {
    /// What it computes in; the spans are those of its shares.
    pub buffers: Loan<'a>,
    /// The step's shares that have rows in it.
    pub shares: Range<usize>,
    /// The layer that it has left and whose experts it waits for.
    pub left: Option<Left>,
}

/// The shares of a part, and the rows of each, counted from the part's first.
pub(super) type Cut = (Range<usize>, Vec<Span>);

/// Cuts the rows of a step into at most `most` parts of about the same size; whoever has drafts stays whole.
pub(super) fn cut(spans: &[Span], most: usize) -> Vec<Cut> {
    let mut left: usize = spans.iter().map(|span| span.rows).sum();
    let parts = most.min(left / ROWS_MIN).max(1);
    let mut cuts: Vec<Cut> = Vec::with_capacity(parts);
    let (mut part, mut room) = ((0..0, Vec::new()), left.div_ceil(parts));
    for (share, span) in spans.iter().enumerate() {
        let mut rest = *span;
        while rest.rows > 0 {
            if room == 0 {
                cuts.push(std::mem::replace(&mut part, (share..share, Vec::new())));
                room = left.div_ceil(parts - cuts.len());
            }
            let to_chunk = (rest.position + room).next_multiple_of(CHUNK) - rest.position;
            let rows = if rest.drafts > 0 { rest.rows } else { rest.rows.min(to_chunk) };
            let first = part.1.last().map_or(0, |before: &Span| before.first + before.rows);
            part.1.push(Span { first, rows, ..rest });
            part.0.end = share + 1;
            (rest.rows, rest.position) = (rest.rows - rows, rest.position + rows);
            (left, room) = (left - rows, room.saturating_sub(rows));
        }
    }
    cuts.push(part);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(position: usize, rows: &[usize]) -> Vec<Span> {
        let mut first = 0;
        let span = |rows: &usize| {
            first += rows;
            Span { first: first - rows, rows: *rows, position, drafts: 0 }
        };
        rows.iter().map(span).collect()
    }

    #[test]
    fn every_row_is_in_one_part_in_its_order_and_cut_where_chunks_end() {
        let all = [&[512][..], &[700, 1, 1, 130], &[64, 64, 64, 64], &[1; 300], &[100, 900, 3], &[5], &[2048]];
        for (position, rows) in [0, 1000].into_iter().flat_map(|position| all.map(|rows| (position, rows))) {
            for most in 1..=5 {
                let cuts = cut(&spans(position, rows), most);
                assert!(!cuts.is_empty() && cuts.len() <= most);
                let mut seen = vec![0; rows.len()];
                for (shares, spans) in &cuts {
                    assert_eq!(shares.len(), spans.len());
                    let mut first = 0;
                    for (share, span) in shares.clone().zip(spans) {
                        assert_eq!((span.first, span.position), (first, position + seen[share]));
                        let at = if seen[share] == 0 { 0 } else { span.position % CHUNK };
                        assert_eq!(at, 0, "cut within a chunk: {rows:?} in {most}");
                        (first, seen[share]) = (first + span.rows, seen[share] + span.rows);
                    }
                }
                assert_eq!(seen, rows, "in {most}");
            }
        }
        let sizes =
            |cuts: Vec<Cut>| cuts.iter().map(|(_, spans)| spans.iter().map(|s| s.rows).sum()).collect::<Vec<usize>>();
        assert_eq!(sizes(cut(&spans(0, &[2048]), 4)), [512; 4]);
        assert_eq!(sizes(cut(&spans(0, &[500]), 4)), [192, 192, 116]);
    }

    #[test]
    fn drafts_stay_with_the_token_that_they_follow() {
        let mut all = spans(0, &[256, 256]);
        all[0].drafts = 255;
        let cuts = cut(&all, 4);
        assert_eq!(cuts[0].1, all[..1]);
        assert!(cuts[1..].iter().flat_map(|(_, spans)| spans).all(|span| span.drafts == 0));
    }
}
