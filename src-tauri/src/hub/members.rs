//! Whose workers may come: everybody's, those that were invited, or those on a list.
//!
//! A wallet shows its join code once; from then on it is a member, also when the code has expired. The members are a
//! text file, one address a line, so that an operator can read it and take a line out while the hub is stopped.
//! **Promise:** a torn last line after a crash is dropped, not misread, and spoils no later line.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::config::AdmissionPolicy;
use super::lines::{Lines, LinesError};
use crate::clock::Clock;
use crate::types::PublicKey;
use crate::wire::handshake::HubSession;
use crate::wire::invite::{Invite, InviteError};

/// Most members; an operator with more takes everybody.
const MEMBERS_MAX: usize = 100_000;
/// An address has at most 44 characters; a line begins with its line end.
const FILE_BYTES_MAX: u64 = 45 * MEMBERS_MAX as u64;

/// The file of members cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("list of members {0}")]
pub struct MembersError(#[from] LinesError);

/// Why a wallet does not get in.
#[derive(Debug, thiserror::Error)]
pub enum NotAMember {
    /// The hub has a list.
    #[error("expected a wallet on the operator's list")]
    NotListed,
    /// The hub wants a join code.
    #[error("expected a member, or a join code of this operator: got neither")]
    NoCode,
    /// A code that does not hold.
    #[error(transparent)]
    Code(#[from] InviteError),
    /// The list is full.
    #[error("expected at most {MEMBERS_MAX} members")]
    Full,
    /// It would be forgotten at the next start, when its code may have expired.
    #[error(transparent)]
    File(#[from] MembersError),
    /// The write did not run.
    #[error("the list of members was not written: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

struct Joined {
    lines: Lines,
    wallets: Mutex<HashSet<PublicKey>>,
}

/// The hub's rule and those who already meet it.
pub struct Members {
    policy: AdmissionPolicy,
    allowed: HashSet<PublicKey>,
    joined: Arc<Joined>,
    clock: Arc<dyn Clock>,
}

impl Members {
    /// Reads the members at `path`; an absent file is an empty list.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn open(
        policy: AdmissionPolicy,
        allowed: &[PublicKey],
        path: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, MembersError> {
        let (lines, text) = Lines::open(path, FILE_BYTES_MAX)?;
        let wallets = text.lines().filter_map(|line| line.parse().ok()).collect();
        let joined = Arc::new(Joined { lines, wallets: Mutex::new(wallets) });
        Ok(Self { policy, allowed: allowed.iter().copied().collect(), joined, clock })
    }

    /// Lets a proven wallet in, and remembers it when its join code did that.
    ///
    /// # Errors
    /// [`NotAMember`].
    pub async fn admit(&self, session: &HubSession) -> Result<(), NotAMember> {
        let wallet = session.wallet;
        if self.policy == AdmissionPolicy::Open || self.allowed.contains(&wallet) {
            return Ok(());
        }
        let AdmissionPolicy::Invite { operator } = self.policy else { return Err(NotAMember::NotListed) };
        if self.joined.contains(&wallet) {
            return Ok(());
        }
        let code = session.invite.as_deref().ok_or(NotAMember::NoCode)?;
        Invite::read(code)?.accept(&[operator], self.clock.unix_ms() / 1000)?;
        let joined = Arc::clone(&self.joined);
        tokio::task::spawn_blocking(move || joined.add(wallet)).await??;
        tracing::info!(%wallet, "joined by invitation");
        Ok(())
    }
}

impl Joined {
    fn contains(&self, wallet: &PublicKey) -> bool {
        self.wallets.lock().unwrap_or_else(PoisonError::into_inner).contains(wallet)
    }

    fn add(&self, wallet: PublicKey) -> Result<(), NotAMember> {
        let pen = self.lines.pen();
        let (is_known, members) = {
            let wallets = self.wallets.lock().unwrap_or_else(PoisonError::into_inner);
            (wallets.contains(&wallet), wallets.len())
        };
        if is_known {
            return Ok(());
        }
        if members >= MEMBERS_MAX {
            return Err(NotAMember::Full);
        }
        pen.append(&wallet.to_string()).map_err(MembersError)?;
        self.wallets.lock().unwrap_or_else(PoisonError::into_inner).insert(wallet);
        Ok(())
    }
}
