//! One worker in the fleet: what it offers, what it was leased, what it confirmed, and what it may fetch.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::Goods;
use crate::dispatch::estimate::Measured;
use crate::dispatch::placement::{Capacity, Share};
use crate::dispatch::session::Session;
use crate::types::ExpertId;
use crate::wire::chunk::{CHUNK_BYTES_MAX, MANIFEST_EXPERT};
use crate::wire::control::{Control, ExpertGet, Lease, Offer};
use crate::wire::{FrameError, Slice};

/// How long a lease outlives its link's last sign of life: three missed pings and a little.
const LEASE_EXPIRES_MS: u64 = 90_000;
/// The slowest fetching, in bytes per second, that still keeps an unconfirmed lease.
const FETCH_PACE_MIN: u64 = 1 << 20;
/// How often a lease's bytes may be fetched: once, and again when they came damaged or on another lease's heels.
const FETCH_TIMES: u64 = 4;

/// Changed offers that a worker may send at once; each may cost a placement and a lease that is fetched anew.
const OFFERS_MAX: u32 = 16;
/// How long until it may send one more.
const OFFER_EVERY: Duration = Duration::from_secs(10);

/// Answers after which a worker's experts need no replica more than others'.
const PROVEN_ANSWERS: u64 = 100;

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
    /// What placement wants it to hold.
    pub share: Share,
    /// What of that it is to hold for now.
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
    /// Changes of its offer that it may still make.
    offers_left: u32,
    /// Since when no further one was granted.
    offers_since: Instant,
}

impl Member {
    pub fn new(session: Arc<Session>, goods: &Goods) -> Self {
        Self {
            session,
            offer: None,
            share: Share::default(),
            target: Slice::default(),
            leased: None,
            active: None,
            paused: false,
            routed: false,
            next_lease: 1,
            granted: Slice::default(),
            fetch_bytes: fetch_bytes(goods, &Slice::default()),
            offers_left: OFFERS_MAX,
            offers_since: Instant::now(),
        }
    }

    /// Takes an offer that differs from the last one.
    ///
    /// # Errors
    /// More changes than anybody's hardware goes through: no session makes placement run and weights travel for ever.
    pub fn change_offer(&mut self, offer: Offer, now: Instant) -> Result<(), FrameError> {
        let granted = u32::try_from((now - self.offers_since).as_secs() / OFFER_EVERY.as_secs()).unwrap_or(u32::MAX);
        if granted > 0 {
            self.offers_left = self.offers_left.saturating_add(granted).min(OFFERS_MAX);
            self.offers_since = now;
        }
        let max = u64::from(OFFERS_MAX);
        self.offers_left = self.offers_left.checked_sub(1).ok_or(FrameError::Over {
            what: "changes of an offer",
            got: max + 1,
            max,
        })?;
        self.offer = Some(offer);
        Ok(())
    }

    /// The layers that it should rather hold: those that few may hold, then those that it wishes for.
    pub fn wants(&self, offer: &Offer) -> Vec<u16> {
        self.session.bounds.preferred.iter().chain(&offer.wants).copied().collect()
    }

    pub fn is_settled(&self) -> bool {
        let holds_target = self.active.as_ref().is_some_and(|(_, s)| *s == self.target);
        // Whoever is to hold nothing has nothing to prove.
        let is_proven = self.target.is_empty() || self.session.proof.holds();
        self.offer.is_some() && self.leased.is_none() && holds_target && is_proven
    }

    /// Whether requests may go to it: it takes work, and its device has proved itself.
    pub fn is_asked(&self) -> bool {
        !self.paused && self.session.proof.holds()
    }

    /// What it can hold and how fast it has shown itself at `now`; `None` while it offers nothing.
    pub fn capacity(&self, now: Instant) -> Option<Capacity> {
        let offer = self.offer.as_ref()?;
        let Measured { round_trip, assignments_per_s, answers, .. } = self.session.measured();
        Some(Capacity {
            memory_bytes: offer.memory_bytes,
            wants: self.wants(offer),
            barred: self.session.bounds.barred.clone(),
            assignments_per_s,
            round_trip,
            is_proven: answers >= PROVEN_ANSWERS && self.session.may_be_asked(now),
            own: self.share.own.clone(),
            held: self.held(),
        })
    }

    /// Bytes that it offers.
    pub fn memory_bytes(&self) -> u64 {
        self.offer.as_ref().map_or(0, |offer| offer.memory_bytes)
    }

    /// What it holds or is fetching.
    pub fn held(&self) -> Slice {
        let active = self.active.iter().flat_map(|(_, slice)| slice.iter());
        active.chain(self.leased.iter().flat_map(|leased| leased.slice.iter())).collect()
    }

    /// What it was last leased.
    fn newest(&self) -> Option<&Slice> {
        let active = self.active.as_ref().map(|(_, slice)| slice);
        self.leased.as_ref().map(|leased| &leased.slice).or(active)
    }

    /// Whether it is to hold more than it was leased.
    pub fn lacks(&self) -> bool {
        self.offer.is_some() && self.newest().is_none_or(|slice| !self.target.is_within(slice))
    }

    /// Whether it holds more than it is to.
    pub fn exceeds(&self) -> bool {
        self.offer.is_some() && self.newest().is_some_and(|slice| !slice.is_within(&self.target))
    }

    /// Whether it was leased more than it now has room for.
    pub fn is_over(&self, goods: &Goods) -> bool {
        self.offer.is_some() && self.newest().is_some_and(|slice| goods.bytes(slice) > self.memory_bytes())
    }

    /// Whether it fetches what it is not to hold.
    pub fn fetches_too_much(&self) -> bool {
        let is_active = |id| self.active.as_ref().is_some_and(|(_, slice)| slice.contains(id));
        let leased = self.leased.iter().flat_map(|leased| leased.slice.iter());
        leased.into_iter().any(|id| !self.target.contains(id) && !is_active(id))
    }

    /// Stops to be asked for what is to go, if what it holds is more than it now has room for; whether that is news.
    pub fn drop_what_does_not_fit(&mut self, goods: &Goods) -> bool {
        let memory_bytes = self.memory_bytes();
        let Some((_, active)) = &mut self.active else { return false };
        if goods.bytes(active) <= memory_bytes {
            return false;
        }
        let kept: Slice = active.iter().filter(|id| self.target.contains(*id)).collect();
        kept != std::mem::replace(active, kept.clone())
    }

    /// Leases a slice.
    pub fn lease(&mut self, goods: &Goods, slice: Slice) {
        let number = self.next_lease;
        self.next_lease += 1;
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
        (self.share, self.target) = (Share::default(), Slice::default());
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
