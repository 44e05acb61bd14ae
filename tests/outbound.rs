//! The way out of the worst network: proxies, private authorities, one address family, names that move, cuts.
//!
//! | situation | tests |
//! |---|---|
//! | proxies × certificate authorities, for HTTPS and WebSockets | `proxies` |
//! | the same by a real worker and a real wallet, told by the environment | `processes` |
//! | IPv6 alone, a family that swallows everything, a name that moves | `families` |
//! | several gateways, cuts | `gateways` |
//! | nginx, and an edge that takes messages apart | `edges` |
//! | a proxy that cuts idle links | `edges`, `elastic::links` |
//! | a machine that sleeps, clocks that are set | `elastic::clocks` |

mod edges;
mod families;
mod gateways;
mod processes;
mod proxies;
mod site;
