//! Weights from numbers that servers tell by SNMP.
//!
//! Two formulas, both of products that did this:
//!
//! * *least loaded* (Cisco ACE, spec 5.5): each object has a maximum and a
//!   share of 16,000; the load is the sum of share × min(1, value ÷ maximum).
//!   ACE picks the smallest load × (connections + 1) ÷ weight. Here the packet
//!   path picks by connections ÷ weight, so the weight becomes
//!   weight × 16,000 ÷ load. A load of 0 would take everything and is first
//!   adjusted, see [`Autoadjust`].
//! * *headroom* (F5 dynamic ratio): each object has a threshold T and a
//!   coefficient c; a value v gives ((T − v) ÷ T) × c, and nothing from T on.
//!   The sum, as a part of all coefficients, scales the weight.
//!
//! A *gauge* is taken as it is. A *counter* means its rate a second, from two
//! polls, and three things can spoil that (RFC 2578, 7.1.6 and 7.1.10):
//!
//! * a 32-bit counter wraps: the difference is taken modulo 2^32;
//! * the agent restarts and counts from anywhere: `sysUpTime`, polled with the
//!   counter, then does not fit the time that passed here, and the sample only
//!   starts a new difference. `sysUpTime` itself wraps after 497 days, which
//!   is no restart;
//! * answers are missing: the next rate is over the longer time, unless so much
//!   passed that a 32-bit counter could have wrapped more often than can be
//!   told; then it starts anew too.

use alloc::vec::Vec;

use super::overrides::WEIGHT_MAX;

/// What the shares of all objects of ACE's least-loaded add up to (spec 5.1).
pub const ACE_TOTAL: u32 = 16_000;

/// Longest time over which a 32-bit counter's difference is believed,
/// microseconds. Octets at 1 Gbit/s wrap 32 bits in 34 s (RFC 2863, 3.1.6), so
/// twice in 68; faster ones need 64-bit counters.
pub const COUNTER32_GAP_US: u64 = 60_000_000;

/// How far `sysUpTime` may differ from our own time before it counts as a
/// restart, microseconds, and besides 1/16 of the time that passed: agents
/// update it rarely and answers are delayed.
const UPTIME_SLACK_US: u64 = 2_500_000;

/// A polled number and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// INTEGER, Gauge32, Unsigned32, TimeTicks. Negative ones count as 0.
    Gauge(i64),
    /// Counter32.
    Counter32(u32),
    /// Counter64.
    Counter64(u64),
}

/// The last sample of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    number: Number,
    /// `sysUpTime`, hundredths of a second.
    uptime: u32,
    at_us: u64,
}

/// Turns polled numbers into values.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Point>,
}

impl Meter {
    /// Takes an answer: a gauge's value, or a counter's rate a second since
    /// the last answer. `None` where there is nothing to go by yet. `uptime` is
    /// the agent's `sysUpTime` in hundredths of a second.
    pub fn sample(&mut self, number: Number, uptime: u32, now_us: u64) -> Option<u64> {
        if let Number::Gauge(value) = number {
            self.last = None;
            return Some(u64::try_from(value).unwrap_or(0));
        }
        let point = Point {
            number,
            uptime,
            at_us: now_us,
        };
        let last = self.last.replace(point)?;
        let passed_us = now_us
            .checked_sub(last.at_us)
            .filter(|&passed| passed > 0)?;
        if restarted(last.uptime, uptime, passed_us) {
            return None;
        }
        let difference = match (last.number, number) {
            (Number::Counter32(from), Number::Counter32(to)) if passed_us <= COUNTER32_GAP_US => {
                u64::from(to.wrapping_sub(from))
            }
            // 64 bits do not wrap in anybody's lifetime.
            (Number::Counter64(from), Number::Counter64(to)) => to.checked_sub(from)?,
            _ => return None,
        };
        let rate = u128::from(difference) * 1_000_000 / u128::from(passed_us);
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// What was known is forgotten: the agent has not answered for too long.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// Whether the agent's clock did not run on.
fn restarted(from: u32, to: u32, passed_us: u64) -> bool {
    let theirs_us = u64::from(to.wrapping_sub(from)) * 10_000;
    theirs_us.abs_diff(passed_us) > UPTIME_SLACK_US + passed_us / 16
}

/// One object of least-loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadTerm {
    /// Value that means fully loaded, at least 1.
    pub maximum: u64,
    /// Share of [`ACE_TOTAL`]; those of a service add up to it.
    pub share: u32,
}

/// ACE's load of one server, 0..=[`ACE_TOTAL`]: `values` in the order of
/// `terms`.
pub fn ace_load(terms: &[LoadTerm], values: &[u64]) -> u32 {
    let sum: u64 = terms
        .iter()
        .zip(values)
        .map(|(term, &value)| {
            let maximum = term.maximum.max(1);
            let part = u128::from(value.min(maximum)) * u128::from(term.share);
            u64::try_from(part / u128::from(maximum)).unwrap_or(0)
        })
        .sum();
    u32::try_from(sum).unwrap_or(ACE_TOTAL).min(ACE_TOTAL)
}

/// What a load of 0 is taken for (spec 5.1 `autoadjust`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autoadjust {
    /// The mean of all servers that answered, itself included.
    #[default]
    Average,
    /// Full load.
    MaxLoad,
    /// 0: the server gets nearly everything until the next answer.
    Off,
}

