//! Adaptive load calculation (Cisco CSS "ACA") of one virtual service.
//!
//! Each backend has an average response per size class; the best average of a
//! class has load 2, and each `load_step` above it adds one. The load of a
//! backend is the mean over its classes. Over the threshold it leaves rotation
//! for the ageout time and comes back as if unknown (spec 1.3).
//!
//! *What it catches*: a backend slower than its peers, in either class. *What
//! it misses*: all being slow alike, which no relative measure can see.
//! *First start*: nothing is known, everyone has load 2 and is tried.
//! *Recovery*: a better report counts at once, a worse one is smoothed
//! (design 4.1); a backend without traffic forgets its data after `ageout`.
//!
//! Readings of what the specification leaves open:
//! - Data age by class. With one age per backend, the average of a class that
//!   no longer occurs would count for as long as the other class has traffic.
//! - `ageout` 0 means "never" (spec 1.1) for both uses of that timer: a backend
//!   over the threshold then stays out. Taking it as an ageout of no time would
//!   return it in the very report that removed it.
//! - "Best" is the best within the service (design 4.1).

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::class::{PerClass, SizeClass};
use super::scale::Scale;
use super::shares::{Curve, share_weights};
use crate::abi::RELATIVE_ONE;

/// Load of a backend that is the best, or of which nothing is known (spec 1.2).
pub const LOAD_BEST: u8 = 2;
/// Load of a backend that is down, suspended, or past every scale (spec 1.2).
pub const LOAD_OUT: u8 = 255;
/// How loads follow from averages, `calculation` (design 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calculation {
    /// Against the best average of the class.
    #[default]
    Relative,
    /// Against zero, in steps that the sensitivity sets (spec 1.1, 1.3). The
    /// step is never widened.
    Absolute {
        /// 1 (coarsest) to 25 (finest); at 21 a step is `load_step`.
        sensitivity: u8,
    },
}

/// `absolute_sensitivity` unless configured (spec 1.1).
pub const SENSITIVITY: u8 = 21;

/// Parameters of the calculation, `[service.aca]` (design 5, spec 1.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcaParameters {
    /// How loads follow from averages.
    pub calculation: Calculation,
    /// Response time that one unit of load stands for, whole milliseconds,
    /// 1..=1,000,000,000. Default 10.
    pub load_step_ms: u64,
    /// Widen the step so that the slowest backend stays at 254 or below.
    pub dynamic_step: bool,
    /// A load above this takes the backend out of rotation, 2..=254.
    pub load_threshold: u8,
    /// How long a backend over the threshold stays out, and unrefreshed data
    /// are believed, microseconds. 0: for ever.
    pub ageout_us: u64,
    /// Weight of a new report that is worse than the average so far, above 0
    /// and at most 1; with 1 the last report wins (design 4.1).
    pub smoothing: f64,
    /// For selection only, loads up to so much above the lowest count as the
    /// lowest, 0..=252 (spec 1.3 `load variance`).
    pub variance: u8,
    /// How loads become shares, `pick = "shares"`.
    pub curve: Curve,
}

impl Default for AcaParameters {
    /// The defaults of design 5.
    fn default() -> Self {
        Self {
            calculation: Calculation::Relative,
            load_step_ms: 10,
            dynamic_step: true,
            load_threshold: 254,
            ageout_us: 60_000_000,
            smoothing: 0.3,
            variance: 0,
            curve: Curve::Reciprocal,
        }
    }
}

impl AcaParameters {
    /// The same with every value inside its range. A step of zero would divide
    /// by zero, a smoothing of zero (or no number) would never take a report,
    /// and one above 1 would overshoot.
    pub fn clamped(self) -> Self {
        let smoothing = if self.smoothing > 0.0 {
            self.smoothing.min(1.0)
        } else {
            Self::default().smoothing
        };
        Self {
            load_step_ms: self.load_step_ms.clamp(1, 1_000_000_000),
            load_threshold: self.load_threshold.clamp(LOAD_BEST, LOAD_OUT - 1),
            smoothing,
            calculation: match self.calculation {
                Calculation::Relative => Calculation::Relative,
                Calculation::Absolute { sensitivity } => Calculation::Absolute {
                    sensitivity: sensitivity.clamp(1, 25),
                },
            },
            ..self
        }
    }
}

