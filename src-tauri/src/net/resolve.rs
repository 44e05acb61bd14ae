//! Names to addresses, asked anew for every attempt: nothing is remembered, failures least of all.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use tokio::net::lookup_host;

/// What a resolver finds out: addresses of both families, in the order in which it would try them.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Knows the addresses of names. Passed in, so that tests can move a name.
pub trait Resolve: Send + Sync {
    /// The addresses of `name` with `port`.
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a>;
}

/// The operating system's resolver, which asks for A and AAAA and orders what it finds by RFC 6724.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move { Ok(lookup_host((name, port)).await?.collect()) })
    }
}
