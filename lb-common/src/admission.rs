//! Whether a backend's budget lets a new flow in.
//!
//! Two kinds of limits. What spares a backend (slow start, a test) yields where
//! nobody else takes the flow, and expires with the daemon that wrote it. What
//! is a maximum holds always.
//!
//! Counts and budget are read one after the other while other CPUs open flows,
//! so that a budget may be exceeded by as many flows as CPUs decide at the same
//! moment.

use crate::abi::{Budget, budget_flags, ticks_between};

/// What a budget says of one more flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Another backend should take it.
    pub spared: bool,
    /// This one cannot.
    pub full: bool,
    /// Flows to be counted in addition by least connections.
    pub dummies: u32,
}

impl Admission {
    /// Anything goes.
    pub const NONE: Self = Self {
        spared: false,
        full: false,
        dummies: 0,
    };

    /// As one word, which a BPF function can return.
    #[inline(always)]
    pub const fn word(&self) -> u64 {
        (self.dummies as u64) << 32 | (self.full as u64) << 1 | self.spared as u64
    }

    /// The reverse of [`Admission::word`].
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self {
            spared: word & 1 != 0,
            full: word & 2 != 0,
            dummies: (word >> 32) as u32,
        }
    }
}

/// Judges one more flow of a backend of which `begun` have begun, ever, and
/// `flows` are in the handshake or past it. `attended`: the daemon gave a sign
/// of life lately.
#[inline(always)]
pub fn admit(budget: &Budget, begun: u64, flows: u32, tick: u32, attended: bool) -> Admission {
    let valid = attended && ticks_between(tick, budget.expiry) > 0;
    let has = |flag: u32| budget.flags & flag != 0;
    Admission {
        spared: valid
            && (has(budget_flags::BEGUN) && begun >= budget.begun
                || has(budget_flags::CEILING) && flows >= budget.ceiling),
        full: has(budget_flags::MAXIMUM) && flows >= budget.maximum,
        dummies: if valid { budget.dummies } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::TICK_MASK;

    #[test]
    fn budgets() {
        use budget_flags::{BEGUN, CEILING, MAXIMUM};
        let budget = Budget {
            begun: 100,
            ceiling: 10,
            maximum: 20,
            dummies: 7,
            expiry: 50,
            ..Budget::default()
        };
        // Flags, begun, flows, tick, attended; spared, full, dummies.
        let rows = [
            (0, 999, 999, 49, true, false, false, 7),
            (BEGUN, 99, 999, 49, true, false, false, 7),
            (BEGUN, 100, 0, 49, true, true, false, 7),
            (BEGUN, 100, 0, 50, true, false, false, 0),
            (BEGUN, 100, 0, 49, false, false, false, 0),
            (BEGUN, 100, 0, TICK_MASK, true, true, false, 7),
            (CEILING, 999, 9, 49, true, false, false, 7),
            (CEILING, 0, 10, 49, true, true, false, 7),
            (CEILING, 0, 10, 51, true, false, false, 0),
            (MAXIMUM, 999, 19, 49, true, false, false, 7),
            (MAXIMUM, 0, 20, 99, false, false, true, 0),
            (BEGUN | CEILING | MAXIMUM, 100, 20, 49, true, true, true, 7),
        ];
        for (flags, begun, flows, tick, attended, spared, full, dummies) in rows {
            let found = admit(&Budget { flags, ..budget }, begun, flows, tick, attended);
            let expected = Admission {
                spared,
                full,
                dummies,
            };
            assert_eq!(Admission::from_word(found.word()), found);
            assert_eq!(found, expected, "{flags} {begun} {flows} {tick} {attended}");
        }
        assert_eq!(
            admit(&Budget::default(), u64::MAX, u32::MAX, 0, true),
            Admission::default()
        );
    }
}
