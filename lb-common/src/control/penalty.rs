//! What a failed flow costs its backend: a failure is slow, never fast
//! (design 3.4).
//!
//! A server that resets every SYN at once has no flow live and no response
//! time, so any balancer that looks at either sends it everything. Therefore a
//! failure is charged as a slow flow in the report, and is held as one more
//! live flow for a while after it ended.
//!
//! Both times start from P = max(SYN timeout, 10 × the service's best average).
//! The *hold* is P capped at `ageout`: after that long the server deserves
//! another try, whatever it did. The *charge* is not capped there. Where flows
//! last longer than `ageout` (a database's, a chat's) a capped charge makes a
//! failure the fastest flow of the service and the failing server its best: in
//! `tests/control_simulation.rs`, with flows of 100 s and an ageout of 60 s, the
//! failing one of four servers then gets 35 % of all flows, and 8 % without
//! the cap.
//!
//! [`CHARGE_MAX_US`] stops what remains: while every server fails, the best
//! average is itself made of charges, and each report would multiply it by ten.
//! A better report being taken at once, no inflated average outlives recovery.

use alloc::collections::BTreeMap;

use super::class::SizeClass;

/// Bound of the charge unless the service's best average is longer, one hour.
pub const CHARGE_MAX_US: u64 = 3_600_000_000;
/// How many times the service's best average a failure takes (design 3.4).
const TIMES_BEST: u64 = 10;
/// Holds that end within this fraction of their length of one another are
/// kept as one. It bounds what a backend that fails for hours occupies here
/// and in the state file to some hundred entries.
const MERGE_FRACTION: u64 = 64;

/// The class whose best average sets how long a failure is held. Resets and
/// SYN timeouts of a failing server come before 15 KiB were moved.
pub const HOLD_CLASS: SizeClass = SizeClass::Short;

fn slow_us(syn_timeout_us: u64, best_us: Option<u64>) -> u64 {
    syn_timeout_us.max(best_us.unwrap_or(0).saturating_mul(TIMES_BEST))
}

/// Time that a failure counts as in the report, microseconds. `best_us` is the
/// service's best average of the flow's class, `None` while unknown.
pub fn charge_us(syn_timeout_us: u64, best_us: Option<u64>) -> u64 {
    let bound = CHARGE_MAX_US.max(best_us.unwrap_or(0));
    slow_us(syn_timeout_us, best_us).min(bound)
}

/// Time for which a failure counts as a live flow, microseconds. An ageout of
/// 0 (never) leaves [`CHARGE_MAX_US`] as the cap.
pub fn hold_us(syn_timeout_us: u64, best_us: Option<u64>, ageout_us: u64) -> u64 {
    let cap = if ageout_us == 0 {
        CHARGE_MAX_US
    } else {
        ageout_us
    };
    slow_us(syn_timeout_us, best_us).min(cap)
}

/// Average response of a report with every failure charged as one flow of
/// `charge_us`; `None` if no flow ended. Microseconds.
pub fn charged_average_us(count: u64, total_us: u64, failures: u64, charge_us: u64) -> Option<u64> {
    total_us
        .saturating_add(failures.saturating_mul(charge_us))
        .checked_div(count.saturating_add(failures))
}

/// The failures of one backend that are still held against it, and how many no
/// longer are. Their sum is the number of failures seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    forgiven: u64,
    /// End of the hold in monotonic microseconds, and how many end there.
    pending: BTreeMap<u64, u64>,
}

impl Holds {
    /// Continues with `forgiven` failures forgiven and the given ones
    /// (end of hold, how many) pending.
    pub fn new(forgiven: u64, pending: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut holds = Self {
            forgiven,
            pending: BTreeMap::new(),
        };
        for (due_us, failures) in pending {
            holds.add(due_us, failures);
        }
        holds
    }

    fn add(&mut self, due_us: u64, failures: u64) {
        let held = self.pending.entry(due_us).or_insert(0);
        *held = held.saturating_add(failures);
    }

    /// Failures whose hold has ended, ever.
    pub fn forgiven(&self) -> u64 {
        self.forgiven
    }

    /// Failures still held.
    pub fn held(&self) -> u64 {
        self.pending.values().sum()
    }

    /// All failures seen, ever.
    pub fn seen(&self) -> u64 {
        self.forgiven.saturating_add(self.held())
    }

    /// The pending ones: end of hold, how many.
    pub fn pending(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pending
            .iter()
            .map(|(&due_us, &failures)| (due_us, failures))
    }

