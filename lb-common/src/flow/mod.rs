//! The flow table: our own set-associative table over memory-mapped arrays.
//!
//! A flow's key hashes to two buckets of four ways ([`crate::hash::home`]). A
//! way is four words ([`Way`]); a bucket is two adjacent cache lines, and a hit
//! in the primary bucket touches nothing else. What only the handshake, the
//! first data and the end need is in a parallel cold array.
//!
//! * **Key.** The hash covers the client's endpoint alone, so that a reply, whose
//!   destination that endpoint is, finds the same ways.
//! * **IPv6.** The words are the same, with keyed 32-bit tags in place of the
//!   addresses, and the addresses themselves behind the words of all ways
//!   ([`EndsWords`]). Tags only say where it is worth comparing them.
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

pub mod meta;
mod open;
mod opening;
mod paired;
mod settle;
mod sweep;
mod track;
mod words;

pub use open::{Placed, Survey, Target, Twin, place, survey};
pub use opening::Opening;
pub use paired::Paired;
pub use sweep::{Expired, count_expired, expire, forget_hop, patience};
pub use track::{Arrival, Ended, Measures, Tracked, is_quiet, note, track};
pub use words::{
    Bucket, ColdWay, ColdWays, EndsWords, LiveWords, SpilledWay, Way, WideBucket, WideSpilledWay,
};

use crate::abi::{Ends, SPILL_SLOTS, SpillKey, WAYS};
use crate::hash::Home;
use crate::tcp::{Side, State};

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

    /// Its number among the client's spilled flows, if it is one.
    #[inline(always)]
    pub const fn spill_number(self) -> u64 {
        self.0 & (SPILL_SLOTS - 1)
    }

    /// Its bucket, if it is not in the spill.
    #[inline(always)]
    pub const fn bucket(self) -> u32 {
        (self.0 >> 2) as u32
    }

    /// Which way of its bucket.
    #[inline(always)]
    pub const fn index(self) -> usize {
        (self.0 & 3) as usize
    }
}

/// The maps of a flow table.
pub trait Table {
    /// Flows have addresses that their words cannot hold (IPv6).
    const WIDE: bool = false;
    /// The addresses of the flow in a slot, where flows have them.
    fn ends(&self, slot: Slot, client: u64) -> Option<&EndsWords> {
        let _ = (slot, client);
        None
    }
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

/// The client word of a flow: of its client's endpoint and protocol.
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
    /// The addresses of an IPv6 flow.
    pub ends: Ends,
}

/// A flow as one of its packets names it.
#[derive(Clone, Copy, Debug)]
pub struct Tuple {
    /// See [`client_word`].
    pub client: u64,
    /// The other end: the VIP's on a client's packet, the backend's on a
    /// server's.
    pub endpoint: u64,
    /// The addresses of an IPv6 packet; on a server's only the client's counts.
    pub ends: Ends,
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

    /// Index of the pool address that stands for the client; 0: none. Then
    /// [`Found::backend_endpoint`] is not the server's, but that address's.
    #[inline(always)]
    pub const fn pool(&self) -> u16 {
        self.backend_end as u16
    }

    /// The client's endpoint number.
    #[inline(always)]
    pub const fn client_endpoint(&self) -> u64 {
        self.client >> 16
    }

    /// The state as it was read.
    #[inline(always)]
    pub const fn state(&self) -> State {
        meta::state(self.meta)
    }
}

/// Reads a way if it holds a flow of `client`.
#[inline(always)]
fn copy<T: Table>(table: &T, way: &Way, slot: Slot, client: u64, ends: &Ends) -> Option<Found> {
    let found = copy_any(table, way, slot, client)?;
    (!T::WIDE || equal(found.ends.client, ends.client)).then_some(found)
}

