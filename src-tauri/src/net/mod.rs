//! The net.
