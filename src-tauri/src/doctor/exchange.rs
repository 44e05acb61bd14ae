//! One HTTP request over a connection that was dialled for it, timed: what the clock, the round trip and the speed of
//! a line are learnt from. The rest of the program asks through `net::https`, which does not tell times.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::net::Io;
use crate::net::head::{HeadError, ResponseHead, read_response};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// What came back.
pub(super) struct Exchanged {
    pub head: ResponseHead,
    /// From the request's first byte on its way to the answer's head.
    pub to_head: Duration,
    /// From the answer's head to its end, or to the deadline.
    pub to_end: Duration,
    /// Bytes of the body until then.
    pub body_bytes: usize,
}

/// What is asked.
pub(super) struct Request<'a> {
    pub host: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    pub body: &'a [u8],
}

/// Asks, and reads the answer until its end, `bytes_max` bytes or `until`.
pub(super) async fn exchange(
    stream: &mut Io,
    request: &Request<'_>,
    bytes_max: usize,
    until: Instant,
) -> Result<Exchanged, HeadError> {
    let Request { host, method, path, body } = request;
    let length = if *method == "POST" { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{length}Connection: close\r\n\r\n");
    let start = Instant::now();
    let late = |_| HeadError::Late(0);
    let sent = async {
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        stream.flush().await
    };
    tokio::time::timeout_at(until, sent).await.map_err(late)??;
    let received = read_response(stream, until).await?;
    let (to_head, answered) = (start.elapsed(), Instant::now());
    let mut body_bytes = received.rest().len();
    let mut buffer = vec![0; READ_BYTES];
    while body_bytes < bytes_max {
        match tokio::time::timeout_at(until, stream.read(&mut buffer)).await {
            // A line that is cut in the middle has told its speed up to there.
            Ok(Ok(0)) | Ok(Err(_)) | Err(_) => break,
            Ok(Ok(got)) => body_bytes += got,
        }
    }
    Ok(Exchanged { head: received.head, to_head, to_end: answered.elapsed(), body_bytes })
}
