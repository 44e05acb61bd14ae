//! Whether this desktop shows tray icons: asks the session bus for a StatusNotifier host, and listens for one.
//!
//! Watcher and host may be two programs (on Plasma a daemon and the panel), which come and go one by one: each word of
//! either is a reason to ask again. **Promise:** a host that is late, as at login, or is started anew, is waited for
//! before anybody is told that there is none.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select;
use tokio::time::{Instant, timeout};
use zbus::fdo::DBusProxy;
use zbus::message::Type;
use zbus::proxy::CacheProperties;
use zbus::{Connection, MatchRule, MessageStream, Proxy};

use super::shell::Shell;
use crate::engine::Tray;

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
const WATCHER_PATH: &str = "/StatusNotifierWatcher";
/// How long a host may be missing.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks while there is none: not every watcher says when one comes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for the watcher's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps the shell's word on the tray true; without a bus there is no host.
pub(super) async fn watch(shell: Shell) {
    if let Err(error) = listen(&shell).await {
        tracing::info!(%error, "no tray host");
        shell.set_tray(Tray::NoHost);
    }
}

async fn listen(shell: &Shell) -> zbus::Result<()> {
    let connection = Connection::session().await?;
    let bus = DBusProxy::new(&connection).await?;
    let owners = bus.receive_name_owner_changed_with_args(&[(0, WATCHER)]).await?;
    let said = MatchRule::builder().msg_type(Type::Signal).interface(WATCHER)?.path(WATCHER_PATH)?.build();
    let said = MessageStream::for_match_rule(said, &connection, None).await?;
    let mut changes = select(owners.map(drop), said.map(drop));
    let mut missing_since = None;
    loop {
        let changed = if has_host(&connection).await {
            missing_since = None;
            shell.set_tray(Tray::Shown);
            changes.next().await
        } else {
            if missing_since.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                shell.set_tray(Tray::NoHost);
            }
            timeout(LOOK_EVERY, changes.next()).await.unwrap_or(Some(()))
        };
        if changed.is_none() {
            return Ok(());
        }
    }
}

/// A watcher that does not answer shows nothing.
async fn has_host(connection: &Connection) -> bool {
    matches!(timeout(PATIENCE, ask(connection)).await, Ok(Ok(true)))
}

async fn ask(connection: &Connection) -> zbus::Result<bool> {
    let watcher: Proxy<'_> = zbus::proxy::Builder::new(connection)
        .destination(WATCHER)?
        .path(WATCHER_PATH)?
        .interface(WATCHER)?
        .cache_properties(CacheProperties::No)
        .build()
        .await?;
    watcher.get_property("IsStatusNotifierHostRegistered").await
}
