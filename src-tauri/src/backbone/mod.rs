//! The backbone.
