//! What others have told of a backend, as `status` shows it.

use lb_common::control::{
    BackendView,
    agent::{Administration, AgentState},
    probe::ProbeRecord,
};
use serde::Serialize;

/// Words from outside; `null` where nobody has said anything.
#[derive(Clone, Debug, Serialize)]
pub struct Outside {
    /// Weight from outside, which stands in for the configured one.
    pub weight: Option<u32>,
    /// Who gave it: `dfp`, `agent` or `snmp`.
    pub weight_source: Option<&'static str>,
    /// The active probe.
    pub probe: Option<Probe>,
    /// The backend's agent.
    pub agent: Option<Agent>,
    /// Weight of a DFP agent.
    pub dfp: Option<u16>,
    /// State of a cache, `underused` to `initializing`.
    pub capacity: Option<&'static str>,
    /// Weight from numbers by SNMP.
    pub snmp: Option<u32>,
}

/// State of a probe.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// `up` or `down`.
    pub state: &'static str,
    /// Results in a row that contradict the state.
    pub against: u32,
    /// The last failure in words; empty in health.
    pub detail: String,
}

/// What an agent has said.
#[derive(Clone, Debug, Serialize)]
pub struct Agent {
    /// `ready`, `drain` or `maint`.
    pub administration: &'static str,
    /// Whether it calls the server up.
    pub up: bool,
    /// As the agent wrote it, `75%`.
    pub weight: Option<String>,
    /// Most flows at a time. Not obeyed in this version.
    pub max_connections: Option<u32>,
    /// Why, in its own words.
    pub reason: String,
}

impl Outside {
    /// What is known; `None` without any word.
    pub(super) fn of(view: &BackendView) -> Option<Self> {
        let record = &view.outside;
        if *record == Default::default() {
            return None;
        }
        let weight = record.weight(view.configured_weight);
        Some(Self {
            weight: weight.map(|(weight, _)| weight),
            weight_source: weight.map(|(_, source)| source.as_str()),
            probe: Probe::of(&record.probe),
            agent: Agent::of(&record.agent),
            dfp: record.dfp,
            capacity: record.capacity.map(|state| state.as_str()),
            snmp: record.snmp_weight,
        })
    }
}

impl Probe {
    fn of(record: &ProbeRecord) -> Option<Self> {
        Some(Self {
            state: if record.up? { "up" } else { "down" },
            against: record.streak,
            detail: record.detail.clone(),
        })
    }
}

impl Agent {
    fn of(state: &AgentState) -> Option<Self> {
        if *state == AgentState::default() {
            return None;
        }
        Some(Self {
            administration: match state.administration {
                Administration::Ready => "ready",
                Administration::Drain => "drain",
                Administration::Maintenance => "maint",
            },
            up: !state.down,
            weight: state.weight.map(|weight| weight.to_string()),
            max_connections: state.max_connections,
            reason: state.reason.clone(),
        })
    }
}
