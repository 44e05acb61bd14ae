//! How a line's speed is measured: a small transfer each way between a worker's machine and its gateway.

/// Path at the gateway: `GET …?bytes=N` gives N bytes, `POST` takes a body and says how long it was.
pub const SPEED_PATH: &str = "/v1/speed";
/// Most bytes of one transfer.
pub const SPEED_BYTES_MAX: usize = 256 * 1024;

/// What is transferred: bytes that nothing on the way could pack smaller.
#[must_use]
pub fn content() -> Vec<u8> {
    let mut bytes = vec![0; SPEED_BYTES_MAX];
    blake3::Hasher::new_derive_key("kvasir speed v1").finalize_xof().fill(&mut bytes);
    bytes
}
