//! One backend as the engine keeps it: its counters, its failures' holds, and
//! what the packet path was last told.

use alloc::string::String;

use super::aca::Record;
use super::budget::{BUDGET_US, Budget, Budgeting};
use super::class::PerClass;
use super::compose::{Cause, Composition, Inputs, OutsideInputs, Overloaded, compose};
use super::config::BackendConfig;
use super::engine::{Command, Sample};
use super::guard::Peer;
use super::health::{Health, HealthParameters, HealthRecord, Ill};
use super::learned::{ClassCounters, Counters, HeldFailures, LearnedBackend};
use super::outside::{OutsideRecord, OutsideSources, OutsideWord};
use super::overrides::{Gate, GivenWeight, Order, Overrides, WEIGHT_MAX};
use super::penalty::Holds;
use super::slow_start::Ramp;
use super::standing::Standing;
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

/// What a backend must know of its service when it is made.
pub(super) struct Setup<'a> {
    pub(super) health: &'a HealthParameters,
    /// Steerline itself begins: who is in service was so before.
    pub(super) begins: bool,
    /// Who else is asked.
    pub(super) sources: OutsideSources,
}

/// What a sample shows of a backend's health.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    /// The baseline or the holds changed: a restart must know.
    pub(super) learned: bool,
    /// The state of a test changed.
    pub(super) tested: bool,
}

