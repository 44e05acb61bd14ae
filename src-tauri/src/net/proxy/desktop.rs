//! The desktop's proxy settings: GNOME's through its own program, macOS's and Windows' from the system.
//!
//! They are read again when they are a minute old, since people move between networks while programs run.

use std::process::{Command, Stdio};
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::except::Except;
use super::{Proxy, ProxyError, basic};

/// How long settings count as known.
const FRESH: Duration = Duration::from_secs(60);
/// Longest wait for the desktop's program, within what dialling may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Where settings are looked for in messages.
const ORIGIN: &str = "the desktop's proxy settings";

/// The settings of the person's desktop, if there is one.
#[derive(Debug, Default)]
pub struct Desktop(Mutex<Option<(Instant, Settings)>>);

/// What a desktop demands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    proxy: Option<Result<Proxy, String>>,
    except: Except,
    script: Option<String>,
}

impl Desktop {
    pub(super) async fn towards(&self, host: &str, port: u16) -> Result<Option<Proxy>, ProxyError> {
        if !cfg!(target_os = "linux") {
            return system(host, port);
        }
        self.settings().await.towards(host, port)
    }

    async fn settings(&self) -> Settings {
        let mut known = self.0.lock().await;
        match &*known {
            Some((read, settings)) if read.elapsed() < FRESH => settings.clone(),
            _ => {
                let settings = gnome().await.map(|text| Settings::of_gnome(&text)).unwrap_or_default();
                *known = Some((Instant::now(), settings.clone()));
                settings
            }
        }
    }
}

impl Settings {
    pub(super) fn towards(self, host: &str, port: u16) -> Result<Option<Proxy>, ProxyError> {
        if let Some(url) = self.script {
            return Err(ProxyError::Script { url });
        }
        match self.proxy {
            Some(proxy) if !self.except.covers(host, port) => {
                proxy.map(Some).map_err(|got| ProxyError::Setting { origin: ORIGIN.to_owned(), got })
            }
            _ => Ok(None),
        }
    }

    /// What `gsettings list-recursively org.gnome.system.proxy` says.
    pub(super) fn of_gnome(text: &str) -> Self {
        let value = |schema: &str, key: &str| {
            let line = format!("org.gnome.system.proxy{schema} {key} ");
            text.lines().find_map(|l| l.strip_prefix(&line)).map(|v| v.trim().trim_matches('\'').to_owned())
        };
        match value("", "mode").as_deref() {
            Some("manual") => {}
            Some("auto") => return Self { script: value("", "autoconfig-url"), ..Self::default() },
            _ => return Self::default(),
        }
        let port = value(".https", "port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let host = value(".https", "host").filter(|host| !host.is_empty());
        let (Some(host), Some(port)) = (host, port) else { return Self::default() };
        let proxy = format!("{host}:{port}").parse::<Proxy>().map(|proxy| match value(".http", "use-authentication") {
            Some(uses) if uses == "true" => {
                let said = |key| value(".http", key).unwrap_or_default();
                let credentials = basic(said("authentication-user").bytes(), said("authentication-password").bytes());
                Proxy { credentials: Some(credentials), ..proxy }
            }
            _ => proxy,
        });
        let ignored = value("", "ignore-hosts").unwrap_or_default();
        let ignored: String = ignored.chars().map(|c| if "[]'".contains(c) { ' ' } else { c }).collect();
        Self { proxy: Some(proxy), except: Except::new(&ignored), script: None }
    }
}

/// GNOME's answer; `None` where there is no such desktop.
async fn gnome() -> Option<String> {
    // Only who has a session bus has settings; elsewhere the program would start one.
    std::env::var_os("DBUS_SESSION_BUS_ADDRESS")?;
    let mut command = Command::new("gsettings");
    command.args(["list-recursively", "org.gnome.system.proxy"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = timeout(PATIENCE, spawn_blocking(move || command.output())).await.ok()?.ok()?.ok()?;
    String::from_utf8(output.stdout).ok()
}

/// What macOS or Windows says.
fn system(host: &str, port: u16) -> Result<Option<Proxy>, ProxyError> {
    let Ok(uri) = format!("https://{host}:{port}/").parse() else { return Ok(None) };
    let Some(found) = Matcher::from_system().intercept(&uri) else { return Ok(None) };
    let fail = |got| ProxyError::Setting { origin: ORIGIN.to_owned(), got };
    let proxy: Proxy = found.uri().to_string().parse().map_err(fail)?;
    let credentials = found.basic_auth().and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok(Some(Proxy { credentials, ..proxy }))
}