/// What the averages say of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Load of each class, 2..=255; `None` without data.
    pub classes: PerClass<Option<u8>>,
    /// Mean over the classes with data, rounded down; 2 without data, 255 when
    /// the backend is down.
    pub average: u8,
    /// Mean over the classes with data of average ÷ best, 8 fraction bits:
    /// 256 (best, or unknown) to 65,535 (design 3.3).
    pub relative: u32,
}

impl Load {
    const UNKNOWN: Self = Self {
        classes: PerClass {
            short: None,
            long: None,
        },
        average: LOAD_BEST,
        relative: RELATIVE_ONE,
    };
    const DOWN: Self = Self {
        average: LOAD_OUT,
        ..Self::UNKNOWN
    };
}

/// Computes all loads of a service from the averages of its backends in
/// microseconds; `None` is a backend that is down (spec 1.3, `recompute`).
pub fn loads(parameters: &AcaParameters, backends: &[Option<PerClass<Option<u64>>>]) -> Vec<Load> {
    let scales = PerClass::from_fn(|class| {
        Scale::new(
            parameters,
            backends.iter().flatten().filter_map(|b| b.get(class)),
        )
    });
    backends
        .iter()
        .map(|backend| backend.map_or(Load::DOWN, |averages| load(&scales, &averages)))
        .collect()
}

fn load(scales: &PerClass<Option<Scale>>, averages: &PerClass<Option<u64>>) -> Load {
    let known = |class| averages.get(class).zip(scales.get(class));
    let classes = PerClass::from_fn(|class| known(class).map(|(us, scale)| scale.load(us)));
    let relative = PerClass::from_fn(|class| known(class).map(|(us, scale)| scale.relative(us)));
    Load {
        classes,
        average: match (classes.short, classes.long) {
            (None, None) => LOAD_BEST,
            (Some(load), None) | (None, Some(load)) => load,
            (Some(short), Some(long)) => short.midpoint(long),
        },
        relative: match (relative.short, relative.long) {
            (None, None) => RELATIVE_ONE,
            (Some(one), None) | (None, Some(one)) => one,
            (Some(short), Some(long)) => short.midpoint(long),
        },
    }
}

/// An average and the time of the last report that had flows of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Average {
    /// Smoothed response, microseconds.
    pub average_us: u64,
    /// When the last report with such flows came, monotonic microseconds.
    pub seen_us: u64,
}

/// Why and since when a backend is out of rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overload {
    /// When it left, monotonic microseconds; it returns `ageout` later.
    pub since_us: u64,
    /// The load with which it left.
    pub load: u8,
}

/// All that the calculation remembers of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Averages of the classes that have data.
    pub averages: PerClass<Option<Average>>,
    /// Present while the backend is out of rotation.
    pub overload: Option<Overload>,
}

impl Record {
    /// The same with no time later than `now_us`: a later one is of another
    /// boot, and waiting for it would keep a backend out for days.
    fn not_after(mut self, now_us: u64) -> Self {
        for class in SizeClass::ALL {
            if let Some(average) = self.averages.get_mut(class) {
                average.seen_us = average.seen_us.min(now_us);
            }
        }
        if let Some(overload) = &mut self.overload {
            overload.since_us = overload.since_us.min(now_us);
        }
        self
    }
}

struct Entry {
    active: bool,
    record: Record,
    load: Load,
}

impl Entry {
    fn new(active: bool, record: Record, now_us: u64) -> Self {
        Self {
            active,
            record: record.not_after(now_us),
            load: Load::UNKNOWN,
        }
    }
}

/// The calculation's state for one virtual service. Backends are named by
/// their position in configuration order.
pub struct Aca {
    parameters: AcaParameters,
    entries: Vec<Entry>,
    best_us: PerClass<Option<u64>>,
}

