//! When an active probe is sent and what its results mean; sending is the
//! caller's.
//!
//! A server that is *up* goes down after `fall` failures in a row, one that is
//! *down* comes up after `rise` successes in a row. In between it is *suspect*
//! and is probed every `fast_interval`, so that a long interval does not mean a
//! late decision.
//!
//! *First start*: a server that was never probed takes flows, and its first
//! result decides at once whatever `rise` and `fall` say, as in HAProxy. *Reload
//! and restart*: [`ProbeRecord`] is kept, so nobody starts from nothing.
//!
//! Jitter spreads the probes of many servers: each is due at a random point of
//! the last tenth of its interval (`jitter_percent`), and the first at a random
//! point of the whole. Random bits are an argument.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// Longest failure text kept, bytes.
pub const DETAIL_MAX: usize = 160;

/// How a service's servers are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeParameters {
    /// Time between probes, microseconds, at least 1.
    pub interval_us: u64,
    /// The same of a suspect server.
    pub fast_interval_us: u64,
    /// Successes in a row that raise a server, at least 1.
    pub rise: u32,
    /// Failures in a row that fell a server, at least 1.
    pub fall: u32,
    /// How much earlier than the interval a probe may come, 0..=100.
    pub jitter_percent: u32,
}

/// What is known of a server, kept over reload and restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeRecord {
    /// `None`: never probed.
    pub up: Option<bool>,
    /// Results in a row that contradict `up`.
    pub streak: u32,
    /// The last failure in words; empty after a success that changed nothing.
    pub detail: String,
}

impl ProbeRecord {
    /// Whether flows are kept away.
    pub fn is_down(&self) -> bool {
        self.up == Some(false)
    }
}

/// The probe of one server.
#[derive(Clone, Debug)]
pub struct Probe {
    parameters: ProbeParameters,
    record: ProbeRecord,
    due_us: u64,
}

impl Probe {
    /// Goes on from `record`; the first probe is due within an interval.
    pub fn new(parameters: ProbeParameters, record: ProbeRecord, now_us: u64, random: u32) -> Self {
        let mut probe = Self {
            parameters: ProbeParameters {
                interval_us: parameters.interval_us.max(1),
                fast_interval_us: parameters.fast_interval_us.max(1),
                rise: parameters.rise.max(1),
                fall: parameters.fall.max(1),
                jitter_percent: parameters.jitter_percent.min(100),
            },
            record,
            due_us: now_us,
        };
        let early_us = part(probe.interval_us(), random);
        probe.due_us = now_us.saturating_add(early_us);
        probe
    }

    /// When the next probe is due.
    pub fn poll_timeout(&self) -> u64 {
        self.due_us
    }

    /// What is known.
    pub fn record(&self) -> &ProbeRecord {
        &self.record
    }

    /// Whether the last results contradict the state, or there is none yet.
    pub fn is_suspect(&self) -> bool {
        self.record.up.is_none() || self.record.streak > 0
    }

    fn interval_us(&self) -> u64 {
        if self.is_suspect() {
            self.parameters.fast_interval_us
        } else {
            self.parameters.interval_us
        }
    }

    /// Takes the result of a probe that began at `began_us`: `Err` with the
    /// failure in words. True if the record changed, which the caller must
    /// then keep.
    pub fn result(
        &mut self,
        result: Result<(), &str>,
        began_us: u64,
        now_us: u64,
        random: u32,
    ) -> bool {
        let before = (self.record.up, self.record.streak);
        let success = result.is_ok();
        match self.record.up {
            None => {
                self.record.up = Some(success);
                self.record.streak = 0;
            }
            Some(up) if up == success => self.record.streak = 0,
            Some(up) => {
                self.record.streak += 1;
                let needed = if up {
                    self.parameters.fall
                } else {
                    self.parameters.rise
                };
                if self.record.streak >= needed {
                    self.record.up = Some(success);
                    self.record.streak = 0;
                }
            }
        }
        let detail = result.err().map_or("", shortened);
        // A server that is still down keeps its reason until it is up.
        let mut changed = before != (self.record.up, self.record.streak);
        if !(success && self.record.is_down()) && self.record.detail != detail {
            self.record.detail = String::from(detail);
            changed = true;
        }
        // On the grid of the beginnings: a slow answer does not slow the pace.
        let interval_us = self.interval_us();
        let most_early_us = interval_us * u64::from(self.parameters.jitter_percent) / 100;
        let early_us = part(most_early_us, random);
        let due_us = began_us.saturating_add(interval_us - early_us);
        self.due_us = due_us.max(now_us);
        changed
    }
}

