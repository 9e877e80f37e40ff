//! Which of all that is known of a backend decides whether it takes flows.
//!
//! Each input may name a [`Cause`] for keeping new flows away. Of several the
//! strongest is obeyed and shown; the order of the variants is the order of
//! strength:
//!
//! | precedence | cause | effective weight | up | state |
//! |---|---|---|---|---|
//! | 1 | an operator disabled it | 0 | no | `out-of-service` |
//! | 2 | an operator drains it | 0 | no | `draining` while flows are left, then `drained` |
//! | 3 | an operator gave it weight 0 | 0 | no | `out-of-service` |
//! | 4 | configured weight 0 | 0 | no | `out-of-service` |
//! | 5 | its agent says `maint` | as below | no | `out-of-service` |
//! | 6 | its agent says `drain` | as below | no | `draining` while flows are left, then `drained` |
//! | 7 | probes fail | as below | no | `probe-failed` |
//! | 8 | its agent says `down` | as below | no | `probe-failed` |
//! | 9 | in-band health removed it | as below | no, unless nobody else is left | `inband-failed` |
//! | 10 | failure detection failed it | as below | no, unless nobody else is left | `failed` |
//! | 11 | the cache's state | as below | no | `capacity-limited` |
//! | 12 | DFP, agent or SNMP gave weight 0 | 0 | no | `throttled` |
//! | 13 | load over the threshold | as below | no, unless the service has no backend within it | `overloaded` |
//! | 14 | its test flow is under way | as below | no more than that flow | `testing` |
//! | 15 | it waits for its test flow | as below | for one flow | `ready-to-test` |
//! | 16 | it warms up | as below | within the limits of slow start | `warming-up` |
//! | 17 | none | the operator's, else the one from outside, else the configured one | yes | `in-service` |
//!
//! The order of 1 to 13 is that of Cisco ACE (spec 5.4).
//!
//! An operator's weight stands in for the configured one, so that the file's
//! weight 0 keeps no flows away while an operator's weight is in force; so does
//! one from outside (DFP: "operating weight", spec 4.4).
//!
//! The adaptive load itself does not scale the weight: in `pick =
//! "connections"` it acts through `relative`, in `pick = "shares"` through the
//! slots of the ring, and in both at a finer grain than weights have.

use alloc::format;
use alloc::string::String;

use super::health::Ill;
use super::inband::Outage;
use super::outside::{OutsideCause, OutsideLimit, OutsideRecord};
use super::overrides::Gate;

/// Why a backend takes no new flows, or none; strongest first (design 4, ACE's
/// order in spec 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// An operator disabled it.
    Disabled,
    /// An operator drains it.
    Drain(Drain),
    /// An operator gave it weight 0.
    OperatorWeight,
    /// The configured weight is 0.
    ConfiguredWeight,
    /// Somebody who is asked keeps flows away.
    Outside(Kept),
    /// In-band health removed it.
    InbandFailed(Ejected),
    /// Failure detection failed it.
    Failed(Ejected),
    /// Somebody who is asked limits it.
    Limited(OutsideLimit),
    /// The load exceeded the threshold, and the ageout has not passed.
    Overload(Overloaded),
    /// Its test flow is under way.
    Testing,
    /// It waits for its test flow.
    ReadyToTest,
    /// It is in service, and limited by slow start.
    WarmingUp,
    /// Nothing keeps flows away.
    Nothing,
}

/// The facts of [`Cause::Drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drain {
    /// Flows left, handshakes included; `None` before the first sample.
    pub flows: Option<u64>,
}

/// The facts of [`Cause::InbandFailed`] and [`Cause::Failed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ejected {
    /// The failures, and for how long it is out.
    pub outage: Outage,
    /// Clients that saw them; 0: not counted.
    pub clients: u32,
    /// Nobody else is left, so this one serves.
    pub last_resort: bool,
}

