//! The router: which experts a row goes to, and with which gate weights. Its decision is final.

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
    #[must_use]
    pub fn choose(&self, x: &Rows) -> Vec<Route> {
        let mut probabilities = x.times(&self.logits);
        let mut routes = Vec::with_capacity(x.len() * self.experts_per_token);
        for row in probabilities.iter_mut() {
            softmax(row);
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            order.truncate(self.experts_per_token);
            let sum: f32 = if self.renormalise { order.iter().map(|e| row[*e]).sum() } else { 1.0 };
            routes.extend(order.iter().map(|e| Route { expert: *e as u16, weight: row[*e] / sum }));
        }
        routes
    }
}
