//! One backend as the engine keeps it: its counters, its failures' holds, and
//! what the packet path was last told.

use alloc::string::String;

use super::aca::Record;
use super::class::PerClass;
use super::compose::{Composition, Inputs, Overloaded, compose};
use super::config::BackendConfig;
use super::engine::{Command, Sample};
use super::learned::{ClassCounters, Counters, HeldFailures, LearnedBackend};
use super::overrides::{Gate, GivenWeight, Order, Overrides, WEIGHT_MAX};
use super::penalty::Holds;
use crate::abi::{HISTOGRAM_BUCKETS, RELATIVE_ONE};

/// What the packet path has of a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) weight: u32,
    pub(super) up: bool,
    pub(super) relative: u32,
}

/// The flows of one report interval.
pub(super) struct Round {
    /// SYN timeouts are failures of the short class.
    pub(super) classes: PerClass<ClassCounters>,
    /// No flow finished, failed, began or was live.
    pub(super) idle: bool,
}

pub(super) struct Backend {
    pub(super) index: u16,
    identity: String,
    pub(super) weight: u32,
    pub(super) overrides: Overrides,
    /// The inputs of `composition`.
    inputs: Inputs,
    pub(super) composition: Composition,
    /// The packet path was told to end the flows.
    ending: bool,
    /// `None` until the first write.
    pub(super) written: Option<Written>,
    /// Counters at the last report; `None` until the first sample ever.
    baseline: Option<Counters>,
    /// Counters of the latest sample.
    pub(super) current: Counters,
    holds: Holds,
    /// What the packet path's map forgives, as far as known.
    forgiven_written: u64,
    /// Flows in the handshake or past it.
    live: u64,
    /// The packet path still holds a trial credit.
    trial: bool,
    /// A sample came since the engine was made. Before that nothing is known
    /// of the maps, which may be other ones than the learned counters are of.
    sampled: bool,
    /// A sample came since the last report.
    fresh: bool,
    /// Histogram of the last interval that had measurements.
    pub(super) histogram: [u64; HISTOGRAM_BUCKETS],
    /// Flows begun in the last report interval.
    pub(super) new_flows: u64,
}

impl Backend {
    /// Besides, an operator's weight that the configuration ended.
    pub(super) fn new(
        config: BackendConfig,
        learned: Option<&LearnedBackend>,
        now_us: u64,
    ) -> (Self, Option<GivenWeight>) {
        let weight = config.weight.min(WEIGHT_MAX);
        let overrides = learned.map_or_else(Overrides::default, |learned| learned.overrides);
        let (overrides, ended) = overrides.carried_over(weight, now_us);
        let baseline = learned.and_then(|learned| learned.baseline);
        let holds = learned.map_or_else(Holds::default, |learned| {
            let held = learned.held.iter().map(|held| (held.due_us, held.failures));
            Holds::new(learned.forgiven, held)
        });
        let inputs = Inputs {
            gate: overrides.gate.map(|gated| gated.gate),
            flows: None,
            operator_weight: overrides.weight.map(|given| given.weight),
            configured_weight: weight,
            overload: None,
        };
        let backend = Self {
            index: config.index,
            identity: config.identity,
            weight,
            overrides,
            inputs,
            composition: compose(&inputs),
            ending: false,
            written: None,
            baseline,
            current: baseline.unwrap_or_default(),
            forgiven_written: holds.forgiven(),
            holds,
            live: 0,
            trial: false,
            sampled: false,
            fresh: false,
            histogram: [0; HISTOGRAM_BUCKETS],
            new_flows: 0,
        };
        (backend, ended)
    }

    /// Whether file and operators want it to take flows.
    pub(super) fn is_wanted(&self) -> bool {
        let weight = self.overrides.weight.map_or(self.weight, |w| w.weight);
        self.overrides.gate.is_none() && weight > 0
    }

    /// Takes an operator's word. A command results if flows that were to be
    /// ended may go on.
    pub(super) fn obey(&mut self, order: Order, now_us: u64) -> Option<Command> {
        self.overrides.obey(order, self.weight, now_us);
        if self.drained_since_us().is_some() || !self.ending {
            return None;
        }
        self.ending = false;
        Some(Command::EndFlows {
            backend: self.index,
            end: false,
        })
    }

    fn drained_since_us(&self) -> Option<u64> {
        let gated = self.overrides.gate?;
        (gated.gate == Gate::Drain).then_some(gated.since_us)
    }

    /// When its flows are ended, if it is drained.
    pub(super) fn deadline_us(&self, drain_timeout_us: u64) -> Option<u64> {
        Some(self.drained_since_us()?.saturating_add(drain_timeout_us))
    }

    /// The deadline, unless it was acted on.
    pub(super) fn pending_deadline_us(&self, drain_timeout_us: u64) -> Option<u64> {
        self.deadline_us(drain_timeout_us).filter(|_| !self.ending)
    }

    /// Ends the flows if the deadline is there.
    pub(super) fn end_drained(&mut self, drain_timeout_us: u64, now_us: u64) -> Option<Command> {
        self.pending_deadline_us(drain_timeout_us)
            .filter(|&deadline_us| deadline_us <= now_us)?;
        self.ending = true;
        Some(Command::EndFlows {
            backend: self.index,
            end: true,
        })
    }

