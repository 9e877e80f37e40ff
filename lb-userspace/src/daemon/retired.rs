//! Removed backends that still have flows, and how long those may go on.
//!
//! A removal is a drain: the flows have the `drain_timeout` that their service
//! had when the backend was removed. The deadlines are saved with what was
//! learned, so that no restart prolongs them.

use std::{collections::BTreeMap, time::Duration};

/// Deadlines by backend index, monotonic microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retired {
    deadlines: BTreeMap<u32, u64>,
}

impl Retired {
    /// Takes the backends that are retired now, by index with the drain timeout
    /// of their service. Known ones keep their deadline, `saved` ones too unless
    /// it lies further away than a fresh one would (another boot's clock); what
    /// is no longer retired is forgotten.
    pub(crate) fn update(
        &mut self,
        retired: impl IntoIterator<Item = (u32, Duration)>,
        saved: &BTreeMap<u32, u64>,
        now_us: u64,
    ) {
        let former = std::mem::take(&mut self.deadlines);
        for (index, timeout) in retired {
            let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
            let fresh_us = now_us.saturating_add(timeout_us);
            let deadline_us = match (former.get(&index), saved.get(&index)) {
                (Some(known_us), _) => *known_us,
                (None, Some(saved_us)) => fresh_us.min(*saved_us),
                (None, None) => fresh_us,
            };
            self.deadlines.insert(index, deadline_us);
        }
    }

    /// For the state file.
    pub(crate) fn deadlines(&self) -> &BTreeMap<u32, u64> {
        &self.deadlines
    }

    /// Whose deadline has passed.
    pub(crate) fn due(&self, now_us: u64) -> impl Iterator<Item = u32> + '_ {
        let passed = move |(_, deadline_us): &(&u32, &u64)| **deadline_us <= now_us;
        self.deadlines
            .iter()
            .filter(passed)
            .map(|(index, _)| *index)
    }

    /// Nothing is left of a backend. Whether it was known here.
    pub(crate) fn forget(&mut self, backend: u32) -> bool {
        self.deadlines.remove(&backend).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_set_once() {
        let second = Duration::from_secs(1);
        let none = BTreeMap::new();
        let mut retired = Retired::default();
        retired.update([(3, 60 * second)], &none, 1_000_000);
        // Still retired, with another timeout; a second one; one from the state
        // file; one of another boot.
        let saved = BTreeMap::from([(5, 2_500_000), (6, 900_000_000)]);
        let now = [(3, second), (4, 2 * second), (5, 60 * second), (6, second)];
        retired.update(now, &saved, 2_000_000);
        let expected = [
            (3, 61_000_000),
            (4, 4_000_000),
            (5, 2_500_000),
            (6, 3_000_000),
        ];
        assert_eq!(*retired.deadlines(), BTreeMap::from(expected));
        for (now_us, due) in [
            (2_499_999, &[][..]),
            (2_500_000, &[5]),
            (4_000_000, &[4, 5, 6]),
            (u64::MAX, &[3, 4, 5, 6]),
        ] {
            assert_eq!(retired.due(now_us).collect::<Vec<_>>(), due, "{now_us}");
        }
        assert!(retired.forget(4) && !retired.forget(4));
        // Configured again: its deadline is gone.
        retired.update([(5, second)], &none, 3_000_000);
        assert_eq!(*retired.deadlines(), BTreeMap::from([(5, 2_500_000)]));
    }
}
