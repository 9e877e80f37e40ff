//! Opening a flow: survey both buckets, then place.

use super::{
    Found, Slot, Table, at, blames_server, equal, leave,
    meta::{self, is_flow},
    opening::Opening,
    paired::Paired,
    settle::{Rival, look_again, settle, withdraw},
};
use crate::abi::{Ends, SPILL_SLOTS, SpillKey, TICK_MASK, WAYS, ticks_between, ticks_from_ms};
use crate::hash::Home;
use crate::tcp::State;

/// A way that a new flow may have: where, and the meta word that it had when
/// it was seen. All fields always have a value (no `Option`): the packet path
/// keeps this in a map, and copying an undefined field is refused there.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    exists: u32,
    slot: Slot,
    meta: u64,
}

impl Target {
    /// No way.
    pub const NONE: Self = Self {
        exists: 0,
        slot: Slot::way(0, 0),
        meta: 0,
    };

    /// The way of a flow that was found.
    #[inline(always)]
    pub const fn of(found: &Found) -> Self {
        Self::at(found.slot, found.meta)
    }

    #[inline(always)]
    const fn at(slot: Slot, meta: u64) -> Self {
        Self {
            exists: 1,
            slot,
            meta,
        }
    }

    #[inline(always)]
    const fn exists(&self) -> bool {
        self.exists != 0
    }
}

/// Where a new flow could go.
#[derive(Clone, Copy, Debug)]
pub struct Survey {
    /// A way that nobody needs, in the bucket that the placement rule names; if
    /// there is none, the closed flow of both buckets that lingers longest.
    place: Target,
    /// The oldest half-open flow of both buckets, if there is no such place.
    half_open: Target,
    /// See [`Paired`].
    pub paired: Paired,
}

/// How replaceable a way is: lower goes first, of two alike the older.
#[inline(always)]
fn rank<T: Table>(table: &T, meta: u64, now: u32) -> u32 {
    let state = meta::state(meta);
    let age = ticks_between(meta::tick(meta), now);
    let class = match state {
        State::Free => return 0,
        State::Busy => return NEVER,
        _ if age < table.timeout(state) => match state {
            // In direct return it is over for the client alone: one that was heard
            // just now may still be receiving.
            State::Closed if meta & ASSURANCE == meta::ONE_SIDED && age < RECEIVING => {
                return NEVER;
            }
            // Over for both sides: it waits for stragglers only. A reset may be
            // forged, and its flow live.
            State::Closed => LINGERING,
            State::HalfOpen | State::Answered | State::Datagram => HALF_OPEN,
            State::Established if meta & meta::UNASSURED != 0 => UNASSURED,
            _ => return NEVER,
        },
        State::Closed | State::Reset => ENDED,
        _ => SILENT,
    };
    class | (TICK_MASK - age)
}

/// Flags of which a flow of direct return keeps one when it is assured.
const ASSURANCE: u64 = meta::ONE_SIDED | meta::UNASSURED;
/// Ticks within which a client that receives acknowledges: a second, the
/// shortest time of a repeated segment (RFC 6298, section 2.4).
const RECEIVING: u32 = ticks_from_ms(1_000);
/// Ended, past its linger.
const ENDED: u32 = 1 << 24;
/// Silent for its state's timeout.
const SILENT: u32 = 2 << 24;
/// Ranks from here on belong to closed flows within their linger: they go only
/// if neither bucket has another way.
const LINGERING: u32 = 3 << 24;
/// Ranks from here on belong to half-open flows within their timeout: they go
/// only if the spill is full too.
const HALF_OPEN: u32 = 4 << 24;
/// Ranks from here on belong to flows of direct return of which only the
/// client's side of a handshake was seen.
const UNASSURED: u32 = 5 << 24;
const NEVER: u32 = u32::MAX;

/// What a look at one bucket finds.
#[derive(Clone, Copy)]
struct Bucketful {
    /// The most replaceable way.
    rank: u32,
    slot: Slot,
    meta: u64,
    /// Ways that hold a flow which has not ended or timed out.
    occupied: u32,
    /// Bit per way: another flow of the same client endpoint.
    paired: u32,
}

