//! What Steerline's kernel half and user half must agree on, and every
//! decision that either of them takes.
//!
//! Without features the crate is `no_std` and holds the map ABI ([`abi`]), the
//! flow table ([`flow`]), the TCP transitions ([`tcp`]), checksum deltas
//! ([`checksum`]), hashes ([`hash`]), SynGuard ([`syn_guard`]), budgets
//! ([`admission`]), backend picks ([`pick`]) and the ports of `full-nat`
//! ([`ports`]). The same source runs in the XDP program and, through the
//! host twin of the atomics ([`atomic`]), in ordinary tests with racing threads.
//!
//! Feature `control` adds the controller's brain. Nothing in this crate reads
//! a clock, draws a random number or performs I/O.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "the atomic instructions of BPF are intrinsics"
    )
)]

#[cfg(feature = "control")]
extern crate alloc;

pub mod abi;
pub mod admission;
pub mod atomic;
pub mod bench;
pub mod checksum;
#[cfg(feature = "control")]
pub mod control;
pub mod flow;
pub mod hash;
pub mod pick;
pub mod ports;
pub mod reason;
pub mod syn_guard;
pub mod tcp;
