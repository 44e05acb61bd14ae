//! The wallet.
