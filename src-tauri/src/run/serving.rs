//! The backbone's API as it is configured: who may come, over what, and `kvasir keys`.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use serde_json::json;
use tokio::net::TcpListener;

use super::{AnyError, say, usage};
use crate::backbone::SchedulerConfig;
use crate::backbone::api::keys::{ApiKey, KeyFile, KeyGuard, NewKey, Route, Usage, UsageFile};
use crate::backbone::api::{ApiConfig, NEW_TOKENS_MAX};
use crate::cli::{CreateKeyArgs, KeyRoute, KeysCommand};
use crate::clock::{Clock as _, SystemClock};
use crate::config;
use crate::dispatch::RemoteDispatch;
use crate::net::{bind, tls};
use crate::wallet::keyfile;

/// The API's listener and configuration. Beyond this machine it needs TLS, since prompts pass, and keys, since anybody
/// could ask; only the operator can say otherwise.
pub(super) async fn api(
    config: &config::Backbone,
    dispatch: &RemoteDispatch,
    lent: String,
) -> Result<(TcpListener, ApiConfig), AnyError> {
    let keys = KeyGuard::open(KeyFile::within(&config.state), UsageFile::within(&config.state))?;
    let config::Api { listen, tls: files, allow_insecure, state_bytes, speculate, new_tokens_max } = &config.api;
    let tls = files.as_ref().map(|(cert, key)| tls::server_config(cert, key)).transpose()?;
    if !bind::is_loopback(listen.ip()) && !allow_insecure {
        let lacks = match (tls.is_some(), keys.is_needed()?) {
            (true, true) => None,
            (false, true) => Some("TLS (--api-tls-cert, --api-tls-key)"),
            (true, false) => Some("a key (kvasir keys create)"),
            (false, false) => Some("TLS (--api-tls-cert, --api-tls-key) and a key (kvasir keys create)"),
        };
        if let Some(lacks) = lacks {
            return Err(usage(format!(
                "--api {listen}: other machines reach it, so it needs {lacks}; or allow it with --allow-insecure-api"
            )));
        }
    }
    let mut scheduler = SchedulerConfig::default();
    scheduler.speculation = super::speculation(*speculate);
    scheduler.state_bytes = state_bytes.unwrap_or(scheduler.state_bytes);
    let listener = bind::listen(*listen).await?;
    let dispatch = Some(dispatch.clone());
    let new_tokens_max = new_tokens_max.map_or(NEW_TOKENS_MAX, NonZeroUsize::get);
    let kept_in = Some(config.state.clone());
    Ok((listener, ApiConfig { scheduler, keys: Some(keys), tls, dispatch, kept_in, lent, new_tokens_max }))
}

/// `kvasir keys …`.
pub(super) fn keys(command: KeysCommand) -> Result<ExitCode, AnyError> {
    match command {
        KeysCommand::Peer { file } => say(keyfile::load_or_create(&file)?.public())?,
        KeysCommand::Create(args) => create(args)?,
        KeysCommand::Revoke { id, state } => {
            KeyFile::within(&state).revoke(&id)?;
            say(format_args!("revoked {id}"))?;
        }
        KeysCommand::List { state, json } => {
            let used = UsageFile::within(&state).read()?;
            let keys = KeyFile::within(&state).read()?;
            let mut keys = keys.into_iter().map(|key| (used.get(&key.id).copied().unwrap_or_default(), key));
            if json {
                let shown = keys.map(|(usage, key)| as_json(&key, &usage)).collect::<Vec<_>>();
                say(serde_json::to_string_pretty(&shown)?)?;
            } else {
                keys.try_for_each(|(usage, key)| say(as_line(&key, &usage)))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(args: CreateKeyArgs) -> Result<(), AnyError> {
    let CreateKeyArgs { name, route, streams, requests_per_minute, tokens, state, json } = args;
    let route = match route {
        KeyRoute::Any => Route::Any,
        KeyRoute::Trusted => Route::Trusted,
        KeyRoute::Local => Route::Local,
    };
    let new = NewKey { name, route, streams, requests_per_minute, tokens };
    let (made, key) = KeyFile::within(&state).create(new, SystemClock::default().unix_ms())?;
    if json {
        let mut shown = as_json(&made, &Usage::default());
        shown["key"] = key.into();
        say(serde_json::to_string_pretty(&shown)?)?;
    } else {
        say(format_args!("{key}"))?;
    }
    Ok(())
}

/// A key for machines, without its hash.
fn as_json(key: &ApiKey, usage: &Usage) -> serde_json::Value {
    let ApiKey { id, name, route, streams, requests_per_minute, tokens, created_unix_ms, revoked, hash: _ } = key;
    json!({
        "id": id, "name": name, "route": route, "streams": streams, "requests_per_minute": requests_per_minute,
        "tokens": tokens, "created_unix_ms": created_unix_ms, "revoked": revoked, "usage": usage,
    })
}

/// A key for people.
fn as_line(key: &ApiKey, usage: &Usage) -> String {
    let limit = |what: &str, limit: Option<u64>| limit.map_or_else(String::new, |n| format!("  at most {n} {what}"));
    let ended = if key.revoked { "  revoked" } else { "" };
    let route = match key.route {
        Route::Any => "any",
        Route::Trusted => "trusted",
        Route::Local => "local",
    };
    let limits = [
        limit("streams", key.streams.map(u64::from)),
        limit("requests a minute", key.requests_per_minute.map(u64::from)),
        limit("tokens", key.tokens),
    ];
    let used = format!("{} requests, {} + {} tokens", usage.requests, usage.prompt_tokens, usage.new_tokens);
    format!("{}  {:<20} route {route}{}{ended}  used {used}", key.id, key.name, limits.concat())
}
