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
}

/// Steps of a binary search over at most 65,535 members.
const SEARCH_STEPS: u32 = 16;
/// Ring slots drawn before the list is searched instead. With the documented
/// shares a refused backend is at most most of the ring; 32 draws miss a usable
/// one with a tenth of the slots once in 29.
const RING_DRAWS: u32 = 32;

/// How a backend stands to this flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fitness {
    /// Takes it.
    Fit,
    /// Takes flows, but not this one.
    Refused,
    /// Takes it if nobody else does.
    Spared,
    /// Does not.
    Unfit,
}

#[inline(always)]
fn fitness<P: Pool>(pool: &P, backend: u16) -> Fitness {
    let Some(candidate) = pool.candidate(backend) else {
        return Fitness::Unfit;
    };
    if !candidate.takes_new_flows() {
        return Fitness::Unfit;
    }
    match (candidate.admission.spared, pool.is_refused(backend)) {
        (false, false) => Fitness::Fit,
        (false, true) => Fitness::Refused,
        (true, false) => Fitness::Spared,
        (true, true) => Fitness::Unfit,
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

    let mut walk = Walk {
        skip: 0,
        spare_skip: 0,
        low,
        members,
        slot,
        found: Looked::NONE,
        jumping: true,
    };
    pool.each(members, |step| walk.visit(pool, step));
    let picked = walk.found.picked()?;
    let skip = if picked.overruled {
        walk.spare_skip
    } else {
        walk.skip
    };
    if skip > 0 {
        pool.advance(skip);
    }
    Some(picked)
}

/// A walk from run to run. One struct, which a loop's callback is given by one
/// pointer: a BPF stack is small.
struct Walk {
    /// How far the cursor must move so that the next flow follows this one in the
    /// first run that takes flows at all.
    skip: u64,
    /// The same if nobody is fit.
    spare_skip: u64,
    /// The member that the walk begins at, from 1.
    low: u32,
    members: u32,
    /// Slot of the cursor.
    slot: u32,
    found: Looked,
    /// Nobody has been met yet that takes flows.
    jumping: bool,
}

impl Walk {
    /// Looks at the member `step` further on; whether to go on.
    #[inline(always)]
    fn visit<P: Pool>(&mut self, pool: &P, step: u32) -> bool {
        let mut index = self.low + step;
        if index > self.members {
            index -= self.members;
        }
        let Some(member) = pool.member(index) else {
            return false;
        };
        match fitness(pool, member.backend) {
            Fitness::Fit => {
                self.found = Looked::fit(member.backend);
                return false;
            }
            Fitness::Refused => self.jumping = false,
            Fitness::Spared if self.found.is_none() => {
                self.found = Looked::spared(member.backend);
                self.spare_skip = self.skip;
            }
            Fitness::Spared | Fitness::Unfit => {}
        }
        if self.jumping {
            let before = match (step, index) {
                (0, _) => self.slot,
                (_, 1) => 0,
                (_, index) => pool.member(index - 1).map_or(0, |m| m.prefix),
            };
            self.skip += member.prefix.wrapping_sub(before) as u64;
        }
        true
    }
}

/// The lowest `cost` ÷ weight among those that may take the flow, ties by higher
/// weight, then by order. With `trials`, a backend that holds a credit goes
/// first. Costs have at most 40 bits: the cross product with a weight of 16
/// fits 64.
#[inline(always)]
fn cheapest<P: Pool>(pool: &P, trials: bool, cost: impl Fn(&Candidate) -> u64) -> Option<Picked> {
    let mut best = Best::NONE;
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
        let spared = candidate.admission.spared;
        if trials && !spared && candidate.trial && pool.take_trial(member.backend) {
            tried = Some(member.backend);
            return false;
        }
        best.offer(Best {
            cost: cost(&candidate),
            weight: candidate.weight & 0xffff,
            backend: member.backend,
            spared,
        });
        true
    });
    if let Some(backend) = tried {
        return Some(Picked {
            trial: true,
            ..Picked::plain(backend)
        });
    }
    (best.weight > 0).then_some(Picked {
        overruled: best.spared,
        ..Picked::plain(best.backend)
    })
}

/// The best of the backends offered so far. Small: it lives on a BPF stack.
struct Best {
    cost: u64,
    /// 16 bits; 0: none yet.
    weight: u32,
    backend: u16,
    /// By its budget: worse than any that is not.
    spared: bool,
}

impl Best {
    const NONE: Self = Self {
        cost: 0,
        weight: 0,
        backend: 0,
        spared: true,
    };

    #[inline(always)]
    fn offer(&mut self, other: Self) {
        let (mine, theirs) = (
            other.cost * self.weight as u64,
            self.cost * other.weight as u64,
        );
        let cheaper = mine < theirs || mine == theirs && other.weight > self.weight;
        let better = if other.spared == self.spared {
            self.weight == 0 || cheaper
        } else {
            self.spared
        };
        if better {
            *self = other;
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
    let mut found = Looked::NONE;
    let mut looking = true;
    pool.each(RING_DRAWS, |_| match pool.next_ring_slot() {
        Some(backend) if look(pool, backend, &mut found) => true,
        Some(_) => {
            looking = false;
            false
        }
        None => false,
    });
    if looking {
        pool.each(pool.members(), |position| match pool.member(position + 1) {
            Some(member) => look(pool, member.backend, &mut found),
            None => false,
        });
    }
    found.picked()
}

/// What a search has come to: nobody, the first that is spared, or one that is
/// fit. One word, since it lives on a BPF stack.
struct Looked(u32);

impl Looked {
    const NONE: Self = Self(0);
    const FIT: u32 = 1 << 16;
    const SPARED: u32 = 1 << 17;

    #[inline(always)]
    const fn fit(backend: u16) -> Self {
        Self(Self::FIT | backend as u32)
    }

    #[inline(always)]
    const fn spared(backend: u16) -> Self {
        Self(Self::SPARED | backend as u32)
    }

    #[inline(always)]
    const fn is_none(&self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    const fn picked(&self) -> Option<Picked> {
        if self.0 == 0 {
            return None;
        }
        Some(Picked {
            overruled: self.0 & Self::SPARED != 0,
            ..Picked::plain(self.0 as u16)
        })
    }
}

/// Takes note of a backend; whether to go on looking.
#[inline(always)]
fn look<P: Pool>(pool: &P, backend: u16, found: &mut Looked) -> bool {
    // Every arm answers for itself: an answer read from memory is one of which
    // the BPF verifier does not know that it is 0 or 1.
    match fitness(pool, backend) {
        Fitness::Fit => {
            *found = Looked::fit(backend);
            false
        }
        Fitness::Spared => {
            if found.is_none() {
                *found = Looked::spared(backend);
            }
            true
        }
        Fitness::Refused | Fitness::Unfit => true,
    }
}
