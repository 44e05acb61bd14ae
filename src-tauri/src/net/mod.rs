//! The net.

pub mod head;