/// A random part of `whole`.
fn part(whole: u64, random: u32) -> u64 {
    let part = (u128::from(whole) * u128::from(random)) >> 32;
    u64::try_from(part).unwrap_or(whole)
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(DETAIL_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const PARAMETERS: ProbeParameters = ProbeParameters {
        interval_us: 10 * SECOND,
        fast_interval_us: SECOND,
        rise: 2,
        fall: 3,
        jitter_percent: 0,
    };

    fn record(up: Option<bool>) -> ProbeRecord {
        ProbeRecord {
            up,
            ..ProbeRecord::default()
        }
    }

    /// Runs a script of results, `+` and `-`, and writes the state after each:
    /// `U` up, `u` up and suspect, `D` down, `d` down and suspect.
    fn states(up: Option<bool>, script: &str) -> String {
        let mut probe = Probe::new(PARAMETERS, record(up), 0, 0);
        let mut states = String::new();
        for result in script.chars() {
            let now_us = probe.poll_timeout();
            let result = if result == '+' {
                Ok(())
            } else {
                Err("refused")
            };
            probe.result(result, now_us, now_us, 0);
            states.push(match (probe.record().is_down(), probe.is_suspect()) {
                (false, false) => 'U',
                (false, true) => 'u',
                (true, false) => 'D',
                (true, true) => 'd',
            });
        }
        states
    }

    #[test]
    fn rise_and_fall() {
        for (up, script, expected) in [
            (Some(true), "+++", "UUU"),
            (Some(true), "--+--+", "uuUuuU"),
            (Some(true), "---", "uuD"),
            (Some(false), "-+-+", "DdDd"),
            (Some(false), "++", "dU"),
            (Some(true), "---++---", "uuDdUuuD"),
            // The first result ever decides.
            (None, "-", "D"),
            (None, "+", "U"),
            (None, "-++", "DdU"),
        ] {
            assert_eq!(states(up, script), expected, "{up:?} {script}");
        }
    }

    #[test]
    fn a_suspect_is_probed_sooner() {
        let mut probe = Probe::new(PARAMETERS, record(Some(true)), 0, 0);
        assert_eq!(probe.poll_timeout(), 0);
        // Each result takes a tenth of a second; beginnings keep the pace.
        let mut at = |result: Result<(), &str>, expected_s: u64| {
            let began_us = probe.poll_timeout();
            probe.result(result, began_us, began_us + SECOND / 10, 0);
            assert_eq!(probe.poll_timeout(), expected_s * SECOND, "{result:?}");
        };
        at(Ok(()), 10);
        at(Err("x"), 11);
        at(Err("x"), 12);
        at(Err("x"), 22);
        at(Ok(()), 23);
        at(Ok(()), 33);
        // A result later than the next beginning: at once.
        probe.result(Err("timeout"), 33 * SECOND, 40 * SECOND, 0);
        assert_eq!(probe.poll_timeout(), 40 * SECOND);
    }

    #[test]
    fn jitter_is_early_and_within_its_bound() {
        let parameters = ProbeParameters {
            jitter_percent: 10,
            ..PARAMETERS
        };
        for (random, first_us, next_us) in [
            (0, 0, 10 * SECOND),
            (1 << 31, 5 * SECOND, 9_500_000),
            (u32::MAX, 9_999_999, 9_000_001),
        ] {
            let mut probe = Probe::new(parameters, record(Some(true)), 0, random);
            assert_eq!(probe.poll_timeout() / 10, first_us / 10);
            probe.result(Ok(()), 0, 0, random);
            assert_eq!(probe.poll_timeout() / 10, next_us / 10);
        }
    }

    #[test]
    fn what_changes_is_told_and_the_reason_stays_while_down() {
        let mut probe = Probe::new(PARAMETERS, record(None), 0, 0);
        let mut take = |result| {
            let changed = probe.result(result, 0, 0, 0);
            (changed, probe.record().detail.clone())
        };
        assert_eq!(take(Ok(())), (true, "".into()));
        assert_eq!(take(Ok(())), (false, "".into()));
        assert_eq!(take(Err("refused")), (true, "refused".into()));
        assert_eq!(take(Err("timeout")), (true, "timeout".into()));
        assert_eq!(take(Err("timeout")), (true, "timeout".into()));
        assert_eq!(take(Err("timeout")), (false, "timeout".into()));
        assert_eq!(take(Ok(())), (true, "timeout".into()));
        assert_eq!(take(Ok(())), (true, "".into()));
        let long = "ü".repeat(DETAIL_MAX);
        assert!(take(Err(&long)).1.len() <= DETAIL_MAX);
    }
}