impl Ejected {
    fn words(&self, who: &str) -> String {
        let Outage {
            since_us,
            until_us,
            failures,
            ..
        } = self.outage;
        let clients = match self.clients {
            0 => String::new(),
            1 => String::from(" of 1 client"),
            clients => format!(" of {clients} clients"),
        };
        let plural = if failures == 1 { "" } else { "s" };
        let then = match (self.last_resort, until_us) {
            (true, _) => String::from("still taking flows because nobody else is left"),
            (false, Some(until_us)) => {
                let seconds = until_us.saturating_sub(since_us) as f64 / 1e6;
                format!("out for {seconds:.1} s")
            }
            (false, None) => String::from("out until an operator enables it"),
        };
        format!("{who}: {failures} failure{plural}{clients}; {then}")
    }
}

/// The facts of [`Cause::Outside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// Who, and why.
    pub cause: OutsideCause,
    /// Flows left, handshakes included; `None` before the first sample.
    pub flows: Option<u64>,
}

/// The facts of [`Cause::Overload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overloaded {
    /// Load with which the backend left rotation, above `threshold`.
    pub load: u8,
    /// The threshold it exceeded, 2..=254.
    pub threshold: u8,
    /// The service has no backend within the threshold, so this one serves.
    pub last_resort: bool,
}

/// State names of design 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Takes new flows.
    InService,
    /// Takes new flows within the limits of slow start.
    WarmingUp,
    /// Removed by in-band health.
    InbandFailed,
    /// Failed by failure detection.
    Failed,
    /// Takes one flow, which is its test.
    ReadyToTest,
    /// That flow is under way.
    Testing,
    /// Load over the threshold.
    Overloaded,
    /// Configured, or told by an operator, to take no new flows.
    OutOfService,
    /// Drained by an operator or its agent, with flows left.
    Draining,
    /// Drained by an operator or its agent, without flows.
    Drained,
    /// Probes fail, or its agent calls it down.
    ProbeFailed,
    /// The cache's state lets no new flows in.
    CapacityLimited,
    /// The weight from outside is 0.
    Throttled,
}

impl State {
    /// The name in `status --json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InService => "in-service",
            Self::WarmingUp => "warming-up",
            Self::InbandFailed => "inband-failed",
            Self::Failed => "failed",
            Self::ReadyToTest => "ready-to-test",
            Self::Testing => "testing",
            Self::Overloaded => "overloaded",
            Self::OutOfService => "out-of-service",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::ProbeFailed => "probe-failed",
            Self::CapacityLimited => "capacity-limited",
            Self::Throttled => "throttled",
        }
    }
}

impl Cause {
    /// The state shown for a backend with this cause.
    pub const fn state(self) -> State {
        match self {
            Self::Disabled | Self::OperatorWeight | Self::ConfiguredWeight => State::OutOfService,
            Self::Drain(Drain { flows: Some(0) }) => State::Drained,
            Self::Drain(_) => State::Draining,
            Self::InbandFailed(_) => State::InbandFailed,
            Self::Failed(_) => State::Failed,
            Self::Outside(Kept { cause, flows }) => match (cause, flows) {
                (OutsideCause::AgentMaintenance, _) => State::OutOfService,
                (OutsideCause::AgentDrain, Some(0)) => State::Drained,
                (OutsideCause::AgentDrain, _) => State::Draining,
                (OutsideCause::ProbeFailed | OutsideCause::AgentDown, _) => State::ProbeFailed,
            },
            Self::Limited(OutsideLimit::Capacity(_)) => State::CapacityLimited,
            Self::Limited(OutsideLimit::ZeroWeight(_)) => State::Throttled,
            Self::Overload(_) => State::Overloaded,
            Self::Testing => State::Testing,
            Self::ReadyToTest => State::ReadyToTest,
            Self::WarmingUp => State::WarmingUp,
            Self::Nothing => State::InService,
        }
    }

    /// Whether a backend with this cause takes new flows.
    pub const fn up(self) -> bool {
        match self {
            Self::Disabled
            | Self::Drain(_)
            | Self::OperatorWeight
            | Self::ConfiguredWeight
            | Self::Outside(_)
            | Self::Limited(_) => false,
            Self::InbandFailed(ejected) | Self::Failed(ejected) => ejected.last_resort,
            Self::Overload(overloaded) => overloaded.last_resort,
            Self::Testing | Self::ReadyToTest | Self::WarmingUp | Self::Nothing => true,
        }
    }

    /// Whether the backend is in service: nothing keeps flows away, not even an
    /// overload overruled as the last resort, or a test to come.
    pub const fn in_service(self) -> bool {
        matches!(self, Self::WarmingUp | Self::Nothing)
    }

