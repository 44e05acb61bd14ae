//! Takes out of a text what a stranger must not read, so that a report can be pasted into a public thread.
//!
//! What goes: home directories, passwords in URLs, whatever follows `Basic` or `Bearer`, join codes, keys and wallets,
//! and addresses of machines; of an address its kind stays. Words are judged by their form, so a text that comes from
//! elsewhere – a log, a driver – is covered too. **Promise:** redacting twice changes nothing more.

use std::net::IpAddr;
use std::path::Path;

use crate::wire::invite::INVITE_PREFIX;

/// Letters and digits in one piece from which on a word is taken for a key.
const KEY_CHARS: usize = 32;

/// `text` without secrets; `home` is the directory of the user who asks.
#[must_use]
pub fn redact(text: &str, home: Option<&Path>) -> String {
    let home = home.map(|home| home.to_string_lossy().into_owned()).filter(|home| home.len() > 1);
    let text = home.map_or_else(|| text.to_owned(), |home| without_home(text, &home));
    let mut out = String::with_capacity(text.len());
    let mut after_scheme = false;
    for piece in text.split_inclusive(is_between) {
        let word = piece.trim_end_matches(is_between);
        let between = &piece[word.len()..];
        if word.is_empty() {
            out.push_str(between);
            continue;
        }
        let hidden = if std::mem::take(&mut after_scheme) { "[secret]".to_owned() } else { hide(word) };
        after_scheme = matches!(word.to_ascii_lowercase().as_str(), "basic" | "bearer") && between == " ";
        out.push_str(&hidden);
        out.push_str(between);
    }
    out
}

/// `~` for a home directory, and nothing for one whose name only begins like it.
fn without_home(text: &str, home: &str) -> String {
    let mut pieces = text.split(home);
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let goes_on = piece.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_'));
        out.push_str(if goes_on { home } else { "~" });
        out.push_str(piece);
    }
    out
}

/// What separates words.
fn is_between(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '(' | ')' | '<' | '>' | '{' | '}' | '=' | '|')
}

fn hide(word: &str) -> String {
    if word.starts_with(INVITE_PREFIX) {
        return "[join code]".to_owned();
    }
    if let Some((scheme, rest)) = word.split_once("://") {
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("[secret]@", host));
        return format!("{scheme}://{user}{}{}", host_hidden(host), segments(path));
    }
    host_hidden(&segments(word))
}

/// Users' directories and keys between the slashes of a path.
fn segments(path: &str) -> String {
    let mut of_a_user = false;
    let hide = |segment: &str| {
        let name = segment.trim_end_matches(['.', ':', '!', '?']);
        let hidden = match std::mem::take(&mut of_a_user) {
            true if !name.is_empty() => segment.replacen(name, "[user]", 1),
            _ => key_hidden(segment),
        };
        of_a_user = matches!(segment, "home" | "Users");
        hidden
    };
    let slash = if path.contains('\\') { "\\" } else { "/" };
    path.split(slash).map(hide).collect::<Vec<_>>().join(slash)
}

/// Long pieces without a break are keys, wallets, digests or tokens.
fn key_hidden(segment: &str) -> String {
    let mut out = String::new();
    let is_of_a_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '_');
    for run in segment.split_inclusive(|c| !is_of_a_key(c)) {
        let key = run.trim_end_matches(|c| !is_of_a_key(c));
        if key.len() >= KEY_CHARS && key.bytes().any(|c| c.is_ascii_digit()) {
            out.push_str("[key]");
            out.push_str(&run[key.len()..]);
        } else {
            out.push_str(run);
        }
    }
    out
}

/// An address of a machine, with or without port; a name stays.
fn host_hidden(word: &str) -> String {
    let bare = word.trim_end_matches(['.', ':', '!', '?']);
    let tail = &word[bare.len()..];
    let of = |text: &str| text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    if let Some(ip) = of(bare) {
        return format!("{}{tail}", kind(ip, bare));
    }
    match bare.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => match of(host) {
            Some(ip) => format!("{}:{port}{tail}", kind(ip, host)),
            None => word.to_owned(),
        },
        _ => word.to_owned(),
    }
}

fn kind(ip: IpAddr, as_written: &str) -> String {
    let ip = ip.to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return as_written.to_owned();
    }
    let is_private = match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    };
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    format!("[{} {family} address]", if is_private { "private" } else { "public" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_homes_keys_and_addresses_go_and_the_rest_stays() {
        let home = Path::new("/home/ada");
        for (text, expected) in [
            ("no room at /home/ada/kvasir-state.", "no room at ~/kvasir-state."),
            ("/home/adam/x, /home/ada", "/home/[user]/x, ~"),
            ("see /home/bob/x and C:\\Users\\Bob\\y", "see /home/[user]/x and C:\\Users\\[user]\\y"),
            ("via http://ada:s3cret@proxy.example:3128/ (407)", "via http://[secret]@proxy.example:3128/ (407)"),
            ("Proxy-Authorization: Basic YWRhOnM=", "Proxy-Authorization: Basic [secret]="),
            ("joined with kvasir://join#abc, today", "joined with [join code], today"),
            ("wallet HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk paid", "wallet [key] paid"),
            (
                "10.0.0.7:443 and 203.0.113.9, not 127.0.0.1:80",
                "[private IPv4 address]:443 and [public IPv4 address], not 127.0.0.1:80",
            ),
            ("[2001:db8::1]:443 fe80::1 ::1", "[public IPv6 address]:443 [private IPv6 address] ::1"),
            ("wss://192.0.2.4:7443/v1/worker", "wss://[public IPv4 address]:7443/v1/worker"),
            (
                "12:30:05 version 0.1.0 kvasir_gateway_connections_open_now_and_then",
                "12:30:05 version 0.1.0 kvasir_gateway_connections_open_now_and_then",
            ),
        ] {
            let once = redact(text, Some(home));
            assert_eq!(once, expected);
            assert_eq!(redact(&once, Some(home)), once, "a second time");
        }
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        assert_eq!(redact(&format!("seed={seed}\n"), None), "seed=[key]\n");
    }
}
