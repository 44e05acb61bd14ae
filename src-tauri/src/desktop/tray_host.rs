//! Whether this desktop shows tray icons: asks the session bus for a StatusNotifier host, and listens for one.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::timeout;
use zbus::fdo::DBusProxy;
use zbus::proxy::CacheProperties;
use zbus::{Connection, Proxy};

use super::shell::Shell;
use crate::engine::Tray;

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
/// A host registers a moment after its watcher has appeared.
const SETTLE: Duration = Duration::from_millis(500);
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
    let mut owners = bus.receive_name_owner_changed_with_args(&[(0, WATCHER)]).await?;
    loop {
        shell.set_tray(if has_host(&connection).await { Tray::Shown } else { Tray::NoHost });
        if owners.next().await.is_none() {
            return Ok(());
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// A watcher that does not answer shows nothing.
async fn has_host(connection: &Connection) -> bool {
    matches!(timeout(PATIENCE, ask(connection)).await, Ok(Ok(true)))
}

async fn ask(connection: &Connection) -> zbus::Result<bool> {
    let watcher: Proxy<'_> = zbus::proxy::Builder::new(connection)
        .destination(WATCHER)?
        .path("/StatusNotifierWatcher")?
        .interface(WATCHER)?
        .cache_properties(CacheProperties::No)
        .build()
        .await?;
    watcher.get_property("IsStatusNotifierHostRegistered").await
}
