//! Whether a program fills the screen, as an X server's window manager tells: the active window, and its state.
//!
//! On Wayland no program may look at another's windows, and elsewhere nobody is asked yet: there it stays unknown, and
//! [`is_readable`] says so, for windows that offer to go by it.

#[cfg(all(target_os = "linux", feature = "desktop"))]
pub use x11::{fullscreen, is_readable};

#[cfg(not(all(target_os = "linux", feature = "desktop")))]
pub use nobody::{fullscreen, is_readable};

#[cfg(all(target_os = "linux", feature = "desktop"))]
mod x11 {
    use std::sync::Mutex;

    use x11rb::connection::Connection;
    use x11rb::protocol::xproto::{Atom, AtomEnum, ConnectionExt, Window};
    use x11rb::rust_connection::RustConnection;

    /// Names of a window's states, of which there are about a dozen.
    const STATES_MAX: u32 = 64;

    /// Whether this session's screen can be looked at.
    #[must_use]
    pub fn is_readable() -> bool {
        let has = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        has("DISPLAY") && !has("WAYLAND_DISPLAY")
    }

    /// Whether the active window fills the screen. Blocks; a server that does not answer keeps one look waiting, and
    /// the next ones stay unknown.
    #[must_use]
    pub fn fullscreen() -> Option<bool> {
        static LOOKING: Mutex<()> = Mutex::new(());
        if !is_readable() {
            return None;
        }
        let _alone = LOOKING.try_lock().ok()?;
        look()
    }

    fn look() -> Option<bool> {
        let (server, screen) = x11rb::connect(None).ok()?;
        let root = server.setup().roots.get(screen)?.root;
        let atom = |name: &str| Some(server.intern_atom(true, name.as_bytes()).ok()?.reply().ok()?.atom);
        let active = values(&server, root, atom("_NET_ACTIVE_WINDOW")?, AtomEnum::WINDOW, 1)?;
        // A desktop on which nothing is active shows none, or the number 0.
        let Some(window) = active.first().filter(|window| **window != 0) else { return Some(false) };
        let states = values(&server, *window, atom("_NET_WM_STATE")?, AtomEnum::ATOM, STATES_MAX)?;
        Some(states.contains(&atom("_NET_WM_STATE_FULLSCREEN")?))
    }

    /// The numbers of a window's property.
    fn values(server: &RustConnection, window: Window, name: Atom, kind: AtomEnum, most: u32) -> Option<Vec<u32>> {
        let property = server.get_property(false, window, name, kind, 0, most).ok()?.reply().ok()?;
        Some(property.value32().map(Iterator::collect).unwrap_or_default())
    }
}

#[cfg(not(all(target_os = "linux", feature = "desktop")))]
mod nobody {
    /// Whether the screen can be looked at.
    #[must_use]
    pub fn is_readable() -> bool {
        false
    }

    /// Nobody to ask.
    #[must_use]
    pub fn fullscreen() -> Option<bool> {
        None
    }
}
