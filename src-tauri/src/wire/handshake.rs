//! The worker–hub handshake.
