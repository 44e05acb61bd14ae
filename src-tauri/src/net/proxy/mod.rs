//! Forward proxies: which one, if any, leads to a host, and how it is asked.
//!
//! What was typed (`--proxy`, `proxy = …`) counts first, then the environment as every program reads it (`HTTPS_PROXY`,
//! `ALL_PROXY`, `NO_PROXY`, either case), then the desktop's settings. **Promises:** a proxy that is demanded is never
//! bypassed – not when it is down, not when its setting makes no sense; this machine itself is never asked for through
//! one; passwords appear in no message and no log.

mod desktop;
mod except;
mod tunnel;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::bind::is_loopback;
use super::tcp::{self, ConnectError};
use super::tls::TlsError;
use desktop::Desktop;
use except::Except;

pub(super) use tunnel::ask;

/// Names of the environment that demand a proxy for HTTPS and WSS, the first that says something counts.
const ENV_PROXY: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
/// Names of the environment that except hosts from it.
const ENV_EXCEPT: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// Why a proxy does not lead anywhere.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// A setting that names no proxy of ours.
    #[error("{origin}: expected http://[user:password@]host:port or https://…, got {got}")]
    Setting {
        /// Where it was set.
        origin: String,
        /// What is wrong with it; no password.
        got: String,
    },
    /// The desktop computes its proxies by a script.
    #[error(
        "the desktop's proxy comes from a script ({url}), which Kvasir does not run: name the proxy with --proxy or \
         HTTPS_PROXY"
    )]
    Script {
        /// Where the script is.
        url: String,
    },
    /// The proxy itself is not found or not reached.
    #[error("the proxy {proxy} is out of reach: {source}")]
    Down {
        /// The proxy.
        proxy: Proxy,
        /// Why.
        source: ConnectError,
    },
    /// TLS with the proxy itself.
    #[error("the proxy {proxy}: {source}")]
    Tls {
        /// The proxy.
        proxy: Proxy,
        /// Why.
        source: Box<TlsError>,
    },
    /// 407.
    #[error("{}", wants_password(proxy, schemes))]
    WantsPassword {
        /// The proxy.
        proxy: Proxy,
        /// The ways to prove who one is that it offers.
        schemes: String,
    },
    /// It does not connect us.
    #[error("the proxy {proxy} does not lead to {target}: it answered HTTP {status}")]
    Refused {
        /// The proxy.
        proxy: Proxy,
        /// `host:port`.
        target: String,
        /// HTTP status.
        status: u16,
    },
    /// What came back is no answer to CONNECT.
    #[error("the proxy {proxy}: expected an answer to CONNECT, got {reason}")]
    Answer {
        /// The proxy.
        proxy: Proxy,
        /// What came.
        reason: String,
    },
}

fn wants_password(proxy: &Proxy, schemes: &str) -> String {
    let offers = schemes.to_ascii_lowercase();
    if !offers.is_empty() && !offers.contains("basic") {
        return format!(
            "the proxy {proxy} wants a password in a way that Kvasir does not speak ({schemes}): ask for one that \
             takes Basic, or run a local proxy that speaks it"
        );
    }
    match proxy.credentials {
        None => format!("the proxy {proxy} wants a password: write it into its URL, http://user:password@host:port"),
        Some(_) => format!("the proxy {proxy} wants a password, and did not take the one in its URL: correct it there"),
    }
}

/// One forward proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Whether the proxy itself is spoken to over TLS.
    is_tls: bool,
    host: String,
    port: u16,
    /// The value of `Proxy-Authorization`.
    credentials: Option<String>,
}

/// Never the password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_tls { "https" } else { "http" }, self.host, self.port)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.credentials.is_some() { " with a password" } else { "" })
    }
}

impl FromStr for Proxy {
    type Err = String;

