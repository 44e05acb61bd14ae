//! `NO_PROXY`: the hosts that are dialled directly although a proxy is demanded.
//!
//! The rules that most programs agree on: entries with commas or blanks between them; `*`; a domain, with or without a
//! leading dot, for itself and all below; an address; a network as `10.0.0.0/8`; each with `:port` for that port alone.

use std::net::IpAddr;

use crate::net::tcp::bare;

/// Entries of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Except(Vec<(Entry, Option<u16>)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    All,
    /// In lower case, without dots at its ends.
    Domain(String),
    /// An address and how many of its leading bits count.
    Network(IpAddr, u32),
}

impl Except {
    /// The entries of `list`; what cannot be an entry covers nothing.
    pub fn new(list: &str) -> Self {
        let words = list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
        Self(words.filter_map(entry).collect())
    }

    /// Whether `host` is dialled directly.
    pub fn covers(&self, host: &str, port: u16) -> bool {
        let host = bare(host).trim_end_matches('.').to_ascii_lowercase();
        let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let covers = |entry: &Entry| match (entry, ip) {
            (Entry::All, _) => true,
            (Entry::Network(network, bits), Some(ip)) => is_within(ip, *network, *bits),
            (Entry::Domain(domain), None) => {
                host.strip_suffix(domain.as_str()).is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            _ => false,
        };
        self.0.iter().any(|(entry, only)| only.is_none_or(|only| only == port) && covers(entry))
    }
}

fn entry(word: &str) -> Option<(Entry, Option<u16>)> {
    if word == "*" {
        return Some((Entry::All, None));
    }
    if let Some((ip, bits)) = word.split_once('/') {
        let ip: IpAddr = bare(ip).parse().ok()?;
        let bits = bits.parse().ok().filter(|bits| *bits <= width(ip))?;
        return Some((Entry::Network(ip, bits), None));
    }
    let is_address = bare(word).parse::<IpAddr>().is_ok();
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) if !is_address => (host, Some(port.parse().ok()?)),
        _ => (word, None),
    };
    if let Ok(ip) = bare(host).parse::<IpAddr>() {
        let ip = ip.to_canonical();
        return Some((Entry::Network(ip, width(ip)), port));
    }
    let domain = host.strip_prefix('*').unwrap_or(host).trim_matches('.').to_ascii_lowercase();
    (!domain.is_empty()).then_some((Entry::Domain(domain), port))
}

fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn is_within(ip: IpAddr, network: IpAddr, bits: u32) -> bool {
    let (a, b) = match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits())),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
        _ => return false,
    };
    (a ^ b).checked_shr(width(ip) - bits).unwrap_or(0) == 0
}