    /// Goes on showing what the same backend showed before a new configuration.
    pub(super) fn keep_shown(&mut self, former: &Self) {
        self.histogram = former.histogram;
        self.new_flows = former.new_flows;
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    pub(super) fn learned(&self, load: Record, report_due_us: u64) -> LearnedBackend {
        let held = self.holds.pending();
        LearnedBackend {
            load,
            report_due_us,
            baseline: self.baseline,
            forgiven: self.holds.forgiven(),
            held: held
                .map(|(due_us, failures)| HeldFailures { due_us, failures })
                .collect(),
            overrides: self.overrides,
        }
    }

    /// Takes a sample; new failures are held for `hold_us`.
    ///
    /// The first sample of a backend never seen is its baseline: what was
    /// counted before belongs to nobody. Counters that went back belong to new
    /// maps, whose whole content is new. True if the baseline or the holds
    /// changed.
    pub(super) fn observe(&mut self, sample: &Sample, hold_us: u64, now_us: u64) -> bool {
        let counters = Counters::new(&sample.report, &sample.live);
        let failures = counters.failures();
        let (baseline, seen) = (self.baseline, self.holds.seen());
        if self.baseline.is_none() {
            self.baseline = Some(counters);
            self.holds = Holds::new(failures, []);
        } else if counters.since(&self.current).is_none() || self.holds.seen() > failures {
            self.baseline = Some(Counters::default());
            self.holds = Holds::default();
        }
        let new_failures = failures.saturating_sub(self.holds.seen());
        self.holds.hold(new_failures, hold_us, now_us);
        self.holds.adopt(sample.live.forgiven);
        self.forgiven_written = sample.live.forgiven;
        self.current = counters;
        self.live = sample
            .live
            .half_opened
            .saturating_sub(sample.live.half_closed)
            .saturating_add(sample.live.opened.saturating_sub(sample.live.closed));
        self.inputs.flows = Some(self.live);
        if self.inputs.gate.is_some() {
            // Only the state shown of a drain depends on the flows.
            self.composition = compose(&self.inputs);
        }
        self.trial = sample.live.trial != 0;
        self.sampled = true;
        self.fresh = true;
        self.baseline != baseline || self.holds.seen() != seen
    }

    /// Whether a report has anything to go by.
    pub(super) fn fresh(&self) -> bool {
        self.fresh
    }

    /// Ends the holds that are due. A command results if the map's count is
    /// not ours, whatever the reason.
    pub(super) fn forgive(&mut self, now_us: u64) -> Option<Command> {
        if !self.sampled {
            return None;
        }
        self.holds.release(now_us);
        let total = self.holds.forgiven();
        if total == self.forgiven_written {
            return None;
        }
        self.forgiven_written = total;
        Some(Command::Forgive {
            backend: self.index,
            total,
        })
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.sampled.then(|| self.holds.poll_timeout()).flatten()
    }

    /// The flows since the last report; the next one starts here. `None`
    /// without a sample since then.
    pub(super) fn take_round(&mut self) -> Option<Round> {
        if !self.fresh {
            return None;
        }
        self.fresh = false;
        // `observe` keeps the baseline below the current counters.
        let delta = self.current.since(&self.baseline?)?;
        self.baseline = Some(self.current);
        self.new_flows = delta.half_opened;
        if delta.histogram.iter().any(|&count| count > 0) {
            self.histogram = delta.histogram;
        }
        let mut classes = delta.classes;
        classes.short.failures = classes.short.failures.saturating_add(delta.syn_timeouts);
        let ended = [classes.short, classes.long]
            .iter()
            .any(|class| class.count > 0 || class.failures > 0);
        let live = self.live > 0 || self.holds.held() > 0;
        Some(Round {
            classes,
            idle: !ended && !live && delta.half_opened == 0,
        })
    }

    /// A trial credit, if the backend takes flows on its own merit and has
    /// none already.
    pub(super) fn grant_trial(&mut self) -> Option<Command> {
        if !self.composition.cause.is_nothing() || self.trial {
            return None;
        }
        self.trial = true;
        Some(Command::GrantTrial {
            backend: self.index,
        })
    }

    /// Composes anew; a command results if the packet path has another verdict.
    pub(super) fn compose(
        &mut self,
        overload: Option<Overloaded>,
        relative: Option<u32>,
    ) -> Option<Command> {
        self.inputs = Inputs {
            gate: self.overrides.gate.map(|gated| gated.gate),
            flows: self.sampled.then_some(self.live),
            operator_weight: self.overrides.weight.map(|given| given.weight),
            configured_weight: self.weight,
            overload,
        };
        self.composition = compose(&self.inputs);
        let write = Written {
            weight: self.composition.weight,
            up: self.composition.up,
            relative: relative.unwrap_or(RELATIVE_ONE),
        };
        if self.written == Some(write) {
            return None;
        }
        self.written = Some(write);
        Some(Command::WriteBackend {
            backend: self.index,
            weight: write.weight,
            up: write.up,
            relative: write.relative,
        })
    }
}
