//! What is done about rows that a worker says it cannot compute.
//!
//! A row that leaves its grid costs all its holders their pay and may end in other bits, so one worker's word for it is
//! not enough. **Promise:** a claim counts only when this machine's own kernel says the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::DispatchError;
use super::batch::Round;
use super::counters::Counters;
use super::exact::OpenStep;
use super::here::joined;
use super::quarantine::Lie;
use super::remote::{Shared, assignments_of};

impl Shared {
    /// Computes the rows that workers say they cannot. A row that fails costs all its holders their pay and may end in
    /// other bits, so the word of one of them is not enough: a part with a claim that this machine does not confirm is
    /// refused as a whole and done here.
    pub async fn doubt(self: &Arc<Self>, open: &OpenStep, round: &mut Round) -> Result<(), DispatchError> {
        for request in 0..round.requests.len() {
            for index in 0..round.requests[request].asked.len() {
                let Some((rows, claims)) = round.requests[request].claims(index) else { continue };
                let experts = round.requests[request].experts();
                let parts = open.parts_of(&rows, |expert| experts.contains(&expert));
                let asked = parts.into_iter().map(|part| part.dispatch).collect();
                let Some(work) = self.here.answer(open.layer(), asked) else { continue };
                let partials = joined(work).await??;
                if partials.iter().flat_map(|p| &p.status).eq(&claims) {
                    continue;
                }
                round.refused += 1;
                let request = &mut round.requests[request];
                request.refuse(index, "claim");
                round.local.push(request.asked[index].part.clone());
                // A status is as exact as a sum: whoever claims another one lies. Floats may round to another side.
                if open.is_exact() {
                    let (dossier, id, part, layer) =
                        (Arc::clone(request.dossier()), request.id(), index as u16, open.layer());
                    let row = rows.first().copied().unwrap_or(0);
                    let generations = BTreeSet::new();
                    self.catch(&dossier, Lie { request: id, part, layer, row, generations, when: "of a claim" });
                }
                Counters::add(&self.counters.recomputed, assignments_of(&round.local[round.local.len() - 1..]));
            }
        }
        Ok(())
    }
}
