//! A swarm whose workers come and go: whatever happens to them, the stream is the one that a local run gives.
//!
//! | situation | tests |
//! |---|---|
//! | a link goes black, idles, is reset, is damaged | `links` |
//! | a worker is killed in the middle of a request; the last holder dies | `deaths` |
//! | an installation connects again; two keys hold one slice | `twins` |
//! | answers of the wrong form, of another request, twice, late; false claims | `dispatch::answers` |
//! | requests and messages that are too large | `oversize` |
//! | deadlines at one row and at 512 | `dispatch::deadlines` |
//!
//! Slow readers are in `hub::a_worker_that_does_not_read_ends_and_holds_up_no_other`, splices in
//! `gateway::a_splice_is_transparent_in_both_directions_and_after_a_half_close`.

mod deaths;
mod links;
mod oversize;
mod twins;
mod world;