    /// `[http[s]://][user[:password]@]host[:port][/]`; the error says what is wrong, without a password.
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            other => return Err(format!("a {other}:// proxy")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let (host, port) = split_port(place, if is_tls { 443 } else { 80 }).ok_or("no port number after the colon")?;
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_' | b':' | b'[' | b']');
        if tcp::bare(host).is_empty() || !host.bytes().all(fits) {
            return Err("no host name".to_owned());
        }
        let credentials = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            basic(percent_decode_str(name), percent_decode_str(password))
        });
        Ok(Self { is_tls, host: host.to_owned(), port, credentials })
    }
}

/// Who we are, as a header says it.
fn basic(name: impl Iterator<Item = u8>, password: impl Iterator<Item = u8>) -> String {
    let both: Vec<u8> = name.chain([b':']).chain(password).collect();
    format!("Basic {}", BASE64_STANDARD.encode(both))
}

/// Host and port of an authority; `None` for a port that is no number.
fn split_port(authority: &str, usual: u16) -> Option<(&str, u16)> {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => {
            Some((host, port.parse().ok()?))
        }
        _ => Some((authority, usual)),
    }
}

/// What was typed about proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// As the environment says, else the desktop.
    #[default]
    Auto,
    /// None, whatever these say.
    Direct,
    /// This one, whatever these say.
    Through(Proxy),
}

impl<'de> Deserialize<'de> for ProxyChoice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for ProxyChoice {
    type Err = ProxyError;

    /// `auto`, `none`, or a proxy.
    fn from_str(text: &str) -> Result<Self, ProxyError> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Direct),
            url => {
                let fail = |got| ProxyError::Setting { origin: "proxy".to_owned(), got };
                Ok(Self::Through(url.parse().map_err(fail)?))
            }
        }
    }
}

/// Who knows the proxy for a host.
#[derive(Debug)]
pub(super) enum Proxies {
    Direct,
    Always(Proxy),
    /// One place demands it, and excepts some hosts.
    Set {
        origin: String,
        proxy: Result<Proxy, String>,
        except: Except,
    },
    Desktop(Arc<Desktop>),
}

impl Proxies {
    /// What `choice` means where the environment has these values.
    pub fn new(choice: &ProxyChoice, env: impl Fn(&str) -> Option<String>) -> Self {
        match choice {
            ProxyChoice::Direct => return Self::Direct,
            ProxyChoice::Through(proxy) => return Self::Always(proxy.clone()),
            ProxyChoice::Auto => {}
        }
        let said = |name: &&str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let Some((origin, text)) = ENV_PROXY.iter().find_map(|name| Some(((*name).to_owned(), said(name)?))) else {
            return Self::Desktop(Arc::default());
        };
        let except = ENV_EXCEPT.iter().find_map(said).unwrap_or_default();
        Self::Set { origin, proxy: text.parse(), except: Except::new(&except) }
    }

    /// The proxy that leads to `host`, if one is demanded.
    pub async fn towards(&self, host: &str, port: u16) -> Result<Option<Proxy>, ProxyError> {
        if is_this_machine(host) {
            return Ok(None);
        }
        match self {
            Self::Direct => Ok(None),
            Self::Always(proxy) => Ok(Some(proxy.clone())),
            Self::Set { except, .. } if except.covers(host, port) => Ok(None),
            Self::Set { origin, proxy, .. } => {
                let fail = |got: &String| ProxyError::Setting { origin: origin.clone(), got: got.clone() };
                proxy.as_ref().map(|proxy| Some(proxy.clone())).map_err(fail)
            }
            Self::Desktop(desktop) => desktop.towards(host, port).await,
        }
    }
}

/// Loopback addresses and the names that stand for them (RFC 6761): they never leave this machine.
fn is_this_machine(host: &str) -> bool {
    let host = tcp::bare(host).trim_end_matches('.');
    match host.parse() {
        Ok(ip) => is_loopback(ip),
        Err(_) => {
            let name = host.to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests;