impl Aca {
    /// Continues from `backends`: whether each is active (configured to take
    /// flows), and what is remembered of it. Parameters are clamped.
    pub fn new(
        parameters: AcaParameters,
        backends: impl IntoIterator<Item = (bool, Record)>,
        now_us: u64,
    ) -> Self {
        let entries = backends
            .into_iter()
            .map(|(active, record)| Entry::new(active, record, now_us))
            .collect();
        let mut aca = Self {
            parameters: parameters.clamped(),
            entries,
            best_us: PerClass::default(),
        };
        aca.recompute(now_us);
        aca
    }

    /// The same for a service that only shows its loads: nobody ever leaves
    /// rotation, and whoever was out of it is back.
    pub fn observing(
        parameters: AcaParameters,
        backends: impl IntoIterator<Item = (bool, Record)>,
        now_us: u64,
    ) -> Self {
        let backends = backends.into_iter().map(|(active, record)| {
            let overload = None;
            (active, Record { overload, ..record })
        });
        let mut aca = Self::new(parameters, [], now_us);
        // No load exceeds it.
        aca.parameters.load_threshold = LOAD_OUT;
        aca.entries
            .extend(backends.map(|(active, record)| Entry::new(active, record, now_us)));
        aca.recompute(now_us);
        aca
    }

    /// Whether a backend is to take flows, as an operator changed it. What is
    /// remembered of it stays. [`Aca::recompute`] makes it count.
    pub fn set_active(&mut self, position: usize, active: bool) {
        if let Some(entry) = self.entries.get_mut(position) {
            entry.active = active;
        }
    }

    /// Forgets a backend, as of one that was down and is up (spec 1.3).
    /// [`Aca::recompute`] makes it count.
    pub fn forget(&mut self, position: usize) {
        if let Some(entry) = self.entries.get_mut(position) {
            entry.record = Record::default();
        }
    }

    /// The parameters in force.
    pub fn parameters(&self) -> &AcaParameters {
        &self.parameters
    }

    /// Takes the average response of one report, microseconds. A better one is
    /// taken at once, a worse one by the smoothing factor: a recovered server
    /// is back two or three reports later, while one slow report is not yet a
    /// slow server (design 4.1). [`Aca::recompute`] makes it count.
    pub fn report(&mut self, position: usize, class: SizeClass, reported_us: u64, now_us: u64) {
        let smoothing = self.parameters.smoothing;
        if let Some(entry) = self.entries.get_mut(position) {
            let average = entry.record.averages.get_mut(class);
            let average_us = match *average {
                Some(old) if reported_us > old.average_us => {
                    let rise = (reported_us - old.average_us) as f64 * smoothing;
                    old.average_us.saturating_add(rise as u64)
                }
                Some(_) | None => reported_us,
            };
            *average = Some(Average {
                average_us,
                seen_us: now_us,
            });
        }
    }

    /// Computes all loads anew; whoever is now over the threshold leaves
    /// rotation at `now_us`.
    pub fn recompute(&mut self, now_us: u64) {
        let averages: Vec<_> = self
            .entries
            .iter()
            .map(|entry| {
                entry.active.then(|| {
                    let record = &entry.record;
                    PerClass::from_fn(|class| record.averages.get(class).map(|a| a.average_us))
                })
            })
            .collect();
        let known = |class| averages.iter().flatten().filter_map(move |a| a.get(class));
        self.best_us = PerClass::from_fn(|class| known(class).min());
        let loads = loads(&self.parameters, &averages);
        for (entry, load) in self.entries.iter_mut().zip(loads) {
            entry.load = load;
            let over = load.average > self.parameters.load_threshold;
            if entry.active && over && entry.record.overload.is_none() {
                entry.record.overload = Some(Overload {
                    since_us: now_us,
                    load: load.average,
                });
            }
        }
    }

