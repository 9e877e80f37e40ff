//! What the tests and the demonstration share.

pub mod packets;
pub mod world;
