//! Reads the head of an HTTP/1.1 request or response, strictly, for the servers that splice or serve.
//!
//! Everything up to the empty line is held to [`HEAD_BYTES_MAX`] and [`HEADERS_MAX`] and parsed by one pure function;
//! what comes after it is kept, so that [`Rewind`] can give the stream to a real HTTP server as if nothing had been read.
//! Refused and named: line ends other than CR LF, folded headers, space before a colon, text that is not UTF-8, and
//! targets that are not a path. A lenient head is how two servers come to disagree about where a request ends.

mod rewind;
mod upgrade;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

pub use rewind::Rewind;
pub use upgrade::{GATEWAY_HEADER, PEER_HEADER, Upgrade, UpgradeError};

/// Largest head, the empty line included.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Most header lines of a head.
pub const HEADERS_MAX: usize = 64;
/// Bytes asked of the stream at once while reading a head.
const READ_BYTES: usize = 2 * 1024;

/// Why a head was refused.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// No empty line within the limit.
    #[error("expected a head of at most {HEAD_BYTES_MAX} bytes")]
    TooLong,
    /// More header lines than the limit.
    #[error("expected at most {HEADERS_MAX} header lines")]
    TooManyHeaders,
    /// Bytes that are not a strict HTTP/1 head.
    #[error("expected an HTTP/1 head, got {0}")]
    Malformed(&'static str),
    /// The stream ended within the head.
    #[error("expected a whole head, got the end of the stream after {0} bytes")]
    Ended(usize),
    /// The deadline passed within the head.
    #[error("expected a whole head before the deadline, got {0} bytes")]
    Late(usize),
    /// The stream failed.
    #[error("reading a head: {0}")]
    Io(#[from] std::io::Error),
}

impl HeadError {
    /// The HTTP status to answer with.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::TooLong | Self::TooManyHeaders => 431,
            Self::Malformed(_) | Self::Ended(_) | Self::Io(_) => 400,
            Self::Late(_) => 408,
        }
    }

    /// A stable code for the error body and for counters.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong => "head_too_long",
            Self::TooManyHeaders => "too_many_headers",
            Self::Malformed(_) => "malformed_head",
            Self::Ended(_) => "head_ended",
            Self::Late(_) => "head_late",
            Self::Io(_) => "head_io",
        }
    }
}

/// Header lines in the order of arrival, names in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Every value under a lower-case name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The value of a header that occurs exactly once; `None` when it is absent or repeated.
    #[must_use]
    pub fn only(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(n, _)| n == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Some(value),
            _ => None,
        }
    }

    /// All lines, as (lower-case name, value).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }
}

/// The head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The method as sent, e.g. `GET`.
    pub method: String,
    /// The target up to the question mark; starts with `/`, not decoded.
    pub path: String,
    /// The target after the question mark.
    pub query: Option<String>,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub minor_version: u8,
    /// The header lines.
    pub headers: Headers,
}

/// The head of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status code.
    pub status: u16,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub minor_version: u8,
    /// The header lines.
    pub headers: Headers,
}

/// A head and the bytes it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<H> {
    /// The parsed head.
    pub head: H,
    /// Everything that was read, the head first.
    pub bytes: Vec<u8>,
    /// Length of the head in `bytes`.
    pub head_bytes: usize,
}

impl<H> Received<H> {
    /// What arrived after the head.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.head_bytes..).unwrap_or_default()
    }
}

/// A head and its length, or `None` while it is incomplete.
pub type Parsed<H> = Result<Option<(H, usize)>, HeadError>;

/// Parses a request head from the start of `bytes`: the head and its length, or `None` while it is incomplete.
///
/// # Errors
/// A head over the limits or one that is not strict HTTP/1.
pub fn parse(bytes: &[u8]) -> Parsed<Head> {
    let Some(length) = head_end(bytes, 0)? else { return Ok(None) };
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut lines);
    let status = request.parse(bytes.get(..length).unwrap_or_default()).map_err(refusal)?;
    let (httparse::Status::Complete(end), Some(method), Some(target), Some(minor_version)) =
        (status, request.method, request.path, request.version)
    else {
        return Err(HeadError::Malformed("an incomplete request line"));
    };
    if end != length {
        return Err(HeadError::Malformed("an early end"));
    }
    if !target.starts_with('/') || target.contains('#') {
        return Err(HeadError::Malformed("a target that is not a path"));
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let headers = owned(request.headers)?;
    let head = Head { method: method.to_owned(), path: path.to_owned(), query, minor_version, headers };
    Ok(Some((head, length)))
}

