//! The flow table: our own set-associative table over memory-mapped arrays.
//!
//! A flow's key hashes to two buckets of four ways ([`crate::hash::home`]). A
//! way is four words ([`Way`]); a bucket is two adjacent cache lines, and a hit
//! in the primary bucket touches nothing else. What only the handshake, the
//! first data and the end need is in a parallel cold array.
//!
//! * **Key.** In `nat` the hash covers the client's endpoint alone, so that a
//!   reply, whose destination that endpoint is, finds the same ways.
//! * **Placement.** The primary bucket while it holds at most two flows, then
//!   the emptier of the two; what fits neither goes to a small kernel hash,
//!   the spill, which is searched only where the primary bucket's first way
//!   carries [`meta::SPILLED`].
//! * **Writing.** Only the meta word is ever swapped. A writer claims a way by
//!   swapping its meta to BUSY with the next generation, zeroes the client
//!   word, writes the others, then the client word, then the meta word by
//!   exchange. A reader takes the meta word before and after the others and
//!   compares generations.
//! * **Two CPUs, one flow.** A flow is published as [`meta::TENTATIVE`], and its
//!   CPU looks again at every place that the flow could have. Of two CPUs at
//!   least one sees the other's flow. The lower slot wins while both are
//!   tentative: the higher withdraws, or the lower one removes it. A flow that
//!   is no longer tentative may be in use and always wins. The same settles two
//!   flows of one client endpoint that would share a backend.
//! * **Replacement.** A free way; one ended past its linger; one idle past its
//!   state's timeout; the closed one of both buckets that lingers longest; then
//!   the spill; and, when that is full too, the oldest half-open one. A flow past
//!   its handshake that has not closed is never evicted. Closed flows yield
//!   before the spill is used, since at a high rate more flows linger than live.
//!   In direct return a closed one yields when its client was silent for a second:
//!   half-closed, it may still receive.
//! * **Counts** are monotonic ([`crate::abi::Live`]): whoever wins the swap out
//!   of a counted state adds to the count of those that left it.
//!
//! The order of loads and stores is that of [`crate::atomic`].

mod open;
mod paired;
mod settle;
mod sweep;
mod track;

pub use open::{Opening, Placed, Survey, Target, Twin, place, survey};
pub use paired::Paired;
pub use sweep::{Expired, count_expired, expire, forget_hop};
pub use track::{Arrival, Ended, Measures, Tracked, is_quiet, track};

use crate::abi::{self, SPILL_SLOTS, SpillKey, WAYS};
use crate::atomic::{Half, Word};
use crate::hash::Home;
use crate::tcp::{Side, State};

/// The meta word of a way.
///
/// | bits | meaning |
/// |---|---|
/// | 0..4 | [`State`] |
/// | 4..16 | flags below |
/// | 16..24 | generation, raised whenever the way changes hands |
/// | 24..40 | client-side next hop, index into `HOPS`; 0: not known |
/// | 40..64 | tick of the last packet that was noted |
pub mod meta {
    use crate::tcp::{Number, State};

    /// The flow's end was reported.
    pub const REPORTED: u64 = 1 << 4;
    /// Carried at least `short_flow_bytes` at some tick; sticky.
    pub const LONG: u64 = 1 << 5;
    /// The service measures the first response.
    pub const FIRST_RESPONSE: u64 = 1 << 6;
    /// The client's first data was seen (kept only for first-response).
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
}

/// A way, as shared words: the atomic view of [`abi::Way4`].
#[repr(C)]
pub struct Way {
    /// See [`abi::Way4::client`]; 0 while the way is written.
    pub client: Word,
    /// See [`abi::Way4::virtual_end`].
    pub virtual_end: Word,
    /// See [`mod@meta`].
    pub meta: Word,
    /// See [`abi::Way4::backend_end`].
    pub backend_end: Word,
}

/// The atomic view of [`abi::Bucket4`].
#[repr(C)]
pub struct Bucket {
    /// The ways; the first one's meta word also carries [`meta::SPILLED`].
    pub ways: [Way; WAYS],
}

/// The shared view of [`abi::Cold`].
#[repr(C)]
pub struct ColdWay {
    /// See [`abi::Cold::syn_us`].
    pub syn_us: Word,
    /// See [`abi::Cold::syn_ack_us`].
    pub syn_ack_us: Half,
    /// See [`abi::Cold::request_us`].
    pub request_us: Half,
    /// See [`abi::Cold::response_us`].
    pub response_us: Half,
    /// See [`abi::Cold::client_end`].
    pub client_end: Half,
    /// See [`abi::Cold::client_start`].
    pub client_start: Half,
    /// See [`abi::Cold::server_start`]; 0: no SYN-ACK yet.
    pub server_start: Half,
    /// See [`abi::Cold::service`].
    pub service: Half,
    /// See [`abi::Cold::syn_repeats`].
    pub syn_repeats: Half,
    /// See [`abi::Cold::client_mac`].
    pub client_mac: Word,
    /// See [`abi::Cold::own_mac`].
    pub own_mac: Word,
    /// See [`abi::Cold::client_ifindex`].
    pub client_ifindex: Half,
    /// Visible padding, zero.
    pub padding1: Half,
}

