//! A program that fills the screen: a client of the X server, with one window.

use x11rb::connection::Connection;
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt, CreateWindowAux, PropMode, WindowClass};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

/// Fills the screen until it is dropped: the server closes the windows of a client that is gone.
pub struct Fullscreen(RustConnection);

impl Fullscreen {
    pub fn open() -> Self {
        let (server, screen) = x11rb::connect(None).unwrap();
        let root = server.setup().roots[screen].root;
        let atom = |name: &str| server.intern_atom(false, name.as_bytes()).unwrap().reply().unwrap().atom;
        let window = server.generate_id().unwrap();
        let (class, look) = (WindowClass::INPUT_OUTPUT, CreateWindowAux::new());
        server.create_window(x11rb::COPY_DEPTH_FROM_PARENT, window, root, 0, 0, 99, 99, 0, class, 0, &look).unwrap();
        let states = [atom("_NET_WM_STATE_FULLSCREEN")];
        server.change_property32(PropMode::REPLACE, window, atom("_NET_WM_STATE"), AtomEnum::ATOM, &states).unwrap();
        server.map_window(window).unwrap();
        server.sync().unwrap();
        Self(server)
    }

    /// Whether the server still has it.
    pub fn is_there(&self) -> bool {
        self.0.sync().is_ok()
    }
}
