//! Two CPUs that open one flow at the same time: which of the two stays.
//!
//! Each publishes its flow as tentative, then looks wherever the other one could
//! be. Publishing and looking are ordered by the exchange of the meta word (and
//! of the mark, for the spill), so at least one of two CPUs sees the other's
//! flow. If only the one in the lower slot does, the other one has looked before,
//! and either still is tentative, then it can be removed and its CPU finds out
//! when it settles; or it has settled, and then its backend has the SYN. Three
//! CPUs at the same instant end up with one flow too, but one of the three may
//! have forwarded its SYN to the backend of a flow that was removed.

use super::{
    Found, Slot, Table, Way, at, copy, equal, leave,
    meta::{self, is_flow},
    open::Twin,
    opening::Opening,
};
use crate::abi::{SPILL_SLOTS, SpillKey, WAYS};
use crate::tcp::State;

/// What stands against a flow that was just published.
#[derive(Clone, Copy)]
pub(super) enum Rival {
    None,
    /// The same flow in another slot.
    Twin(Twin),
    /// Another flow of the client endpoint, to the same backend.
    Paired,
}

/// Looks again, now that the flow in `slot` is published, wherever it could
/// have been placed as well. Only of a flow in a higher slot that is tentative
/// itself it is certain that nobody relies on it: that one is removed.
#[inline(always)]
pub(super) fn look_again<T: Table>(table: &T, slot: Slot, opening: &Opening) -> Rival {
    for which in 0..2 {
        let index = if which == 0 {
            opening.home.primary
        } else {
            opening.home.secondary
        };
        let Some(bucket) = table.bucket(index) else {
            return Rival::None;
        };
        for way in 0..WAYS {
            let other = Slot::way(index, way as u32);
            let rival = meet(table, slot, &bucket.ways[way], other, opening);
            if !matches!(rival, Rival::None) {
                return rival;
            }
        }
    }
    let Some(primary) = table.bucket(opening.home.primary) else {
        return Rival::None;
    };
    if primary.ways[0].meta.load() & meta::SPILLED == 0 {
        return Rival::None;
    }
    for number in 0..SPILL_SLOTS {
        if let Some(spilled) = table.spilled(&SpillKey {
            client: opening.client,
            slot: number,
        }) {
            let rival = meet(table, slot, &spilled.way, Slot::spill(number), opening);
            if !matches!(rival, Rival::None) {
                return rival;
            }
        }
    }
    Rival::None
}

/// What the flow in slot `other` is to the one just published in `slot`.
#[inline(always)]
fn meet<T: Table>(table: &T, slot: Slot, way: &Way, other: Slot, opening: &Opening) -> Rival {
    if other.0 == slot.0 {
        return Rival::None;
    }
    let Some(found) = copy(table, way, other, opening.client, &opening.ends) else {
        return Rival::None;
    };
    let twin = found.virtual_endpoint() == opening.virtual_endpoint
        && (!T::WIDE || equal(found.ends.virtual_address, opening.ends.virtual_address));
    let paired = opening.shows() != 0 && found.backend_endpoint() == opening.shows();
    // A lingering flow is the past, not a rival.
    if !twin && !paired || found.state().is_ended() {
        return Rival::None;
    }
    if other.0 > slot.0 && remove_tentative(table, way, &found) {
        return Rival::None;
    }
    if twin {
        Rival::Twin(Twin {
            backend: found.backend(),
            backend_endpoint: found.backend_endpoint(),
            pool: found.pool(),
        })
    } else {
        Rival::Paired
    }
}

/// Removes a flow while it is tentative. Whether it is gone: it may have
/// withdrawn by itself, and must not be given way to then.
#[inline(always)]
fn remove_tentative<T: Table>(table: &T, way: &Way, found: &Found) -> bool {
    let mut word = found.meta;
    for _ in 0..SETTLE_ATTEMPTS {
        if word & meta::TENTATIVE == 0 {
            return false;
        }
        if way.meta.replace(word, meta::successor(word, State::Free)) {
            if let Some(live) = table.live(found.backend()) {
                leave(live, meta::state(word), false);
            }
            return true;
        }
        word = way.meta.load();
        if (word ^ found.meta) & meta::GENERATION != 0 || !is_flow(word) {
            return true;
        }
    }
    false
}

/// Whether the flow may stay, now that its CPU has looked again: no longer
/// tentative. Not if another CPU removed it.
#[inline(always)]
pub(super) fn settle<T: Table>(table: &T, slot: Slot, generation: u64, client: u64) -> bool {
    let Some((way, _)) = at(table, slot, client) else {
        return false;
    };
    for _ in 0..SETTLE_ATTEMPTS {
        let word = way.meta.load();
        if word & meta::GENERATION != generation || !is_flow(word) {
            return false;
        }
        if way.meta.replace(word, word & !meta::TENTATIVE) {
            return true;
        }
    }
    // Packets move it on already: it is in use.
    true
}

/// A flow that is being opened changes at most by the mark of its bucket.
const SETTLE_ATTEMPTS: u32 = 3;

/// Gives a way back that was just published, unless a packet moved its flow on.
/// Whether the flow is gone, by this or another CPU.
#[inline(always)]
pub(super) fn withdraw<T: Table>(
    table: &T,
    slot: Slot,
    generation: u64,
    opening: &Opening,
) -> bool {
    let Some((way, _)) = at(table, slot, opening.client) else {
        return false;
    };
    let word = way.meta.load();
    if word & meta::GENERATION != generation {
        return true;
    }
    let state = meta::state(word);
    if !matches!(state, State::HalfOpen | State::Datagram) {
        return false;
    }
    if way.meta.replace(word, meta::successor(word, State::Free)) {
        if let Some(live) = table.live(opening.backend) {
            leave(live, state, false);
        }
        return true;
    }
    way.meta.load() & meta::GENERATION != generation
}