/// Reads a way if it holds a flow with this client word.
#[inline(always)]
fn copy_any<T: Table>(table: &T, way: &Way, slot: Slot, client: u64) -> Option<Found> {
    if way.client.load() != client {
        return None;
    }
    let meta = way.meta.load();
    if !meta::is_flow(meta) || way.client.load() != client {
        return None;
    }
    let mut found = Found {
        slot,
        client,
        virtual_end: way.virtual_end.load(),
        backend_end: way.backend_end.load(),
        meta,
        ends: Ends::NONE,
    };
    if T::WIDE {
        found.ends = table.ends(slot, client)?.load();
    }
    // Otherwise the way changed hands while it was read: the flow is gone.
    let same = (way.meta.load() ^ meta) & meta::GENERATION == 0;
    same.then_some(found)
}

/// Whether two IPv6 addresses are one. (Comparing arrays would call `memcmp`.)
#[inline(always)]
const fn equal(one: [u64; 2], other: [u64; 2]) -> bool {
    one[0] == other[0] && one[1] == other[1]
}

/// Reads a way if it is the flow of a tuple, as seen from `side`.
#[inline(always)]
fn read<T: Table>(table: &T, way: &Way, slot: Slot, tuple: &Tuple, side: Side) -> Option<Found> {
    let found = copy(table, way, slot, tuple.client, &tuple.ends)?;
    let is_it = match side {
        Side::Client | Side::ClientAlone => {
            found.virtual_endpoint() == tuple.endpoint
                && (!T::WIDE || equal(found.ends.virtual_address, tuple.ends.virtual_address))
        }
        Side::Server => found.backend_endpoint() == tuple.endpoint,
    };
    is_it.then_some(found)
}

/// Finds a flow. One bucket is read on a hit in the primary one.
#[inline(always)]
pub fn find<T: Table>(table: &T, home: Home, tuple: &Tuple, side: Side) -> Option<Found> {
    let primary = table.bucket(home.primary)?;
    for way in 0..WAYS {
        let slot = Slot::way(home.primary, way as u32);
        if let Some(mut found) = read(table, &primary.ways[way], slot, tuple, side) {
            found.slot = Slot::way(home.primary, table.conceal(way as u32, found.meta));
            return Some(found);
        }
    }
    let secondary = table.bucket(home.secondary)?;
    for way in 0..WAYS {
        let slot = Slot::way(home.secondary, way as u32);
        if let Some(mut found) = read(table, &secondary.ways[way], slot, tuple, side) {
            found.slot = Slot::way(home.secondary, table.conceal(way as u32, found.meta));
            return Some(found);
        }
    }
    if primary.ways[0].meta.load() & meta::SPILLED == 0 {
        return None;
    }
    for slot in 0..SPILL_SLOTS {
        if let Some(spilled) = table.spilled(&SpillKey {
            client: tuple.client,
            slot,
        }) {
            let found = read(table, &spilled.way, Slot::spill(slot), tuple, side);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Finds the flow of a client word whose server knows its client by `backend_end`:
/// a pool address's endpoint and its index, which no two flows share. (In IPv6 the
/// word alone names no client.)
#[inline(always)]
pub fn find_pooled<T: Table>(
    table: &T,
    home: Home,
    client: u64,
    backend_end: u64,
) -> Option<Found> {
    for which in 0..2 {
        let index = if which == 0 {
            home.primary
        } else {
            home.secondary
        };
        let bucket = table.bucket(index)?;
        for way in 0..WAYS {
            let slot = Slot::way(index, way as u32);
            if bucket.ways[way].backend_end.load() == backend_end
                && let Some(mut found) = copy_any(table, &bucket.ways[way], slot, client)
                && found.backend_end == backend_end
            {
                found.slot = Slot::way(index, table.conceal(way as u32, found.meta));
                return Some(found);
            }
        }
    }
    let primary = table.bucket(home.primary)?;
    if primary.ways[0].meta.load() & meta::SPILLED == 0 {
        return None;
    }
    for slot in 0..SPILL_SLOTS {
        if let Some(spilled) = table.spilled(&SpillKey { client, slot })
            && let Some(found) = copy_any(table, &spilled.way, Slot::spill(slot), client)
            && found.backend_end == backend_end
        {
            return Some(found);
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
            slot: slot.spill_number(),
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
