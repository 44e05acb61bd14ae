//! The fleet as trust sees it: what a device has to prove itself on, and who is thrown out.

use std::sync::Arc;

use super::{Fleet, key};
use crate::dispatch::session::Session;
use crate::types::PublicKey;
use crate::wire::Slice;

impl Fleet {
    /// The slice of a lease that was sent and is not confirmed yet.
    pub fn leased(&self, session: &Session, lease: u32) -> Option<Slice> {
        let members = self.members();
        let leased = members.by_key.get(&key(session))?.leased.as_ref().filter(|leased| leased.number == lease)?;
        Some(leased.slice.clone())
    }

    /// What a session serves or could serve, and under which leases.
    pub fn serving(&self, session: &Session) -> Vec<(u32, Slice)> {
        self.members().by_key.get(&key(session)).map(|member| member.serves().collect()).unwrap_or_default()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.members().by_key.values().map(|member| Arc::clone(&member.session)).collect()
    }

    /// A session's device has proved itself, or has to do so again.
    pub fn proof_changed(&self, holds: bool) {
        let mut members = self.members();
        // What is served has changed, and with it what replicas are for.
        members.aim_due = true;
        if holds {
            self.request_reroute(&mut members);
        } else {
            self.reroute(&mut members);
        }
    }

    /// Throws a wallet out: none of its sessions is asked any more. Gives those sessions, which are not over yet.
    pub fn expel(&self, wallet: &PublicKey) -> Vec<Arc<Session>> {
        let mut members = self.members();
        let keys: Vec<_> = members.by_key.keys().filter(|(owner, ..)| owner == wallet).copied().collect();
        let gone: Vec<_> = keys.iter().filter_map(|key| members.by_key.remove(key)).collect();
        if !gone.is_empty() {
            self.request_placement(&mut members);
            self.reroute(&mut members);
        }
        gone.into_iter().map(|member| member.session).collect()
    }
}
