//! The router: which experts a row goes to, and with which gate weights. Its decision is final.

use super::parallel::{self, EXP_WORK};
use super::rows::Rows;
use crate::dispatch::Route;
use crate::kernel::float::{Dense, Residency, softmax};
use crate::model::{HyperParameters, Matrix};

/// The router of one layer.
#[derive(Debug)]
pub struct Router {
    logits: Dense,
    experts_per_token: usize,
    renormalise: bool,
}

impl Router {
    /// Prepares a layer's router; it is small and always resident.
    #[must_use]
    pub fn new(weights: &Matrix, hyper: &HyperParameters) -> Self {
        Self {
            logits: Dense::new(weights, Residency::Resident),
            experts_per_token: hyper.experts_per_token,
            renormalise: hyper.norm_topk,
        }
    }

    /// `rows × experts_per_token` routes: softmax over all experts, the largest first, the lower id first when equal.
    /// `probabilities` is where they are computed.
    #[must_use]
    pub fn choose(&self, x: &Rows, probabilities: &mut Rows) -> Vec<Route> {
        x.times_into(&self.logits, probabilities);
        let (experts, k) = (self.logits.rows(), self.experts_per_token.min(self.logits.rows()));
        let mut routes = vec![Route { expert: 0, weight: 0.0 }; x.len() * k];
        let work = x.len() * experts * (EXP_WORK + 2);
        parallel::each(work, probabilities.iter_mut().zip(routes.chunks_exact_mut(k)), |(row, routes)| {
            softmax(row);
            largest(row, routes);
            if self.renormalise {
                let sum: f32 = routes.iter().map(|route| route.weight).sum();
                routes.iter_mut().for_each(|route| route.weight /= sum);
            }
        });
        routes
    }
}

/// The largest of `probabilities`, as many as `routes` holds.
fn largest(probabilities: &[f32], routes: &mut [Route]) {
    let mut kept = 0;
    for (expert, weight) in probabilities.iter().copied().enumerate() {
        let larger = |route: &Route| weight.total_cmp(&route.weight).is_gt();
        if kept == routes.len() && !routes.last().is_some_and(larger) {
            continue;
        }
        let at = routes[..kept].iter().position(larger).unwrap_or(kept);
        kept = (kept + 1).min(routes.len());
        routes[at..kept].rotate_right(1);
        routes[at] = Route { expert: expert as u16, weight };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_the_lower_id_of_equals() {
        let p = [0.1, 0.3, 0.05, 0.3, 0.2, 0.05];
        let mut routes = [Route { expert: 9, weight: 9.0 }; 4];
        largest(&p, &mut routes);
        assert_eq!(routes.map(|route| route.expert), [1, 3, 4, 0]);
        let mut all = [Route { expert: 9, weight: 9.0 }; 6];
        largest(&p, &mut all);
        assert_eq!(all.map(|route| (route.expert, route.weight)), [1, 3, 4, 0, 2, 5].map(|e| (e, p[e as usize])));
    }
}
