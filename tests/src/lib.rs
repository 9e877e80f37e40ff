//! What the tests, the demonstration and the benchmarks share.

pub mod bench;
pub mod packets;
pub mod world;
