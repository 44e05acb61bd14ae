//! Asks a gateway's public HTTP: over HTTPS alone, without proxy or redirect, bounded in time and size.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::tls::{self, TlsError};

/// Longest exchange.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Why a gateway gave no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// No gateway's URL.
    #[error("expected a gateway such as wss://gateway.example, got {0:?}")]
    Url(String),
    /// No trust.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No answer.
    #[error("{gateway} does not answer: {reason}")]
    Unreachable {
        /// The gateway.
        gateway: String,
        /// Why.
        reason: String,
    },
    /// The gateway says no, and why.
    #[error("{gateway} refuses: {message}")]
    Refused {
        /// The gateway.
        gateway: String,
        /// A stable code.
        code: String,
        /// Its words.
        message: String,
    },
    /// An answer of another kind.
    #[error("{gateway}: expected JSON of at most {ANSWER_BYTES_MAX} bytes, got {got}")]
    Answer {
        /// The gateway.
        gateway: String,
        /// What came.
        got: String,
    },
}

/// One gateway, and whom to trust for it.
#[derive(Debug, Clone)]
pub struct Gateway {
    client: Client,
    base: String,
}

impl Gateway {
    /// The gateway that workers dial at `url`; `ca_pem` is an authority beside the public ones.
    ///
    /// # Errors
    /// No such URL, or a text that holds no authority.
    pub fn at(url: &str, ca_pem: Option<&str>) -> Result<Self, HttpsError> {
        let base = public_of(url).ok_or_else(|| HttpsError::Url(url.chars().take(100).collect()))?;
        Ok(Self { client: client(ca_pem)?, base })
    }

    /// `GET path`.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, HttpsError> {
        self.exchange(self.client.get(format!("{}{path}", self.base))).await
    }

    /// `POST path` with JSON.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, HttpsError> {
        self.exchange(self.client.post(format!("{}{path}", self.base)).json(body)).await
    }

    async fn exchange<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, HttpsError> {
        let gateway = || self.base.clone();
        let unreachable = |reason: String| HttpsError::Unreachable { gateway: gateway(), reason };
        let answer = |got: String| HttpsError::Answer { gateway: gateway(), got };
        let exchange = async {
            let response = request.send().await.map_err(|error| unreachable(root_of(&error)))?;
            let status = response.status();
            let bytes = body(response, ANSWER_BYTES_MAX).await.map_err(|error| unreachable(root_of(&error)))?;
            Ok::<_, HttpsError>((status, bytes.ok_or_else(|| answer("a very long one".to_owned()))?))
        };
        let late = |_| unreachable(format!("nothing in {DEADLINE:?}"));
        let (status, bytes) = timeout(DEADLINE, exchange).await.map_err(late)??;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| answer(error.to_string()));
        }
        let said: Value = serde_json::from_slice(&bytes).map_err(|_| answer(status.to_string()))?;
        let word = |name: &str| said["error"][name].as_str().map(str::to_owned);
        match (word("code"), word("message")) {
            (Some(code), Some(message)) => Err(HttpsError::Refused { gateway: gateway(), code, message }),
            _ => Err(answer(status.to_string())),
        }
    }
}

/// Asks the gateways in turn until one answers; a refusal is an answer.
///
/// # Errors
/// What the one that answered said, or why the last one did not.
pub async fn first<'a, T>(
    gateways: &'a [Gateway],
    ask: impl AsyncFn(&'a Gateway) -> Result<T, HttpsError>,
) -> Result<(&'a Gateway, T), HttpsError> {
    let mut failure = HttpsError::Url("none".to_owned());
    for gateway in gateways {
        match ask(gateway).await {
            Ok(answer) => return Ok((gateway, answer)),
            Err(error @ HttpsError::Unreachable { .. }) => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
}

/// A client that trusts the public authorities and `ca_pem`: the same road as a worker's link, which takes no proxy.
///
/// # Errors
/// A text that holds no authority.
pub fn client(ca_pem: Option<&str>) -> Result<Client, TlsError> {
    let trust = tls::client_config_also(&[], ca_pem)?;
    let client = Client::builder()
        .tls_backend_preconfigured(rustls::ClientConfig::clone(&trust))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    client.build().map_err(|e| TlsError::Rustls(rustls::Error::General(e.to_string())))
}

/// A body of at most `bytes_max`; `None` for a longer one.
///
/// # Errors
/// A connection that fails.
pub async fn body(mut response: Response, bytes_max: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if bytes.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

/// The cause at the bottom: what lies above repeats the address.
#[must_use]
pub fn root_of(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Where the gateway that workers dial at `url` answers the public.
#[must_use]
pub fn public_of(url: &str) -> Option<String> {
    let host = url.strip_prefix("wss://")?.split(['/', '?']).next()?;
    Some(format!("https://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_side_of_a_gateway_is_at_its_host() {
        assert_eq!(public_of("wss://g.example:7443/v1/worker").as_deref(), Some("https://g.example:7443"));
        assert_eq!(public_of("wss://[::1]:1").as_deref(), Some("https://[::1]:1"));
        assert_eq!(public_of("ws://g.example"), None);
        assert!(matches!(Gateway::at("http://g", None), Err(HttpsError::Url(_))));
    }
}
