//! What people are shown of a backend. Computed on demand, changes nothing.

use alloc::string::String;
use alloc::vec::Vec;

use super::class::PerClass;
use super::compose::State;
use super::guard::Guard;
use super::outside::OutsideRecord;
use super::overrides::Overrides;

/// A backend as of the last event (design 6, `status --json`).
#[derive(Clone, Debug, PartialEq)]
pub struct BackendView {
    /// State name.
    pub state: State,
    /// The state in words.
    pub reason: String,
    /// Weight of the configuration, 0..=65,535.
    pub configured_weight: u32,
    /// Weight that the packet path uses, 0..=65,535.
    pub effective_weight: u32,
    /// What others have told.
    pub outside: OutsideRecord,
    /// What operators have said.
    pub overrides: Overrides,
    /// When the flows of a drained backend are ended, monotonic microseconds.
    pub deadline_us: Option<u64>,
    /// Adaptive loads.
    pub load: LoadView,
    /// Smoothed average response by size class, microseconds; failures are
    /// charged in it (design 3.4). `None` without data.
    pub average_us: PerClass<Option<u64>>,
    /// Response relative to the service's best, 8 fraction bits; 256: best,
    /// unknown, or not used by the algorithm.
    pub relative: u32,
    /// Fraction of the service's new flows, 0 to 1: from the ring or the
    /// weights where one decides, else measured over the last report interval
    /// (0 if the service had no new flow).
    pub share: f64,
    /// Median response of the last report interval that had measurements,
    /// microseconds; see [`histogram`](super::histogram) for its error.
    pub p50_us: Option<u64>,
    /// 99th percentile, likewise.
    pub p99_us: Option<u64>,
    /// Failures counted in the maps, ever.
    pub failures: FailureTotals,
    /// Present while slow start limits it.
    pub slow_start: Option<SlowStartView>,
    /// Guards that hold, or held within the last minute.
    pub guards: Vec<Guard>,
    /// Failures in a row and the clients that saw them, towards failure
    /// detection.
    pub consecutive: (u32, u32),
    /// What changes next without anything else happening, and when.
    pub next: Option<Next>,
}

/// Where a backend is in its ramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStartView {
    /// Ordinal second since the entry into service; the first is 1.
    pub second: u64,
    /// Length of the port's ramp, seconds.
    pub seconds: u64,
    /// New flows allowed in this second; `None`: no limit any more.
    pub rate: Option<u32>,
    /// Concurrent flows allowed, the server's ramp included; `None`: no limit.
    pub ceiling: Option<u32>,
    /// Dummy connections that least connections count.
    pub dummies: u32,
}

/// A change that time alone brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// When, monotonic microseconds.
    pub at_us: u64,
    /// Which.
    pub change: Change,
}

/// Kinds of [`Next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An outage ends: ready to test.
    Test,
    /// A test without a result ends: the next flow is one.
    NextTest,
    /// The time over the threshold ends: back with load 2.
    Return,
    /// The flows of a drained backend are ended.
    EndFlows,
    /// Another rate of the ramp.
    Rate,
    /// The ramp is over.
    RampEnd,
    /// Its times are forgotten: load 2.
    Forget,
    /// A failure is no longer held against it.
    Forgive,
    /// A teardown report.
    Report,
}

impl Change {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Test => "its outage ends: one flow tests it",
            Self::NextTest => "the test has had its time: the next flow is one",
            Self::Return => "it returns from being overloaded, with load 2",
            Self::EndFlows => "its open flows are ended",
            Self::Rate => "slow start allows more",
            Self::RampEnd => "slow start ends",
            Self::Forget => "its response times are forgotten: load 2",
            Self::Forgive => "failures are no longer held against it",
            Self::Report => "the next teardown report",
        }
    }
}

/// Adaptive loads of a backend (spec 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadView {
    /// Load of short flows, 2..=255; `None` without data.
    pub short: Option<u8>,
    /// Load of long flows, 2..=255; `None` without data.
    pub long: Option<u8>,
    /// Load of the backend: 2 (best or unknown) to 254, 255 when out.
    pub average: u8,
}

/// Failures of a backend by kind, monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureTotals {
    /// Server resets.
    pub resets: u64,
    /// SYNs that the server never answered.
    pub syn_timeouts: u64,
}
