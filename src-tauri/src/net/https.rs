//! Asks a gateway's public HTTP: over HTTPS alone, without redirects, bounded in time and size.
//!
//! A connection is made by the same connector as a worker's link, and kept for the next question.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderValue, IF_NONE_MATCH, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Io;
use super::dial::{Connector, DIAL_DEADLINE, Destination, DialError, Trip};
use super::tls::TlsError;
use crate::wire::agent::AGENT;

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
    /// No connection.
    #[error("{gateway} does not answer: {source}")]
    Dial {
        /// The gateway.
        gateway: String,
        /// Why.
        source: DialError,
    },
    /// A connection, but no answer.
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

impl HttpsError {
    /// Whether another gateway may do better: this one is silent, takes no claims (`claims`), or the hub that a receipt is
    /// of is none of its hubs, or is not heard of yet (`hub`).
    #[must_use]
    pub fn is_for_another(&self) -> bool {
        match self {
            Self::Dial { .. } | Self::Unreachable { .. } => true,
            Self::Refused { code, .. } => code == "claims" || code == "hub",
            Self::Url(_) | Self::Tls(_) | Self::Answer { .. } => false,
        }
    }
}

/// An answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// What stands for this answer in a later question.
    pub etag: Option<HeaderValue>,
    /// At most 64 KiB.
    pub body: Bytes,
}

/// One gateway's public side.
pub struct Gateway {
    connector: Arc<Connector>,
    /// `https://host[:port]`.
    base: String,
    host: String,
    port: u16,
    /// The connection of the last question, if it is still good.
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Gateway {
    /// The gateway that workers dial at `url`.
    ///
    /// # Errors
    /// No such URL.
    pub fn at(url: &str, connector: Arc<Connector>) -> Result<Self, HttpsError> {
        let fail = || HttpsError::Url(url.chars().take(100).collect());
        let base = public_of(url).ok_or_else(fail)?;
        let uri: Uri = base.parse().map_err(|_| fail())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(fail)?.to_owned();
        let port = uri.port_u16().unwrap_or(443);
        Ok(Self { connector, base, host, port, open: Mutex::default() })
    }

    /// `https://host[:port]`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Its host, without port.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// A connection of its own, for a caller that asks and measures by itself.
    ///
    /// # Errors
    /// [`DialError`], within `deadline`.
    pub async fn open(&self, deadline: Duration) -> Result<Io, DialError> {
        let to = Destination::new(&self.host, self.port, deadline);
        self.connector.secure(&to, &mut Trip::default()).await
    }

    /// `GET path` for JSON.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, HttpsError> {
        self.json(self.ask(Method::GET, path, HeaderMap::new(), Bytes::new(), DEADLINE).await?)
    }

