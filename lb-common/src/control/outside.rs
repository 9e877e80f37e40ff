//! Words from outside about a backend, kept as one record.
//!
//! Probes, agents, DFP managers and SNMP polls run beside the engine and tell
//! it what they found as [`OutsideWord`]s. Each is absolute: taking it twice does no
//! harm, and a lost one is made up for by the next. The record is learned state,
//! so a reload or a restart begins with what was known. What a source said is
//! forgotten when the configuration no longer has that source.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::agent::{Administration, AgentState};
use super::capacity::{CacheState, NewFlows};
use super::probe::ProbeRecord;

/// What a source says of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutsideWord {
    /// An active probe's state.
    Probe(ProbeRecord),
    /// All that the backend's agent has said so far.
    Agent(AgentState),
    /// The weight of a DFP agent; `None`: the agent is lost or says nothing.
    Dfp(Option<u16>),
    /// What a cache says of its capacity.
    Capacity(CacheState),
    /// A weight from SNMP numbers; `None`: there is none to go by.
    SnmpWeight(Option<u32>),
}

/// Which sources a service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutsideSources {
    /// `[service.probe]`.
    pub probe: bool,
    /// `[service.agent]`.
    pub agent: bool,
    /// `[service.dfp]`.
    pub dfp: bool,
    /// `[service.capacity]` by states.
    pub capacity: bool,
    /// `[service.capacity]` by numbers.
    pub snmp_weight: bool,
    /// The flows of a cache that is OFFLINE or INITIALIZING are ended.
    pub force_delete: bool,
}

/// The latest words about a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutsideRecord {
    /// Never probed without `[service.probe]`.
    pub probe: ProbeRecord,
    /// Nothing said without `[service.agent]`.
    pub agent: AgentState,
    /// Weight of a DFP agent.
    pub dfp: Option<u16>,
    /// State of a cache.
    pub capacity: Option<CacheState>,
    /// Weight from SNMP numbers.
    pub snmp_weight: Option<u32>,
}

/// Why something outside keeps flows away; strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutsideCause {
    /// The agent says `maint`.
    AgentMaintenance,
    /// The agent says `drain`.
    AgentDrain,
    /// Probes fail.
    ProbeFailed,
    /// The agent says `down`.
    AgentDown,
}

/// What limits a backend that is up; stronger first. It is weaker than what the
/// packet path saw fail (spec 5.4: max load comes behind failures).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutsideLimit {
    /// The cache's state lets no new flows in.
    Capacity(CacheState),
    /// DFP, the agent or SNMP gave weight 0.
    ZeroWeight(WeightSource),
}

/// Who gave the weight in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightSource {
    /// A DFP agent.
    Dfp,
    /// The backend's own agent.
    Agent,
    /// Numbers by SNMP.
    Snmp,
}

impl WeightSource {
    /// The name in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dfp => "dfp",
            Self::Agent => "agent",
            Self::Snmp => "snmp",
        }
    }
}

impl OutsideRecord {
    /// Takes a word. True if it changed anything.
    pub fn take(&mut self, word: OutsideWord) -> bool {
        let before = self.clone();
        match word {
            OutsideWord::Probe(probe) => self.probe = probe,
            OutsideWord::Agent(agent) => self.agent = agent,
            OutsideWord::Dfp(weight) => self.dfp = weight,
            OutsideWord::Capacity(state) => self.capacity = Some(state),
            OutsideWord::SnmpWeight(weight) => self.snmp_weight = weight,
        }
        *self != before
    }

    /// What of it holds under a configuration with these sources. A cache that
    /// was never polled is OFFLINE (spec 2.1).
    pub fn under(mut self, sources: OutsideSources) -> Self {
        if !sources.probe {
            self.probe = ProbeRecord::default();
        }
        if !sources.agent {
            self.agent = AgentState::default();
        }
        if !sources.dfp {
            self.dfp = None;
        }
        self.capacity = sources
            .capacity
            .then(|| self.capacity.unwrap_or(CacheState::Offline));
        if !sources.snmp_weight {
            self.snmp_weight = None;
        }
        self
    }

