//! What can go wrong on the way to a gateway, leg by leg: in words, as a code, and with what to do about it.

use serde::Serialize;

use crate::net::proxy::ProxyError;
use crate::net::tcp::ConnectError;
use crate::net::tls::TlsError;

/// The legs of the way to a gateway and into its network, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// The gateway's URL itself.
    Url,
    /// Its name, or the proxy's.
    Dns,
    /// A connection to it, or to the proxy.
    Tcp,
    /// What the proxy says.
    Proxy,
    /// Its certificate.
    Tls,
    /// From HTTP to a WebSocket.
    Upgrade,
    /// The hub's proof, and ours.
    Auth,
    /// Programs that understand each other.
    Version,
}

impl Leg {
    /// As people say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Url => "URL",
            Self::Dns => "DNS",
            Self::Tcp => "TCP",
            Self::Proxy => "proxy",
            Self::Tls => "TLS",
            Self::Upgrade => "upgrade",
            Self::Auth => "auth",
            Self::Version => "version",
        }
    }
}

/// Which leg of dialling failed, and how.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// A text that is no URL of ours.
    #[error("expected wss://host[:port]/path, got {url:?}")]
    Url {
        /// The text.
        url: String,
    },
    /// `ws://` to another machine.
    #[error("ws:// is for this machine only, and {host} is elsewhere: use wss://")]
    Plain {
        /// The host.
        host: String,
    },
    /// Nothing leads out of this machine.
    #[error("this machine is offline: no network leads out of it (wanted {host})")]
    Offline {
        /// The host.
        host: String,
        /// What failed.
        source: ConnectError,
    },
    /// DNS or TCP, while this machine is online.
    #[error(transparent)]
    Tcp(#[from] ConnectError),
    /// The proxy.
    #[error(transparent)]
    Proxy(Box<ProxyError>),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server is no WebSocket server, or does not want us.
    #[error("{host} refused the upgrade with HTTP {status}")]
    Status {
        /// The host.
        host: String,
        /// HTTP status.
        status: u16,
    },
    /// What came back is no answer to an upgrade.
    #[error("upgrade at {host}: {reason}")]
    Upgrade {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
    /// A leg that did not end in time.
    #[error("{host} did not finish {} within {deadline_ms} ms", leg.name())]
    Deadline {
        /// The host.
        host: String,
        /// Where it stood.
        leg: Leg,
        /// The bound for all legs.
        deadline_ms: u128,
    },
}

impl From<ProxyError> for DialError {
    fn from(error: ProxyError) -> Self {
        Self::Proxy(Box::new(error))
    }
}

impl DialError {
    /// The leg that failed.
    #[must_use]
    pub fn leg(&self) -> Leg {
        match self {
            Self::Url { .. } | Self::Plain { .. } => Leg::Url,
            Self::Offline { source, .. } | Self::Tcp(source) if source.is_of_dns() => Leg::Dns,
            Self::Offline { .. } | Self::Tcp(_) => Leg::Tcp,
            Self::Proxy(_) => Leg::Proxy,
            Self::Tls(_) => Leg::Tls,
            Self::Status { .. } | Self::Upgrade { .. } => Leg::Upgrade,
            Self::Deadline { leg, .. } => *leg,
        }
    }

    /// A stable code for user interfaces and scripts.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "url",
            Self::Plain { .. } => "plain",
            Self::Offline { .. } => "offline",
            Self::Tcp(source) if source.is_of_dns() => "dns",
            Self::Tcp(_) | Self::Deadline { leg: Leg::Dns | Leg::Tcp, .. } => "gateway_down",
            Self::Proxy(error) => match **error {
                ProxyError::WantsPassword { .. } => "proxy_password",
                ProxyError::Refused { .. } => "proxy_refuses",
                ProxyError::Setting { .. } | ProxyError::Script { .. } => "proxy_setting",
                ProxyError::Down { .. } | ProxyError::Tls { .. } | ProxyError::Answer { .. } => "proxy_down",
            },
            Self::Deadline { leg: Leg::Proxy, .. } => "proxy_down",
            Self::Tls(TlsError::Untrusted(_)) => "untrusted_issuer",
            Self::Tls(_) | Self::Deadline { leg: Leg::Tls, .. } => "tls",
            Self::Status { .. } | Self::Upgrade { .. } | Self::Deadline { .. } => "upgrade",
        }
    }

    /// What a person can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.code() {
            "url" => "correct the gateway's URL: wss://host or wss://host:port",
            "plain" => "use wss:// for a gateway on another machine",
            "offline" => "connect this machine to a network; Kvasir goes on by itself then",
            "dns" => "check the gateway's name, and that this network's DNS knows public names",
            "gateway_down" => {
                "this machine is online, so the gateway is down or something blocks the way to its port: ask its \
                 operator, or your network's, or name the proxy that leads out (--proxy, HTTPS_PROXY)"
            }
            "proxy_password" => "write user and password into the proxy's URL: http://user:password@host:port",
            "proxy_refuses" => "ask the proxy's administrators to allow CONNECT to the gateway's host and port",
            "proxy_setting" => "correct the setting, or overrule it with --proxy URL or --proxy none",
            "proxy_down" => {
                "check the proxy's host and port, or overrule it with --proxy none where no proxy is needed"
            }
            "untrusted_issuer" => "name the certificate authority with --ca FILE, or with SSL_CERT_FILE",
            "tls" => "check this machine's clock, and that the gateway's URL has the right host and port",
            _ => "something else answers there, or a proxy in between does not pass WebSockets: ask its operator",
        }
    }
}
