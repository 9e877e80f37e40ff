//! The meta word of a way.
//!
//! | bits | meaning |
//! |---|---|
//! | 0..4 | [`State`] |
//! | 4..16 | flags below |
//! | 16..24 | generation, raised whenever the way changes hands |
//! | 24..40 | client-side next hop, index into `HOPS`; 0: not known |
//! | 40..64 | tick of the last packet that was noted |

use crate::tcp::{Number, State};

/// The flow's end was reported.
pub const REPORTED: u64 = 1 << 4;
/// Carried at least `short_flow_bytes` at some tick; sticky.
pub const LONG: u64 = 1 << 5;
/// The service measures the first response.
pub const FIRST_RESPONSE: u64 = 1 << 6;
/// The client's first data was seen (kept only for first-response); with
/// [`TURNS`], the client's data is unanswered.
pub const REQUESTED: u64 = 1 << 7;
/// The server's first data after it was seen.
pub const RESPONDED: u64 = 1 << 8;
/// The reset came from the client.
pub const RESET_BY_CLIENT: u64 = 1 << RESET_BY_CLIENT_SHIFT;
pub(super) const RESET_BY_CLIENT_SHIFT: u32 = 9;
/// The server answers directly: only the client's packets are seen.
pub const ONE_SIDED: u64 = 1 << 11;
/// One-sided, and the client has not sent data a tick after opening: may be
/// evicted.
pub const UNASSURED: u64 = 1 << 12;
/// Just published: its CPU has not looked yet whether another one published
/// the same flow elsewhere.
pub const TENTATIVE: u64 = 1 << 10;
/// Ended by the controller: whoever goes on is told so by a reset. Kept for as
/// long as an established flow may be idle, unless its place is wanted.
pub const REFUSED: u64 = 1 << 13;
/// The service measures every turn from client to server.
pub const TURNS: u64 = 1 << 14;
/// With [`TURNS`], flips at every answer, so that each has one owner.
pub const TURNED: u64 = RESPONDED;
/// On way 0 of a bucket: flows with this primary bucket may be in the
/// spill. Belongs to the bucket: kept whatever happens to the way.
pub const SPILLED: u64 = 1 << 15;

/// The bits that change only when the way changes hands.
pub const GENERATION: u64 = 0xff << 16;
const STATE: u64 = 0xf;
const HOP_SHIFT: u32 = 24;
const TICK_SHIFT: u32 = 40;

/// The state in a meta word.
#[inline(always)]
pub const fn state(meta: u64) -> State {
    State::from_number((meta & STATE) as u8)
}

/// The state by its number.
#[inline(always)]
pub const fn number(meta: u64) -> Number {
    Number(meta & STATE)
}

/// Holds a flow, live or lingering.
#[inline(always)]
pub const fn is_flow(meta: u64) -> bool {
    (meta & STATE) > State::Busy as u64 && (meta & STATE) <= State::Conversing as u64
}

/// The tick in a meta word, 24 bits.
#[inline(always)]
pub const fn tick(meta: u64) -> u32 {
    (meta >> TICK_SHIFT) as u32
}

/// The client-side next hop in a meta word; 0: not known.
#[inline(always)]
pub const fn hop(meta: u64) -> u16 {
    (meta >> HOP_SHIFT) as u16
}

/// The meta word with another state.
#[inline(always)]
pub const fn with_state(meta: u64, state: State) -> u64 {
    meta & !STATE | state as u64
}

/// The same with a state by its number.
#[inline(always)]
pub const fn with_number(meta: u64, state: Number) -> u64 {
    meta & !STATE | state.0
}

/// The meta word with another tick, at most 24 bits.
#[inline(always)]
pub const fn with_tick(meta: u64, tick: u32) -> u64 {
    meta & !(0xff_ffff << TICK_SHIFT) | (tick as u64) << TICK_SHIFT
}

/// The meta word of a flow that the controller ends at `tick` with resets to
/// both sides. Its end is no report: it says nothing of the server.
#[inline(always)]
pub const fn refused(meta: u64, tick: u32) -> u64 {
    with_tick(with_state(meta, State::Reset), tick) | REFUSED | REPORTED
}

/// The meta word with another client-side next hop.
#[inline(always)]
pub const fn with_hop(meta: u64, hop: u16) -> u64 {
    meta & !(0xffff << HOP_SHIFT) | (hop as u64) << HOP_SHIFT
}

/// The meta word of the next owner of a way that has `meta` now: next
/// generation, the bucket's own bits kept, everything else zero.
#[inline(always)]
pub const fn successor(meta: u64, state: State) -> u64 {
    (meta.wrapping_add(1 << 16) & GENERATION) | (meta & SPILLED) | state as u64
}
