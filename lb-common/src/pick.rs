//! Choosing a backend for a new flow.
//!
//! The packet path and the tests run this same code; [`Pool`] is all that it
//! sees of maps. Every pick obeys the down flag and weight 0 as they are at
//! that moment, whatever the published lists say: the lists are the
//! controller's and may be older.

use crate::abi::{Member, backend_flags};

/// What a pick reads of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Bits of [`backend_flags`].
    pub flags: u32,
    /// 0..=65535; 0 takes no new flow.
    pub weight: u32,
    /// See [`crate::abi::Backend::relative`].
    pub relative: u32,
    /// Flows that count: half-open, active and failed ones that are still held
    /// against the backend. Saturated to 24 bits.
    pub live: u32,
    /// Holds a trial credit.
    pub trial: bool,
}

impl Candidate {
    /// See [`takes_new_flows`].
    #[inline(always)]
    pub const fn takes_new_flows(&self) -> bool {
        takes_new_flows(self.flags, self.weight)
    }
}

/// Whether a backend with these flags and this weight may take a new flow.
#[inline(always)]
pub const fn takes_new_flows(flags: u32, weight: u32) -> bool {
    const BOTH: u32 = backend_flags::PRESENT | backend_flags::UP;
    flags & BOTH == BOTH && weight > 0
}

/// A service's backends and cursors, as the packet path sees them.
pub trait Pool {
    /// Entry `index` of the published member region (0 is its header).
    fn member(&self, index: u32) -> Option<Member>;
    /// Members of the published list.
    fn members(&self) -> u32;
    /// Adds to the member cursor, returns its value before.
    fn advance(&self, by: u64) -> u64;
    /// The next slot of the published ring, advancing its cursor.
    fn next_ring_slot(&self) -> Option<u16>;
    /// The state of a backend; `None` if the index is none.
    fn candidate(&self, backend: u16) -> Option<Candidate>;
    /// Whether this very flow may not go to `backend` (its endpoint is paired
    /// with this client already).
    fn is_refused(&self, backend: u16) -> bool;
    /// Takes the trial credit of `backend`; whether it was still there.
    fn take_trial(&self, backend: u16) -> bool;
    /// Calls `visit` with 0, 1, … `count` − 1 until it answers `false`.
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, visit: V);
}

/// The choice, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Index of the backend.
    pub backend: u16,
    /// By its trial credit, which is spent.
    pub trial: bool,
}

/// Steps of a binary search over at most 65,535 members.
const SEARCH_STEPS: u32 = 16;
/// Ring slots drawn before the list is searched instead. With the documented
/// shares a refused backend is at most most of the ring; 32 draws miss a usable
/// one with a tenth of the slots once in 29.
const RING_DRAWS: u32 = 32;

/// Whether a backend takes new flows, if not necessarily this one.
#[inline(always)]
fn takes_flows<P: Pool>(pool: &P, backend: u16) -> bool {
    match pool.candidate(backend) {
        Some(candidate) => candidate.takes_new_flows(),
        None => false,
    }
}

/// Whether a backend takes this flow.
#[inline(always)]
fn usable<P: Pool>(pool: &P, backend: u16) -> bool {
    match pool.candidate(backend) {
        Some(candidate) => candidate.takes_new_flows() && !pool.is_refused(backend),
        None => false,
    }
}

