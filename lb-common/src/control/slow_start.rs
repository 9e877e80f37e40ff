//! Slow start: what a backend that came into service may take in each second
//! (Brocade Virtual ADX; dummy connections from Cisco IOS SLB).
//!
//! Three ramps, all counted from the entry into service. The second that begins
//! with the entry is the first (spec 3.2):
//!
//! | ramp | of | length | new flows a second | concurrent flows |
//! |---|---|---|---|---|
//! | default | a port | 60 s | 10, 20, 30, 40, 50, 100 for 10 s each | sum of the rates so far |
//! | list | a port | `interval1` + `interval2` | `rate1`, then `rate2` | sum of the rates so far, at most `maximum` |
//! | server | all ports of an address | 30 s | - | 10 × n to second 20, then 20 × n |
//!
//! A list's `maximum` stays in force after its ramp.
//!
//! *What it catches*: a cold server that the algorithm would give everything
//! because it has nothing. *What it misses*: warming by time says nothing of
//! whether the server is warm. Least connections get *dummy connections* as
//! well: without them a rate of 10 a second is all for the newcomer, none for
//! its peers, until the counts are level.
//!
//! The packet path knows limits of backends alone. What an address may take is
//! dealt out to its backends ([`deal`]), so that no packet counts by address.

use alloc::vec::Vec;

/// Microseconds in a second.
pub const SECOND_US: u64 = 1_000_000;
/// Length of the default port ramp, seconds (spec 3.1).
pub const PORT_SECONDS: u64 = 60;
/// Length of the server ramp, seconds (spec 3.1).
pub const SERVER_SECONDS: u64 = 30;
/// Time over which dummy connections go, seconds (spec 4.3).
pub const DUMMY_SECONDS: u64 = 30;
/// New flows a second in each tenth of a default minute (spec 3.1).
const PORT_RATES: [u32; 6] = [10, 20, 30, 40, 50, 100];
/// Seconds for which each of [`PORT_RATES`] holds.
const BAND_SECONDS: u64 = 10;
/// Concurrent flows of a server per second up to second 20, and after it
/// (spec 3.2, Table 21 of the guide).
const SERVER_STEPS: (u32, u32) = (10, 20);
/// The second from which on the second step counts.
const SERVER_TURN: u64 = 21;

/// How a service's backends warm up, `[service.slow_start] ramp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ramp {
    /// The default port ramp and the server ramp.
    #[default]
    Default,
    /// None at all.
    Off,
    /// A list in place of the default port ramp, and the server ramp.
    List(RampList),
}

/// A user's list, `slow-start ID R1 I1 R2 I2 MAX`. Every value is
/// 1..=1,000,000 (spec 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RampList {
    /// New flows a second at first.
    pub rate1: u32,
    /// Seconds for which `rate1` holds.
    pub interval1_s: u32,
    /// New flows a second after that.
    pub rate2: u32,
    /// Seconds for which `rate2` holds.
    pub interval2_s: u32,
    /// Most concurrent flows, during the ramp and ever after.
    pub maximum: u32,
}

/// What holds in one second of a port's ramp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// New flows in this second.
    pub rate: u32,
    /// Concurrent flows.
    pub ceiling: u32,
}

/// The ordinal second of a time since the entry: the first is 1 (spec 3.2).
pub const fn second(elapsed_us: u64) -> u64 {
    elapsed_us / SECOND_US + 1
}

impl Ramp {
    /// Length of the port's ramp, seconds.
    pub fn seconds(&self) -> u64 {
        match self {
            Self::Default => PORT_SECONDS,
            Self::Off => 0,
            Self::List(list) => u64::from(list.interval1_s) + u64::from(list.interval2_s),
        }
    }

