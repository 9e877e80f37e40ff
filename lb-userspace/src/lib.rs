//! Steerline's daemon and command line, as a library so that the packet tables
//! and scenarios in `tests` drive the same code.

pub mod cli;
pub mod config;
pub mod daemon;
pub mod dataplane;
mod family;
pub mod net;
mod outside;
pub mod status;

pub use family::Family;
