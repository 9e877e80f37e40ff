//! What people are shown of a backend. Computed on demand, changes nothing.

use alloc::string::String;

use super::class::PerClass;
use super::compose::State;
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
