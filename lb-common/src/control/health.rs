//! Everything that failures say about one backend: in-band health, failure
//! detection, and what the guards need to know.
//!
//! A backend that comes back from either is ready to test: one flow must
//! complete its handshake before others follow. ACE returns it by the clock
//! alone, which with a server that is still dead costs a window of clients every
//! `resume_service`.
//!
//! Failures come as events with their client, and as counts. An event may be
//! lost, a count never; what was counted and not told of within a sample's time
//! is judged as failures of unknown clients.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::fail_detect::{FailDetect, FailDetectParameters, Phase};
use super::guard::{Guard, Ratio};
use super::inband::{Inband, InbandParameters, Outage, Verdict};

/// What a failure was (spec 5.2; envoy issue 3643: told apart).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The server reset the flow.
    Reset,
    /// The server did not answer the SYN.
    SynTimeout,
    /// An ICMP message said that the server cannot be reached.
    Unreachable(Unreachable),
}

/// ICMP unreachable messages that are failures, by the code of RFC 792.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unreachable {
    /// Code 0.
    Network,
    /// Code 1.
    Host,
    /// Code 2.
    Protocol,
    /// Code 3.
    Port,
    /// Code 5.
    SourceRoute,
}

impl Unreachable {
    /// By the code of an ICMPv4 message of type 3; `None`: no failure.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Network),
            1 => Some(Self::Host),
            2 => Some(Self::Protocol),
            3 => Some(Self::Port),
            5 => Some(Self::SourceRoute),
            _ => None,
        }
    }
}

/// One failed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index into the backend maps.
    pub backend: u16,
    /// What it was.
    pub kind: FailureKind,
    /// Stands for the client's address; `None`: not known.
    pub client: Option<u64>,
    /// Tells attempts of one client apart: its port.
    pub attempt: u16,
    /// How often its SYN was repeated.
    pub repeats: u32,
}

/// Parameters of both, and of the guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthParameters {
    /// `[service.inband_health]`
    pub inband: InbandParameters,
    /// `[service.fail_detect]`
    pub detect: FailDetectParameters,
    /// Backends of a service that failures may take out of it, percent.
    pub max_ejected_percent: u32,
}

impl Default for HealthParameters {
    /// The defaults of design 5.
    fn default() -> Self {
        Self {
            inband: InbandParameters::default(),
            detect: FailDetectParameters::default(),
            max_ejected_percent: 50,
        }
    }
}

/// How health keeps a backend's flows away; strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ill {
    /// INBAND-HM-FAILED.
    Inband(Outage),
    /// Failed by detection, with the clients that saw it.
    Failed(Outage, u32),
    /// The test flow is under way.
    Testing,
    /// Waits for its test flow.
    ReadyToTest,
}

impl Ill {
    /// Whether the backend takes no flow at all.
    pub const fn is_out(&self) -> bool {
        matches!(self, Self::Inband(_) | Self::Failed(..))
    }

    /// The outage, if it is one.
    pub const fn outage(&self) -> Option<Outage> {
        match self {
            Self::Inband(outage) | Self::Failed(outage, _) => Some(*outage),
            Self::Testing | Self::ReadyToTest => None,
        }
    }
}

/// Half of the time for which [`Recent`] looks back. Failures of one cause come
/// within seconds of each other (SYN timeouts one `syn_timeout` apart).
const RECENT_US: u64 = 10_000_000;
/// Attempts that are remembered so that they do not fail twice.
const ATTEMPTS: usize = 32;
/// For how long they are. A client that repeats a SYN gives up within about two
/// minutes (Linux: `tcp_syn_retries` 6), and its port may be another attempt's
/// from a minute on (TIME-WAIT).
const ATTEMPT_US: u64 = 60_000_000;
/// For how long a guard is shown after it held.
const SHOWN_US: u64 = 60_000_000;

/// Flows and failures of the last 10 to 20 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Recent {
    since_us: u64,
    now: Ratio,
    before: Ratio,
}

impl Recent {
    fn add(&mut self, more: Ratio, now_us: u64) {
        self.roll(now_us);
        self.now = self.now.plus(more);
    }