/// Parses a response head from the start of `bytes`: the head and its length, or `None` while it is incomplete.
///
/// # Errors
/// As [`parse`].
pub fn parse_response(bytes: &[u8]) -> Parsed<ResponseHead> {
    let Some(length) = head_end(bytes, 0)? else { return Ok(None) };
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut lines);
    let status = response.parse(bytes.get(..length).unwrap_or_default()).map_err(refusal)?;
    let (httparse::Status::Complete(end), Some(code), Some(minor_version)) = (status, response.code, response.version)
    else {
        return Err(HeadError::Malformed("an incomplete status line"));
    };
    if end != length {
        return Err(HeadError::Malformed("an early end"));
    }
    let headers = owned(response.headers)?;
    Ok(Some((ResponseHead { status: code, minor_version, headers }, length)))
}

/// Reads a request head before a deadline.
///
/// # Errors
/// Everything of [`parse`], the end of the stream, the deadline, and the stream's own errors.
pub async fn read_head<S>(stream: &mut S, deadline: Instant) -> Result<Received<Head>, HeadError>
where
    S: AsyncRead + Unpin,
{
    read_with(stream, deadline, parse).await
}

/// Reads a response head before a deadline.
///
/// # Errors
/// As [`read_head`].
pub async fn read_response<S>(stream: &mut S, deadline: Instant) -> Result<Received<ResponseHead>, HeadError>
where
    S: AsyncRead + Unpin,
{
    read_with(stream, deadline, parse_response).await
}

async fn read_with<S, H>(
    stream: &mut S,
    deadline: Instant,
    parse: fn(&[u8]) -> Parsed<H>,
) -> Result<Received<H>, HeadError>
where
    S: AsyncRead + Unpin,
{
    let mut bytes = Vec::with_capacity(READ_BYTES);
    loop {
        let seen = bytes.len();
        let mut limited = (&mut *stream).take(READ_BYTES as u64);
        let got = match timeout_at(deadline, limited.read_buf(&mut bytes)).await {
            Ok(read) => read?,
            Err(_) => return Err(HeadError::Late(seen)),
        };
        if got == 0 {
            return Err(HeadError::Ended(seen));
        }
        // The line ends are judged once per byte, so that a peer who sends single bytes buys no quadratic work.
        if head_end(&bytes, seen.saturating_sub(3))?.is_none() {
            continue;
        }
        let Some((head, head_bytes)) = parse(&bytes)? else {
            return Err(HeadError::Malformed("an empty line before the end"));
        };
        return Ok(Received { head, bytes, head_bytes });
    }
}

/// Where the head ends, looking for the empty line from `from` on.
fn head_end(bytes: &[u8], from: usize) -> Result<Option<usize>, HeadError> {
    if matches!(bytes.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::Malformed("an empty first line"));
    }
    let limit = bytes.len().min(HEAD_BYTES_MAX);
    for at in from..limit {
        let pair = (at.checked_sub(1).and_then(|before| bytes.get(before)), bytes.get(at));
        match pair {
            (Some(b'\r'), Some(b'\n')) if at >= 3 && bytes.get(at - 3..at - 1) == Some(b"\r\n") => {
                return Ok(Some(at + 1));
            }
            (Some(b'\r'), Some(b'\n')) => {}
            (_, Some(b'\n')) => return Err(HeadError::Malformed("a line feed without a carriage return")),
            (Some(b'\r'), _) => return Err(HeadError::Malformed("a carriage return without a line feed")),
            _ => {}
        }
    }
    if bytes.len() >= HEAD_BYTES_MAX { Err(HeadError::TooLong) } else { Ok(None) }
}

fn refusal(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyHeaders,
        httparse::Error::HeaderName => HeadError::Malformed("an invalid header name"),
        httparse::Error::HeaderValue => HeadError::Malformed("an invalid header value"),
        httparse::Error::NewLine => HeadError::Malformed("an invalid line end"),
        httparse::Error::Status => HeadError::Malformed("an invalid status"),
        httparse::Error::Token => HeadError::Malformed("an invalid token"),
        httparse::Error::Version => HeadError::Malformed("an invalid version"),
    }
}

fn owned(lines: &[httparse::Header<'_>]) -> Result<Headers, HeadError> {
    let line = |header: &httparse::Header<'_>| match std::str::from_utf8(header.value) {
        Ok(value) => Ok((header.name.to_ascii_lowercase(), value.to_owned())),
        Err(_) => Err(HeadError::Malformed("a header value that is not UTF-8")),
    };
    lines.iter().map(line).collect::<Result<_, _>>().map(Headers)
}

#[cfg(test)]
mod tests;
