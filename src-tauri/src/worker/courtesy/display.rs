//! Whether a program fills the screen, as a display of X11 tells; of Wayland's programs, those that XWayland shows.
//!
//! Window managers write it down: the root window names the active one, and that one its state (Extended Window Manager
//! Hints). Nothing is asked of the window itself.

use x11rb::connection::Connection;
use x11rb::protocol::xproto::{Atom, AtomEnum, ConnectionExt, Window};
use x11rb::rust_connection::RustConnection;

/// Most states that a window can have at once.
const STATES_MAX: u32 = 64;

/// Whether the active window of this session's display fills the screen; `None` without a display.
pub fn fullscreen() -> Option<bool> {
    of(None)
}

fn of(display: Option<&str>) -> Option<bool> {
    let (display, screen) = x11rb::connect(display).ok()?;
    let root = display.setup().roots.get(screen)?.root;
    let [active, state, full] =
        [&b"_NET_ACTIVE_WINDOW"[..], b"_NET_WM_STATE", b"_NET_WM_STATE_FULLSCREEN"].map(|name| atom(&display, name));
    let window = numbers(&display, root, active?, AtomEnum::WINDOW, 1)?.first().copied();
    // No window is active, or none was ever told to fill the screen.
    let Some(window) = window.filter(|window| *window != 0) else { return Some(false) };
    let full = full?;
    Some(numbers(&display, window, state?, AtomEnum::ATOM, STATES_MAX)?.contains(&full))
}

fn atom(display: &RustConnection, name: &[u8]) -> Option<Atom> {
    Some(display.intern_atom(false, name).ok()?.reply().ok()?.atom)
}

/// The numbers of a property; none when the window has no such property.
fn numbers(display: &RustConnection, window: Window, name: Atom, kind: AtomEnum, most: u32) -> Option<Vec<u32>> {
    let property = display.get_property(false, window, name, kind, 0, most).ok()?.reply().ok()?;
    Some(property.value32().map(Iterator::collect).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use x11rb::COPY_DEPTH_FROM_PARENT;
    use x11rb::protocol::xproto::{CreateWindowAux, PropMode, WindowClass};
    use x11rb::wrapper::ConnectionExt as _;

    use super::*;

    #[test]
    fn a_window_that_fills_the_screen_is_told_from_one_that_does_not() {
        let server = Command::new("Xvfb").args(["-displayfd", "1", "-nolisten", "tcp"]).stdout(Stdio::piped()).spawn();
        let Ok(mut server) = server else { return eprintln!("skipped: Xvfb is not installed") };
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        let name = format!(":{}", number.trim());

        let (display, screen) = x11rb::connect(Some(&name)).unwrap();
        let (root, window) = (display.setup().roots[screen].root, display.generate_id().unwrap());
        let aux = CreateWindowAux::new();
        display
            .create_window(COPY_DEPTH_FROM_PARENT, window, root, 0, 0, 9, 9, 0, WindowClass::INPUT_OUTPUT, 0, &aux)
            .unwrap();
        // As a window manager does.
        let put = |window, name: &[u8], kind, value: &[u32]| {
            let name = atom(&display, name).unwrap();
            display.change_property32(PropMode::REPLACE, window, name, kind, value).unwrap().check().unwrap();
        };
        assert_eq!(of(Some(&name)), Some(false), "nothing is active");
        put(root, b"_NET_ACTIVE_WINDOW", AtomEnum::WINDOW, &[window]);
        assert_eq!(of(Some(&name)), Some(false), "it has no state");
        let [above, full] =
            [&b"_NET_WM_STATE_ABOVE"[..], b"_NET_WM_STATE_FULLSCREEN"].map(|n| atom(&display, n).unwrap());
        put(window, b"_NET_WM_STATE", AtomEnum::ATOM, &[above]);
        assert_eq!(of(Some(&name)), Some(false));
        put(window, b"_NET_WM_STATE", AtomEnum::ATOM, &[above, full]);
        assert_eq!(of(Some(&name)), Some(true));
        put(root, b"_NET_ACTIVE_WINDOW", AtomEnum::WINDOW, &[0]);
        assert_eq!(of(Some(&name)), Some(false), "another one is active");
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(of(Some(&name)), None, "without a display nobody knows");
    }
}