pub(super) struct Backend {
    pub(super) index: u16,
    identity: String,
    pub(super) server: String,
    pub(super) weight: u32,
    pub(super) overrides: Overrides,
    /// What others have told, and who of them is asked.
    pub(super) outside: OutsideRecord,
    sources: OutsideSources,
    /// The inputs of `composition`.
    inputs: Inputs,
    pub(super) composition: Composition,
    pub(super) health: Health,
    pub(super) standing: Standing,
    pub(super) budgeting: Budgeting,
    /// Failures that health has judged, told of or only counted.
    judged: u64,
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
    /// Flows past the handshake, ever.
    opened: u64,
    /// Flows in the handshake or past it.
    pub(super) live: u64,
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
        setup: &Setup<'_>,
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
        let outside =
            learned.map_or_else(OutsideRecord::default, |learned| learned.outside.clone());
        let outside = outside.under(setup.sources);
        let inputs = Inputs {
            outside: OutsideInputs::of(&outside, weight, true),
            gate: overrides.gate.map(|gated| gated.gate),
            flows: None,
            operator_weight: overrides.weight.map(|given| given.weight),
            configured_weight: weight,
            ill: None,
            overload: None,
            warming: false,
        };
        let record = learned.map_or_else(HealthRecord::default, |learned| learned.health.clone());
        let standing = learned.and_then(|learned| learned.standing);
        let backend = Self {
            index: config.index,
            identity: config.identity,
            server: config.server,
            weight,
            overrides,
            outside,
            sources: setup.sources,
            inputs,
            composition: compose(&inputs),
            health: Health::new(record, setup.health, now_us),
            standing: standing.unwrap_or(if setup.begins {
                Standing::Settled
            } else {
                Standing::Out
            }),
            budgeting: Budgeting::default(),
            judged: 0,
            ending: false,
            written: None,
            baseline,
            current: baseline.unwrap_or_default(),
            forgiven_written: holds.forgiven(),
            holds,
            opened: 0,
            live: 0,
            trial: false,
            sampled: false,
            fresh: false,
            histogram: [0; HISTOGRAM_BUCKETS],
            new_flows: 0,
        };
        (backend, ended)
    }

    /// Whether file, operators and those who are asked want it to take flows.
    pub(super) fn is_wanted(&self) -> bool {
        let given = self.outside.weight(self.weight).map(|(weight, _)| weight);
        let weight = given.unwrap_or(self.weight);
        let weight = self.overrides.weight.map_or(weight, |w| w.weight);
        self.overrides.gate.is_none() && weight > 0 && self.outside.cause().is_none()
    }

    /// Takes a word from outside. True if it changed anything.
    pub(super) fn hear(&mut self, word: OutsideWord) -> bool {
        self.outside.take(word)
    }

    /// Takes an operator's word. A command results if flows that were to be
    /// ended may go on.
    pub(super) fn obey(&mut self, order: Order, now_us: u64) -> Option<Command> {
        self.overrides.obey(order, self.weight, now_us);
        if order == Order::Enable {
            self.health.activate();
        }
        if self.drained_since_us().is_some() || self.is_deleted() || !self.ending {
            return None;
        }
        self.ending = false;
        Some(Command::EndFlows {
            backend: self.index,
            end: false,
        })
    }

    /// Whether its flows are to be ended because a cache has gone.
    fn is_deleted(&self) -> bool {
        self.outside.ends_flows(self.sources)
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

    /// Ends the flows if the deadline is there or the cache has gone, and lets
    /// them go on when neither is so any more.
    pub(super) fn end_drained(&mut self, drain_timeout_us: u64, now_us: u64) -> Option<Command> {
        let deadline_us = self.deadline_us(drain_timeout_us);
        let drained = deadline_us.is_some_and(|deadline_us| deadline_us <= now_us);
        let end = drained || self.is_deleted();
        if end == self.ending {
            return None;
        }
        self.ending = end;
        Some(Command::EndFlows {
            backend: self.index,
            end,
        })
    }

    /// Goes on showing what the same backend showed before a new configuration.
    pub(super) fn keep_shown(&mut self, former: &Self) {
        self.histogram = former.histogram;
        self.new_flows = former.new_flows;
        self.health.keep_shown(&former.health);
        // The packet path goes on with what it was told.
        self.budgeting = former.budgeting;
        self.live = former.live;
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
            health: self.health.record().clone(),
            standing: Some(self.standing),
            outside: self.outside.clone(),
        }
    }

    /// Takes a sample; new failures are held for `hold_us`.
    ///
    /// The first sample of a backend never seen is its baseline: what was
    /// counted before belongs to nobody. Counters that went back belong to new
    /// maps, whose whole content is new.
    pub(super) fn observe(&mut self, sample: &Sample, hold_us: u64, now_us: u64) -> Seen {
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
        let mut shown = Seen::default();
        if self.continues(&counters, sample) {
            let flows = counters.half_opened - self.current.half_opened;
            let completed = sample.live.opened - self.opened;
            shown.tested = self.health.observe(flows, completed, now_us);
        } else {
            self.judged = failures;
        }
        self.opened = sample.live.opened;
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
        if self.inputs.gate.is_some() || self.inputs.outside.cause.is_some() {
            // Only the state shown of a drain depends on the flows.
            self.composition = compose(&self.inputs);
        }
        self.trial = sample.live.trial != 0;
        self.sampled = true;
        self.fresh = true;
        shown.learned = self.baseline != baseline || self.holds.seen() != seen;
        shown
    }

    /// Whether a sample is of the maps that the one before was of.
    fn continues(&self, counters: &Counters, sample: &Sample) -> bool {
        self.sampled
            && counters.half_opened >= self.current.half_opened
            && sample.live.opened >= self.opened
            && counters.failures() >= self.current.failures()
    }

    /// Failures that the sample before `sample` counted and that no event has
    /// told of until now: it was lost. To be asked before `sample` is observed.
    pub(super) fn untold(&mut self, sample: &Sample) -> u64 {
        let counters = Counters::new(&sample.report, &sample.live);
        if !self.continues(&counters, sample) {
            return 0;
        }
        let counted = self.current.failures();
        let untold = counted.saturating_sub(self.judged);
        self.judged = self.judged.max(counted);
        untold
    }

    /// An event told of a failure that the maps count.
    pub(super) fn told(&mut self) {
        self.judged = self.judged.saturating_add(1);
    }

    /// The backend as the guards see it.
    pub(super) fn peer(&self, now_us: u64) -> Peer {
        let ejected = self.is_ejected();
        Peer {
            usable: self.takes_flows() && !ejected,
            wanted: self.is_wanted(),
            ejected,
            recent: self.health.recent(now_us),
        }
    }

    /// Whether failures keep it out of service.
    pub(super) fn is_ejected(&self) -> bool {
        self.health.ill().is_some_and(|ill| ill.is_out())
    }

    /// Whether the packet path may give it flows.
    pub(super) fn takes_flows(&self) -> bool {
        self.composition.up && self.composition.weight > 0
    }

    /// Whether it is in service and past its own ramp, so that others may be
    /// limited.
    pub(super) fn is_settled(&self) -> bool {
        self.takes_flows()
            && self.composition.cause.in_service()
            && self.standing == Standing::Settled
    }

    /// Flows begun, ever.
    pub(super) fn begun(&self) -> u64 {
        self.current.half_opened
    }

    /// Writes a budget that the packet path does not have.
    pub(super) fn budget(&mut self, budget: Budget, now_us: u64) -> Option<Command> {
        if !self.sampled || !self.budgeting.write(budget, now_us) {
            return None;
        }
        Some(Command::WriteBudget {
            backend: self.index,
            budget,
            expires_us: now_us.saturating_add(BUDGET_US),
        })
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
        let cause = self.composition.cause;
        if !(cause.in_service() || cause == Cause::ReadyToTest) || self.trial {
            return None;
        }
        self.trial = true;
        Some(Command::GrantTrial {
            backend: self.index,
        })
    }

    /// Composes anew but for slow start: whether and since when the backend is in
    /// service follows from that. `last_resort`: failures keep nobody out;
    /// `has_good`: see [`OutsideRecord::limit`].
    pub(super) fn compose(
        &mut self,
        overload: Option<Overloaded>,
        last_resort: bool,
        has_good: bool,
    ) {
        self.inputs = Inputs {
            outside: OutsideInputs::of(&self.outside, self.weight, has_good),
            gate: self.overrides.gate.map(|gated| gated.gate),
            flows: self.sampled.then_some(self.live),
            operator_weight: self.overrides.weight.map(|given| given.weight),
            configured_weight: self.weight,
            ill: self.health.ill().map(|ill: Ill| (ill, last_resort)),
            overload,
            warming: false,
        };
        self.composition = compose(&self.inputs);
    }

    /// Whether it comes into service now.
    pub(super) fn enters(&self) -> bool {
        self.standing == Standing::Out && self.takes_flows() && self.composition.cause.in_service()
    }

    /// Comes into service, goes on, or leaves.
    pub(super) fn stand(&mut self, ramp: &Ramp, dummies: u32, now_us: u64) {
        let cause = self.composition.cause;
        self.standing = if self.enters() {
            Standing::enter(ramp, dummies, now_us)
        } else if cause.in_service() && self.takes_flows() {
            self.standing.advanced(ramp, now_us)
        } else if self.takes_flows() && !cause.is_test() {
            // As the last resort it has all the flows there are: no ramp after.
            Standing::Settled
        } else {
            Standing::Out
        };
    }

    /// Composes slow start too; a command results if the packet path has another
    /// verdict.
    pub(super) fn conclude(&mut self, warming: bool, relative: Option<u32>) -> Option<Command> {
        self.inputs.warming = warming;
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
