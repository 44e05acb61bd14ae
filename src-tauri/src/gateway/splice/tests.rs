//! Splices over pipes: both directions, half-closed peers, silence, and no buffer left in hand.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;

const PATIENT: Silence = Silence { idle: Duration::from_secs(60), half_closed: Duration::from_secs(60) };

/// How a splice ended, bytes up and down, and its buffers.
type Outcome = (Ended, u64, u64, Pool);

/// A running splice and the far ends of its two pipes.
fn spliced(silence: Silence, pipe_bytes: usize) -> (DuplexStream, DuplexStream, JoinHandle<Outcome>) {
    let (worker, near_worker) = duplex(pipe_bytes);
    let (hub, near_hub) = duplex(pipe_bytes);
    let task = tokio::spawn(async move {
        let (pool, up, down) = (Pool::default(), Counter::default(), Counter::default());
        let ended = splice(near_worker, near_hub, &pool, silence, &up, &down).await;
        (ended, up.get(), down.get(), pool)
    });
    (worker, hub, task)
}

#[tokio::test]
async fn bytes_arrive_both_ways_and_a_half_close_leaves_the_other_way_open() {
    let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    for pipe_bytes in [1, 100, 1 << 20] {
        let sent = if pipe_bytes == 1 { &sent[..5_000] } else { &sent[..] };
        let (mut worker, mut hub, task) = spliced(PATIENT, pipe_bytes);
        let upload = async {
            worker.write_all(sent).await.unwrap();
            worker.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let (read, ()) = tokio::join!(hub.read_to_end(&mut got), upload);
        read.unwrap();
        assert!(got == sent);
        // The worker has ended its side; the hub still answers at length.
        let mut back = Vec::new();
        let (read, ()) = tokio::join!(worker.read_to_end(&mut back), async {
            hub.write_all(sent).await.unwrap();
            hub.shutdown().await.unwrap();
        });
        read.unwrap();
        assert!(back == sent);
        let (ended, up, down, pool) = task.await.unwrap();
        assert!(matches!(ended, Ended::Closed), "{ended:?}");
        assert_eq!((up, down), (sent.len() as u64, sent.len() as u64));
        assert!(pool.0.lock().unwrap().len() <= 2, "each direction holds one buffer at most");
    }
}

#[tokio::test]
async fn a_peer_that_never_closes_is_cut_soon_after_the_other_side_ended() {
    let silence = Silence { half_closed: Duration::from_millis(20), ..PATIENT };
    let (mut worker, mut hub, task) = spliced(silence, 1024);
    worker.write_all(b"last words").await.unwrap();
    worker.shutdown().await.unwrap();
    let mut got = Vec::new();
    hub.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"last words");
    let (ended, ..) = task.await.unwrap();
    assert!(matches!(ended, Ended::HalfClosed), "{ended:?}");
    assert!(hub.write_all(&[0; 4096]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_splice_and_bytes_keep_it() {
    let silence = Silence { idle: Duration::from_millis(200), ..PATIENT };
    let (mut worker, mut hub, task) = spliced(silence, 1024);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        worker.write_all(b".").await.unwrap();
        assert_eq!(hub.read_u8().await.unwrap(), b'.');
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (ended, up, ..) = task.await.unwrap();
    assert!(matches!(ended, Ended::Idle), "{ended:?}");
    assert!(up > 10);
}

/// Says its words and fails with the very next read, as a link that was cut under TLS.
struct Dying(Option<&'static [u8]>);

impl AsyncRead for Dying {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let words = self.0.take().ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.put_slice(words);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Dying {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn what_a_side_said_before_it_failed_is_handed_over() {
    let (mut hub, near_hub) = duplex(64);
    let (pool, up, down) = (Pool::default(), Counter::default(), Counter::default());
    let ended = splice(Dying(Some(b"last words")), near_hub, &pool, PATIENT, &up, &down).await;
    assert!(matches!(ended, Ended::Failed(_)), "{ended:?}");
    let mut got = Vec::new();
    hub.read_to_end(&mut got).await.unwrap();
    assert_eq!((got.as_slice(), up.get()), (&b"last words"[..], 10));
}

#[tokio::test]
async fn a_side_that_fails_ends_the_splice() {
    let (worker, mut hub, task) = spliced(PATIENT, 1024);
    drop(hub.write_all(b"x").await);
    drop(worker);
    drop(hub);
    let (ended, ..) = task.await.unwrap();
    assert!(matches!(ended, Ended::Failed(_) | Ended::Closed), "{ended:?}");
}
