//! When a manager connects to an agent, and when the agent counts as lost.
//!
//! ```text
//! trying ──connect──▶ connecting ──────▶ open ──silent for `timeout`──▶ trying
//!    ▲                    │ refused        │ closed, garbage               │
//!    └──── after `interval` ◀──────────────┴───── more than `retries` ──▶ failed
//! ```
//!
//! A lost agent's weights are no longer in force; the configured ones are
//! (spec 4.4). A failed agent is left alone until the configuration is read
//! again.

/// Timing of one agent, IOS's `agent IP port [timeout [retries [interval]]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// Silence after which the agent is lost, microseconds; 0: never.
    pub timeout_us: u64,
    /// Attempts in a row without success after which it has failed; 0: none.
    pub retries: u32,
    /// Time between attempts, microseconds, at least 1 s.
    pub interval_us: u64,
}

/// Names of CISCO-SLB-DFP-MIB's agent states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStatus {
    /// Not tried yet.
    NotOpen,
    /// Waiting for the next attempt.
    Trying,
    /// An attempt is on its way.
    Connecting,
    /// Connected.
    Open,
    /// Given up.
    Failed,
    /// Waiting for the next attempt: the last message was not signed well.
    SecurityError,
}

impl AgentStatus {
    /// The name in `status` and in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotOpen => "not-open",
            Self::Trying => "trying",
            Self::Connecting => "connecting",
            Self::Open => "open",
            Self::Failed => "failed",
            Self::SecurityError => "security-error",
        }
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Connect, and report back by [`Session::opened`] or [`Session::lost`].
    Connect,
    /// The agent has been silent for too long: close.
    Close,
}

/// The state of one agent.
#[derive(Clone, Debug)]
pub struct Session {
    parameters: SessionParameters,
    status: AgentStatus,
    /// Attempts that failed since the agent was last heard.
    failures: u32,
    due_us: Option<u64>,
}

impl Session {
    /// The first attempt is due at once.
    pub fn new(parameters: SessionParameters, now_us: u64) -> Self {
        Self {
            parameters: SessionParameters {
                interval_us: parameters.interval_us.max(1_000_000),
                ..parameters
            },
            status: AgentStatus::NotOpen,
            failures: 0,
            due_us: Some(now_us),
        }
    }

    /// The agent's state.
    pub fn status(&self) -> AgentStatus {
        self.status
    }

    /// What to tell the agent of how often to report, seconds: twice in the
    /// timeout, so that one late report does not lose it.
    pub fn keepalive_s(&self) -> u32 {
        if self.parameters.timeout_us == 0 {
            return 0;
        }
        let half = self.parameters.timeout_us / 2_000_000;
        u32::try_from(half.max(1)).unwrap_or(u32::MAX)
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.due_us
    }

    /// What is due; an early call does nothing.
    pub fn handle_timeout(&mut self, now_us: u64) -> Option<Step> {
        self.due_us.filter(|&due_us| due_us <= now_us)?;
        match self.status {
            AgentStatus::NotOpen | AgentStatus::Trying | AgentStatus::SecurityError => {
                self.status = AgentStatus::Connecting;
                self.due_us = None;
                Some(Step::Connect)
            }
            AgentStatus::Open => {
                self.due_us = None;
                Some(Step::Close)
            }
            AgentStatus::Connecting | AgentStatus::Failed => None,
        }
    }

    /// The connection is there.
    pub fn opened(&mut self, now_us: u64) {
        self.status = AgentStatus::Open;
        self.wait_for_word(now_us);
    }

    /// A message came.
    pub fn heard(&mut self, now_us: u64) {
        self.failures = 0;
        self.wait_for_word(now_us);
    }

    fn wait_for_word(&mut self, now_us: u64) {
        let timeout_us = self.parameters.timeout_us;
        self.due_us = (timeout_us > 0).then(|| now_us.saturating_add(timeout_us));
    }

    /// The connection could not be made, has ended, or was closed.
    pub fn lost(&mut self, security: bool, now_us: u64) {
        self.failures = self.failures.saturating_add(1);
        let retries = self.parameters.retries;
        if retries > 0 && self.failures > retries {
            self.status = AgentStatus::Failed;
            self.due_us = None;
            return;
        }
        self.status = if security {
            AgentStatus::SecurityError
        } else {
            AgentStatus::Trying
        };
        self.due_us = Some(now_us.saturating_add(self.parameters.interval_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn session(timeout: u64, retries: u32) -> Session {
        let parameters = SessionParameters {
            timeout_us: timeout * SECOND,
            retries,
            interval_us: 180 * SECOND,
        };
        Session::new(parameters, 0)
    }

    #[test]
    fn silence_loses_an_agent_and_the_interval_brings_it_back() {
        let mut session = session(30, 0);
        assert_eq!(session.keepalive_s(), 15);
        assert_eq!(session.handle_timeout(0), Some(Step::Connect));
        assert_eq!(session.handle_timeout(0), None);
        session.opened(SECOND);
        session.heard(20 * SECOND);
        assert_eq!(session.handle_timeout(50 * SECOND - 1), None);
        assert_eq!(session.handle_timeout(50 * SECOND), Some(Step::Close));
        session.lost(false, 50 * SECOND);
        assert_eq!(session.status(), AgentStatus::Trying);
        assert_eq!(session.poll_timeout(), Some(230 * SECOND));
        assert_eq!(session.handle_timeout(230 * SECOND), Some(Step::Connect));
    }

    #[test]
    fn without_a_timeout_silence_is_no_reason() {
        let mut session = session(0, 0);
        assert_eq!(session.keepalive_s(), 0);
        session.handle_timeout(0);
        session.opened(0);
        assert_eq!(session.poll_timeout(), None);
        assert_eq!(session.handle_timeout(u64::MAX), None);
    }

    #[test]
    fn more_failures_than_retries_end_it() {
        for (retries, failed_after) in [(1, Some(2)), (3, Some(4)), (0, None)] {
            let mut session = session(0, retries);
            let failed = (1..=10).find(|_| {
                let due_us = session.poll_timeout().expect("an attempt is due");
                assert_eq!(session.handle_timeout(due_us), Some(Step::Connect));
                session.lost(false, due_us);
                session.status() == AgentStatus::Failed
            });
            assert_eq!(failed, failed_after, "{retries}");
        }
    }

    #[test]
    fn a_message_makes_up_for_failures() {
        let mut session = session(0, 1);
        for _ in 0..3 {
            let due_us = session.poll_timeout().expect("an attempt is due");
            session.handle_timeout(due_us);
            session.opened(due_us);
            session.heard(due_us);
            session.lost(true, due_us);
            assert_eq!(session.status(), AgentStatus::SecurityError);
        }
    }
}