    /// Whether an address's own ramp counts.
    pub fn limits_servers(&self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Most concurrent flows whatever the time.
    pub fn maximum(&self) -> Option<u32> {
        match self {
            Self::Default | Self::Off => None,
            Self::List(list) => Some(list.maximum),
        }
    }

    /// The first second after `second` with another rate; `None`: none within
    /// the ramp.
    pub fn turn_after(&self, second: u64) -> Option<u64> {
        let turn = match self {
            Self::Off => return None,
            Self::Default => second.div_ceil(BAND_SECONDS) * BAND_SECONDS + 1,
            Self::List(list) => u64::from(list.interval1_s) + 1,
        };
        (turn > second && turn <= self.seconds()).then_some(turn)
    }

    /// What holds in `second` (1 is the first); `None` past the ramp.
    pub fn limits(&self, second: u64) -> Option<Limits> {
        if !(1..=self.seconds()).contains(&second) {
            return None;
        }
        match self {
            Self::Off => None,
            Self::Default => {
                let band = (second - 1) / BAND_SECONDS;
                let (full, _) = PORT_RATES.split_at(band as usize);
                let rate = *PORT_RATES.get(band as usize)?;
                let within = (second - band * BAND_SECONDS) as u32;
                let ceiling = full.iter().sum::<u32>() * BAND_SECONDS as u32 + rate * within;
                Some(Limits { rate, ceiling })
            }
            Self::List(list) => {
                let (first, turn) = (second.min(list.interval1_s.into()), list.interval1_s);
                let after = second.saturating_sub(turn.into());
                // 2 × 10^6 × 10^6 at most.
                let flows = u64::from(list.rate1) * first + u64::from(list.rate2) * after;
                Some(Limits {
                    rate: if after == 0 { list.rate1 } else { list.rate2 },
                    ceiling: flows.min(list.maximum.into()) as u32,
                })
            }
        }
    }
}

/// Concurrent flows of all ports of an address in `second` of its ramp (1 is
/// the first); `None` past it.
pub fn server_ceiling(second: u64) -> Option<u32> {
    if !(1..SERVER_SECONDS).contains(&second) {
        return None;
    }
    let (before, after) = SERVER_STEPS;
    let step = if second < SERVER_TURN { before } else { after };
    Some(step * second as u32)
}

/// Deals what an address may take to its backends, each given as its concurrent
/// flows: everyone keeps what it has, and the rest goes round evenly, the
/// remainder to the first ones. Together that is `ceiling`, unless there are
/// more flows already.
pub fn deal(ceiling: u32, active: &[u32]) -> Vec<u32> {
    let held: u64 = active.iter().map(|&flows| u64::from(flows)).sum();
    let room = u64::from(ceiling).saturating_sub(held);
    let hands = (active.len() as u64).max(1);
    (0..)
        .zip(active)
        .map(|(position, &flows)| {
            let dealt = room / hands + u64::from(position < room % hands);
            // `dealt` is at most `ceiling`.
            flows.saturating_add(dealt as u32)
        })
        .collect()
}

/// Dummy connections of a backend of `weight` that comes among others, each
/// given as (flows, weight): as many as lift its metric to the lowest of theirs
/// (spec 4.3). None without another.
pub fn dummies_at_entry(weight: u32, others: impl IntoIterator<Item = (u64, u32)>) -> u32 {
    let lowest = others
        .into_iter()
        .filter(|&(_, weight)| weight > 0)
        .min_by(|a, b| {
            let (left, right) = (
                u128::from(a.0) * u128::from(b.1),
                u128::from(b.0) * u128::from(a.1),
            );
            left.cmp(&right)
        });
    lowest.map_or(0, |(flows, theirs)| {
        let dummies = u128::from(weight) * u128::from(flows) / u128::from(theirs);
        u32::try_from(dummies).unwrap_or(u32::MAX)
    })
}

/// What is left of `initial` dummy connections some time after the entry: they
/// go linearly.
pub fn dummies_left(initial: u32, elapsed_us: u64) -> u32 {
    let length_us = DUMMY_SECONDS * SECOND_US;
    let left_us = length_us.saturating_sub(elapsed_us);
    // 32 + 25 bits; the quotient is at most `initial`.
    (u64::from(initial) * left_us / length_us) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_dealt_out() {
        // Ceiling, flows; ceilings.
        type Row = (u32, &'static [u32], &'static [u32]);
        let rows: &[Row] = &[
            (10, &[0], &[10]),
            (10, &[4], &[10]),
            (10, &[10], &[10]),
            (10, &[12], &[12]),
            (10, &[0, 0], &[5, 5]),
            (10, &[0, 0, 0], &[4, 3, 3]),
            (10, &[7, 0], &[9, 1]),
            (10, &[9, 9], &[9, 9]),
            (10, &[], &[]),
            (u32::MAX, &[u32::MAX, 1], &[u32::MAX, 1]),
        ];
        for &(ceiling, active, dealt) in rows {
            assert_eq!(deal(ceiling, active), dealt, "{ceiling} {active:?}");
        }
    }

    #[test]
    fn dummies() {
        // Weight, others; dummies.
        type Row = (u32, &'static [(u64, u32)], u32);
        let rows: &[Row] = &[
            (1, &[(100, 1), (100, 1)], 100),
            (1, &[(100, 1), (90, 1), (0, 0)], 90),
            (3, &[(100, 2)], 150),
            (1, &[(100, 3)], 33),
            (1, &[], 0),
            (1, &[(5, 0)], 0),
            (0, &[(100, 1)], 0),
            (65_535, &[(u64::MAX, 1)], u32::MAX),
        ];
        for &(weight, others, expected) in rows {
            let found = dummies_at_entry(weight, others.iter().copied());
            assert_eq!(found, expected, "{weight} {others:?}");
        }
        let second = SECOND_US;
        for (elapsed_us, left) in [(0, 100), (15 * second, 50), (30 * second, 0), (u64::MAX, 0)] {
            assert_eq!(dummies_left(100, elapsed_us), left, "{elapsed_us}");
        }
    }
}
