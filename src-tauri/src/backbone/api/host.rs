//! Lets through what was meant for an address or for `localhost`, where nothing else protects the API.
//!
//! A web page can point its own name at this address and read the answers; it cannot take an address as its name. A
//! page that asks without being able to read still makes the model work: its browser says where it comes from.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};

use super::ApiError;

/// # Errors
/// 403 for a request from a page of another machine.
pub fn check_origin(request: &Request) -> Result<(), ApiError> {
    if let Some(origin) = request.headers().get_all(header::ORIGIN).iter().find(|origin| !is_near(origin.as_bytes())) {
        let message = format!(
            "expected a page of this machine, got one of {}: pages of others need a key (kvasir keys create)",
            String::from_utf8_lossy(origin.as_bytes())
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, "origin", message));
    }
    Ok(())
}

/// # Errors
/// 403 for a request to a name.
pub fn check_host(request: &Request) -> Result<(), ApiError> {
    let named = request.headers().get_all(header::HOST).iter().map(|value| value.as_bytes());
    let meant = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let hosts: Vec<&[u8]> = named.chain(meant).collect();
    if !hosts.is_empty() && hosts.iter().all(|host| is_no_name(host)) {
        return Ok(());
    }
    let got = hosts.first().map_or_else(|| "none".into(), |host| String::from_utf8_lossy(host).into_owned());
    let message = format!("expected an IP address or localhost as Host, got {got}: use the server's address");
    Err(ApiError::new(StatusCode::FORBIDDEN, "host", message))
}

/// Whether `scheme://host[:port]` is a page on an address or `localhost`.
fn is_near(origin: &[u8]) -> bool {
    let page = std::str::from_utf8(origin).ok().and_then(|origin| origin.split_once("://"));
    page.is_some_and(|(scheme, host)| matches!(scheme, "http" | "https") && is_no_name(host.as_bytes()))
}

/// Whether `host[:port]` is an IP address or `localhost`.
fn is_no_name(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::{is_near, is_no_name};

    #[test]
    fn only_addresses_and_localhost_are_no_names() {
        for host in ["127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "[::1]", "localhost", "LocalHost:1", "192.168.0.9:80"]
        {
            assert!(is_no_name(host.as_bytes()), "{host}");
        }
        for host in ["", "rebound.test:8080", "localhost.rebound.test", "127.0.0.1.rebound.test", ":80", "[rebound]"] {
            assert!(!is_no_name(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn only_pages_of_addresses_and_localhost_are_near() {
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"] {
            assert!(is_near(origin.as_bytes()), "{origin}");
        }
        for origin in ["null", "https://page.test", "file://localhost", "http://localhost.page.test", "localhost"] {
            assert!(!is_near(origin.as_bytes()), "{origin}");
        }
    }
}
