//! One decoder layer over the rows of a step, and its routed experts' way out and home.
//!
//! The routed experts are handed over first; the shared expert is computed while they are away, and whatever other part
//! of the step there is.

use super::buffers::Buffers;
use super::combine::combine;
use super::rows::Rows;
use super::sequence::{LayerState, Span};
use super::step::{ExpertTimes, ForwardError, Reach, Served, Share};
use super::{Backbone, Layer, Mixer};
use crate::dispatch::{DispatchError, MoeStep, Pending, Route, RowSum, StepSums};
use crate::types::GenerationId;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Backbone {
    /// One layer of the trunk up to its routed experts, over `x` and the other buffers; the states of its sequences move
    /// on. [`Backbone::come_home`] brings the rest.
    pub(super) fn leave(
        &self,
        index: usize,
        shares: &mut [Share<'_>],
        buffers: &mut Buffers,
    ) -> Result<Left, ForwardError> {
        let layer = &self.layers[index];
        let Buffers { x, input, update, spans, attention, delta_net, .. } = buffers;
        x.normed_into(&layer.input_norm, self.hyper().rms_eps, input);
        let other = || ForwardError::State { expected: self.layers.len() };
        let states = spans.iter().zip(shares.iter_mut().map(|share| &mut share.sequence.layers[index]));
        match &layer.mixer {
            Mixer::Attention(mixer) => {
                let caches = states.map(|(span, state)| match state {
                    LayerState::Attention(cache) => Ok((*span, cache)),
                    LayerState::DeltaNet(_) => Err(other()),
                });
                let mut caches = caches.collect::<Result<Vec<_>, _>>()?;
                mixer.forward(input, &mut caches, &self.rope, attention, update);
            }
            Mixer::DeltaNet(mixer) => {
                let states = states.map(|(span, state)| match state {
                    LayerState::DeltaNet(state) => Ok((*span, state)),
                    LayerState::Attention(_) => Err(other()),
                });
                mixer.forward(input, &mut states.collect::<Result<Vec<_>, _>>()?, delta_net, update);
            }
        }
        x.add(update);
        Ok(self.hand_over(layer, index as u16, buffers))
    }

    /// Hands over the routed experts of the layer that dispatch calls `index`, and computes the shared one.
    pub(super) fn hand_over(&self, layer: &Layer, index: u16, buffers: &mut Buffers) -> Left {
        let Buffers { x, input, spans, reach, generations, lost, probabilities, shared, .. } = buffers;
        x.normed_into(&layer.post_norm, self.hyper().rms_eps, input);
        let routes = layer.router.choose(input, probabilities);
        let per_row = routes.len() / x.len();
        let begun = self.begin(index, input, x.rms(), routes, Whose { spans, reach, generations, lost });
        if let Some(expert) = &layer.shared {
            expert.forward(input, shared);
        }
        Left { begun, per_row, has_shared: layer.shared.is_some(), at: Instant::now() }
    }

    /// `x + experts(norm x)`: waits for the routed experts of what has left. `served` counts for the shares of `buffers`;
    /// those whose rows nobody could compute, while others' were, are lost from here on.
    pub(super) async fn come_home(
        &self,
        left: Left,
        buffers: &mut Buffers,
        times: &mut ExpertTimes,
        served: &mut [Served],
    ) -> Result<(), ForwardError> {
        let Buffers { x, spans, shared, lost, .. } = buffers;
        let start = Instant::now();
        let Home { sums, missing } = left.begun.finish().await?;
        let waited = start.elapsed();
        times.waited += waited;
        times.away += sums.away.min(left.at.elapsed());
        times.here += sums.here.min(waited);
        for (served, span) in served.iter_mut().zip(spans.iter()) {
            let remote: u64 = sums.remote[span.first..span.first + span.rows].iter().map(|n| u64::from(*n)).sum();
            served.remote += remote;
            served.local += (span.rows * left.per_row) as u64 - remote;
        }
        for (rows, error) in missing {
            let is_among = |span: &Span| rows.binary_search(&span.first).is_ok();
            lost.iter_mut().zip(spans.iter()).filter(|(_, span)| is_among(span)).for_each(|(lost, _)| {
                lost.get_or_insert_with(|| Arc::clone(&error));
            });
        }
        combine(x, &sums.rows, left.has_shared.then_some(&*shared));
        Ok(())
    }

    /// Hands the routed experts of a layer over, the rows that must stay apart from the others.
    fn begin(&self, layer: u16, input: &Rows, rms: Vec<f32>, routes: Vec<Route>, whose: Whose<'_>) -> Begun {
        let ask = |reach: Reach, step: MoeStep| match reach {
            Reach::Any | Reach::Trusted => self.dispatch.begin(step),
            Reach::Local => self.dispatch.begin_here(step),
        };
        let Whose { spans, reach, generations, lost } = whose;
        let rows = input.len();
        let owners = spans.iter().zip(generations);
        let owners: Vec<GenerationId> =
            owners.flat_map(|(span, generation)| std::iter::repeat_n(*generation, span.rows)).collect();
        let nobody_lost = lost.iter().all(Option::is_none);
        if let Some(first) = reach.first().filter(|first| nobody_lost && reach.iter().all(|reach| reach == *first)) {
            let (hidden, trusted_only) = (input.values().to_vec(), *first == Reach::Trusted);
            let step = MoeStep { layer, rows, hidden, rms, routes, generations: owners, trusted_only };
            return Begun::Together(ask(*first, step));
        }
        let per_row = routes.len() / rows;
        let parts = [Reach::Any, Reach::Trusted, Reach::Local].into_iter().filter_map(|part| {
            let of =
                spans.iter().zip(reach.iter().zip(lost)).filter(|(_, (reach, lost))| **reach == part && lost.is_none());
            let which: Vec<usize> = of.flat_map(|(span, _)| span.first..span.first + span.rows).collect();
            if which.is_empty() {
                return None;
            }
            let step = MoeStep {
                layer,
                rows: which.len(),
                hidden: which.iter().flat_map(|r| input.row(*r)).copied().collect(),
                rms: which.iter().map(|r| rms[*r]).collect(),
                routes: which.iter().flat_map(|r| &routes[r * per_row..(r + 1) * per_row]).copied().collect(),
                generations: which.iter().map(|r| owners[*r]).collect(),
                trusted_only: part == Reach::Trusted,
            };
            Some((which, ask(part, step)))
        });
        Begun::Apart { rows, parts: parts.collect() }
    }
}

/// Of each sequence of a step its rows, where they may go, and whose they are.
#[derive(Clone, Copy)]
struct Whose<'a> {
    spans: &'a [Span],
    reach: &'a [Reach],
    generations: &'a [GenerationId],
    lost: &'a [Option<Arc<DispatchError>>],
}

