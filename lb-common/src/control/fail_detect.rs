//! Failure detection of one backend, as Cisco IOS SLB does it (spec 4.2, 4.3).
//!
//! ```text
//! in service -failures reached-> failed -retry-> ready to test -a flow-> testing
//! testing -handshake completed-> in service        testing -fails-> failed
//! ```
//!
//! A backend fails once `connections` flows in a row have failed, of at least
//! `clients` different clients. A completed handshake sets both counts to zero.
//!
//! *What it catches*: a dead server, however quiet. *What it misses*: a server
//! that completes handshakes and then misbehaves, which in-band health and the
//! adaptive load see. One client alone can do nothing with `clients` of 2.
//! *Recovery* is by proof: one flow, and the next ones only after its handshake.
//!
//! Readings (spec 4.6): the count *reaches* `connections`; both counts are kept.
//! "The failing test connection must have seen at least one retry": a test has
//! failed when its flow failed after a repeated SYN, or when a second one
//! failed.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::inband::Outage;

/// Parameters, `[service.fail_detect]` (spec 4.1). Reassignment of a flow is
/// the packet path's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailDetectParameters {
    /// Failures in a row that are too many, 1..=255. 0: off.
    pub connections: u32,
    /// Clients that must have seen them, 1..=8.
    pub clients: u32,
    /// How long a failed backend gets no flow, microseconds; 1 to 3,600 s. 0:
    /// until an operator enables it.
    pub retry_us: u64,
    /// How long a test may go on without a result, microseconds; then its flow
    /// is gone, and another one is the test.
    pub test_us: u64,
}

impl Default for FailDetectParameters {
    /// The defaults of design 5 and spec 4.1.
    fn default() -> Self {
        Self {
            connections: 8,
            clients: 2,
            retry_us: 60_000_000,
            test_us: 15_000_000,
        }
    }
}

/// Where a backend is in the cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Takes flows.
    #[default]
    InService,
    /// Takes none.
    Failed {
        /// For how long.
        outage: Outage,
        /// Clients that saw the failures.
        clients: u32,
    },
    /// Takes one flow.
    ReadyToTest,
    /// That flow is under way.
    Testing {
        /// Since when, monotonic microseconds.
        since_us: u64,
        /// Test flows that have failed without a retry.
        failures: u32,
    },
}

/// The state of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailDetect {
    phase: Phase,
    consecutive: u32,
    /// The first `clients` of them.
    clients: Vec<u64>,
}

impl FailDetect {
    /// Where it is in the cycle.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Failures in a row so far.
    pub fn consecutive(&self) -> u32 {
        self.consecutive
    }

    /// Clients that saw them, as far as counted.
    pub fn clients(&self) -> u32 {
        self.clients.len() as u32
    }

    /// Counts a failed flow of a client, if that is known, whose SYN came
    /// `repeats` more times. True if the backend should fail:
    /// [`FailDetect::fail`].
    pub fn failure(
        &mut self,
        parameters: &FailDetectParameters,
        client: Option<u64>,
        repeats: u32,
    ) -> bool {
        match &mut self.phase {
            // Only flows from before: they say nothing of the server now.
            Phase::Failed { .. } | Phase::ReadyToTest => false,
            Phase::Testing { failures, .. } => {
                *failures = failures.saturating_add(1);
                repeats > 0 || *failures > 1
            }
            Phase::InService => {
                if parameters.connections == 0 {
                    return false;
                }
                self.consecutive = self.consecutive.saturating_add(1);
                if let Some(client) = client
                    && self.clients() < parameters.clients
                    && !self.clients.contains(&client)
                {
                    self.clients.push(client);
                }
                self.consecutive >= parameters.connections && self.clients() >= parameters.clients
            }
        }
    }

    /// Takes the backend out of service. `jitter_us` lengthens an outage that
    /// ends by itself.
    pub fn fail(&mut self, parameters: &FailDetectParameters, jitter_us: u64, now_us: u64) {
        let timed = parameters.retry_us > 0;
        let length_us = parameters.retry_us.saturating_add(jitter_us);
        let failures = match self.phase {
            Phase::Testing { failures, .. } => failures,
            Phase::InService | Phase::Failed { .. } | Phase::ReadyToTest => self.consecutive,
        };
        self.phase = Phase::Failed {
            outage: Outage {
                since_us: now_us,
                until_us: timed.then(|| now_us.saturating_add(length_us)),
                failures,
                jitter_us: if timed { jitter_us } else { 0 },
            },
            clients: self.clients(),
        };
        self.clear();
    }

    fn clear(&mut self) {
        self.consecutive = 0;
        self.clients.clear();
    }

    /// A flow was assigned to the backend. True if it is the test.
    pub fn assigned(&mut self, now_us: u64) -> bool {
        let test = self.phase == Phase::ReadyToTest;
        if test {
            self.phase = Phase::Testing {
                since_us: now_us,
                failures: 0,
            };
        }
        test
    }

    /// A flow completed its handshake. True if that was the test.
    pub fn success(&mut self) -> bool {
        self.clear();
        let passed = matches!(self.phase, Phase::Testing { .. });
        if passed {
            self.phase = Phase::InService;
        }
        passed
    }

    /// The backend is to prove itself by one flow.
    pub fn test(&mut self) {
        self.clear();
        self.phase = Phase::ReadyToTest;
    }

    /// In service, by an operator's word.
    pub fn activate(&mut self) {
        self.clear();
        self.phase = Phase::InService;
    }

    /// Ends an outage that is over, or a test without a result: ready to test.
    /// True if it did.
    pub fn expire(&mut self, parameters: &FailDetectParameters, now_us: u64) -> bool {
        let due_us = self.poll_timeout(parameters);
        let over = due_us.is_some_and(|due_us| due_us <= now_us);
        if over {
            self.test();
        }
        over
    }

    /// When [`FailDetect::expire`] next has something to do.
    pub fn poll_timeout(&self, parameters: &FailDetectParameters) -> Option<u64> {
        match self.phase {
            Phase::Failed { outage, .. } => outage.until_us,
            Phase::Testing { since_us, .. } => Some(since_us.saturating_add(parameters.test_us)),
            Phase::InService | Phase::ReadyToTest => None,
        }
    }

    /// The same with no time later than `now_us` but that of a return.
    pub(super) fn not_after(mut self, now_us: u64) -> Self {
        match &mut self.phase {
            Phase::Failed { outage, .. } => *outage = outage.not_after(now_us),
            Phase::Testing { since_us, .. } => *since_us = (*since_us).min(now_us),
            Phase::InService | Phase::ReadyToTest => {}
        }
        self
    }
}
