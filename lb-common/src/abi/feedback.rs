//! The structs by which the controller's feedback reaches the packet path, and
//! the traffic's the controller.

use bytemuck::{Pod, Zeroable};

/// Bits of [`Budget::flags`].
pub mod budget_flags {
    /// [`super::Budget::begun`] holds, until it expires.
    pub const BEGUN: u32 = 1;
    /// [`super::Budget::ceiling`] holds, until it expires.
    pub const CEILING: u32 = 2;
    /// [`super::Budget::maximum`] holds.
    pub const MAXIMUM: u32 = 4;
}

/// What a backend may take. Map `BUDGETS`, memory-mapped, by backend index;
/// written by the controller alone. All zero: anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Budget {
    /// No new flow once so many have begun, ever ([`super::Live::half_opened`]).
    pub begun: u64,
    /// No new flow while so many are in the handshake or past it.
    pub ceiling: u32,
    /// The same, for ever.
    pub maximum: u32,
    /// Flows that least connections count in addition.
    pub dummies: u32,
    /// Tick from which on only `maximum` holds: a dead daemon limits nobody.
    pub expiry: u32,
    /// See [`budget_flags`].
    pub flags: u32,
    /// Visible padding, zero.
    pub padding: u32,
}

/// Kinds of [`Failure`].
pub mod failure_kind {
    /// The server reset the flow.
    pub const RESET: u8 = 1;
    /// The server left `reassign` SYNs unanswered, and the flow goes to another.
    pub const REASSIGNED: u8 = 2;
}

/// A failed flow: the record of ring `FAILURES`. It may be lost where the ring
/// is full; its count in [`super::Live`] is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Failure {
    /// See [`crate::flow::client_word`].
    pub client: u64,
    /// Monotonic microseconds.
    pub at_us: u64,
    /// Index into the backend maps.
    pub backend: u16,
    /// How often the client repeated its SYN.
    pub repeats: u16,
    /// See [`failure_kind`].
    pub kind: u8,
    /// Visible padding, zero.
    pub padding: [u8; 3],
}

/// SynGuard of one service, on its own cache line. Map `SYN_GUARDS`,
/// memory-mapped, by service index. The controller writes the limit, the packet
/// path the rest ([`crate::syn_guard`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct SynGuard {
    /// SYNs without an answer within an interval; 0: no limit.
    pub unanswered: u32,
    /// Length of an interval, microseconds.
    pub interval_us: u32,
    /// See [`crate::syn_guard::Guarded`].
    pub origin_us: u64,
    /// The same.
    pub window: u64,
    /// Visible padding, zero.
    pub padding: [u64; 5],
}
