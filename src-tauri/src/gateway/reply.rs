//! The gateway's own answers: short JSON, then the connection ends.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::net::head::{HeadError, UpgradeError};

/// How long a refused client may take to read its answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// What is still read from a refused client, so that the close does not reset the answer away.
const LINGER_BYTES_MAX: u64 = 64 * 1024;

/// Why a request ends here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Stable code.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(status: u16, code: &'static str, message: impl ToString) -> Self {
        Self { status, code, message: message.to_string() }
    }

    /// `{"error": {"code", "message"}}`: the form of every error of the public side.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "error": { "code": self.code, "message": self.message } })
    }

    fn bytes(&self) -> Vec<u8> {
        let body = self.json().to_string();
        let version = if self.status == 426 { "Sec-WebSocket-Version: 13\r\n" } else { "" };
        format!(
            "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{version}Connection: close\r\n\r\n{body}",
            self.status,
            reason(self.status),
            body.len(),
        )
        .into_bytes()
    }

    /// Writes the refusal and ends the connection. A client that does not read is left to itself after a while.
    pub async fn send<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S) {
        let answer = async {
            stream.write_all(&self.bytes()).await?;
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
        };
        match timeout(ANSWER_DEADLINE, answer).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a refused client did not take its answer"),
            Err(_) => tracing::debug!("a refused client did not close"),
        }
    }
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Self {
        Self::new(error.status(), error.code(), error)
    }
}

impl From<UpgradeError> for Refusal {
    fn from(error: UpgradeError) -> Self {
        Self::new(error.status(), error.code(), error)
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Refused",
    }
}