    /// Whether it is being tested.
    pub const fn is_test(self) -> bool {
        matches!(self, Self::Testing | Self::ReadyToTest)
    }

    /// The cause in words, with those of whoever it comes from.
    pub fn reason_with(self, outside: &OutsideRecord) -> String {
        let mut reason = self.reason();
        if let Self::Outside(Kept { cause, .. }) = self {
            let detail = outside.detail(cause);
            if !detail.is_empty() {
                reason = format!("{reason}: {detail}");
            }
        }
        reason
    }

    /// The cause in words, for people.
    pub fn reason(self) -> String {
        match self {
            Self::Disabled => String::from("disabled by the operator; open flows go on"),
            Self::Drain(Drain { flows: None }) => String::from("drained by the operator"),
            Self::Drain(Drain { flows: Some(0) }) => {
                String::from("drained by the operator; no flows are left")
            }
            Self::Drain(Drain { flows: Some(1) }) => {
                String::from("drained by the operator; 1 flow is left")
            }
            Self::Drain(Drain { flows: Some(flows) }) => {
                format!("drained by the operator; {flows} flows are left")
            }
            Self::OperatorWeight => String::from("the operator set the weight to 0"),
            Self::ConfiguredWeight => String::from("the configured weight is 0"),
            Self::Outside(Kept { cause, .. }) => String::from(match cause {
                OutsideCause::AgentMaintenance => "its agent says maint",
                OutsideCause::AgentDrain => "its agent says drain",
                OutsideCause::ProbeFailed => "its probe fails",
                OutsideCause::AgentDown => "its agent says down",
            }),
            Self::Limited(OutsideLimit::Capacity(state)) => {
                format!("the cache says it is {}", state.as_str())
            }
            Self::Limited(OutsideLimit::ZeroWeight(source)) => {
                format!("{} gave it weight 0", source.as_str())
            }
            Self::Overload(Overloaded {
                load,
                threshold,
                last_resort: false,
            }) => format!(
                "load {load} exceeded the threshold of {threshold}; out until the ageout passes"
            ),
            Self::Overload(Overloaded {
                load,
                threshold,
                last_resort: true,
            }) => format!(
                "load {load} exceeded the threshold of {threshold}; still taking flows because no \
                 backend of the service is within it"
            ),
            Self::InbandFailed(ejected) => ejected.words("in-band health"),
            Self::Failed(ejected) => ejected.words("failure detection"),
            Self::Testing => String::from("one flow tests it; others follow once it is open"),
            Self::ReadyToTest => String::from("the next flow tests it"),
            Self::WarmingUp => String::from("taking new flows within the limits of slow start"),
            Self::Nothing => String::from("taking new flows"),
        }
    }
}

/// What others tell of a backend, as far as it decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutsideInputs {
    /// Weight that somebody outside gave, 0..=65,535.
    pub weight: Option<u32>,
    /// Somebody keeps flows away.
    pub cause: Option<OutsideCause>,
    /// Somebody limits it.
    pub limit: Option<OutsideLimit>,
}

impl OutsideInputs {
    /// What a record says of a backend with this configured weight; `has_good`:
    /// see [`OutsideRecord::limit`].
    pub fn of(record: &OutsideRecord, configured: u32, has_good: bool) -> Self {
        Self {
            weight: record.weight(configured).map(|(weight, _)| weight),
            cause: record.cause(),
            limit: record.limit(configured, has_good),
        }
    }
}

/// What is known of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// What others tell.
    pub outside: OutsideInputs,
    /// What an operator closed it with.
    pub gate: Option<Gate>,
    /// Flows left, handshakes included; `None` before the first sample.
    pub flows: Option<u64>,
    /// Weight that an operator gave, 0..=65,535.
    pub operator_weight: Option<u32>,
    /// Weight of the configuration file, 0..=65,535.
    pub configured_weight: u32,
    /// What failures say, and whether that is overruled as the last resort.
    pub ill: Option<(Ill, bool)>,
    /// Present while the adaptive load keeps the backend out of rotation.
    pub overload: Option<Overloaded>,
    /// Slow start limits it.
    pub warming: bool,
}

