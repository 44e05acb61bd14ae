//! Shows tray icons, as far as D-Bus is concerned, and reads and clicks their menus.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::zvariant::{OwnedValue, Value};
use zbus::{Connection, Proxy};

use crate::until;

/// Who is told of icons.
#[derive(Clone, Default)]
pub struct Watcher {
    items: Arc<Mutex<Vec<(String, String)>>>,
    has_host: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

/// Where it is on its bus.
pub const WATCHER_PATH: &str = "/StatusNotifierWatcher";

impl Watcher {
    /// The icons so far are of a program that has ended.
    pub fn forget(&self) {
        self.items.lock().unwrap().clear();
    }

    /// Whether anybody shows the icons: a panel comes and goes by itself.
    pub async fn show(&self, connection: &Connection, shows: bool) {
        self.has_host.store(shows, SeqCst);
        let here = connection.object_server().interface::<_, Self>(WATCHER_PATH).await.unwrap();
        let emitter = here.signal_emitter();
        match shows {
            true => Self::status_notifier_host_registered(emitter).await.unwrap(),
            false => Self::status_notifier_host_unregistered(emitter).await.unwrap(),
        }
    }

    /// How often somebody asked whether icons are shown.
    pub fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

#[zbus::interface(name = "org.kde.StatusNotifierWatcher")]
impl Watcher {
    async fn register_status_notifier_item(
        &self,
        service: &str,
        #[zbus(header)] header: Header<'_>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) {
        let sender = header.sender().unwrap().to_string();
        self.items.lock().unwrap().push((sender, service.to_owned()));
        let _ = Self::status_notifier_item_registered(&emitter, service).await;
    }

    fn register_status_notifier_host(&self, _service: &str) {}

    #[zbus(property)]
    fn registered_status_notifier_items(&self) -> Vec<String> {
        self.items.lock().unwrap().iter().map(|(sender, path)| format!("{sender}{path}")).collect()
    }

    #[zbus(property)]
    fn is_status_notifier_host_registered(&self) -> bool {
        self.asked.fetch_add(1, SeqCst);
        self.has_host.load(SeqCst)
    }

    #[zbus(property)]
    fn protocol_version(&self) -> i32 {
        0
    }

    #[zbus(signal)]
    async fn status_notifier_item_registered(emitter: &SignalEmitter<'_>, service: &str) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn status_notifier_host_registered(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn status_notifier_host_unregistered(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;
}

/// One line of a menu.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    id: i32,
    pub label: String,
    pub enabled: bool,
    /// Whether it is marked, where it can be.
    pub checked: bool,
}

/// The menu of the app's icon.
pub struct Menu {
    proxy: Proxy<'static>,
}

type Layout = (u32, (i32, HashMap<String, OwnedValue>, Vec<OwnedValue>));

impl Menu {
    /// The menu of the first icon that came to `watcher`.
    pub async fn of(connection: &Connection, watcher: &Watcher) -> Self {
        let (sender, path) = until("the tray icon", async || watcher.items.lock().unwrap().first().cloned()).await;
        let proxy = Proxy::new(connection, sender, format!("{path}/Menu"), "com.canonical.dbusmenu").await.unwrap();
        Self { proxy }
    }

    /// Its lines and those of its submenus behind theirs, separators left out.
    pub async fn lines(&self) -> Vec<Line> {
        let ask = (0, -1, vec!["label", "enabled", "toggle-state"]);
        let Ok(layout) = self.proxy.call::<_, _, Layout>("GetLayout", &ask).await else { return Vec::new() };
        let mut lines = Vec::new();
        take(layout.1.2, &mut lines);
        lines
    }

    /// The line that starts so, once there is one.
    pub async fn line(&self, start: &str) -> Line {
        until(&format!("a menu line {start}"), async || {
            self.lines().await.into_iter().find(|line| line.label.starts_with(start))
        })
        .await
    }

    pub async fn click(&self, start: &str) {
        let line = self.line(start).await;
        assert!(line.enabled, "{line:?}");
        let event = (line.id, "clicked", Value::from(""), 0u32);
        // Quit may take the answer with it.
        let _ = self.proxy.call::<_, _, ()>("Event", &event).await;
    }
}

fn take(items: Vec<OwnedValue>, lines: &mut Vec<Line>) {
    for item in items {
        let Ok((id, properties, below)) = <(i32, HashMap<String, OwnedValue>, Vec<OwnedValue>)>::try_from(item) else {
            continue;
        };
        lines.extend(line(id, &properties));
        take(below, lines);
    }
}

fn line(id: i32, properties: &HashMap<String, OwnedValue>) -> Option<Line> {
    let label: String = properties.get("label")?.try_clone().ok()?.try_into().ok()?;
    let enabled = properties.get("enabled").is_none_or(|value| bool::try_from(value).unwrap_or(true));
    let checked = properties.get("toggle-state").is_some_and(|value| i32::try_from(value) == Ok(1));
    Some(Line { id, label: label.replace('_', ""), enabled, checked })
}
