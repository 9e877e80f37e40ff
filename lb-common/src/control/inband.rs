//! In-band health of one backend, as Cisco ACE judges it (spec 5.3).
//!
//! A failure opens a window of `reset_time`. If `failures` of them fall into
//! one window, that is logged, once a window, and with [`Check::Remove`] the
//! backend leaves service for `resume_service`.
//!
//! *What it catches*: a burst. *What it misses*: a quiet server, which never has
//! so many failures in a tenth of a second; that is what
//! [`fail_detect`](super::fail_detect) is for. *Recovery* is by the clock; what
//! the engine adds to it is in [`health`](super::health).
//!
//! Readings (spec 5.7): the count *reaches* `failures`; the window is fixed, not
//! sliding, and an event exactly at its end opens the next.

use serde::{Deserialize, Serialize};

/// What happens when the failures of a window reach the threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Nothing: failures are counted.
    #[default]
    Count,
    /// It is logged.
    Log,
    /// It is logged, and the backend leaves service.
    Remove,
}

/// Parameters, `[service.inband_health]` (spec 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InbandParameters {
    /// What follows.
    pub check: Check,
    /// Failures in one window that are too many, 1..=4,294,967,295.
    pub failures: u32,
    /// Length of the window, microseconds; 100 to 300,000 ms.
    pub reset_time_us: u64,
    /// How long a removed backend stays out, microseconds; 30 to 3,600 s. 0:
    /// until an operator enables it.
    pub resume_service_us: u64,
}

impl Default for InbandParameters {
    /// Failures are counted (spec 5.1); the other values are those of design 5.
    fn default() -> Self {
        Self {
            check: Check::Count,
            failures: 4,
            reset_time_us: 100_000,
            resume_service_us: 30_000_000,
        }
    }
}

/// A window of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    since_us: u64,
    failures: u32,
    logged: bool,
}

/// A time out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Outage {
    /// When it began, monotonic microseconds.
    pub since_us: u64,
    /// When it ends by itself; `None`: an operator must end it.
    pub until_us: Option<u64>,
    /// Failures that led to it.
    pub failures: u32,
    /// Part of the time to `until_us` that keeps several backends from coming
    /// back at once, microseconds.
    pub jitter_us: u64,
}

impl Outage {
    /// The same with a beginning not later than `now_us` (a later one is of
    /// another boot) and the same length.
    pub(super) fn not_after(self, now_us: u64) -> Self {
        let ahead_us = self.since_us.saturating_sub(now_us);
        Self {
            since_us: self.since_us - ahead_us,
            until_us: self.until_us.map(|us| us.saturating_sub(ahead_us)),
            ..self
        }
    }

    /// Whether it is over at `now_us`.
    pub(super) fn is_over(&self, now_us: u64) -> bool {
        self.until_us.is_some_and(|until_us| until_us <= now_us)
    }
}

/// What a failure means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The threshold was reached for the first time in this window: log it.
    pub log: bool,
    /// The backend should leave service: [`Inband::remove`].
    pub remove: bool,
}

/// The state of one backend: OPERATIONAL, or INBAND-HM-FAILED.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inband {
    /// Failures counted, ever.
    pub total: u64,
    window: Option<Window>,
    outage: Option<Outage>,
    /// `resume_service` as last configured, microseconds.
    resume_service_us: u64,
}

impl Inband {
    /// The outage, while the state is INBAND-HM-FAILED.
    pub fn outage(&self) -> Option<Outage> {
        self.outage
    }

    /// Failures in the latest window.
    pub fn counted(&self) -> u32 {
        self.window.map_or(0, |window| window.failures)
    }

    /// Counts a failure that is not judged.
    pub fn count(&mut self) {
        self.total = self.total.saturating_add(1);
    }

    /// Counts a failure. `in_rotation`: nothing else keeps the backend out of
    /// service; while something does, failures open no window (spec 5.4).
    pub fn failure(
        &mut self,
        parameters: &InbandParameters,
        in_rotation: bool,
        now_us: u64,
    ) -> Verdict {
        self.expire(now_us);
        self.count();
        if parameters.check == Check::Count || self.outage.is_some() || !in_rotation {
            return Verdict::default();
        }
        let running = self
            .window
            .filter(|window| now_us.saturating_sub(window.since_us) < parameters.reset_time_us);
        let mut window = running.unwrap_or(Window {
            since_us: now_us,
            failures: 0,
            logged: false,
        });
        window.failures = window.failures.saturating_add(1);
        let reached = window.failures >= parameters.failures;
        let verdict = Verdict {
            log: reached && !window.logged,
            remove: reached && parameters.check == Check::Remove,
        };
        window.logged |= reached;
        self.window = Some(window);
        verdict
    }

    /// Takes the backend out of service. `jitter_us` lengthens an outage that
    /// ends by itself.
    pub fn remove(&mut self, parameters: &InbandParameters, jitter_us: u64, now_us: u64) {
        let timed = parameters.resume_service_us > 0;
        let length_us = parameters.resume_service_us.saturating_add(jitter_us);
        self.resume_service_us = parameters.resume_service_us;
        self.outage = Some(Outage {
            since_us: now_us,
            until_us: timed.then(|| now_us.saturating_add(length_us)),
            failures: self.counted(),
            jitter_us: if timed { jitter_us } else { 0 },
        });
    }

    /// Ends an outage that is over. True if it did.
    pub fn expire(&mut self, now_us: u64) -> bool {
        let over = self.outage.is_some_and(|outage| outage.is_over(now_us));
        if over {
            self.activate();
        }
        over
    }

    /// OPERATIONAL, by an operator's word or because a change demands it.
    pub fn activate(&mut self) {
        self.outage = None;
        self.window = None;
    }

    /// Obeys parameters that may differ from the former ones (the table of spec
    /// 5.3). `failures` and `reset_time` are judged at the next failure anyway.
    /// A check that no longer removes ends an outage at once. True if one ended.
    pub fn reconfigure(&mut self, parameters: &InbandParameters, now_us: u64) -> bool {
        let ended = self.expire(now_us);
        let (old_us, new_us) = (self.resume_service_us, parameters.resume_service_us);
        self.resume_service_us = new_us;
        let sooner = new_us > 0 && (old_us == 0 || new_us < old_us);
        let at_once = sooner || parameters.check != Check::Remove;
        if self.outage.is_none() || !at_once {
            return ended;
        }
        self.activate();
        true
    }

    /// When [`Inband::expire`] next has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.outage?.until_us
    }

    /// The same with no time later than `now_us` but that of a return.
    pub(super) fn not_after(mut self, now_us: u64) -> Self {
        self.window = self.window.filter(|window| window.since_us <= now_us);
        self.outage = self.outage.map(|outage| outage.not_after(now_us));
        self
    }
}