/// What follows for the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composition {
    /// Effective weight, 0..=65,535.
    pub weight: u32,
    /// Whether the backend may take new flows.
    pub up: bool,
    /// What decided it.
    pub cause: Cause,
}

/// Composes all inputs into one verdict, by the table of this module.
pub fn compose(inputs: &Inputs) -> Composition {
    let given = inputs.operator_weight.or(inputs.outside.weight);
    let weight = given.unwrap_or(inputs.configured_weight);
    let flows = inputs.flows;
    let outside = inputs.outside;
    // An operator's weight overrules one from outside, 0 included.
    let limit = outside.limit.filter(|limit| match limit {
        OutsideLimit::Capacity(_) => true,
        OutsideLimit::ZeroWeight(_) => inputs.operator_weight.is_none(),
    });
    let causes = [
        inputs.gate.map(|gate| match gate {
            Gate::Disable => Cause::Disabled,
            Gate::Drain => Cause::Drain(Drain { flows }),
        }),
        (inputs.operator_weight == Some(0)).then_some(Cause::OperatorWeight),
        (weight == 0 && given.is_none()).then_some(Cause::ConfiguredWeight),
        outside
            .cause
            .map(|cause| Cause::Outside(Kept { cause, flows })),
        limit.map(Cause::Limited),
        inputs.ill.map(|(ill, last_resort)| match ill {
            Ill::Inband(outage) => Cause::InbandFailed(Ejected {
                outage,
                clients: 0,
                last_resort,
            }),
            Ill::Failed(outage, clients) => Cause::Failed(Ejected {
                outage,
                clients,
                last_resort,
            }),
            Ill::Testing => Cause::Testing,
            Ill::ReadyToTest => Cause::ReadyToTest,
        }),
        inputs.overload.map(Cause::Overload),
        inputs.warming.then_some(Cause::WarmingUp),
    ];
    let cause = causes.into_iter().flatten().min().unwrap_or(Cause::Nothing);
    Composition {
        weight: if inputs.gate.is_some() { 0 } else { weight },
        up: cause.up(),
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Overloaded = Overloaded {
        load: 100,
        threshold: 99,
        last_resort: false,
    };
    const LAST: Overloaded = Overloaded {
        last_resort: true,
        ..OUT
    };

    /// Nothing known but a configured weight.
    const fn configured(configured_weight: u32) -> Inputs {
        Inputs {
            outside: OutsideInputs {
                weight: None,
                cause: None,
                limit: None,
            },
            gate: None,
            flows: None,
            operator_weight: None,
            configured_weight,
            ill: None,
            overload: None,
            warming: false,
        }
    }

    #[test]
    fn precedence() {
        let (drain, disable) = (Some(Gate::Drain), Some(Gate::Disable));
        // Gate, operator's weight, configured weight, overload; effective
        // weight, up, state, part of the reason.
        let rows = [
            (None, None, 8, None, 8, true, "in-service", "taking"),
            (
                None,
                None,
                0,
                None,
                0,
                false,
                "out-of-service",
                "configured",
            ),
            (None, None, 8, Some(OUT), 8, false, "overloaded", "load 100"),
            (None, None, 8, Some(LAST), 8, true, "overloaded", "still"),
            (
                None,
                None,
                0,
                Some(OUT),
                0,
                false,
                "out-of-service",
                "configured",
            ),
            (
                None,
                None,
                0,
                Some(LAST),
                0,
                false,
                "out-of-service",
                "configured",
            ),
            // An operator's weight stands in for the configured one.
            (None, Some(3), 8, None, 3, true, "in-service", "taking"),
            (None, Some(3), 0, None, 3, true, "in-service", "taking"),
            (
                None,
                Some(0),
                8,
                None,
                0,
                false,
                "out-of-service",
                "set the weight",
            ),
            (
                None,
                Some(0),
                0,
                None,
                0,
                false,
                "out-of-service",
                "set the weight",
            ),
            (
                None,
                Some(3),
                8,
                Some(OUT),
                3,
                false,
                "overloaded",
                "load 100",
            ),
            (
                None,
                Some(0),
                8,
                Some(LAST),
                0,
                false,
                "out-of-service",
                "set the weight",
            ),
            // A gate beats everything.
            (
                disable,
                None,
                8,
                None,
                0,
                false,
                "out-of-service",
                "disabled",
            ),
            (
                disable,
                Some(3),
                8,
                Some(LAST),
                0,
                false,
                "out-of-service",
                "disabled",
            ),
            (
                disable,
                None,
                0,
                None,
                0,
                false,
                "out-of-service",
                "disabled",
            ),
            (drain, None, 8, None, 0, false, "draining", "drained by"),
            (
                drain,
                Some(3),
                8,
                Some(LAST),
                0,
                false,
                "draining",
                "drained by",
            ),
            (
                drain,
                Some(0),
                0,
                Some(OUT),
                0,
                false,
                "draining",
                "drained by",
            ),
        ];
        for (gate, operator_weight, weight, overload, effective, up, state, reason) in rows {
            let inputs = Inputs {
                gate,
                operator_weight,
                overload,
                ..configured(weight)
            };
            let got = compose(&inputs);
            let row = (got.weight, got.up, got.cause.state().as_str());
            assert_eq!(row, (effective, up, state), "{inputs:?}");
            let text = got.cause.reason();
            assert!(text.contains(reason), "{inputs:?}: {text}");
        }
    }

    #[test]
    fn a_drain_is_over_when_no_flow_is_left() {
        for (flows, state, reason) in [
            (None, State::Draining, "drained by the operator"),
            (Some(12), State::Draining, "12 flows are left"),
            (Some(1), State::Draining, "1 flow is left"),
            (Some(0), State::Drained, "no flows are left"),
        ] {
            let gate = Some(Gate::Drain);
            let inputs = Inputs {
                gate,
                flows,
                ..configured(8)
            };
            let cause = compose(&inputs).cause;
            assert_eq!(cause.state(), state, "{flows:?}");
            assert!(cause.reason().contains(reason), "{}", cause.reason());
        }
    }

    #[test]
    fn precedence_of_health() {
        let outage = |until_us| Outage {
            since_us: 1_000_000,
            until_us,
            failures: 8,
            jitter_us: 0,
        };
        let inband = Ill::Inband(outage(Some(31_000_000)));
        let failed = Ill::Failed(outage(None), 2);
        let overload = Some(OUT);
        // Gate, health with last resort, overload, warming; up, state, part of
        // the reason.
        let drain = Some(Gate::Drain);
        let rows = [
            (
                None,
                Some((inband, false)),
                None,
                true,
                false,
                "inband-failed",
                "8 failures; out for 30.0 s",
            ),
            (
                None,
                Some((inband, false)),
                overload,
                false,
                false,
                "inband-failed",
                "in-band health",
            ),
            (
                None,
                Some((inband, true)),
                None,
                false,
                true,
                "inband-failed",
                "nobody else",
            ),
            (
                None,
                Some((failed, false)),
                None,
                false,
                false,
                "failed",
                "8 failures of 2 clients; out until an operator",
            ),
            (
                None,
                Some((failed, true)),
                None,
                false,
                true,
                "failed",
                "nobody else",
            ),
            (
                None,
                Some((Ill::Testing, false)),
                None,
                true,
                true,
                "testing",
                "one flow tests it",
            ),
            (
                None,
                Some((Ill::ReadyToTest, false)),
                None,
                false,
                true,
                "ready-to-test",
                "next flow",
            ),
            (
                None,
                Some((Ill::Testing, false)),
                overload,
                false,
                false,
                "overloaded",
                "load 100",
            ),
            (None, None, None, true, true, "warming-up", "slow start"),
            (None, None, overload, true, false, "overloaded", "load 100"),
            (
                drain,
                Some((inband, true)),
                None,
                true,
                false,
                "draining",
                "drained",
            ),
        ];
        for (gate, ill, overload, warming, up, state, reason) in rows {
            let inputs = Inputs {
                gate,
                ill,
                overload,
                warming,
                ..configured(8)
            };
            let got = compose(&inputs);
            assert_eq!(
                (got.up, got.cause.state().as_str()),
                (up, state),
                "{inputs:?}"
            );
            let text = got.cause.reason();
            assert!(text.contains(reason), "{inputs:?}: {text}");
        }
    }
}
