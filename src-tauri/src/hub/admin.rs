//! The operator's own door: a Unix socket in the hub's state directory that answers one question a connection.
//!
//! Before: `kvasir hub workers|drain|resume|kick|ban|unban`. After: the registry and the list of banned wallets say otherwise.
//! **Promise:** only the hub's own user and root are heard, whatever the file's mode says; every question has a bound
//! and a deadline. Why a socket and no port: a port on loopback belongs to every user of the machine.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::Hub;
use super::quarantine::By;
use super::registry::Notice;
use crate::wire::admin::{ADMIN_SOCKET, AdminAnswer, AdminQuestion, QUESTION_BYTES_MAX, WorkersView};

/// How long a question, its answer and what it does may take together.
const DEADLINE: Duration = Duration::from_secs(10);
/// Questions at once.
const CONNECTIONS: usize = 8;
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time that a drained wallet is kept away: a day.
const DRAIN_SECONDS_MAX: u64 = 24 * 3600;

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Somebody answers there.
    #[error("{path}: another hub runs in this state directory; stop it, or give this one its own with --state")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("admin socket {path}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// The socket, removed when dropped.
pub(super) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The user that made it: us.
    own_uid: u32,
}

impl AdminSocket {
    /// Listens in `state_dir`; what a hub that was killed left behind is replaced.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn bind(state_dir: &Path) -> Result<Self, AdminError> {
        let path = state_dir.join(ADMIN_SOCKET);
        let failed = |source| AdminError::Io { path: path.clone(), source };
        match UnixStream::connect(&path).await {
            Ok(_) => return Err(AdminError::Taken { path }),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(&path).map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let own_uid = std::fs::metadata(&path).map_err(failed)?.uid();
        Ok(Self { listener, path, own_uid })
    }

    /// Answers questions, until what this returns is dropped.
    pub fn serve(self, hub: Arc<Hub>) -> Door {
        Door(tokio::spawn(async move { self.answer_all(&hub).await }))
    }

    async fn answer_all(&self, hub: &Arc<Hub>) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "admin socket: accept failed");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == self.own_uid || peer.uid() == 0 => {}
                Ok(peer) => {
                    tracing::warn!(uid = peer.uid(), "admin socket: another user was not heard");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "admin socket: who asks is not known");
                    continue;
                }
            }
            let hub = Arc::clone(hub);
            tokio::spawn(async move {
                let _permit = permit;
                match timeout(DEADLINE, converse(&hub, stream)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "admin socket: a question was not answered"),
                    Err(_) => tracing::warn!("admin socket: a question took too long"),
                }
            });
        }
    }
}

/// The open door.
pub(super) struct Door(JoinHandle<()>);

impl Drop for Door {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // A socket that stays behind is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn converse(hub: &Arc<Hub>, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(QUESTION_BYTES_MAX as u64)).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => hub.answer(question).await,
        Err(error) => AdminAnswer::Refused { reason: format!("expected a question in one line of JSON: {error}") },
    };
    let mut out = serde_json::to_vec(&answer)?;
    out.push(b'\n');
    write.write_all(&out).await?;
    write.shutdown().await
}

impl Hub {
    async fn answer(self: &Arc<Self>, question: AdminQuestion) -> AdminAnswer {
        let done = |sessions| AdminAnswer::Done { sessions };
        match question {
            AdminQuestion::Workers {} => AdminAnswer::Workers(WorkersView {
                sessions: self.registry.views(|session| self.meters.totals(session)),
                banned: self.quarantined.views(),
            }),
            AdminQuestion::Drain { seconds, .. } | AdminQuestion::Close { seconds } if seconds > DRAIN_SECONDS_MAX => {
                let reason = format!(
                    "expected at most {DRAIN_SECONDS_MAX} seconds, got {seconds}; to keep a wallet out, ban it"
                );
                AdminAnswer::Refused { reason }
            }
            AdminQuestion::Drain { wallet, seconds } => {
                tracing::info!(%wallet, seconds, "drained by the operator");
                self.registry.keep_away(wallet, Duration::from_secs(seconds), Instant::now());
                done(self.registry.notify(&wallet, Notice::Drained))
            }
            AdminQuestion::Close { seconds } => {
                tracing::info!(seconds, "closed by the operator");
                done(self.close_for(Duration::from_secs(seconds)))
            }
            AdminQuestion::Kick { wallet } => {
                tracing::info!(%wallet, "kicked by the operator");
                done(self.registry.notify(&wallet, Notice::Kicked))
            }
            AdminQuestion::Ban { wallet, reason } => {
                tracing::warn!(%wallet, reason, "banned by the operator");
                let written = self.keep_out(wallet, By::Operator, reason).await;
                let sessions = self.registry.notify(&wallet, Notice::Banned);
                match written {
                    Ok(()) => done(sessions),
                    Err(error) => AdminAnswer::Refused {
                        reason: format!("banned until this hub stops, {sessions} sessions ended, but: {error}"),
                    },
                }
            }
            AdminQuestion::Unban { wallet } => match self.let_in(wallet).await {
                Ok(true) => {
                    tracing::info!(%wallet, "let in again by the operator");
                    done(0)
                }
                Ok(false) => AdminAnswer::Refused { reason: format!("expected a banned wallet, got {wallet}") },
                Err(reason) => AdminAnswer::Refused { reason },
            },
        }
    }
}