/// Loads after adjustment; `None` for servers that gave none.
pub fn adjusted(loads: &[Option<u32>], autoadjust: Autoadjust) -> Vec<Option<u32>> {
    let known: Vec<u64> = loads.iter().flatten().map(|&load| load.into()).collect();
    let mean = known.iter().sum::<u64>().checked_div(known.len() as u64);
    let mean = mean.and_then(|mean| u32::try_from(mean).ok()).unwrap_or(0);
    let adjust = |load: u32| match (load, autoadjust) {
        (0, Autoadjust::Average) => mean,
        (0, Autoadjust::MaxLoad) => ACE_TOTAL,
        (load, _) => load,
    };
    loads.iter().map(|load| load.map(adjust)).collect()
}

/// The weight of a server with this adjusted load: weight × 16,000 ÷ load,
/// 1..=65,535, and 0 for a configured 0.
pub fn ace_weight(configured: u32, load: u32) -> u32 {
    if configured == 0 {
        return 0;
    }
    let weight = u64::from(configured) * u64::from(ACE_TOTAL) / u64::from(load.max(1));
    u32::try_from(weight.clamp(1, u64::from(WEIGHT_MAX))).unwrap_or(WEIGHT_MAX)
}

/// One object of headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadroomTerm {
    /// Value from which nothing is left, at least 1.
    pub threshold: u64,
    /// What the object counts against the others, at least 1.
    pub coefficient: u32,
}

