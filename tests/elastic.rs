//! A swarm whose workers come and go: whatever happens to them, the stream is the one that a local run gives.
//!
//! | situation | tests |
//! |---|---|
//! | a link goes black, idles, is reset, is damaged | `links` |
//! | a machine sleeps, a clock is set | `clocks`, `hub::crowd::a_wall_clock_that_jumps_evicts_nobody_and_moves_no_epoch` |
//! | a worker is killed in the middle of a request; the last holder dies | `deaths` |
//! | an installation connects again; two keys hold one slice | `twins` |
//! | answers of the wrong form, of another request, twice, late; false claims | `dispatch::answers` |
//! | requests and messages that are too large | `oversize` |
//! | deadlines at one row and at 512 | `dispatch::deadlines` |
//! | a slow reader | `hub::a_worker_that_does_not_read_ends_and_holds_up_no_other`, `api::bad_input` |
//! | a client goes away | `serving::a_stream_without_a_reader_ends_within_a_step`, `api::clients` |
//! | a step is cancelled under its requests | `dispatch::a_step_that_is_dropped_still_gets_its_verdicts` |
//! | a splice | `gateway::a_splice_is_transparent_in_both_directions_and_after_a_half_close` |

mod clocks;
mod deaths;
mod links;
mod oversize;
mod twins;
pub mod world;
