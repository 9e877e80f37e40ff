//! A small network in namespaces of its own, with real clients and servers.
//!
//! ```text
//! client             balancer                  switch            server 1..n
//! eth0 ────────── front   back ──────────── uplink br0 s1 ────── eth0
//! 192.0.2.2    192.0.2.1  10.2.0.1                     s2 ────── eth0
//! 10.1.0.0/16                                              10.2.0.11, .12, …
//! ```
//!
//! With [`Topology::dual_stack`] every host has IPv6 addresses beside these.
//!
//! One script makes this network for tests and demonstration alike, so that
//! what is demonstrated is what is tested. A [`World`] belongs to whoever made
//! it: the names are unique to the process, nothing outside is touched, and
//! dropping it ends its processes and removes its namespaces, also on panic.
//! What a killed process left behind is removed by the next one.
//!
//! Three things about veth decide the settings in [`topology`]: a checksum that
//! the sender leaves to the hardware is never computed, so the hosts at the
//! edge compute it themselves; a frame redirected into a veth is dropped unless
//! its peer runs NAPI, which is what generic receive offload turns on; and what
//! that offload merges no longer looks on a capture as it did on the wire, so
//! merging is limited to nothing.
//!
//! Needs root. Nothing here retries a failed step, and every wait has an end.

mod balancer;
mod capture;
mod client;
mod decapsulator;
mod load;
mod namespace;
mod process;
mod scratch;
mod server;
mod status;
pub mod topology;
mod wire;

use std::fs::OpenOptions;
use std::io::Write as _;

pub use balancer::{Balancer, BalancerConfig};
pub use capture::{Capture, Pcap};
pub use client::{Client, Failure, Response, payload, payload_digest};
pub use decapsulator::Decapsulator;
pub use load::{Load, Outcome, Report, RunningLoad, Until};
pub use namespace::{Namespace, Offload};
pub use process::{Process, run, wait_until};
pub use scratch::Scratch;
pub use server::{Access, NginxOptions, PAYLOAD_SIZES, Server};
pub use status::{PATIENCE, Status, named, number, web};
pub use topology::{Topology, World};
pub use wire::tcp_frame;

/// Whether the calling test must be skipped because it is not run by root.
///
/// `reason` says what root is for. With `STEERLINE_REQUIRE_ROOT` set, as in
/// CI, nothing is skipped: the test fails instead. Skips are appended to the
/// file named by `STEERLINE_SKIP_LOG`, where `cargo xtask test` counts them,
/// because the test runner reports them as passed.
///
/// # Panics
///
/// If root is required and missing.
pub fn skip_unless_root(reason: &str) -> bool {
    if nix::unistd::Uid::effective().is_root() {
        return false;
    }
    assert!(
        std::env::var_os("STEERLINE_REQUIRE_ROOT").is_none(),
        "STEERLINE_REQUIRE_ROOT is set, but this test needs root: {reason}"
    );
    let thread = std::thread::current();
    let line = format!("{}: {reason}", thread.name().unwrap_or("?"));
    eprintln!("skipped, not root: {line}");
    if let Some(path) = std::env::var_os("STEERLINE_SKIP_LOG") {
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut log| writeln!(log, "{line}"));
        if let Err(error) = written {
            eprintln!("cannot log the skip: {error}");
        }
    }
    true
}