    /// `POST path` with JSON.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, HttpsError> {
        let body = serde_json::to_vec(body).map_err(|error| self.answer(error.to_string()))?;
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        self.json(self.ask(Method::POST, path, headers, body.into(), DEADLINE).await?)
    }

    /// `GET path`, unless it is still what `known` stands for: then the status is 304. Within `deadline`.
    ///
    /// # Errors
    /// [`HttpsError`].
    pub async fn get_new(
        &self,
        path: &str,
        known: Option<&HeaderValue>,
        deadline: Duration,
    ) -> Result<Answer, HttpsError> {
        let headers = known.map(|etag| (IF_NONE_MATCH, etag.clone())).into_iter().collect();
        self.ask(Method::GET, path, headers, Bytes::new(), deadline).await
    }

    fn json<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, HttpsError> {
        if answer.status.is_success() {
            return serde_json::from_slice(&answer.body).map_err(|error| self.answer(error.to_string()));
        }
        let other = || self.answer(answer.status.to_string());
        let said: Value = serde_json::from_slice(&answer.body).map_err(|_| other())?;
        let word = |name: &str| said["error"][name].as_str().map(str::to_owned);
        match (word("code"), word("message")) {
            (Some(code), Some(message)) => Err(HttpsError::Refused { gateway: self.base.clone(), code, message }),
            _ => Err(other()),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Answer, HttpsError> {
        let exchange = async {
            // One question at a time, as HTTP/1.1 has it.
            let mut open = self.open.lock().await;
            // A connection that was kept may have been closed meanwhile. Gateways take claims and receipts once, however
            // often they come.
            if let Some(mut kept) = open.take().filter(|kept| !kept.is_closed())
                && let Ok(answer) = self.exchange(&mut kept, &method, path, &headers, &body).await
            {
                *open = Some(kept);
                return Ok(answer);
            }
            let mut fresh = self.dial().await?;
            let answer = self.exchange(&mut fresh, &method, path, &headers, &body).await?;
            *open = Some(fresh);
            Ok(answer)
        };
        let late = |_| self.unreachable(format!("nothing in {deadline:?}"));
        timeout(deadline, exchange).await.map_err(late)?
    }

    async fn dial(&self) -> Result<SendRequest<Full<Bytes>>, HttpsError> {
        let to = Destination::new(&self.host, self.port, DIAL_DEADLINE);
        let io = self.connector.secure(&to, &mut Trip::default()).await;
        let io = io.map_err(|source| HttpsError::Dial { gateway: self.base.clone(), source })?;
        let (sender, connection) =
            handshake(TokioIo::new(io)).await.map_err(|error| self.unreachable(error.to_string()))?;
        // Ends with the sender, or with the server's end of the connection.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn exchange(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Answer, HttpsError> {
        let host = self.base.trim_start_matches("https://");
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = path.parse().map_err(|_| HttpsError::Url(path.to_owned()))?;
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        request.headers_mut().insert(HOST, host.parse().map_err(|_| HttpsError::Url(host.to_owned()))?);
        let gone = |error: hyper::Error| self.unreachable(error.to_string());
        sender.ready().await.map_err(gone)?;
        let response = sender.send_request(request).await.map_err(gone)?;
        let (status, etag) = (response.status(), response.headers().get(ETAG).cloned());
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => self.answer("a very long one".to_owned()),
            None => self.unreachable(error.to_string()),
        })?;
        Ok(Answer { status, etag, body: body.to_bytes() })
    }

    fn unreachable(&self, reason: String) -> HttpsError {
        HttpsError::Unreachable { gateway: self.base.clone(), reason }
    }

    fn answer(&self, got: String) -> HttpsError {
        HttpsError::Answer { gateway: self.base.clone(), got }
    }
}

/// Asks the gateways in turn until one answers for all of them; most refusals do.
///
/// # Errors
/// What the one that answered said, or why the last one did not.
pub async fn first<'a: 'f, 'f, T>(
    gateways: &'a [Gateway],
    ask: impl Fn(&'a Gateway) -> BoxFuture<'f, Result<T, HttpsError>>,
) -> Result<(&'a Gateway, T), HttpsError> {
    let mut failure = HttpsError::Url("none".to_owned());
    for gateway in gateways {
        match ask(gateway).await {
            Ok(answer) => return Ok((gateway, answer)),
            Err(error) if error.is_for_another() => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
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
    use crate::net::dial::Outbound;
    use futures_util::FutureExt as _;

    #[test]
    fn the_public_side_of_a_gateway_is_at_its_host() {
        assert_eq!(public_of("wss://g.example:7443/v1/worker").as_deref(), Some("https://g.example:7443"));
        assert_eq!(public_of("wss://[::1]:1").as_deref(), Some("https://[::1]:1"));
        assert_eq!(public_of("ws://g.example"), None);
        let connector = Arc::new(Connector::new(&Outbound::default()).unwrap());
        assert!(matches!(Gateway::at("http://g", connector), Err(HttpsError::Url(_))));
    }

    #[tokio::test]
    async fn a_gateway_that_does_not_know_the_hub_gives_way_to_the_next() {
        let connector = Arc::new(Connector::new(&Outbound::default()).unwrap());
        let gateways = ["wss://a", "wss://b"].map(|url| Gateway::at(url, Arc::clone(&connector)).unwrap());
        let refused = |code: &str| HttpsError::Refused { gateway: "a".into(), code: code.into(), message: "no".into() };
        for (code, asked) in [("hub", 2), ("claims", 2), ("receipt", 1), ("claim_sequence", 1)] {
            let answers = std::sync::Mutex::new([Err(refused(code)), Ok(())].into_iter());
            let next = |_: &Gateway| {
                let answer = answers.lock().unwrap().next().unwrap();
                std::future::ready(answer).boxed()
            };
            let is_ok = first(&gateways, next).await.is_ok();
            let calls = 2 - answers.lock().unwrap().len();
            assert_eq!((is_ok, calls), (asked == 2, asked), "{code}");
        }
        let nobody = first(&gateways, |_| std::future::ready(Err::<(), _>(refused("hub"))).boxed()).await;
        assert!(matches!(nobody, Err(HttpsError::Refused { code, .. }) if code == "hub"), "the reason is said");
    }
}
