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
    ///
    /// **Invariant:** once filled, never empty again.
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
    /// Tokens that its requests may still come to.
    reserved: u64,
}

/// Somebody who may use the API; without a key where none is needed.
#[derive(Debug, Clone, Default)]
pub struct Client {
    key: Option<(KeyGuard, ApiKey)>,
}

/// A request of a client while it is served; dropped, it is counted.
#[derive(Debug, Default)]
pub struct Metered {
    key: Option<(KeyGuard, ApiKey)>,
    /// Tokens of the key's that are set aside for it.
    reserved: u64,
    /// What it used so far.
    pub usage: Usage,
}

impl KeyGuard {
    /// Over the files of a state directory.
    ///
    /// # Errors
    /// Files that cannot be read; usage of keys without any key.
    pub fn open(keys: KeyFile, usage: UsageFile) -> Result<Self, KeyError> {
        let (version, used) = (version(&keys), usage.read()?);
        let read = read(&keys, !used.is_empty())?;
        let state = State { version, keys: read, used, live: HashMap::new(), unsaved: false };
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
            state.keys = read(&self.0.keys, !state.keys.is_empty())?;
            state.version = now;
        }
        Ok(state)
    }
}

fn version(keys: &KeyFile) -> Version {
    let found = std::fs::metadata(keys.path()).ok()?;
    Some((found.modified().ok()?, found.len()))
}

/// The keys by hash. A file that is gone, or empty, is no reason to serve everybody where there `were` keys.
fn read(file: &KeyFile, were: bool) -> Result<HashMap<String, ApiKey>, KeyError> {
    let keys = file.read()?;
    if were && keys.is_empty() {
        return Err(KeyError::Gone { path: file.path().to_owned() });
    }
    Ok(keys.into_iter().map(|key| (key.hash.clone(), key)).collect())
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
        let live =
            state.live.entry(key.id.clone()).or_insert(Live { streams: 0, minute: now, requests: 0, reserved: 0 });
        if now - live.minute >= MINUTE {
            (live.minute, live.requests) = (now, 0);
        }
        let over = |limit: Option<u64>, got: u64, what: &str| match limit {
            Some(limit) if got >= limit => {
                let message = format!("expected at most {limit} {what} of this API key, which it has had");
                Err(over_limit(message))
            }
            _ => Ok(()),
        };
        over(key.tokens, used.tokens().saturating_add(live.reserved), "tokens")?;
        over(key.requests_per_minute.map(u64::from), live.requests.into(), "requests a minute")?;
        over(key.streams.map(u64::from), live.streams.into(), "streams at once")?;
        live.streams += 1;
        live.requests += 1;
        let usage = Usage { requests: 1, ..Usage::default() };
        Ok(Metered { key: Some((guard.clone(), key.clone())), reserved: 0, usage })
    }
}

fn over_limit(message: String) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "key_limit", message)
}

impl Metered {
    /// Sets aside, of the tokens that its key may have, a prompt's and as many of `new` as are left; gives these.
    ///
    /// # Errors
    /// 429 when not even one is left, with what other requests of the key hold.
    pub fn reserve(&mut self, prompt: usize, new: usize) -> Result<usize, ApiError> {
        let Some((guard, ApiKey { id, tokens: Some(limit), .. })) = &self.key else { return Ok(new) };
        let mut state = guard.lock();
        let used = state.used.get(id).copied().unwrap_or_default().tokens();
        let Some(live) = state.live.get_mut(id) else { return Ok(new) };
        let (limit, prompt, held) = (*limit, prompt as u64, live.reserved);
        let left = limit.saturating_sub(used).saturating_sub(held).saturating_sub(prompt);
        let granted = left.min(new as u64);
        if granted == 0 {
            return Err(over_limit(format!(
                "expected at most {limit} tokens of this API key, got a prompt of {prompt} beside {used} that it has \
                 had and {held} of its other requests"
            )));
        }
        self.reserved = prompt + granted;
        live.reserved += self.reserved;
        Ok(granted as usize)
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some((guard, ApiKey { id, .. })) = self.key.take() else { return };
        let mut state = guard.lock();
        if let Some(live) = state.live.get_mut(&id) {
            live.streams = live.streams.saturating_sub(1);
            live.reserved = live.reserved.saturating_sub(self.reserved);
        }
        state.used.entry(id).or_default().add(self.usage);
        state.unsaved = true;
    }
}
