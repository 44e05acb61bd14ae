//! Fetches a file from a public web server: over HTTPS alone, bounded in time and size.
//!
//! For what is too long for a question to a gateway and comes from elsewhere, such as a release of the program. A server
//! may send a client on to another one, as those that keep files for many do. **Promises:** no leg is in the clear; a
//! server that stops in the middle is given up; no memory is taken for what was not sent.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::dial::{Connector, DIAL_DEADLINE, Destination, DialError, Trip};
use crate::wire::agent::AGENT;

/// Longest silence of a server that owes an answer, or the rest of one.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Most servers that one file is asked of: a website, its storage, and some more.
const SERVERS_MAX: usize = 5;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// An address that this program does not ask.
    #[error("expected an address such as https://host/path, got {0:?}")]
    Url(String),
    /// No connection.
    #[error("{host} does not answer: {source}")]
    Dial {
        /// The server.
        host: String,
        /// Why.
        source: DialError,
    },
    /// A connection, but no whole answer.
    #[error("{host} does not answer: {reason}")]
    Unreachable {
        /// The server.
        host: String,
        /// Why.
        reason: String,
    },
    /// An answer, but no file.
    #[error("expected {host} to have it, got HTTP {status}")]
    Status {
        /// The server.
        host: String,
        /// HTTP status.
        status: StatusCode,
    },
    /// More than there is room for.
    #[error("expected at most {bytes_max} bytes of {host}, got more")]
    Long {
        /// The server.
        host: String,
        /// How many would have been taken.
        bytes_max: usize,
    },
    /// Servers that send each other's clients around.
    #[error("expected a file, got sent from server to server more than {SERVERS_MAX} times, last by {0}")]
    Around(String),
}

/// What a server said: the file, or a step on the way to it.
enum Said {
    File(Bytes),
    Nothing,
    Moved(String),
}

/// The file at `url`, at most `bytes_max` long, within `deadline`; `None` if the server has nothing to say (204).
///
/// # Errors
/// [`DownloadError`].
pub async fn get(
    connector: &Connector,
    url: &str,
    bytes_max: usize,
    deadline: Duration,
) -> Result<Option<Bytes>, DownloadError> {
    let late = |_| DownloadError::Unreachable { host: host_of(url), reason: format!("not all came in {deadline:?}") };
    timeout(deadline, follow(connector, url, bytes_max)).await.map_err(late)?
}

async fn follow(connector: &Connector, url: &str, bytes_max: usize) -> Result<Option<Bytes>, DownloadError> {
    let mut url = url.to_owned();
    for _ in 0..SERVERS_MAX {
        match ask(connector, &url, bytes_max).await? {
            Said::File(file) => return Ok(Some(file)),
            Said::Nothing => return Ok(None),
            Said::Moved(to) => url = to,
        }
    }
    Err(DownloadError::Around(host_of(&url)))
}

async fn ask(connector: &Connector, url: &str, bytes_max: usize) -> Result<Said, DownloadError> {
    let fail = || DownloadError::Url(url.chars().take(200).collect());
    let uri: Uri = url.parse().map_err(|_| fail())?;
    let (Some("https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(fail()) };
    let host = authority.host().to_owned();
    let gone = |reason: String| DownloadError::Unreachable { host: host.clone(), reason };
    let to = Destination::new(&host, authority.port_u16().unwrap_or(443), DIAL_DEADLINE);
    let io = connector.secure(&to, &mut Trip::default()).await;
    let io = io.map_err(|source| DownloadError::Dial { host: host.clone(), source })?;
    let (mut sender, connection) = handshake(TokioIo::new(io)).await.map_err(|error| gone(error.to_string()))?;
    // Ends with the sender, or with the server's end of the connection.
    tokio::spawn(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    // User names and passwords in an address are nobody's to read.
    let shown = authority.as_str().rsplit('@').next().unwrap_or_default();
    *request.headers_mut() = HeaderMap::from_iter([
        (HOST, HeaderValue::from_str(shown).map_err(|_| fail())?),
        (USER_AGENT, HeaderValue::from_static(AGENT)),
        (ACCEPT, HeaderValue::from_static("application/json, application/octet-stream")),
    ]);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| fail())?;
    let late = |_| gone(format!("nothing in {SILENCE_MAX:?}"));
    let answer = timeout(SILENCE_MAX, sender.send_request(request)).await.map_err(late)?;
    let answer = answer.map_err(|error| gone(error.to_string()))?;
    match answer.status() {
        StatusCode::OK => read(answer, &host, bytes_max).await.map(Said::File),
        StatusCode::NO_CONTENT => Ok(Said::Nothing),
        status if status.is_redirection() => {
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let to = to.ok_or(DownloadError::Status { host: host.clone(), status })?;
            let is_here = to.starts_with('/') && !to.starts_with("//");
            Ok(Said::Moved(if is_here { format!("https://{authority}{to}") } else { to.to_owned() }))
        }
        status => Err(DownloadError::Status { host, status }),
    }
}

async fn read(answer: Response<Incoming>, host: &str, bytes_max: usize) -> Result<Bytes, DownloadError> {
    let long = || DownloadError::Long { host: host.to_owned(), bytes_max };
    let gone = |reason: String| DownloadError::Unreachable { host: host.to_owned(), reason };
    let length = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > bytes_max as u64) {
        return Err(long());
    }
    let mut body = answer.into_body();
    let mut file = Vec::new();
    let late = |_| gone(format!("silent for {SILENCE_MAX:?} in the middle of the file"));
    while let Some(frame) = timeout(SILENCE_MAX, body.frame()).await.map_err(late)? {
        let frame = frame.map_err(|error| gone(error.to_string()))?;
        let Ok(part) = frame.into_data() else { continue };
        if file.len() + part.len() > bytes_max {
            return Err(long());
        }
        file.extend_from_slice(&part);
    }
    Ok(file.into())
}

/// What an address leads to, for messages.
fn host_of(url: &str) -> String {
    let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    host.unwrap_or_else(|| "an unreadable address".to_owned())
}