/// `weighted-round-robin` in the order of IOS SLB: each backend takes as many
/// consecutive flows as its weight, in configuration order (spec 4.3).
///
/// The cursor is one fetch-and-add. A backend that may not take flows has its
/// whole run jumped, and the cursor with it, so that A3 B1 C2 with B down gives
/// AAACC AAACC. One that only this flow is refused keeps the rest of its run for
/// the flows after it: its weight is not theirs to lose. Exact in order on one
/// CPU, exact in totals per cycle across CPUs while nothing is jumped.
#[inline(always)]
pub fn weighted_round_robin<P: Pool>(pool: &P) -> Option<u16> {
    let members = pool.members();
    let total = pool.member(members)?.prefix;
    if members == 0 || total == 0 {
        return None;
    }
    let base = pool.member(0)?.base();
    let slot = (pool.advance(1).wrapping_sub(base) % total as u64) as u32;

    // The first member whose prefix exceeds the slot.
    let (mut low, mut high) = (1u32, members);
    for _ in 0..SEARCH_STEPS {
        if low >= high {
            break;
        }
        let middle = low + (high - low) / 2;
        if pool.member(middle)?.prefix > slot {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let first = pool.member(low)?;
    if usable(pool, first.backend) {
        return Some(first.backend);
    }

    // Jump run after run. `skip` is how far the cursor must move so that the
    // next flow follows this one in the first run that takes flows at all.
    let mut found = None;
    let mut jumping = !takes_flows(pool, first.backend);
    let mut skip = if jumping {
        first.prefix.saturating_sub(slot) as u64
    } else {
        0
    };
    pool.each(members - 1, |step| {
        let mut index = low + 1 + step;
        if index > members {
            index -= members;
        }
        let Some(member) = pool.member(index) else {
            return false;
        };
        if usable(pool, member.backend) {
            found = Some(member.backend);
            return false;
        }
        if jumping && takes_flows(pool, member.backend) {
            jumping = false;
        }
        if jumping {
            let before = match index {
                1 => 0,
                _ => pool.member(index - 1).map_or(0, |m| m.prefix),
            };
            skip += member.prefix.wrapping_sub(before) as u64;
        }
        true
    });
    if found.is_some() && skip > 0 {
        pool.advance(skip);
    }
    found
}

/// The lowest `cost` ÷ weight among those that may take the flow, ties by higher
/// weight, then by order. With `trials`, a backend that holds a credit goes
/// first. Costs have at most 40 bits: the cross product with a weight of 16
/// fits 64.
#[inline(always)]
fn cheapest<P: Pool>(pool: &P, trials: bool, cost: impl Fn(&Candidate) -> u64) -> Option<Picked> {
    let mut best: Option<(u16, u64, u64)> = None;
    let mut tried = None;
    pool.each(pool.members(), |position| {
        let Some(member) = pool.member(position + 1) else {
            return false;
        };
        let Some(candidate) = pool.candidate(member.backend) else {
            return true;
        };
        if !candidate.takes_new_flows() || pool.is_refused(member.backend) {
            return true;
        }
        if trials && candidate.trial && pool.take_trial(member.backend) {
            tried = Some(member.backend);
            return false;
        }
        let cost = cost(&candidate);
        let weight = candidate.weight as u64 & 0xffff;
        let better = match best {
            None => true,
            Some((_, best_cost, best_weight)) => {
                let (mine, theirs) = (cost * best_weight, best_cost * weight);
                mine < theirs || mine == theirs && weight > best_weight
            }
        };
        if better {
            best = Some((member.backend, cost, weight));
        }
        true
    });
    match (tried, best) {
        (Some(backend), _) => Some(Picked {
            backend,
            trial: true,
        }),
        (None, Some((backend, _, _))) => Some(Picked {
            backend,
            trial: false,
        }),
        (None, None) => None,
    }
}

/// `aca`, `pick = "connections"`: the lowest (live + 1) × relative ÷ weight,
/// ties by higher weight, then by order (design 3.3). A backend with a trial
/// credit goes first. 24 bits of flows and 16 of `relative` make 40.
#[inline(always)]
pub fn aca_connections<P: Pool>(pool: &P, trials: bool) -> Option<Picked> {
    cheapest(pool, trials, |candidate| {
        (candidate.live as u64 + 1) * (candidate.relative as u64 & 0xffff)
    })
}

/// `weighted-least-connections`: the lowest live ÷ weight, ties by higher
/// weight, then by order (spec 4.3). Half-open and closing flows count, and so
/// do failed ones while they are held against the backend: one that refuses at
/// once must not look idle.
#[inline(always)]
pub fn weighted_least_connections<P: Pool>(pool: &P) -> Option<u16> {
    cheapest(pool, false, |candidate| candidate.live as u64).map(|picked| picked.backend)
}

/// `aca`, `pick = "shares"`: the next slot of the smooth ring; a refused slot
/// draws again. If the draws find nobody, the member list is searched, so that
/// a flow is refused only when every backend refuses it.
#[inline(always)]
pub fn aca_shares<P: Pool>(pool: &P, trials: bool) -> Option<Picked> {
    if trials {
        let mut tried = None;
        pool.each(pool.members(), |position| {
            let Some(member) = pool.member(position + 1) else {
                return false;
            };
            let takes = match pool.candidate(member.backend) {
                Some(candidate) => candidate.trial && candidate.takes_new_flows(),
                None => false,
            };
            if takes && !pool.is_refused(member.backend) && pool.take_trial(member.backend) {
                tried = Some(member.backend);
                return false;
            }
            true
        });
        if let Some(backend) = tried {
            return Some(Picked {
                backend,
                trial: true,
            });
        }
    }
    let mut found = None;
    pool.each(RING_DRAWS, |_| match pool.next_ring_slot() {
        Some(backend) if usable(pool, backend) => {
            found = Some(backend);
            false
        }
        Some(_) => true,
        None => false,
    });
    if found.is_none() {
        pool.each(pool.members(), |position| {
            let Some(member) = pool.member(position + 1) else {
                return false;
            };
            if usable(pool, member.backend) {
                found = Some(member.backend);
                return false;
            }
            true
        });
    }
    found.map(|backend| Picked {
        backend,
        trial: false,
    })
}
