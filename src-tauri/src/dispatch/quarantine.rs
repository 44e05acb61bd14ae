//! What happens when a worker was caught: it is asked no more, its hub is told, and whoever used its work is named.
//!
//! A false answer costs the wallet everything unsettled; a device that fails its challenge costs only itself, because
//! broken hardware is no crime. **Promises:** from the moment of the catch nothing of it is used; every
//! hub hears of it, now or with its next session ([`super::caught`]); the session is the hub's to end, so that the worker
//! hears why; the wallet is turned away over any hub until this process stops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::remote::Shared;
use super::session::Session;
use super::trust::Dossier;
use crate::types::GenerationId;
use crate::wire::control::{Control, DeviceName, Quarantine};

/// How long a hub has to end the session of a caught worker before dispatch does.
const GRACE: Duration = Duration::from_secs(10);

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
        let session_id = dossier.session_id;
        let sessions =
            self.throw_out(Quarantine { wallet, session_id, void_from_request: *request, device: None, reason });
        let mut dossiers = vec![Arc::clone(dossier)];
        for session in &sessions {
            if session.dossier.catch() {
                dossiers.push(Arc::clone(&session.dossier));
            }
        }
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
        Self::tell(std::slice::from_ref(session), &caught);
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
            let caught = Quarantine { wallet, session_id, void_from_request: request, device: None, reason };
            for session in shared.throw_out(caught) {
                session.dossier.catch();
            }
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

    /// Tells the hubs over the connections of a wallet's `sessions`, which are theirs to end for a while.
    fn tell(sessions: &[Arc<Session>], caught: &Quarantine) {
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
    }

    /// Throws a wallet out, tells its hubs over its sessions, and every other hub that is there. Gives its sessions.
    fn throw_out(self: &Arc<Self>, caught: Quarantine) -> Vec<Arc<Session>> {
        let wallet = caught.wallet;
        // Remembered first: a session that joins meanwhile is found by one or the other.
        self.trust.caught.add(caught.clone());
        let own = self.fleet.expel(&wallet);
        own.iter().for_each(|session| self.tell_late(session));
        Self::tell(&own, &caught);
        self.fleet.sessions().iter().for_each(|session| self.tell_late(session));
        own
    }

    /// Tells a session's hub of the others' catches that it has not heard of.
    pub fn tell_late(&self, session: &Session) {
        let news = self.trust.caught.news(session.hub);
        let others = news.iter().filter(|caught| caught.wallet != session.opened.wallet);
        others.for_each(|caught| session.send(caught.frame()));
    }

    /// A wallet that was caught before gets no lease, whichever hub it comes over; the hub hears why. Whether it was.
    pub fn turn_away(&self, session: &Arc<Session>) -> bool {
        let Some(caught) = self.trust.caught.of(&session.opened.wallet) else { return false };
        session.dossier.catch();
        self.fleet.leave(session);
        let session_id = session.opened.session_id;
        Self::tell(std::slice::from_ref(session), &Quarantine { session_id, ..caught });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::remote::{RemoteConfig, RemoteDispatch};
    use crate::dispatch::session::tests::opened;
    use crate::kernel::{CpuKernel, CpuPath};
    use crate::types::PublicKey;
    use crate::wire::{Frame, Kind};
    use tokio::sync::mpsc;

    fn join(shared: &Arc<Shared>, wallet: u8, session_id: u8, hub: u8) -> (Arc<Session>, mpsc::Receiver<Frame>) {
        let mut opened = opened(wallet);
        opened.session_id.0 = [session_id; 16];
        let (mut session, frames, _ended) = Session::new(opened);
        session.hub = Some(PublicKey([hub; 32]));
        let session = Arc::new(session);
        shared.fleet.join(Arc::clone(&session));
        shared.tell_late(&session);
        (session, frames)
    }

    fn told(frames: &mut mpsc::Receiver<Frame>) -> Vec<(PublicKey, u8)> {
        let frames =
            std::iter::from_fn(|| frames.try_recv().ok()).filter(|frame| frame.header.kind == Kind::Quarantine);
        frames.map(|frame| Quarantine::read(&frame).unwrap()).map(|told| (told.wallet, told.session_id.0[0])).collect()
    }

    #[tokio::test]
    async fn a_caught_wallet_is_turned_away_over_every_hub_and_every_hub_hears_of_it() {
        let model = Arc::new(crate::model::embedded().unwrap());
        let compute = Arc::new(CpuKernel::new(CpuPath::Portable, 1).unwrap());
        let shared = RemoteDispatch::new(model, compute, RemoteConfig::new(vec![0])).unwrap().shared;
        let (liar, mut liars) = join(&shared, 1, 1, 10);
        let (honest, mut others) = join(&shared, 2, 2, 11);
        let lie = Lie { request: 7, part: 0, layer: 0, row: 0, generations: BTreeSet::new(), when: "before use" };
        shared.catch(&liar.dossier, lie);
        let wallet = liar.opened.wallet;
        assert_eq!((told(&mut liars), told(&mut others)), (vec![(wallet, 1)], vec![(wallet, 1)]));
        // It comes back over another hub, which knows, and over one that was not there.
        for (session_id, hub) in [(3, 11), (4, 12)] {
            let (again, mut frames) = join(&shared, 1, session_id, hub);
            assert!(shared.turn_away(&again) && again.dossier.is_caught());
            assert_eq!(told(&mut frames), [(wallet, session_id)]);
            assert!(shared.fleet.sessions().iter().all(|session| session.opened.wallet != wallet));
        }
        assert!(!shared.turn_away(&honest));
        let (_late, mut frames) = join(&shared, 2, 5, 13);
        assert_eq!(told(&mut frames), [(wallet, 1)], "a hub that comes later hears of it");
    }
}
