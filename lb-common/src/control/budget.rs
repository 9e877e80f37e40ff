//! Budgets: what the packet path is told of a backend's limits.
//!
//! A rate is given as a count. A budget says up to which number of flows, counted
//! from the beginning of the map, a backend may take them; at every second of a
//! ramp that becomes the present count and the second's rate. So no packet resets
//! a counter or knows of seconds, and a late daemon gives less, never more.
//!
//! All but `maximum` are for the time of a warm-up: they expire by themselves a
//! few seconds after the daemon last renewed them, and yield where they would
//! leave a flow without any backend.

use super::slow_start::SECOND_US;

/// How long a budget is valid, microseconds: three times the pace at which it
/// is renewed, so that a daemon that is late once lifts nothing.
pub const BUDGET_US: u64 = 3 * SECOND_US;

/// Limits of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// No new flow once so many have begun, ever (`Live::half_opened`).
    pub begun: Option<u64>,
    /// No new flow while so many are in the handshake or past it.
    pub ceiling: Option<u32>,
    /// The same, for ever.
    pub maximum: Option<u32>,
    /// Flows that least connections count in addition.
    pub dummies: u32,
}

impl Budget {
    /// Whether anything of it expires.
    pub(super) fn expires(&self) -> bool {
        self.begun.is_some() || self.ceiling.is_some() || self.dummies > 0
    }
}

/// The count up to which flows may begin in one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    second: u64,
    begun: u64,
}

/// What was granted and written for one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Budgeting {
    grant: Option<Grant>,
    written: Budget,
    renew_us: u64,
}

impl Budgeting {
    /// The count up to which flows may begin in `second` at `rate`, given how
    /// many have begun.
    pub(super) fn grant(&mut self, second: u64, rate: u32, begun: u64) -> u64 {
        let grant = match self.grant {
            Some(grant) if grant.second == second => grant,
            Some(_) | None => Grant {
                second,
                begun: begun.saturating_add(rate.into()),
            },
        };
        self.grant = Some(grant);
        grant.begun
    }

    /// No ramp: the next one is granted anew.
    pub(super) fn end(&mut self) {
        self.grant = None;
    }

    /// Whether `budget` must be written at `now_us`: it is another one, or
    /// about to expire.
    pub(super) fn write(&mut self, budget: Budget, now_us: u64) -> bool {
        let due = budget.expires() && self.renew_us <= now_us;
        if self.written == budget && !due {
            return false;
        }
        self.written = budget;
        self.renew_us = now_us.saturating_add(SECOND_US);
        true
    }

    /// What the packet path has.
    pub(super) fn written(&self) -> &Budget {
        &self.written
    }

    /// When it must be renewed.
    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.written.expires().then_some(self.renew_us)
    }
}
