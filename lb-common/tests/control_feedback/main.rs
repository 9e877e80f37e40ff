//! What traffic tells, through the engine: health, slow start, and streams of
//! both.
#![cfg(feature = "control")]

#[path = "../control_world/mod.rs"]
mod control_world;
mod health;
#[path = "../control_world/random.rs"]
mod random;
mod slow_start;
#[path = "../control_world/small.rs"]
mod small;
mod streams;