/// A layer whose routed experts are on their way, while its shared one is in the buffers.
pub(super) struct Left {
    begun: Begun,
    /// Routed experts of a row.
    per_row: usize,
    has_shared: bool,
    at: Instant,
}

/// A layer's routed experts on their way.
enum Begun {
    /// All rows in one.
    Together(Pending),
    /// Which rows of the step each part holds, in their order, and its sums.
    Apart { rows: usize, parts: Vec<(Vec<usize>, Pending)> },
}

/// A layer's sums, in the order of the step's rows.
struct Home {
    sums: StepSums,
    /// Rows, in their order, that add nothing because nobody could compute them, and why.
    missing: Vec<(Vec<usize>, Arc<DispatchError>)>,
}

impl Begun {
    async fn finish(self) -> Result<Home, DispatchError> {
        let (rows, parts) = match self {
            Self::Together(pending) => return Ok(Home { sums: pending.await?, missing: Vec::new() }),
            Self::Apart { rows, parts } => (rows, parts),
        };
        let mut sums = vec![RowSum::Float(Vec::new()); rows];
        let (mut remote, mut away, mut here) = (vec![0; rows], Duration::ZERO, Duration::ZERO);
        let (mut missing, count) = (Vec::new(), parts.len());
        for (which, pending) in parts {
            let part = match pending.await {
                // Others may be computed by those that these must not be shown to.
                Err(error @ DispatchError::NoHolder { .. }) if missing.len() + 1 < count => {
                    missing.push((which, Arc::new(error)));
                    continue;
                }
                part => part?,
            };
            (away, here) = (away.max(part.away), here + part.here);
            for ((r, sum), served) in which.into_iter().zip(part.rows).zip(part.remote) {
                (sums[r], remote[r]) = (sum, served);
            }
        }
        Ok(Home { sums: StepSums { rows: sums, remote, away, here }, missing })
    }
}