/// The weight of a server by what it has left: 0 with nothing left of
/// anything, else at least 1.
pub fn headroom_weight(configured: u32, terms: &[HeadroomTerm], values: &[u64]) -> u32 {
    // 16 fraction bits: finer than any weight.
    const ONE: u128 = 1 << 16;
    let left: u128 = terms
        .iter()
        .zip(values)
        .map(|(term, &value)| {
            let threshold = u128::from(term.threshold.max(1));
            let left = threshold.saturating_sub(value.into());
            left * u128::from(term.coefficient) * ONE / threshold
        })
        .sum();
    let all: u128 = terms.iter().map(|term| u128::from(term.coefficient)).sum();
    if left == 0 || configured == 0 {
        return 0;
    }
    let weight = u128::from(configured) * left / (all.max(1) * ONE);
    u32::try_from(weight.clamp(1, WEIGHT_MAX.into())).unwrap_or(WEIGHT_MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use Number::{Counter32, Counter64, Gauge};

    const SECOND: u64 = 1_000_000;

    /// An answer: number, `sysUpTime`, our seconds, what comes of it.
    type Answer = (Number, u32, u64, Option<u64>);

    #[test]
    fn gauges_and_rates() {
        let scripts: [(&str, &[Answer]); 10] = [
            (
                "gauge",
                &[(Gauge(7), 0, 0, Some(7)), (Gauge(-3), 0, 1, Some(0))],
            ),
            (
                "rate",
                &[
                    (Counter32(100), 500, 5, None),
                    (Counter32(600), 1_000, 10, Some(100)),
                ],
            ),
            (
                "32-bit wrap",
                &[
                    (Counter32(u32::MAX - 99), 500, 5, None),
                    (Counter32(400), 1_000, 10, Some(100)),
                ],
            ),
            (
                "agent restart",
                &[
                    (Counter32(9_000), 100_000, 5, None),
                    (Counter32(50), 100, 10, None),
                    (Counter32(550), 600, 15, Some(100)),
                ],
            ),
            (
                "restart that counts on upwards",
                &[
                    (Counter32(10), 100_000, 5, None),
                    (Counter32(9_000), 100, 10, None),
                ],
            ),
            (
                "sysUpTime wraps without a restart",
                &[
                    (Counter32(0), u32::MAX - 99, 5, None),
                    (Counter32(500), 400, 10, Some(100)),
                ],
            ),
            (
                "missing samples",
                &[
                    (Counter32(0), 0, 0, None),
                    (Counter32(3_000), 3_000, 30, Some(100)),
                ],
            ),
            (
                "so many that 32 bits may have wrapped twice",
                &[
                    (Counter32(0), 0, 0, None),
                    (Counter32(6_100), 6_100, 61, None),
                    (Counter32(6_600), 6_600, 66, Some(100)),
                ],
            ),
            (
                "64 bits do not wrap",
                &[
                    (Counter64(0), 0, 0, None),
                    (Counter64(60_000), 60_000, 600, Some(100)),
                    (Counter64(10), 60_500, 605, None),
                ],
            ),
            (
                "another type, and the same time again",
                &[
                    (Counter32(0), 0, 1, None),
                    (Counter64(100), 100, 2, None),
                    (Counter64(200), 100, 2, None),
                    (Gauge(1), 100, 2, Some(1)),
                ],
            ),
        ];
        for (name, script) in scripts {
            let mut meter = Meter::default();
            for (step, &(number, uptime, second, expected)) in script.iter().enumerate() {
                let got = meter.sample(number, uptime, second * SECOND);
                assert_eq!(got, expected, "{name}, step {step}");
            }
        }
    }

    #[test]
    fn ace_least_loaded() {
        let terms = [
            LoadTerm {
                maximum: 100,
                share: 12_000,
            },
            LoadTerm {
                maximum: 1_000,
                share: 4_000,
            },
        ];
        for (values, load) in [
            ([0, 0], 0),
            ([50, 0], 6_000),
            ([100, 1_000], 16_000),
            ([500, 9_000], 16_000),
            ([u64::MAX, 1], 12_004),
        ] {
            assert_eq!(ace_load(&terms, &values), load, "{values:?}");
        }
        // Spec 5.6: loads 0, 4000, 8000.
        let loads = [Some(0), Some(4_000), None, Some(8_000)];
        for (autoadjust, first) in [
            (Autoadjust::Average, 4_000),
            (Autoadjust::MaxLoad, 16_000),
            (Autoadjust::Off, 0),
        ] {
            let expected = vec![Some(first), Some(4_000), None, Some(8_000)];
            assert_eq!(adjusted(&loads, autoadjust), expected, "{autoadjust:?}");
        }
        assert_eq!(adjusted(&[None, None], Autoadjust::Average), [None, None]);
        assert_eq!(adjusted(&[Some(0)], Autoadjust::Average), [Some(0)]);
        for (configured, load, weight) in [
            (8, 16_000, 8),
            (8, 8_000, 16),
            (8, 1_000, 128),
            (8, 0, 65_535),
            (8, 1, 65_535),
            (1, 16_000, 1),
            (0, 0, 0),
        ] {
            assert_eq!(ace_weight(configured, load), weight, "{configured}, {load}");
        }
    }

    #[test]
    fn f5_headroom() {
        let terms = [
            HeadroomTerm {
                threshold: 80,
                coefficient: 3,
            },
            HeadroomTerm {
                threshold: 1_000,
                coefficient: 1,
            },
        ];
        for (configured, values, weight) in [
            (100, [0, 0], 100),
            (100, [40, 0], 62),
            (100, [40, 500], 50),
            (100, [80, 500], 12),
            (100, [80, 1_000], 0),
            (100, [u64::MAX, 999], 1),
            (0, [0, 0], 0),
            (65_535, [0, 0], 65_535),
        ] {
            let got = headroom_weight(configured, &terms, &values);
            assert_eq!(got, weight, "{configured}, {values:?}");
        }
    }
}