#[inline(always)]
fn look<T: Table>(
    table: &T,
    index: u32,
    client: u64,
    ends: &Ends,
    own: Slot,
    now: u32,
) -> Option<Bucketful> {
    let bucket = table.bucket(index)?;
    let mut seen = Bucketful {
        rank: NEVER,
        slot: Slot::way(index, 0),
        meta: 0,
        occupied: 0,
        paired: 0,
    };
    for way in 0..WAYS {
        let words = &bucket.ways[way];
        let word = words.meta.load();
        let slot = Slot::way(index, way as u32);
        let rank = rank(table, word, now);
        if rank >= LINGERING {
            seen.occupied += 1;
        }
        if rank < seen.rank {
            seen.rank = rank;
            seen.slot = slot;
            seen.meta = word;
        }
        if words.client.load() == client
            && is_flow(word)
            && slot.0 != own.0
            && is_of(table, slot, client, ends)
        {
            seen.paired |= 1 << way;
        }
    }
    Some(seen)
}

/// Whether the flow in a slot, whose client word is ours, is of our client.
#[inline(always)]
fn is_of<T: Table>(table: &T, slot: Slot, client: u64, ends: &Ends) -> bool {
    if !T::WIDE {
        return true;
    }
    match table.ends(slot, client) {
        Some(words) => equal(words.load().client, ends.client),
        None => false,
    }
}

/// Looks through the two buckets (and the spill) for a place, and for other
/// flows of the same client endpoint. `own` is the tuple's own former flow, if
/// it has one: that is the place.
#[inline(always)]
pub fn survey<T: Table>(
    table: &T,
    home: Home,
    client: u64,
    ends: &Ends,
    own: Target,
    now: u32,
) -> Option<Survey> {
    let own_slot = if own.exists() {
        own.slot
    } else {
        Slot(u64::MAX)
    };
    let primary = look(table, home.primary, client, ends, own_slot, now)?;
    let secondary = look(table, home.secondary, client, ends, own_slot, now)?;
    let mut paired = Paired {
        home,
        client,
        places: primary.paired | secondary.paired << WAYS,
    };
    if table.bucket(home.primary)?.ways[0].meta.load() & meta::SPILLED != 0 {
        for slot in 0..SPILL_SLOTS {
            if let Some(other) = table.spilled(&SpillKey { client, slot })
                && is_flow(other.way.meta.load())
                && Slot::spill(slot).0 != own_slot.0
                && is_of(table, Slot::spill(slot), client, ends)
            {
                paired.places |= 1 << (2 * WAYS + slot as usize);
            }
        }
    }
    if own.exists() {
        return Some(Survey {
            place: own,
            half_open: Target::NONE,
            paired,
        });
    }
    let first = primary.rank < LINGERING
        && (primary.occupied <= 2
            || primary.occupied <= secondary.occupied
            || secondary.rank >= LINGERING);
    let oldest = if primary.rank <= secondary.rank {
        primary
    } else {
        secondary
    };
    let oldest_way = Target::at(oldest.slot, oldest.meta);
    let (place, half_open) = if first {
        (Target::at(primary.slot, primary.meta), Target::NONE)
    } else if secondary.rank < LINGERING {
        (Target::at(secondary.slot, secondary.meta), Target::NONE)
    } else if oldest.rank < HALF_OPEN {
        (oldest_way, Target::NONE)
    } else if oldest.rank < NEVER {
        (Target::NONE, oldest_way)
    } else {
        (Target::NONE, Target::NONE)
    };
    Some(Survey {
        place,
        half_open,
        paired,
    })
}

/// The copy of a flow that stays when two CPUs open it at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// Index of the backend.
    pub backend: u16,
    /// Backend address and port, or those of the pool.
    pub backend_endpoint: u64,
    /// See [`Found::pool`].
    pub pool: u16,
}

/// What became of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The flow is in the table.
    Opened {
        /// Where.
        slot: Slot,
        /// A half-open flow had to go.
        evicted_half_open: bool,
        /// It is new in the spill.
        spilled: bool,
    },
    /// Another CPU opened the same flow at the same time: that one stands.
    Existing(Twin),
    /// The way changed before it could be claimed, or the flow lost it to
    /// another CPU's: survey again.
    Raced,
    /// No place in either bucket, the spill is full, and nothing may go.
    Full,
}

