//! What the controller has learned and must not lose, as plain data.
//!
//! Keyed by backend identity, so that it survives a change of indices. Times
//! are microseconds of the monotonic clock, which runs on over a restart of
//! the daemon; times of another boot are recognised by lying in the future, and
//! counters of other maps by lying above the current ones.
//!
//! Unknown fields are ignored and missing ones read as empty, so that state
//! written by a neighbouring version is still worth something.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::aca::Record;
use super::class::PerClass;
use super::health::HealthRecord;
use super::outside::OutsideRecord;
use super::overrides::Overrides;
use super::standing::Standing;
use crate::abi::{ClassSums, HISTOGRAM_BUCKETS, Live, Report};

/// The learned state of all backends, keyed by identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// By [`BackendConfig::identity`](super::config::BackendConfig::identity).
    pub backends: BTreeMap<String, LearnedBackend>,
}

/// The learned state of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LearnedBackend {
    /// Averages, and the time out of rotation.
    pub load: Record,
    /// When the next report of its service is due, monotonic microseconds.
    pub report_due_us: u64,
    /// Counters at the last report; what was counted since then, whether or
    /// not a daemon ran, is in the next one. `None`: never sampled.
    pub baseline: Option<Counters>,
    /// Failures whose hold has ended, ever.
    pub forgiven: u64,
    /// Failures still held.
    pub held: Vec<HeldFailures>,
    /// What operators have said.
    pub overrides: Overrides,
    /// Outages and counts of failures.
    pub health: HealthRecord,
    /// Since when it is in service; `None`: not known.
    pub standing: Option<Standing>,
    /// What others have told.
    pub outside: OutsideRecord,
}

impl Learned {
    /// Whether anything is known of who was in service. If not, Steerline itself
    /// begins, and nobody is new (apisix pull request 13941).
    pub(super) fn knows_service(&self) -> bool {
        self.backends
            .values()
            .any(|learned| learned.standing.is_some())
    }

    /// What of it holds for other maps, or after another boot: operators'
    /// words, as if they had been said at `now_us`. Everything else is about
    /// counters that are gone.
    pub fn overrides_only(self, now_us: u64) -> Self {
        let backends = self.backends.into_iter();
        Self {
            backends: backends
                .filter(|(_, learned)| !learned.overrides.is_empty())
                .map(|(identity, learned)| {
                    let overrides = learned.overrides.said_at(now_us);
                    let learned = LearnedBackend {
                        overrides,
                        ..LearnedBackend::default()
                    };
                    (identity, learned)
                })
                .collect(),
        }
    }
}

/// Failures whose hold ends at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFailures {
    /// When they are forgiven, monotonic microseconds.
    pub due_us: u64,
    /// How many.
    pub failures: u64,
}

/// The monotonic counters of a backend that reports are differences of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Ended and failed flows by size class.
    pub classes: PerClass<ClassCounters>,
    /// Measurements by floor(log2(microseconds)).
    pub histogram: [u64; HISTOGRAM_BUCKETS],
    /// Flows entered into the table.
    pub half_opened: u64,
    /// Server resets.
    pub resets: u64,
    /// SYN timeouts.
    pub syn_timeouts: u64,
}

/// [`ClassSums`] as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassCounters {
    /// Ended flows with a measurement.
    pub count: u64,
    /// Sum of the measurements, microseconds.
    pub total_us: u64,
    /// Failed flows.
    pub failures: u64,
}

impl From<ClassSums> for ClassCounters {
    fn from(sums: ClassSums) -> Self {
        Self {
            count: sums.count,
            total_us: sums.total_us,
            failures: sums.failures,
        }
    }
}

impl ClassCounters {
    fn since(&self, earlier: &Self) -> Option<Self> {
        Some(Self {
            count: self.count.checked_sub(earlier.count)?,
            total_us: self.total_us.checked_sub(earlier.total_us)?,
            failures: self.failures.checked_sub(earlier.failures)?,
        })
    }
}

impl Counters {
    /// The counters of a sample.
    pub fn new(report: &Report, live: &Live) -> Self {
        Self {
            classes: PerClass {
                short: report.short.into(),
                long: report.long.into(),
            },
            histogram: report.histogram,
            half_opened: live.half_opened,
            resets: live.resets,
            syn_timeouts: live.syn_timeouts,
        }
    }

    /// Failures of every kind.
    pub fn failures(&self) -> u64 {
        self.resets.saturating_add(self.syn_timeouts)
    }

    /// What was counted since `earlier`; `None` if any counter went back,
    /// which proves that the maps are other ones.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let mut histogram = self.histogram;
        for (count, earlier) in histogram.iter_mut().zip(earlier.histogram) {
            *count = count.checked_sub(earlier)?;
        }
        Some(Self {
            classes: PerClass {
                short: self.classes.short.since(&earlier.classes.short)?,
                long: self.classes.long.since(&earlier.classes.long)?,
            },
            histogram,
            half_opened: self.half_opened.checked_sub(earlier.half_opened)?,
            resets: self.resets.checked_sub(earlier.resets)?,
            syn_timeouts: self.syn_timeouts.checked_sub(earlier.syn_timeouts)?,
        })
    }
}
