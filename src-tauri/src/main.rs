//! The `kvasir` program.

fn main() {}
