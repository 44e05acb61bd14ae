//! What happens when a worker was caught: it is asked no more, its hub is told, and whoever used its work is named.
//!
//! A false answer costs the wallet everything unsettled; a device that fails its challenge costs only itself, because
//! broken hardware is no crime. **Promises:** from the moment of the catch nothing of it is used; the hub hears of it
//! over some connection, now or with the next session; the session is the hub's to end, so that the worker hears why.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::counters::Counters;
use super::remote::Shared;
use super::session::Session;
use super::trust::Dossier;
use crate::types::GenerationId;
use crate::wire::control::{Control, DeviceName, Quarantine};

/// How long a hub has to end the session of a caught worker before dispatch does.
const GRACE: Duration = Duration::from_secs(10);
/// Quarantines that wait for a hub.
const UNHEARD_MAX: usize = 64;

/// An answer that was false.
pub(super) struct Lie {
    pub request: u64,
    pub part: u16,
    pub layer: u16,
    /// The first row that differs.
    pub row: usize,
    /// Who used the answer.
    pub generations: BTreeSet<GenerationId>,
    /// `before use` or `after use`.
    pub when: &'static str,
}

impl Shared {
    /// An answer of this session's was false: its wallet is quarantined and loses what is not settled.
    pub fn catch(self: &Arc<Self>, dossier: &Arc<Dossier>, lie: Lie) {
        Counters::add(&self.counters.audit_mismatches, 1);
        if !dossier.catch() {
            return;
        }
        let wallet = dossier.wallet;
        let Lie { request, part, layer, row, when, .. } = &lie;
        let reason = format!(
            "audit {when}: layer {layer}, request {request}, part {part}: row {row} is not what the backbone computes"
        );
        tracing::error!(%wallet, session = %dossier.session_id, reason, "a worker's answer was false");
        Counters::add(&self.counters.quarantined_wallets, 1);
        self.trust.config.seniority.forget(&wallet);
        let sessions = self.fleet.expel(&wallet);
        let mut dossiers = vec![Arc::clone(dossier)];
        for session in &sessions {
            if session.dossier.catch() {
                dossiers.push(Arc::clone(&session.dossier));
            }
        }
        let session_id = dossier.session_id;
        self.tell(&sessions, Quarantine { wallet, session_id, void_from_request: *request, device: None, reason });
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            for dossier in dossiers {
                let lie = (dossier.session_id == session_id).then_some(&lie);
                let known = lie.map(|lie| (lie.request, lie.part));
                let false_before = shared.audit_again(&dossier, known).await;
                shared.name_generations(&dossier, false_before, lie);
            }
        });
    }

    /// The session's device answered a challenge wrongly: the device is quarantined, and what it answered before is
    /// looked at again.
    pub fn fail_device(self: &Arc<Self>, session: &Arc<Session>, device: String, reason: String) {
        let dossier = Arc::clone(&session.dossier);
        if !dossier.catch_device() {
            return;
        }
        let (wallet, session_id) = (dossier.wallet, dossier.session_id);
        tracing::error!(%wallet, session = %session_id, device, reason, "a device computes wrongly");
        Counters::add(&self.counters.quarantined_devices, 1);
        self.fleet.leave(session);
        let device = Some(DeviceName { worker_id: session.opened.worker_id, name: device });
        let caught = Quarantine { wallet, session_id, void_from_request: 0, device, reason };
        self.tell(std::slice::from_ref(session), caught);
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(request) = shared.audit_again(&dossier, None).await else { return };
            if !dossier.catch() {
                return;
            }
            shared.name_generations(&dossier, Some(request), None);
            let wallet = dossier.wallet;
            let reason = format!("audit after a failed challenge: the answer to request {request} was false");
            tracing::error!(%wallet, session = %session_id, reason, "a worker's answer was false");
            Counters::add(&shared.counters.quarantined_wallets, 1);
            shared.trust.config.seniority.forget(&wallet);
            let sessions = shared.fleet.expel(&wallet);
            for session in &sessions {
                session.dossier.catch();
            }
            shared.tell(&sessions, Quarantine { wallet, session_id, void_from_request: request, device: None, reason });
        });
    }

    /// Names the generations that used a session's work since it was false, as far as that is known.
    fn name_generations(&self, dossier: &Dossier, false_before: Option<u64>, lie: Option<&Lie>) {
        let since = false_before.into_iter().chain(lie.map(|lie| lie.request)).min();
        let users = dossier.record.users();
        let mut affected: BTreeSet<GenerationId> = lie.map(|lie| lie.generations.clone()).unwrap_or_default();
        let later = users.iter().filter(|user| since.is_some_and(|since| user.last_request >= since));
        affected.extend(later.map(|user| user.generation));
        for generation in &affected {
            tracing::error!(%generation, session = %dossier.session_id, since, "a generation may have used false partials");
        }
        let others = users.iter().filter(|user| !affected.contains(&user.generation)).count();
        tracing::warn!(session = %dossier.session_id, affected = affected.len(), others, "work of a caught wallet was used");
        Counters::add(&self.counters.generations_affected, affected.len());
    }

    /// Tells the hub over the connections of `sessions`, or over any other, or over the next one that opens.
    fn tell(self: &Arc<Self>, sessions: &[Arc<Session>], caught: Quarantine) {
        for session in sessions {
            session.send(caught.frame());
            let (session, grace) = (Arc::downgrade(session), GRACE);
            tokio::spawn(async move {
                tokio::time::sleep(grace).await;
                if let Some(session) = session.upgrade() {
                    session.end("its hub did not end a quarantined session");
                }
            });
        }
        if !sessions.is_empty() {
            return;
        }
        match self.fleet.sessions().first() {
            Some(other) => other.send(caught.frame()),
            None => {
                let mut unheard = self.trust.unheard.lock().unwrap_or_else(PoisonError::into_inner);
                if unheard.len() < UNHEARD_MAX {
                    unheard.push(caught);
                } else {
                    tracing::error!(wallet = %caught.wallet, "no hub hears of this quarantine");
                }
            }
        }
    }

    /// Tells a hub that has just connected what no hub was there to hear.
    pub fn tell_late(&self, session: &Session) {
        let unheard = std::mem::take(&mut *self.trust.unheard.lock().unwrap_or_else(PoisonError::into_inner));
        unheard.iter().for_each(|caught| session.send(caught.frame()));
    }
}
