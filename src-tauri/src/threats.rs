//! Who might mean harm, what each could do, and what stands in the way. A page, not code.
//!
//! # What is worth protecting
//! 1. The **text**: nobody but workers' hidden states should leave the house, and no worker can change a token.
//! 2. The **money**: every credit is work that a backbone used, once, for the wallet that did it.
//! 3. The **contributor's machine**: nothing that comes over the link runs there, or takes more than was offered.
//! 4. The **service**: strangers cannot stop it for others.
//!
//! # Who is where
//! | who | reaches | trusted with |
//! | --- | --- | --- |
//! | anybody on the internet | the [`gateway`](crate::gateway)'s public listener | nothing |
//! | a worker, once its wallet is proven | a session of the [`hub`](crate::hub), through the gateway | hidden states, until it is found false |
//! | a proxy between worker and gateway that a company installed | the bytes of the link | reading them, if the worker trusts its authority |
//! | whoever runs the gateway | accounts, and the bytes of every link | the accounts; it can stop links, and read but not alter frames |
//! | whoever runs hub and backbone (the operator) | prompts, meters | everything but contributors' keys and machines |
//! | a client of the [API](crate::backbone::api) | the backbone's API | what its key allows |
//!
//! # Strangers at the gateway
//! - *Holding it up.* Connections are bounded in all, for an address (an IPv6 /64) and, more tightly, for an address until a
//!   request was read; so are handshakes of an address in a minute, in a table of fixed size. TLS and the head have one
//!   deadline together. A splice takes a buffer only while bytes are in hand. A crowd of many addresses still takes the
//!   room of 10,000 connections: against that, the network before the gateway has to help.
//! - *Smuggling.* A head is parsed strictly, rebuilt from checked fields, and nothing follows it before the hub's 101; a
//!   refused connection ends. The public HTTP answers one request a connection and never forwards.
//! - *Asking for more than is public.* Wallets' balances are public to whoever knows the address: it is the account's
//!   name and no secret. `/metrics`, addresses and reasons are on the operator's listener only, on loopback.
//! - *Posing as the hub or as a gateway.* Between machines both show a pinned ed25519 key in TLS 1.3; without keys they
//!   talk on loopback only ([`peer`](crate::net::peer)). The address that a gateway reports of a worker is therefore
//!   believed only from a gateway of ours.
//!   A hub that dials in proves its pinned key in the same way, on the public port; whoever holds no such key gets nothing
//!   kept, and a hub keeps a bounded number of connections. What a hub says is credited, so a hub's key is worth as much
//!   as the accounts.
//! - *Finding hub or backbone directly.* Both refuse to listen on public or unspecified addresses without
//!   `--allow-public` ([`bind`](crate::net::bind)).
//!
//! # A hostile worker
//! - *Lying.* Partials are exact integers, so an audit is a comparison: before use for new wallets, sampled afterwards. A
//!   lie voids the wallet's unsettled credit and keeps it out. An audit after use finds a lie when it was used.
//! - *Being paid twice, or for nothing.* Only what the backbone accepted is metered; a ledger credits a session's bytes
//!   once, whatever is repeated or lost ([`ledger`](crate::ledger)).
//! - *Being somebody else.* The proof covers the hub's key, the host that was dialled and both sides' fresh numbers
//!   ([`handshake`](crate::wire::handshake)); keys of low order, altered signatures and recorded ones are refused.
//! - *Being many.* Wallets are free. New ones are audited before use, and one address holds few unproven connections; an
//!   operator who needs more uses `admission = "invite"`.
//! - *Learning.* Hidden states can be inverted in part. What must not be learned is kept at home (`route`).
//! - *Breaking the parser.* Every length is bounded before memory is taken; decoders are fuzzed; a breach ends its own
//!   session by name.
//!
//! # A hostile hub or operator, seen by a contributor
//! - It can obtain no signature that is useful elsewhere, and no code, path or address ever comes from it: only weights
//!   (checked against a digest) and numbers. Sizes are checked against what was offered.
//! - It could count too little: receipts are signed by the hub and kept by the worker, so that it can be shown. It could
//!   refuse to pay what it owes: the program cannot prevent that.
//!
//! # Whoever reads disks and logs
//! - Keys are in the system's keyring or in files that only their owner may read; they are wiped from memory after use
//!   and have no printed form. API keys are kept as hashes.
//! - Logs hold no key, no prompt and no text; those of gateway, hub and backbone name wallets, but not from where they come.
//!   A hub knows addresses as a hash under a key that it forgets when it stops.
//!
//! # Supply chain
//! - Crates come from one registry, at locked versions, under a list of licences, without a second TLS stack: a test
//!   checks that on every run, `cargo deny check` with the advisories where the network allows.
//! - Servers can run under the units of `src-tauri/systemd`: no user, no files but their state, no new privileges.
//!
//! # Not promised
//! Secrecy of prompts from workers; availability under a distributed flood; anything against whoever is root on the
//! machine of a role, or owns its certificate authority.
