//! What a web cache says of its own capacity, and what follows for new and
//! open connections (Brocade ServerIron ADX, spec section 2).
//!
//! A cache answers an SNMP poll with a number. [`CacheState`] is that number
//! read; [`Behaviour`] is a row of the manual's tables. Three uses:
//!
//! * every forwarding mode with a list of backends obeys column "new" of
//!   Table 11: the states up to BURDENED take new flows, STRESSED only while
//!   nobody in those states is left, and the rest none;
//! * [`select`] is that as a pick, for transactions rather than connections;
//! * [`Buckets`] is layer-4 hashing with homes and overflow, for transparent
//!   services, where which cache holds an object matters.
//!
//! There is no hysteresis: any state may follow any other, because the cache
//! reports what it measured (spec 2.3). First start: every cache is OFFLINE
//! until it has answered once. A cache that gives no answer after all retries,
//! or one that is out of range or of another type, is OFFLINE too.

mod buckets;

pub use buckets::{BUCKETS, Buckets, Choice, HashMask};

use serde::{Deserialize, Serialize};

/// What a cache says it is. The numbers 1 to 6 are the manual's (spec 2.1); 7
/// to 9 follow its table's order, since their numbers are not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum CacheState {
    /// 1: low use of resources.
    Underused = 1,
    /// 2: no constraint.
    Normal = 2,
    /// 3: near a constraint.
    Burdened = 3,
    /// 4: at the limit; more load would not be handled stably.
    Stressed = 4,
    /// 5: over what can be sustained.
    Overtaxed = 5,
    /// 6: load must fall at once.
    Overloaded = 6,
    /// 7: going out of service.
    Halting = 7,
    /// 8: out of service, or not known.
    Offline = 8,
    /// 9: coming into service.
    Initializing = 9,
}

/// Which new flows a cache takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFlows {
    /// All.
    Allow,
    /// Those that no other cache takes.
    LastResort,
    /// None.
    Refuse,
}

/// A row of the manual's Table 10 (layer 4) or Table 11 (layer 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Its hash buckets stay its own.
    pub keeps_buckets: bool,
    /// Flows of its own buckets.
    pub new: NewFlows,
    /// Flows of other caches' buckets.
    pub overflow: bool,
    /// Open flows go on; else they are ended where the operator wants that
    /// (`force_delete`).
    pub existing: bool,
    /// Its hash buckets are cleared.
    pub clears_buckets: bool,
}

impl CacheState {
    /// Every state, by number.
    pub const ALL: [Self; 9] = [
        Self::Underused,
        Self::Normal,
        Self::Burdened,
        Self::Stressed,
        Self::Overtaxed,
        Self::Overloaded,
        Self::Halting,
        Self::Offline,
        Self::Initializing,
    ];

    /// A polled value; what is out of range means OFFLINE (spec 2.1).
    pub fn from_value(value: i64) -> Self {
        Self::ALL
            .into_iter()
            .find(|state| *state as i64 == value)
            .unwrap_or(Self::Offline)
    }

