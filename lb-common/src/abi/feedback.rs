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