    fn roll(&mut self, now_us: u64) {
        let age_us = now_us.saturating_sub(self.since_us);
        if age_us >= RECENT_US {
            let fresh = age_us < 2 * RECENT_US;
            self.before = if fresh { self.now } else { Ratio::default() };
            self.now = Ratio::default();
            self.since_us = now_us;
        }
    }

    fn ratio(&self, now_us: u64) -> Ratio {
        let mut rolled = *self;
        rolled.roll(now_us);
        rolled.now.plus(rolled.before)
    }
}

/// What of it must survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRecord {
    /// In-band health.
    pub inband: Inband,
    /// Failure detection.
    pub detect: FailDetect,
}

/// What a failure leads to, before the guards are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// In-band health reached its threshold: log it.
    pub log: bool,
    /// Who wants the backend out of service.
    pub eject: Option<Ejector>,
}

/// Who takes a backend out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ejector {
    /// In-band health.
    Inband,
    /// Failure detection.
    Detect,
    /// Failure detection, of a backend that was being tested. It was out until
    /// then, so that no guard has a say.
    Test,
}

/// The health of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    record: HealthRecord,
    recent: Recent,
    /// (client, attempt, when) of failures, oldest first.
    attempts: Vec<(u64, u16, u64)>,
    held: Option<(Guard, u64)>,
    /// Flows begun, ever, when the test was first offered.
    allowed: Option<u64>,
}

impl Health {
    /// Goes on from what is remembered, with parameters that may be others.
    pub fn new(record: HealthRecord, parameters: &HealthParameters, now_us: u64) -> Self {
        let mut health = Self {
            record: HealthRecord {
                inband: record.inband.not_after(now_us),
                detect: record.detect.not_after(now_us),
            },
            recent: Recent::default(),
            attempts: Vec::new(),
            held: None,
            allowed: None,
        };
        let was_out = health.record.inband.outage().is_some();
        if health.record.inband.reconfigure(&parameters.inband, now_us) && was_out {
            health.record.detect.test();
        }
        health
    }

    /// What must survive a restart.
    pub fn record(&self) -> &HealthRecord {
        &self.record
    }

    /// What keeps flows away, if anything.
    pub fn ill(&self) -> Option<Ill> {
        let inband = self.record.inband.outage().map(Ill::Inband);
        let detect = match self.record.detect.phase() {
            Phase::InService => None,
            Phase::Failed { outage, clients } => Some(Ill::Failed(outage, clients)),
            Phase::ReadyToTest => Some(Ill::ReadyToTest),
            Phase::Testing { .. } => Some(Ill::Testing),
        };
        inband.or(detect)
    }

    /// Takes a failure. `in_rotation`: nothing but its health keeps the backend
    /// out of service.
    pub fn failure(
        &mut self,
        failure: &Failure,
        parameters: &HealthParameters,
        in_rotation: bool,
        now_us: u64,
    ) -> Judgement {
        self.recent.add(
            Ratio {
                failures: 1,
                flows: 0,
            },
            now_us,
        );
        if self.is_known(failure, now_us) {
            self.held = Some((Guard::OnePerAttempt, now_us));
            return Judgement::default();
        }
        let ill = self.ill();
        let testing = ill.is_some();
        let Verdict { log, remove } = if matches!(ill, Some(Ill::Inband(_))) {
            // Also where the outage is over: `expire` ends it, by a test.
            self.record.inband.count();
            Verdict::default()
        } else {
            let in_rotation = in_rotation && !testing;
            let inband = &mut self.record.inband;
            inband.failure(&parameters.inband, in_rotation, now_us)
        };
        let detect =
            self.record
                .detect
                .failure(&parameters.detect, failure.client, failure.repeats);
        Judgement {
            log,
            eject: match (remove, detect, testing) {
                (_, true, true) => Some(Ejector::Test),
                (true, _, _) => Some(Ejector::Inband),
                (false, true, false) => Some(Ejector::Detect),
                (false, false, _) => None,
            },
        }
    }

    /// Whether this attempt failed already within [`ATTEMPT_US`].
    fn is_known(&mut self, failure: &Failure, now_us: u64) -> bool {
        let Some(client) = failure.client else {
            return false;
        };
        self.attempts
            .retain(|&(_, _, at_us)| now_us.saturating_sub(at_us) < ATTEMPT_US);
        let same = |&(c, attempt, _): &(u64, u16, u64)| (c, attempt) == (client, failure.attempt);
        if self.attempts.iter().any(same) {
            return true;
        }
        if self.attempts.len() >= ATTEMPTS {
            self.attempts.remove(0);
        }
        self.attempts.push((client, failure.attempt, now_us));
        false
    }