/// The shared view of [`abi::ColdBucket`].
#[repr(C)]
pub struct ColdWays {
    /// The cold half of each way.
    pub ways: [ColdWay; WAYS],
}

/// The shared view of [`abi::Spilled4`].
#[repr(C)]
pub struct SpilledWay {
    /// The flow's words.
    pub way: Way,
    /// Its cold half.
    pub cold: ColdWay,
}

/// The shared view of [`abi::Live`].
#[repr(C)]
pub struct LiveWords {
    /// See [`abi::Live::half_opened`].
    pub half_opened: Word,
    /// See [`abi::Live::half_closed`].
    pub half_closed: Word,
    /// See [`abi::Live::opened`].
    pub opened: Word,
    /// See [`abi::Live::closed`].
    pub closed: Word,
    /// See [`abi::Live::resets`].
    pub resets: Word,
    /// See [`abi::Live::syn_timeouts`].
    pub syn_timeouts: Word,
    /// See [`abi::Live::forgiven`].
    pub forgiven: Word,
    /// See [`abi::Live::trial`].
    pub trial: Word,
}

const _: () = {
    assert!(size_of::<Bucket>() == size_of::<abi::Bucket4>());
    assert!(size_of::<ColdWays>() == size_of::<abi::ColdBucket>());
    assert!(size_of::<SpilledWay>() == size_of::<abi::Spilled4>());
    assert!(size_of::<LiveWords>() == size_of::<abi::Live>());
};

/// Where a flow is: a way of the table, or a slot of the spill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u64);

impl Slot {
    const SPILL: u64 = 1 << 63;

    /// A way of a bucket, `way` below [`WAYS`].
    #[inline(always)]
    pub const fn way(bucket: u32, way: u32) -> Self {
        Self((bucket as u64) << 2 | way as u64)
    }

    /// A slot of the spill, below [`SPILL_SLOTS`].
    #[inline(always)]
    pub const fn spill(slot: u64) -> Self {
        Self(Self::SPILL | slot)
    }

    /// Whether the flow is in the spill.
    #[inline(always)]
    pub const fn is_spill(self) -> bool {
        self.0 & Self::SPILL != 0
    }

    #[inline(always)]
    const fn bucket(self) -> u32 {
        (self.0 >> 2) as u32
    }

    #[inline(always)]
    const fn index(self) -> usize {
        (self.0 & 3) as usize
    }
}

/// The maps of a flow table.
pub trait Table {
    /// A bucket; `None` past the end of the map.
    fn bucket(&self, index: u32) -> Option<&Bucket>;
    /// The cold halves of a bucket's ways.
    fn cold(&self, index: u32) -> Option<&ColdWays>;
    /// A spill entry, if there is one with this key.
    fn spilled(&self, key: &SpillKey) -> Option<&SpilledWay>;
    /// Inserts the opening's spill entry ([`Opening::spilled`]) unless the key
    /// exists; whether it did.
    fn spill(&self, key: &SpillKey, opening: &Opening) -> bool;
    /// The books of a backend; `None` if the index is none.
    fn live(&self, backend: u16) -> Option<&LiveWords>;
    /// Timeout of a state in ticks.
    fn timeout(&self, state: State) -> u32;
    /// Returns `value`, whose range the optimiser then no longer knows: a mask
    /// behind it stays, by which the BPF verifier learns the range.
    #[inline(always)]
    fn opaque(&self, value: u64) -> u64 {
        value
    }
    /// Returns `value`, of which the BPF verifier then knows nothing: paths that
    /// led to different values become one.
    #[inline(always)]
    fn forget(&self, value: u64) -> u64 {
        value
    }
    /// Returns `number`, at most 3, in a way that the BPF verifier cannot see
    /// through; `noise` is anything it does not know. Else it would follow the
    /// rest of the program once for every way in which a flow can be found.
    #[inline(always)]
    fn conceal(&self, number: u32, noise: u64) -> u32 {
        let _ = noise;
        number
    }
}

/// The client word of a flow over IPv4.
#[inline(always)]
pub const fn client_word(endpoint: u64, protocol: u8) -> u64 {
    // The low byte is never zero, so no key equals an empty word.
    endpoint << 16 | (protocol as u64) << 8 | 1
}

/// A copy of a way's words, consistent at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is.
    pub slot: Slot,
    /// See [`client_word`].
    pub client: u64,
    /// VIP address and port, then the backend's index in 16 bits.
    pub virtual_end: u64,
    /// Backend address and port, then the pool index in 16 bits.
    pub backend_end: u64,
    /// The meta word as it was read; see [`mod@meta`].
    pub meta: u64,
}