    /// Holds `failures` new ones for `hold_us` from `now_us`, joined to those
    /// that end up to a 64th of that earlier.
    pub fn hold(&mut self, failures: u64, hold_us: u64, now_us: u64) {
        if failures == 0 {
            return;
        }
        let due_us = now_us.saturating_add(hold_us);
        let near_us = due_us.saturating_sub(hold_us / MERGE_FRACTION);
        let joined_us = self
            .pending
            .range(near_us..=due_us)
            .next_back()
            .map_or(due_us, |(&near_us, _)| near_us);
        self.add(joined_us, failures);
    }

    /// Ends the holds that are due.
    pub fn release(&mut self, now_us: u64) {
        while let Some(entry) = self.pending.first_entry()
            && *entry.key() <= now_us
        {
            self.forgiven = self.forgiven.saturating_add(entry.remove());
        }
    }

    /// Counts as forgiven what the packet path's map already forgives, oldest
    /// holds first. A daemon that was killed may have forgiven failures after
    /// it last saved its state; the map's count never goes back for that.
    pub fn adopt(&mut self, forgiven: u64) {
        while self.forgiven < forgiven
            && let Some(mut entry) = self.pending.first_entry()
        {
            let adopted = (*entry.get()).min(forgiven - self.forgiven);
            self.forgiven += adopted;
            *entry.get_mut() -= adopted;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// When [`Holds::release`] next has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.pending.first_key_value().map(|(&due_us, _)| due_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn a_failure_is_slow() {
        // SYN timeout, best average, ageout; charge, hold.
        let cases = [
            (5 * S, None, 60 * S, 5 * S, 5 * S),
            (5 * S, Some(20_000), 60 * S, 5 * S, 5 * S),
            (5 * S, Some(S), 60 * S, 10 * S, 10 * S),
            (5 * S, Some(30 * S), 60 * S, 300 * S, 60 * S),
            (90 * S, None, 60 * S, 90 * S, 60 * S),
            (5 * S, Some(30 * S), 0, 300 * S, 300 * S),
            (5 * S, Some(1_000 * S), 0, 3_600 * S, 3_600 * S),
            (5 * S, Some(9_000 * S), 60 * S, 9_000 * S, 60 * S),
            (5 * S, Some(u64::MAX), 0, u64::MAX, 3_600 * S),
        ];
        for (syn_timeout, best, ageout, charge, hold) in cases {
            assert_eq!(charge_us(syn_timeout, best), charge, "{best:?}");
            assert_eq!(
                hold_us(syn_timeout, best, ageout),
                hold,
                "{best:?} {ageout}"
            );
        }
    }

    #[test]
    fn a_report_is_charged_for_failures() {
        // Flows, their time, failures, charge; average.
        let cases = [
            (0, 0, 0, 5 * S, None),
            (2, 40_000, 0, 5 * S, Some(20_000)),
            (0, 0, 3, 5 * S, Some(5 * S)),
            (9, 180_000, 1, 5 * S, Some(518_000)),
            (1, u64::MAX, 1, u64::MAX, Some(u64::MAX / 2)),
            (u64::MAX, 0, u64::MAX, 1, Some(1)),
        ];
        for (count, total, failures, charge, average) in cases {
            assert_eq!(charged_average_us(count, total, failures, charge), average);
        }
    }

    #[test]
    fn holds_end_and_join() {
        let mut holds = Holds::default();
        holds.hold(2, 6_400, 0);
        holds.hold(1, 6_400, 50); // ends 50 after the first, within 6,400 / 64
        holds.hold(1, 6_400, 101);
        assert_eq!(
            holds.pending().collect::<Vec<_>>(),
            [(6_400, 3), (6_501, 1)]
        );
        for (now, forgiven, held) in [(6_399, 0, 4), (6_400, 3, 1), (6_501, 4, 0)] {
            holds.release(now);
            assert_eq!(
                (holds.forgiven(), holds.held()),
                (forgiven, held),
                "at {now}"
            );
            assert_eq!(holds.seen(), 4);
        }
        assert_eq!(holds.poll_timeout(), None);
    }

    #[test]
    fn the_map_is_believed_up_to_the_failures_seen() {
        for (map, forgiven, held) in [(0, 1, 5), (1, 1, 5), (2, 2, 4), (4, 4, 2), (99, 6, 0)] {
            let mut holds = Holds::new(1, [(10, 2), (20, 3)]);
            holds.adopt(map);
            assert_eq!(
                (holds.forgiven(), holds.held()),
                (forgiven, held),
                "map {map}"
            );
        }
    }
}