    /// The weight given from outside, and by whom: DFP's, else the agent's, else
    /// SNMP's. One that speaks for a whole farm knows more than one server.
    pub fn weight(&self, configured: u32) -> Option<(u32, WeightSource)> {
        let dfp = self.dfp.map(|w| (u32::from(w), WeightSource::Dfp));
        let agent = || {
            let weight = self.agent.weight?.of(configured);
            // A percentage of a configured 0 is no word of the agent's.
            (configured > 0 || weight > 0).then_some((weight, WeightSource::Agent))
        };
        let snmp = || self.snmp_weight.map(|w| (w, WeightSource::Snmp));
        dfp.or_else(agent).or_else(snmp)
    }

    /// The strongest reason to keep flows away.
    pub fn cause(&self) -> Option<OutsideCause> {
        let administration = match self.agent.administration {
            Administration::Ready => None,
            Administration::Drain => Some(OutsideCause::AgentDrain),
            Administration::Maintenance => Some(OutsideCause::AgentMaintenance),
        };
        [
            administration,
            self.probe.is_down().then_some(OutsideCause::ProbeFailed),
            self.agent.down.then_some(OutsideCause::AgentDown),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The strongest limit. `configured` is the configured weight; `has_good`
    /// says whether another backend of the service is in a state that takes new
    /// flows, without which STRESSED ones serve.
    pub fn limit(&self, configured: u32, has_good: bool) -> Option<OutsideLimit> {
        let refused = self.capacity.filter(|state| match state.layer7().new {
            NewFlows::Allow => false,
            NewFlows::LastResort => has_good,
            NewFlows::Refuse => true,
        });
        let zero = self.weight(configured).filter(|&(weight, _)| weight == 0);
        refused
            .map(OutsideLimit::Capacity)
            .or(zero.map(|(_, source)| OutsideLimit::ZeroWeight(source)))
    }

    /// Whether it is one of those that spare STRESSED caches new flows.
    pub fn is_good(&self) -> bool {
        self.capacity.is_none_or(CacheState::is_good) && self.cause().is_none()
    }

    /// Whether open flows are to be ended because of the cache's state.
    pub fn ends_flows(&self, sources: OutsideSources) -> bool {
        let deletes = self.capacity.is_some_and(|state| !state.layer4().existing);
        sources.force_delete && deletes
    }

    /// The words behind a cause, for people.
    pub fn detail(&self, cause: OutsideCause) -> String {
        match cause {
            OutsideCause::ProbeFailed => self.probe.detail.clone(),
            OutsideCause::AgentMaintenance | OutsideCause::AgentDrain | OutsideCause::AgentDown => {
                self.agent.reason.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::agent::AgentWeight;
    use super::*;
    use OutsideCause::*;

    fn record(words: &[OutsideWord]) -> OutsideRecord {
        let mut record = OutsideRecord::default();
        for word in words {
            assert!(record.take(word.clone()), "{word:?}");
            assert!(!record.take(word.clone()), "{word:?} a second time");
        }
        record
    }

    fn probe(up: bool) -> OutsideWord {
        OutsideWord::Probe(ProbeRecord {
            up: Some(up),
            ..ProbeRecord::default()
        })
    }

    fn agent(administration: Administration, down: bool, percent: Option<u32>) -> OutsideWord {
        OutsideWord::Agent(AgentState {
            weight: percent.map(AgentWeight::Percent),
            administration,
            down,
            ..AgentState::default()
        })
    }

    #[test]
    fn the_strongest_cause_wins() {
        use Administration::{Drain, Maintenance, Ready};
        for (words, expected) in [
            (&[][..], None),
            (&[probe(true)], None),
            (&[probe(false)], Some(ProbeFailed)),
            (&[probe(false), agent(Ready, true, None)], Some(ProbeFailed)),
            (&[agent(Ready, true, Some(0))], Some(AgentDown)),
            (&[probe(false), agent(Drain, true, None)], Some(AgentDrain)),
            (
                &[probe(false), agent(Maintenance, false, None)],
                Some(AgentMaintenance),
            ),
            (&[OutsideWord::Dfp(Some(0))], None),
        ] {
            assert_eq!(record(words).cause(), expected, "{words:?}");
        }
    }

    #[test]
    fn limits() {
        use CacheState::*;
        use OutsideLimit::{Capacity, ZeroWeight};
        let capacity = OutsideWord::Capacity;
        let ready = Administration::Ready;
        for (words, has_good, expected) in [
            (&[][..], true, None),
            (&[capacity(Burdened)], false, None),
            (&[capacity(Stressed)], true, Some(Capacity(Stressed))),
            (&[capacity(Stressed)], false, None),
            (&[capacity(Overtaxed)], false, Some(Capacity(Overtaxed))),
            (
                &[capacity(Initializing)],
                false,
                Some(Capacity(Initializing)),
            ),
            (
                &[OutsideWord::Dfp(Some(0)), capacity(Halting)],
                false,
                Some(Capacity(Halting)),
            ),
            (
                &[OutsideWord::Dfp(Some(0))],
                true,
                Some(ZeroWeight(WeightSource::Dfp)),
            ),
            (
                &[agent(ready, false, Some(0))],
                true,
                Some(ZeroWeight(WeightSource::Agent)),
            ),
            (
                &[OutsideWord::SnmpWeight(Some(0))],
                true,
                Some(ZeroWeight(WeightSource::Snmp)),
            ),
        ] {
            let limit = record(words).limit(8, has_good);
            assert_eq!(limit, expected, "{words:?} {has_good}");
        }
    }

    #[test]
    fn who_gives_the_weight() {
        let words = [
            OutsideWord::SnmpWeight(Some(5)),
            agent(Administration::Ready, false, Some(50)),
            OutsideWord::Dfp(Some(24)),
        ];
        for (count, configured, expected) in [
            (0, 8, None),
            (1, 8, Some((5, WeightSource::Snmp))),
            (2, 8, Some((4, WeightSource::Agent))),
            (2, 0, Some((5, WeightSource::Snmp))),
            (3, 8, Some((24, WeightSource::Dfp))),
            (3, 0, Some((24, WeightSource::Dfp))),
        ] {
            let record = record(&words[..count]);
            assert_eq!(
                record.weight(configured),
                expected,
                "{count} of {configured}"
            );
        }
    }

    #[test]
    fn a_source_that_is_gone_has_no_word() {
        let all = record(&[
            probe(false),
            agent(Administration::Drain, true, Some(5)),
            OutsideWord::Dfp(Some(1)),
            OutsideWord::Capacity(CacheState::Halting),
            OutsideWord::SnmpWeight(Some(2)),
        ]);
        let none = OutsideSources::default();
        assert_eq!(all.clone().under(none), OutsideRecord::default());
        let every = OutsideSources {
            probe: true,
            agent: true,
            dfp: true,
            capacity: true,
            snmp_weight: true,
            force_delete: false,
        };
        assert_eq!(all.clone().under(every), all);
        let fresh = OutsideRecord::default().under(every);
        assert_eq!(fresh.capacity, Some(CacheState::Offline));
    }

    #[test]
    fn flows_are_ended_only_where_that_is_wanted() {
        for (state, force_delete, ends) in [
            (CacheState::Offline, true, true),
            (CacheState::Initializing, true, true),
            (CacheState::Halting, true, false),
            (CacheState::Overloaded, true, false),
            (CacheState::Offline, false, false),
        ] {
            let sources = OutsideSources {
                capacity: true,
                force_delete,
                ..OutsideSources::default()
            };
            let record = record(&[OutsideWord::Capacity(state)]);
            assert_eq!(record.ends_flows(sources), ends, "{state:?} {force_delete}");
        }
    }
}