impl Found {
    /// Index of the backend.
    #[inline(always)]
    pub const fn backend(&self) -> u16 {
        self.virtual_end as u16
    }

    /// VIP address and port.
    #[inline(always)]
    pub const fn virtual_endpoint(&self) -> u64 {
        self.virtual_end >> 16
    }

    /// Backend address and port.
    #[inline(always)]
    pub const fn backend_endpoint(&self) -> u64 {
        self.backend_end >> 16
    }

    /// The state as it was read.
    #[inline(always)]
    pub const fn state(&self) -> State {
        meta::state(self.meta)
    }
}

/// Reads a way if it holds a flow of `client`.
#[inline(always)]
fn copy(way: &Way, slot: Slot, client: u64) -> Option<Found> {
    if way.client.load() != client {
        return None;
    }
    let meta = way.meta.load();
    if !meta::is_flow(meta) || way.client.load() != client {
        return None;
    }
    let found = Found {
        slot,
        client,
        virtual_end: way.virtual_end.load(),
        backend_end: way.backend_end.load(),
        meta,
    };
    // Otherwise the way changed hands while it was read: the flow is gone.
    let same = (way.meta.load() ^ meta) & meta::GENERATION == 0;
    same.then_some(found)
}

/// Reads a way if it is the flow of `client` that has `endpoint` at the other
/// end, as seen from `side`: the VIP's for a client's packet, the backend's for
/// a server's.
#[inline(always)]
fn read(way: &Way, slot: Slot, client: u64, side: Side, endpoint: u64) -> Option<Found> {
    let found = copy(way, slot, client)?;
    let named = match side {
        Side::Client | Side::ClientAlone => found.virtual_endpoint(),
        Side::Server => found.backend_endpoint(),
    };
    (named == endpoint).then_some(found)
}

/// Finds a flow. One bucket is read on a hit in the primary one.
#[inline(always)]
pub fn find<T: Table>(
    table: &T,
    home: Home,
    client: u64,
    side: Side,
    endpoint: u64,
) -> Option<Found> {
    let primary = table.bucket(home.primary)?;
    for way in 0..WAYS {
        let slot = Slot::way(home.primary, way as u32);
        if let Some(mut found) = read(&primary.ways[way], slot, client, side, endpoint) {
            found.slot = Slot::way(home.primary, table.conceal(way as u32, found.meta));
            return Some(found);
        }
    }
    let secondary = table.bucket(home.secondary)?;
    for way in 0..WAYS {
        let slot = Slot::way(home.secondary, way as u32);
        if let Some(mut found) = read(&secondary.ways[way], slot, client, side, endpoint) {
            found.slot = Slot::way(home.secondary, table.conceal(way as u32, found.meta));
            return Some(found);
        }
    }
    if primary.ways[0].meta.load() & meta::SPILLED == 0 {
        return None;
    }
    for slot in 0..SPILL_SLOTS {
        if let Some(spilled) = table.spilled(&SpillKey { client, slot }) {
            let found = read(&spilled.way, Slot::spill(slot), client, side, endpoint);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The way and the cold half at a slot.
#[inline(always)]
pub fn at<T: Table>(table: &T, slot: Slot, client: u64) -> Option<(&Way, &ColdWay)> {
    if slot.is_spill() {
        let spilled = table.spilled(&SpillKey {
            client,
            slot: slot.0 & (SPILL_SLOTS - 1),
        })?;
        Some((&spilled.way, &spilled.cold))
    } else {
        let way = table.bucket(slot.bucket())?.ways.get(slot.index())?;
        let cold = table.cold(slot.bucket())?.ways.get(slot.index())?;
        Some((way, cold))
    }
}

/// Notes a client-side next hop in a flow that had none. Losing a race loses
/// nothing: the next reply notes it.
#[inline(always)]
pub fn note_hop<T: Table>(table: &T, found: &Found, hop: u16) {
    if let Some((way, _)) = at(table, found.slot, found.client) {
        way.meta
            .replace(found.meta, meta::with_hop(found.meta, hop));
    }
}

/// Whether a handshake that timed out speaks against the server. In direct
/// return its answer is not seen: only a client that had to repeat its SYN tells.
#[inline(always)]
fn blames_server(word: u64, repeats: u32) -> bool {
    word & meta::ONE_SIDED == 0 || repeats > 0
}

/// Counts a flow's leaving of a state on the books of its backend. `timed_out`:
/// a handshake that the server did not answer in time.
#[inline(always)]
fn leave(live: &LiveWords, state: State, timed_out: bool) {
    if state.is_half_open() {
        live.half_closed.add(1);
        if timed_out && matches!(state, State::HalfOpen) {
            live.syn_timeouts.add(1);
        }
    } else if state.is_active() {
        live.closed.add(1);
    }
}