    /// Takes the backend out of service.
    pub fn eject(
        &mut self,
        by: Ejector,
        parameters: &HealthParameters,
        jitter_us: u64,
        now_us: u64,
    ) {
        self.held = None;
        let record = &mut self.record;
        match by {
            Ejector::Inband => {
                record.detect.activate();
                record.inband.remove(&parameters.inband, jitter_us, now_us);
            }
            Ejector::Detect | Ejector::Test => {
                record.detect.fail(&parameters.detect, jitter_us, now_us);
            }
        }
    }

    /// A guard kept the backend in service.
    pub fn hold(&mut self, guard: Guard, now_us: u64) {
        self.held = Some((guard, now_us));
    }

    /// Takes counts: flows begun and handshakes completed since the last ones.
    /// True if the state changed.
    pub fn observe(&mut self, flows: u64, completed: u64, now_us: u64) -> bool {
        self.recent.add(Ratio { failures: 0, flows }, now_us);
        let assigned = flows > 0 && self.record.detect.assigned(now_us);
        let passed = completed > 0 && self.record.detect.success();
        assigned || passed
    }

    /// An operator enabled the backend: whatever was is forgotten.
    pub fn activate(&mut self) {
        self.record.inband.activate();
        self.record.detect.activate();
        self.held = None;
    }

    /// Ends what is over. True if the state changed.
    pub fn expire(&mut self, parameters: &HealthParameters, now_us: u64) -> bool {
        let returned = self.record.inband.expire(now_us);
        if returned {
            self.record.detect.test();
        }
        let shown = |&(_, at_us): &(Guard, u64)| now_us.saturating_sub(at_us) < SHOWN_US;
        self.held = self.held.filter(shown);
        self.record.detect.expire(&parameters.detect, now_us) || returned
    }

    /// When [`Health::expire`] next has something to do.
    pub fn poll_timeout(&self, parameters: &HealthParameters) -> Option<u64> {
        let timers = [
            self.record.inband.poll_timeout(),
            self.record.detect.poll_timeout(&parameters.detect),
        ];
        timers.into_iter().flatten().min()
    }

    /// Up to which count of flows begun, ever, a backend that is being tested may
    /// take them; `begun` is the present one. `None`: it is not being tested.
    pub fn test_allowance(&mut self, begun: u64) -> Option<u64> {
        match self.record.detect.phase() {
            Phase::ReadyToTest => {
                self.allowed = Some(begun);
                Some(begun.saturating_add(1))
            }
            Phase::Testing { failures, .. } => {
                let first = *self.allowed.get_or_insert(begun);
                Some(first.saturating_add(1).saturating_add(failures.into()))
            }
            Phase::InService | Phase::Failed { .. } => {
                self.allowed = None;
                None
            }
        }
    }

    /// The recent flows.
    pub fn recent(&self, now_us: u64) -> Ratio {
        self.recent.ratio(now_us)
    }

    /// Goes on with the recent flows and guards of the same backend before a
    /// new configuration.
    pub fn keep_shown(&mut self, former: &Self) {
        self.recent = former.recent;
        self.attempts.clone_from(&former.attempts);
        self.held = former.held;
        self.allowed = former.allowed;
    }

    /// Failures in a row and their clients, as failure detection counts them.
    pub fn towards_detection(&self) -> (u32, u32) {
        let detect = &self.record.detect;
        (detect.consecutive(), detect.clients())
    }

    /// The guards that hold, or held within the last minute.
    pub fn guards(&self) -> Vec<Guard> {
        let ill = self.ill();
        let outage = ill.and_then(|ill| ill.outage());
        let delay_us = outage.map_or(0, |outage| outage.jitter_us);
        let ready = matches!(ill, Some(Ill::Testing | Ill::ReadyToTest));
        let guards = [
            self.held.map(|(guard, _)| guard),
            (delay_us > 0).then_some(Guard::Jitter { delay_us }),
            ready.then_some(Guard::HalfOpenReturn),
        ];
        guards.into_iter().flatten().collect()
    }
}
