//! Holds every request to the keys as they are at that moment, and counts what each key uses.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;

use super::file::{ApiKey, KeyError, KeyFile, Route, hash};
use super::usage::{Usage, UsageFile};
use crate::backbone::Reach;
use crate::backbone::api::ApiError;

const MINUTE: Duration = Duration::from_secs(60);

/// Which state of the file was read last.
type Version = Option<(SystemTime, u64)>;

/// The keys, their limits and their usage. Cheap to clone.
#[derive(Debug, Clone)]
pub struct KeyGuard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: KeyFile,
    usage: UsageFile,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    version: Version,
    /// By hash. Empty = no keys were ever made, everybody is served.
    keys: HashMap<String, ApiKey>,
    /// By id.
    used: BTreeMap<String, Usage>,
    live: HashMap<String, Live>,
    /// Whether `used` is newer than its file.
    unsaved: bool,
}

/// What a key does at the moment.
#[derive(Debug)]
struct Live {
    streams: u32,
    minute: Instant,
    requests: u32,
}

/// Somebody who may use the API; without a key where none is needed.
#[derive(Debug, Clone, Default)]
pub struct Client {
    key: Option<(KeyGuard, ApiKey)>,
}

/// A request of a client while it is served; dropped, it is counted.
#[derive(Debug, Default)]
pub struct Metered {
    key: Option<(KeyGuard, String)>,
    /// What it used so far.
    pub usage: Usage,
}

impl KeyGuard {
    /// Over the files of a state directory.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(keys: KeyFile, usage: UsageFile) -> Result<Self, KeyError> {
        let version = version(&keys);
        let state =
            State { version, keys: by_hash(keys.read()?), used: usage.read()?, live: HashMap::new(), unsaved: false };
        Ok(Self(Arc::new(Inner { keys, usage, state: Mutex::new(state) })))
    }

    /// Whether a key is needed.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_needed(&self) -> Result<bool, KeyError> {
        Ok(!self.current()?.keys.is_empty())
    }

    /// Who shows `key`.
    ///
    /// # Errors
    /// 401 for a missing, unknown or revoked key, 503 when nobody can tell.
    pub fn client(&self, key: Option<&str>) -> Result<Client, ApiError> {
        let state = self.current().map_err(|error| {
            tracing::error!(%error, "nobody is let in");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "keys", "the server cannot read its keys")
        })?;
        if state.keys.is_empty() {
            return Ok(Client::default());
        }
        let refuse = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message));
        match key.map(|key| state.keys.get(&hash(key))) {
            None => refuse("expected an API key: Authorization: Bearer KEY"),
            Some(None) => refuse("expected an API key of this server, got another"),
            Some(Some(key)) if key.revoked => refuse("the API key was revoked"),
            Some(Some(key)) => Ok(Client { key: Some((self.clone(), key.clone())) }),
        }
    }

    /// Writes the usage, if it changed.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self) -> Result<(), KeyError> {
        let mut state = self.lock();
        if state.unsaved {
            self.0.usage.write(&state.used)?;
            state.unsaved = false;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state with the keys as the file has them now.
    fn current(&self) -> Result<MutexGuard<'_, State>, KeyError> {
        let mut state = self.lock();
        let now = version(&self.0.keys);
        if state.version != now {
            state.keys = by_hash(self.0.keys.read()?);
            state.version = now;
        }
        Ok(state)
    }
}

fn version(keys: &KeyFile) -> Version {
    let found = std::fs::metadata(keys.path()).ok()?;
    Some((found.modified().ok()?, found.len()))
}

fn by_hash(keys: Vec<ApiKey>) -> HashMap<String, ApiKey> {
    keys.into_iter().map(|key| (key.hash.clone(), key)).collect()
}

impl Client {
    /// Where the hidden states of a request may go that asks for `asked`.
    #[must_use]
    pub fn reach(&self, asked: Reach) -> Reach {
        self.key.as_ref().map_or(Route::Any, |(_, key)| key.route).limit(asked)
    }

    /// Takes the place of one request among those that the key may have.
    ///
    /// # Errors
    /// 429 with the limit that is reached.
    pub fn begin(&self) -> Result<Metered, ApiError> {
        let Some((guard, key)) = &self.key else { return Ok(Metered::default()) };
        let mut state = guard.lock();
        let used = state.used.get(&key.id).copied().unwrap_or_default();
        let now = Instant::now();
        let live = state.live.entry(key.id.clone()).or_insert(Live { streams: 0, minute: now, requests: 0 });
        if now - live.minute >= MINUTE {
            (live.minute, live.requests) = (now, 0);
        }
        let over = |limit: Option<u64>, got: u64, what: &str| match limit {
            Some(limit) if got >= limit => {
                let message = format!("expected at most {limit} {what} of this API key, which it has had");
                Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "key_limit", message))
            }
            _ => Ok(()),
        };
        over(key.tokens, used.tokens(), "tokens")?;
        over(key.requests_per_minute.map(u64::from), live.requests.into(), "requests a minute")?;
        over(key.streams.map(u64::from), live.streams.into(), "streams at once")?;
        live.streams += 1;
        live.requests += 1;
        let usage = Usage { requests: 1, ..Usage::default() };
        Ok(Metered { key: Some((guard.clone(), key.id.clone())), usage })
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some((guard, id)) = self.key.take() else { return };
        let mut state = guard.lock();
        if let Some(live) = state.live.get_mut(&id) {
            live.streams = live.streams.saturating_sub(1);
        }
        state.used.entry(id).or_default().add(self.usage);
        state.unsaved = true;
    }
}
