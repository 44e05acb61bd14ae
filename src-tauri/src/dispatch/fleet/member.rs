//! One worker in the fleet: what it offers, what it was leased, what it confirmed, and what it may fetch.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::Goods;
use crate::dispatch::session::Session;
use crate::types::ExpertId;
use crate::wire::Slice;
use crate::wire::chunk::{CHUNK_BYTES_MAX, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet, Lease, Offer};

/// How long a lease outlives its link's last sign of life: three missed pings and a little.
const LEASE_EXPIRES_MS: u64 = 90_000;
/// The slowest fetching, in bytes per second, that still keeps an unconfirmed lease.
const FETCH_PACE_MIN: u64 = 1 << 20;
/// How often a lease's bytes may be fetched: once, and again when they came damaged or on another lease's heels.
const FETCH_TIMES: u64 = 4;

/// Why a worker does not get a piece.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(in crate::dispatch) enum FetchRefused {
    #[error("expected ExpertGet for a leased expert, got layer {layer}, expert {expert}")]
    NotLeased { layer: u16, expert: u16 },
    #[error("expected ExpertGet for at most {FETCH_TIMES} times what was leased")]
    TooMuch,
}

/// A lease that was sent and is not yet confirmed.
pub(super) struct Leased {
    pub number: u32,
    pub slice: Slice,
    /// What of it the worker holds and has verified.
    pub verified: Slice,
    /// When it is withdrawn.
    pub until: Instant,
}

pub(super) struct Member {
    pub session: Arc<Session>,
    pub offer: Option<Offer>,
    pub target: Slice,
    pub leased: Option<Leased>,
    /// Confirmed.
    pub active: Option<(u32, Slice)>,
    pub paused: bool,
    /// Whether the routes of now lead here.
    pub routed: bool,
    next_lease: u32,
    /// Everything leased since the last confirmation: what a replaced lease asked for is still on its way.
    granted: Slice,
    /// Bytes that it may still fetch.
    fetch_bytes: u64,
}

impl Member {
    pub fn new(session: Arc<Session>, goods: &Goods) -> Self {
        Self {
            session,
            offer: None,
            target: Slice::default(),
            leased: None,
            active: None,
            paused: false,
            routed: false,
            next_lease: 1,
            granted: Slice::default(),
            fetch_bytes: fetch_bytes(goods, &Slice::default()),
        }
    }

    pub fn is_settled(&self) -> bool {
        self.offer.is_some() && self.leased.is_none() && self.active.as_ref().is_some_and(|(_, s)| *s == self.target)
    }

    /// Whether the target differs from the newest lease.
    pub fn is_stale(&self) -> bool {
        let active = self.active.as_ref().map(|(_, slice)| slice);
        let newest = self.leased.as_ref().map(|leased| &leased.slice).or(active);
        self.offer.is_some() && newest.is_none_or(|slice| *slice != self.target)
    }

    /// Whether the target only gives experts back.
    pub fn only_shrinks(&self) -> bool {
        self.leased.is_none() && self.active.as_ref().is_some_and(|(_, slice)| self.target.is_within(slice))
    }

    /// Leases the target.
    pub fn lease(&mut self, goods: &Goods) {
        let number = self.next_lease;
        self.next_lease += 1;
        let slice = self.target.clone();
        let patience =
            Duration::from_millis(LEASE_EXPIRES_MS) + Duration::from_secs(goods.bytes(&slice) / FETCH_PACE_MIN);
        self.granted = self.granted.iter().chain(slice.iter()).collect();
        self.fetch_bytes = self.fetch_bytes.saturating_add(fetch_bytes(goods, &slice));
        let (manifest, experts) = (goods.manifest, slice.to_ranges());
        info!(session = %self.session.opened.session_id, lease = number, %slice, "lease");
        self.leased = Some(Leased { number, slice, verified: Slice::default(), until: Instant::now() + patience });
        self.session.send(Lease { lease: number, manifest, experts, expires_ms: LEASE_EXPIRES_MS }.frame());
    }

    /// The worker holds everything of a lease; whether that lease was waited for.
    pub fn confirm(&mut self, lease: u32) -> bool {
        let Some(leased) = self.leased.take_if(|leased| leased.number == lease) else { return false };
        self.active = Some((lease, leased.slice));
        self.granted = Slice::default();
        true
    }

    /// The worker holds this much of a lease; whether that is news.
    pub fn verify(&mut self, lease: u32, verified: &Slice) -> bool {
        let Some(leased) = self.leased.as_mut().filter(|leased| leased.number == lease) else { return false };
        let more = verified.iter().filter(|id| leased.slice.contains(*id));
        let verified: Slice = leased.verified.iter().chain(more).collect();
        let is_news = verified != leased.verified;
        if is_news {
            leased.verified = verified;
            // However slow its line is, it gets on.
            leased.until = leased.until.max(Instant::now() + Duration::from_millis(LEASE_EXPIRES_MS));
        }
        is_news
    }

    /// What it serves now, and under which lease: its confirmed slice, then what is verified of the next one.
    pub fn serves(&self) -> impl Iterator<Item = (u32, Slice)> + '_ {
        let active = self.active.as_ref().map(|(lease, slice)| (*lease, slice.clone()));
        let coming = self.leased.as_ref().map(|leased| {
            let more = active.as_ref().map_or_else(|| leased.verified.clone(), |(_, old)| leased.verified.without(old));
            (leased.number, more)
        });
        active.into_iter().chain(coming.filter(|(_, more)| !more.is_empty()))
    }

    /// It gives experts back, whichever lease they are under; whether it served one of them.
    pub fn give_back(&mut self, given: &Slice) -> bool {
        let active = self.active.as_mut().map(|(_, slice)| slice);
        let verified = self.leased.as_mut().map(|leased| &mut leased.verified);
        active.into_iter().chain(verified).fold(false, |changed, slice| {
            let left = slice.without(given);
            changed | (left != std::mem::replace(slice, left.clone()))
        })
    }

    /// Takes back what is offered and leased; it keeps nothing but its session.
    pub fn withdraw(&mut self) {
        (self.offer, self.leased, self.active) = (None, None, None);
        self.granted = Slice::default();
    }

    /// Notes that a piece is fetched.
    pub fn fetch(&mut self, get: &ExpertGet) -> Result<(), FetchRefused> {
        let id = ExpertId { layer: get.layer, expert: get.expert };
        let is_active = || self.active.as_ref().is_some_and(|(_, slice)| slice.contains(id));
        if get.expert != MANIFEST_EXPERT && !self.granted.contains(id) && !is_active() {
            return Err(FetchRefused::NotLeased { layer: get.layer, expert: get.expert });
        }
        self.fetch_bytes = self.fetch_bytes.checked_sub(get.length.into()).ok_or(FetchRefused::TooMuch)?;
        Ok(())
    }
}

/// Bytes that a lease of `slice` allows to fetch; the manifest comes in whole pieces.
fn fetch_bytes(goods: &Goods, slice: &Slice) -> u64 {
    let once = goods.bytes(slice).saturating_add(goods.manifest_bytes).saturating_add(CHUNK_BYTES_MAX as u64);
    once.saturating_mul(FETCH_TIMES)
}
