//! Claims to be paid: asks a gateway what may be claimed, signs the words, and hands them in.

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::net::https::{self, Gateway, HttpsError};
use crate::types::{NanoKvr, PublicKey};
use crate::wallet::{SignedClaim, Wallet};

/// How long a claim may wait to be paid unless told otherwise.
pub const CLAIM_LASTS_S: u64 = 30 * 24 * 3600;

/// Why nothing was claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The gateway.
    #[error(transparent)]
    Gateway(#[from] HttpsError),
    /// A gateway must not choose for whom a wallet signs.
    #[error("expected a gateway of operator {expected}, got one of {got}")]
    Operator {
        /// Whose network was joined.
        expected: PublicKey,
        /// Whose accounts these are.
        got: PublicKey,
    },
    /// Nothing is old enough.
    #[error("nothing to claim yet: {} nano-KVR were paid, newer credit must wait", settled.0)]
    Nothing {
        /// Paid so far.
        settled: NanoKvr,
    },
    /// More than is there, or nothing.
    #[error("expected an amount of 1 to {most} nano-KVR, got {got}")]
    Amount {
        /// What may be claimed now.
        most: u64,
        /// What was asked for.
        got: String,
    },
}

impl ClaimError {
    /// A stable code for the user interface.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Gateway(HttpsError::Refused { code, .. }) if code == "claim_often" => "claim_often",
            Self::Gateway(HttpsError::Refused { .. }) => "claim_refused",
            Self::Gateway(_) => "gateway_unreachable",
            Self::Operator { .. } => "claim_operator",
            Self::Nothing { .. } => "claim_nothing",
            Self::Amount { .. } => "claim_amount",
        }
    }
}

/// What may be claimed now, for windows; nano-KVR as text, because a page's numbers are floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ClaimRoom {
    /// Credited, old enough and not paid.
    pub nano: String,
    /// Of that, already claimed and waiting to be paid.
    pub waiting_nano: String,
}

/// What a gateway says may be claimed.
#[derive(Deserialize)]
struct Claimable {
    operator: PublicKey,
    settled_nano_kvr: NanoKvr,
    lifetime_nano_kvr: NanoKvr,
    sequence: u64,
    open_nano_kvr: Option<NanoKvr>,
}

impl Claimable {
    /// Nano-KVR that a claim may ask for.
    fn most(&self) -> u64 {
        self.lifetime_nano_kvr.0.saturating_sub(self.settled_nano_kvr.0)
    }
}

/// A signed claim on its way.
pub struct Prepared<'a> {
    /// Its words are what its owner agrees to.
    pub claim: SignedClaim,
    gateway: &'a Gateway,
}

impl Prepared<'_> {
    /// Hands it in.
    ///
    /// # Errors
    /// A gateway that refuses or does not answer.
    pub async fn hand_in(&self) -> Result<(), ClaimError> {
        self.gateway.post::<Value>("/v1/claims", &self.claim).await?;
        Ok(())
    }
}

/// What a wallet may claim now.
///
/// # Errors
/// A gateway of another operator, or none that answers.
pub async fn room(wallet: PublicKey, gateways: &[Gateway], operator: PublicKey) -> Result<ClaimRoom, ClaimError> {
    let (_, claimable) = claimable(wallet, gateways, operator).await?;
    let waiting = claimable.open_nano_kvr.map_or(0, |open| open.0.saturating_sub(claimable.settled_nano_kvr.0));
    Ok(ClaimRoom { nano: claimable.most().to_string(), waiting_nano: waiting.to_string() })
}

/// What the first gateway that answers says, and which one that is. None of them chooses for whom a wallet signs.
async fn claimable<'a>(
    wallet: PublicKey,
    gateways: &'a [Gateway],
    operator: PublicKey,
) -> Result<(&'a Gateway, Claimable), ClaimError> {
    let path = format!("/v1/wallets/{wallet}/claim");
    let ask = |gateway: &'a Gateway| gateway.get::<Claimable>(&path).boxed();
    let (gateway, claimable) = https::first(gateways, ask).await?;
    if claimable.operator != operator {
        return Err(ClaimError::Operator { expected: operator, got: claimable.operator });
    }
    Ok((gateway, claimable))
}

/// Signs a claim of `nano` of what may be claimed, of all of it when `None`.
///
/// # Errors
/// [`ClaimError`].
pub async fn prepare<'a>(
    wallet: &Wallet,
    gateways: &'a [Gateway],
    operator: PublicKey,
    nano: Option<&str>,
    expires_unix_s: u64,
) -> Result<Prepared<'a>, ClaimError> {
    let (gateway, claimable) = claimable(wallet.address(), gateways, operator).await?;
    let (settled, most) = (claimable.settled_nano_kvr, claimable.most());
    if most == 0 {
        return Err(ClaimError::Nothing { settled });
    }
    let amount = match nano {
        None => most,
        Some(text) => {
            let amount = text.parse().ok().filter(|amount| (1..=most).contains(amount));
            let got = || text.chars().take(32).collect();
            amount.ok_or_else(|| ClaimError::Amount { most, got: got() })?
        }
    };
    let claim = wallet.claim(operator, NanoKvr(settled.0 + amount), claimable.sequence, expires_unix_s);
    Ok(Prepared { claim, gateway })
}