    /// When [`Aca::expire`] next has something to do.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.entries
            .iter()
            .flat_map(|entry| self.deadlines(&entry.record))
            .flatten()
            .min()
    }

    /// When [`Aca::expire`] next has something to do for a backend.
    pub fn timeout_of(&self, position: usize) -> Option<u64> {
        let entry = self.entries.get(position)?;
        self.deadlines(&entry.record).into_iter().flatten().min()
    }

    /// What ends next for a backend: its time out of rotation or, while it is
    /// in, the life of its data.
    fn deadlines(&self, record: &Record) -> [Option<u64>; 2] {
        let ageout_us = self.parameters.ageout_us;
        if ageout_us == 0 {
            return [None, None];
        }
        match record.overload {
            Some(overload) => [Some(overload.since_us.saturating_add(ageout_us)), None],
            None => SizeClass::ALL.map(|class| {
                let average = record.averages.get(class)?;
                Some(average.seen_us.saturating_add(ageout_us))
            }),
        }
    }

    /// Returns backends whose time out of rotation has passed, and forgets data
    /// past their ageout. True if anything changed; loads are then recomputed.
    pub fn expire(&mut self, now_us: u64) -> bool {
        let due = |deadline: Option<u64>| deadline.is_some_and(|at| at <= now_us);
        let mut changed = false;
        for position in 0..self.entries.len() {
            let [first, second] = self.deadlines(&self.entries[position].record).map(due);
            let record = &mut self.entries[position].record;
            if record.overload.is_some() {
                if first {
                    *record = Record::default();
                }
            } else {
                if first {
                    record.averages.short = None;
                }
                if second {
                    record.averages.long = None;
                }
            }
            changed |= first || second;
        }
        if changed {
            self.recompute(now_us);
        }
        changed
    }

    /// The service's best average of a class among active backends as of the
    /// last [`Aca::recompute`], microseconds.
    pub fn best_us(&self, class: SizeClass) -> Option<u64> {
        self.best_us.get(class)
    }

    /// The load of a backend as of the last [`Aca::recompute`].
    pub fn load(&self, position: usize) -> Load {
        self.entries
            .get(position)
            .map_or(Load::DOWN, |entry| entry.load)
    }

    /// The load of a backend as selection sees it: whoever is within `variance`
    /// of the lowest has the same as the best of those.
    pub fn selection(&self, position: usize) -> Load {
        let load = self.load(position);
        let serving = || {
            let entries = self.entries.iter();
            let serving = entries.filter(|e| e.active && e.record.overload.is_none());
            serving.map(|entry| entry.load)
        };
        let Some(lowest) = serving().map(|load| load.average).min() else {
            return load;
        };
        let within = |load: &Load| load.average - lowest <= self.parameters.variance;
        if self.parameters.variance == 0 || load.average < lowest || !within(&load) {
            return load;
        }
        let relative = serving().filter(within).map(|load| load.relative).min();
        Load {
            average: lowest,
            relative: relative.unwrap_or(load.relative),
            ..load
        }
    }

    /// What is remembered of a backend.
    pub fn record(&self, position: usize) -> Record {
        self.entries
            .get(position)
            .map_or_else(Record::default, |entry| entry.record)
    }

    /// Whether no active backend is within the threshold, so that all active
    /// ones serve equally (spec 1.3, last resort).
    pub fn last_resort(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| !entry.active || entry.record.overload.is_some())
    }

    /// Weights for the smooth ring of `pick = "shares"` (spec 1.3): those of
    /// [`share_weights`], 0 for a backend that takes nothing, equal ones as the
    /// last resort. `weights` are the configured ones, 0..=65,535.
    pub fn share_weights(&self, weights: &[u32]) -> Vec<u32> {
        let last_resort = self.last_resort();
        let shares: Vec<(u32, u8)> = self
            .entries
            .iter()
            .zip(weights)
            .enumerate()
            .map(|(position, (entry, &weight))| {
                if !entry.active || weight == 0 {
                    (0, LOAD_BEST)
                } else if last_resort {
                    (1, LOAD_BEST)
                } else if entry.record.overload.is_some() {
                    (0, LOAD_BEST)
                } else {
                    (weight, self.selection(position).average)
                }
            })
            .collect();
        share_weights(self.parameters.curve, &shares)
    }
}