    /// The name in `status` and in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Underused => "underused",
            Self::Normal => "normal",
            Self::Burdened => "burdened",
            Self::Stressed => "stressed",
            Self::Overtaxed => "overtaxed",
            Self::Overloaded => "overloaded",
            Self::Halting => "halting",
            Self::Offline => "offline",
            Self::Initializing => "initializing",
        }
    }

    /// Whether it takes new flows and those of others: states 1 to 3.
    pub const fn is_good(self) -> bool {
        matches!(self, Self::Underused | Self::Normal | Self::Burdened)
    }

    /// Table 10.
    pub const fn layer4(self) -> Behaviour {
        match self {
            Self::Underused | Self::Normal | Self::Burdened => Behaviour {
                keeps_buckets: true,
                new: NewFlows::Allow,
                overflow: true,
                existing: true,
                clears_buckets: false,
            },
            Self::Stressed => Behaviour {
                keeps_buckets: true,
                new: NewFlows::LastResort,
                overflow: false,
                existing: true,
                clears_buckets: false,
            },
            Self::Overtaxed | Self::Overloaded => Behaviour {
                keeps_buckets: true,
                new: NewFlows::Refuse,
                overflow: false,
                existing: true,
                clears_buckets: false,
            },
            Self::Halting => Behaviour {
                keeps_buckets: false,
                new: NewFlows::Refuse,
                overflow: false,
                existing: true,
                clears_buckets: true,
            },
            Self::Offline => Behaviour {
                keeps_buckets: false,
                new: NewFlows::Refuse,
                overflow: false,
                existing: false,
                clears_buckets: true,
            },
            Self::Initializing => Behaviour {
                keeps_buckets: false,
                new: NewFlows::Refuse,
                overflow: false,
                existing: false,
                clears_buckets: false,
            },
        }
    }

    /// Table 11: what differs is that open transactions always go on.
    pub const fn layer7(self) -> Behaviour {
        Behaviour {
            existing: true,
            ..self.layer4()
        }
    }
}

/// Who may be chosen for a new transaction, by position: those in states 1 to
/// 3, else the STRESSED ones, else nobody, which means to go past the caches.
/// The service's own algorithm picks among them (spec 2.3 `L7_new`).
pub fn select(states: &[CacheState]) -> impl Iterator<Item = usize> + '_ {
    let any_good = states.iter().any(|state| state.is_good());
    states
        .iter()
        .enumerate()
        .filter_map(move |(position, state)| {
            let takes = match state.layer7().new {
                NewFlows::Allow => true,
                NewFlows::LastResort => !any_good,
                NewFlows::Refuse => false,
            };
            takes.then_some(position)
        })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use CacheState::*;
    use NewFlows::*;

    #[test]
    fn tables_10_and_11() {
        // State; keeps, new, overflow, existing at layer 4, clears.
        let rows = [
            (Underused, true, Allow, true, true, false),
            (Normal, true, Allow, true, true, false),
            (Burdened, true, Allow, true, true, false),
            (Stressed, true, LastResort, false, true, false),
            (Overtaxed, true, Refuse, false, true, false),
            (Overloaded, true, Refuse, false, true, false),
            (Halting, false, Refuse, false, true, true),
            (Offline, false, Refuse, false, false, true),
            (Initializing, false, Refuse, false, false, false),
        ];
        assert_eq!(rows.len(), CacheState::ALL.len());
        for (state, keeps_buckets, new, overflow, existing, clears_buckets) in rows {
            let row = Behaviour {
                keeps_buckets,
                new,
                overflow,
                existing,
                clears_buckets,
            };
            assert_eq!(state.layer4(), row, "{state:?}");
            let layer7 = Behaviour {
                existing: true,
                ..row
            };
            assert_eq!(state.layer7(), layer7, "{state:?}");
        }
    }

    #[test]
    fn a_value_is_its_state_or_offline() {
        for (value, state) in (1..).zip(CacheState::ALL) {
            assert_eq!(CacheState::from_value(value), state);
        }
        for value in [0, 10, 255, -1, i64::MIN, i64::MAX] {
            assert_eq!(CacheState::from_value(value), Offline, "{value}");
        }
    }

    #[test]
    fn transactions_go_to_the_good_else_to_the_stressed() {
        for (states, chosen) in [
            (&[Underused, Normal, Burdened][..], &[0, 1, 2][..]),
            (&[Stressed, Underused, Burdened], &[1, 2]),
            (&[Stressed, Overtaxed, Stressed], &[0, 2]),
            (&[Overtaxed, Stressed, Halting], &[1]),
            (&[Overloaded, Offline, Initializing], &[]),
            (&[], &[]),
        ] {
            let got: Vec<usize> = select(states).collect();
            assert_eq!(got, chosen, "{states:?}");
        }
    }
}
