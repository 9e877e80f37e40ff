//! Choosing a backend for a new flow.
//!
//! The packet path and the tests run this same code; [`Pool`] is all that it
//! sees of maps. Every pick obeys the down flag and weight 0 as they are at
//! that moment, whatever the published lists say: the lists are the
//! controller's and may be older.
//!
//! A backend whose budget spares it ([`crate::admission`]) is passed over for
//! the next one by the algorithm. Where everybody who could take the flow is
//! spared, budgets do not count: [`Picked::overruled`].

use crate::abi::{Member, backend_flags};
use crate::admission::Admission;

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
    /// What its budget says.
    pub admission: Admission,
}

impl Candidate {
    /// Whether it may take a new flow if nobody else does.
    #[inline(always)]
    pub const fn takes_new_flows(&self) -> bool {
        takes_new_flows(self.flags, self.weight) && !self.admission.full
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
    /// Against its budget, since nobody else takes the flow.
    pub overruled: bool,
}

impl Picked {
    /// On its merit.
    #[inline(always)]
    pub const fn plain(backend: u16) -> Self {
        Self {
            backend,
            trial: false,
            overruled: false,
        }
    }

    /// Against its budget.
    #[inline(always)]
    pub const fn overruled(backend: u16) -> Self {
        Self {
            overruled: true,
            ..Self::plain(backend)
        }
    }
}

/// Steps of a binary search over at most 65,535 members.
const SEARCH_STEPS: u32 = 16;
/// Ring slots drawn before the list is searched instead. With the documented
/// shares a refused backend is at most most of the ring; 32 draws miss a usable
/// one with a tenth of the slots once in 29.
const RING_DRAWS: u32 = 32;

/// Whether a backend takes new flows within its budget, if not necessarily this
/// one.
#[inline(always)]
fn takes_flows<P: Pool>(pool: &P, backend: u16) -> bool {
    match pool.candidate(backend) {
        Some(candidate) => candidate.takes_new_flows() && !candidate.admission.spared,
        None => false,
    }
}

/// How a backend stands to this flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fitness {
    /// Takes it.
    Fit,
    /// Takes it if nobody else does.
    Spared,
    /// Does not.
    Unfit,
}

#[inline(always)]
fn fitness<P: Pool>(pool: &P, backend: u16) -> Fitness {
    match pool.candidate(backend) {
        Some(candidate) if candidate.takes_new_flows() && !pool.is_refused(backend) => {
            if candidate.admission.spared {
                Fitness::Spared
            } else {
                Fitness::Fit
            }
        }
        Some(_) | None => Fitness::Unfit,
    }
}

/// `weighted-round-robin` in the order of IOS SLB: each backend takes as many
/// consecutive flows as its weight, in configuration order (spec 4.3).
///
/// The cursor is one fetch-and-add. A backend that may not take flows has its
/// whole run jumped, and the cursor with it, so that A3 B1 C2 with B down gives
/// AAACC AAACC; so has one that its budget spares. One that only this flow is refused keeps the rest of its run for
/// the flows after it: its weight is not theirs to lose. Exact in order on one
/// CPU, exact in totals per cycle across CPUs while nothing is jumped.
#[inline(always)]
pub fn weighted_round_robin<P: Pool>(pool: &P) -> Option<Picked> {
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
    // Whoever takes the flow if nobody is fit, and how far the cursor moves then.
    let mut spare = None;
    match fitness(pool, first.backend) {
        Fitness::Fit => return Some(Picked::plain(first.backend)),
        Fitness::Spared => spare = Some((first.backend, 0)),
        Fitness::Unfit => {}
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
        match fitness(pool, member.backend) {
            Fitness::Fit => {
                found = Some(member.backend);
                return false;
            }
            Fitness::Spared if spare.is_none() => spare = Some((member.backend, skip)),
            Fitness::Spared | Fitness::Unfit => {}
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
    let (picked, skip) = match (found, spare) {
        (Some(backend), _) => (Picked::plain(backend), skip),
        (None, Some((backend, skip))) => (Picked::overruled(backend), skip),
        (None, None) => return None,
    };
    if skip > 0 {
        pool.advance(skip);
    }
    Some(picked)
}

/// The lowest `cost` ÷ weight among those that may take the flow, ties by higher
/// weight, then by order. With `trials`, a backend that holds a credit goes
/// first. Costs have at most 40 bits: the cross product with a weight of 16
/// fits 64.
#[inline(always)]
fn cheapest<P: Pool>(pool: &P, trials: bool, cost: impl Fn(&Candidate) -> u64) -> Option<Picked> {
    let mut best = Best::NONE;
    let mut spare = Best::NONE;
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
        let cost = cost(&candidate);
        if candidate.admission.spared {
            spare.offer(member.backend, cost, candidate.weight);
            return true;
        }
        if trials && candidate.trial && pool.take_trial(member.backend) {
            tried = Some(member.backend);
            return false;
        }
        best.offer(member.backend, cost, candidate.weight);
        true
    });
    if let Some(backend) = tried {
        return Some(Picked {
            trial: true,
            ..Picked::plain(backend)
        });
    }
    if best.weight > 0 {
        return Some(Picked::plain(best.backend));
    }
    (spare.weight > 0).then_some(Picked::overruled(spare.backend))
}

/// The best of the backends offered so far.
struct Best {
    backend: u16,
    /// 0: none yet.
    weight: u64,
    cost: u64,
}

impl Best {
    const NONE: Self = Self {
        backend: 0,
        weight: 0,
        cost: 0,
    };

    #[inline(always)]
    fn offer(&mut self, backend: u16, cost: u64, weight: u32) {
        let weight = weight as u64 & 0xffff;
        let (mine, theirs) = (cost * self.weight, self.cost * weight);
        if self.weight == 0 || mine < theirs || mine == theirs && weight > self.weight {
            *self = Self {
                backend,
                weight,
                cost,
            };
        }
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
/// once must not look idle. So do the dummies of one that warms up: else a
/// newcomer would get every flow until it has as many as the others.
#[inline(always)]
pub fn weighted_least_connections<P: Pool>(pool: &P) -> Option<Picked> {
    cheapest(pool, false, |candidate| {
        candidate.live as u64 + candidate.admission.dummies as u64
    })
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
                Some(candidate) => {
                    candidate.trial && candidate.takes_new_flows() && !candidate.admission.spared
                }
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
                trial: true,
                ..Picked::plain(backend)
            });
        }
    }
    let mut found = None;
    let mut spare = None;
    pool.each(RING_DRAWS, |_| match pool.next_ring_slot() {
        Some(backend) => look(pool, backend, &mut found, &mut spare),
        None => false,
    });
    if found.is_none() {
        pool.each(pool.members(), |position| match pool.member(position + 1) {
            Some(member) => look(pool, member.backend, &mut found, &mut spare),
            None => false,
        });
    }
    match (found, spare) {
        (Some(backend), _) => Some(Picked::plain(backend)),
        (None, Some(backend)) => Some(Picked::overruled(backend)),
        (None, None) => None,
    }
}

/// Takes note of a backend; whether to go on looking.
#[inline(always)]
fn look<P: Pool>(pool: &P, backend: u16, found: &mut Option<u16>, spare: &mut Option<u16>) -> bool {
    match fitness(pool, backend) {
        Fitness::Fit => *found = Some(backend),
        Fitness::Spared if spare.is_none() => *spare = Some(backend),
        Fitness::Spared | Fitness::Unfit => {}
    }
    found.is_none()
}