/// Puts a flow where the survey found a place: the way itself, else the spill,
/// else the place of the oldest half-open flow.
#[inline(always)]
pub fn place<T: Table>(table: &T, survey: &Survey, opening: &Opening) -> Placed {
    let mut target = survey.place;
    let mut inserted = None;
    let mut spilled = false;
    let mut evicted_half_open = false;
    if !target.exists() {
        for slot in 0..SPILL_SLOTS {
            let key = SpillKey {
                client: opening.client,
                slot,
            };
            if let Some(old) = table.spilled(&key) {
                let word = old.way.meta.load();
                if rank(table, word, opening.tick) < LINGERING {
                    target = Target::at(Slot::spill(slot), word);
                    break;
                }
            } else if spill(table, &key, opening) {
                inserted = Some(Slot::spill(slot));
                break;
            } else if table.spilled(&key).is_none() {
                // Refused although the key is free: the spill is full.
                break;
            }
        }
        spilled = target.exists() || inserted.is_some();
        if !spilled {
            target = survey.half_open;
            evicted_half_open = true;
        }
    }
    let (slot, before) = match inserted {
        Some(slot) => (slot, opening.spill_seed()),
        None if !target.exists() => return Placed::Full,
        None if claim(table, target.slot, target.meta, opening) => (target.slot, target.meta),
        None => return Placed::Raced,
    };
    if spilled {
        mark_spilled(table, opening.home);
    }
    let generation = opening.meta(before) & meta::GENERATION;
    match look_again(table, slot, opening) {
        Rival::None if settle(table, slot, generation, opening.client) => Placed::Opened {
            slot,
            evicted_half_open,
            spilled,
        },
        Rival::None => Placed::Raced,
        rival if !withdraw(table, slot, generation, opening) => {
            // A packet moved it on: it stays, whatever else there is.
            let _ = rival;
            Placed::Opened {
                slot,
                evicted_half_open,
                spilled,
            }
        }
        Rival::Twin(twin) => Placed::Existing(twin),
        Rival::Paired => Placed::Raced,
    }
}

/// Inserts a spill entry and counts it; whether the key was free and the spill
/// had room. Counted afterwards, so that a flow which finds no room is no new
/// flow in anybody's statistics: the SYN is still here, and no answer to it can
/// have been counted before.
#[inline(always)]
fn spill<T: Table>(table: &T, key: &SpillKey, opening: &Opening) -> bool {
    let Some(live) = table.live(opening.backend) else {
        return false;
    };
    let inserted = table.spill(key, opening);
    if inserted {
        live.half_opened.add(1);
    }
    inserted
}

/// Takes over a way that still has the meta word `before`, and publishes the
/// flow in it.
#[inline(always)]
fn claim<T: Table>(table: &T, slot: Slot, before: u64, opening: &Opening) -> bool {
    let Some((way, cold)) = at(table, slot, opening.client) else {
        return false;
    };
    let Some(live) = table.live(opening.backend) else {
        return false;
    };
    if !way
        .meta
        .replace(before, meta::successor(before, State::Busy))
    {
        return false;
    }
    if is_flow(before) {
        let state = meta::state(before);
        let age = ticks_between(meta::tick(before), opening.tick);
        if let Some(old) = table.live(way.virtual_end.load() as u16) {
            let silent = age >= table.timeout(state);
            leave(
                old,
                state,
                silent && blames_server(before, cold.syn_repeats.load()),
            );
        }
    }
    live.half_opened.add(1);
    way.client.store(0);
    if T::WIDE
        && let Some(ends) = table.ends(slot, opening.client)
    {
        ends.store(&opening.ends);
    }
    way.virtual_end.store(opening.virtual_end());
    way.backend_end.store(opening.backend_end());
    cold.syn_us.store(opening.micros);
    cold.syn_ack_us.store(0);
    cold.request_us.store(opening.request_us());
    cold.response_us.store(0);
    cold.client_end.store(0);
    cold.client_start.store(opening.sequence.wrapping_add(1));
    cold.server_start.store(0);
    cold.service.store(opening.service as u32);
    cold.syn_repeats.store(0);
    cold.client_mac.store(opening.client_mac);
    cold.own_mac.store(opening.own_mac);
    cold.client_ifindex.store(opening.client_ifindex);
    way.client.store(opening.client);
    let published = opening.meta(before);
    if !way
        .meta
        .replace(meta::successor(before, State::Busy), published)
    {
        // Somebody marked the bucket while its first way was being written;
        // nothing else changes a busy way.
        way.meta.swap(published | meta::SPILLED);
    }
    true
}

#[inline(always)]
fn mark_spilled<T: Table>(table: &T, home: Home) {
    if let Some(bucket) = table.bucket(home.primary) {
        // Even if the mark is there already: the atomic instruction orders the
        // insert before the look that follows.
        bucket.ways[0].meta.set_bits(meta::SPILLED);
    }
}
