//! What keeps the controller from doing harm when it takes a backend out of
//! service on its own, or lets it back in (design 4). Each guard has a name,
//! which `status` shows while it holds.
//!
//! | guard | holds |
//! |---|---|
//! | `last-usable` | the service would have no backend left (envoy issue 34796) |
//! | `max-ejected-percent` | too large a part of the service would be out (envoy issue 2671) |
//! | `like-peers` | its failure ratio is that of its peers: the cause is elsewhere, and so would the cure be |
//! | `one-per-attempt` | an attempt that has failed already fails again, which counts once (haproxy's and IOS's retries) |
//! | `half-open-return` | a removed backend is back: one flow must complete its handshake first (envoy issue 39368) |
//! | `jitter` | other backends are out too: their returns are spread (envoy issue 19869) |
//!
//! An attacker can make a server reset flows of his. That costs him real
//! connections, and buys at most `max_ejected_percent` of a service, one
//! backend at a time, none that other clients find well, and none for longer than
//! the next test.

use serde::{Deserialize, Serialize};

/// Flows and failures of a recent time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ratio {
    /// Flows that failed.
    pub failures: u64,
    /// Flows begun; at least as many as failed.
    pub flows: u64,
}

impl Ratio {
    /// The sum.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            failures: self.failures.saturating_add(other.failures),
            flows: self.flows.saturating_add(other.flows),
        }
    }

    /// Flows begun. A failure may be told of before its flow is counted.
    fn whole(self) -> u64 {
        self.flows.max(self.failures)
    }

    /// Compares with the ratio of another.
    fn compare(self, other: Self) -> core::cmp::Ordering {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b.max(1));
        product(self.failures, other.whole()).cmp(&product(other.failures, self.whole()))
    }

    /// In percent, rounded down.
    pub fn percent(self) -> u64 {
        self.failures.saturating_mul(100) / self.whole().max(1)
    }
}

/// A backend as the guards see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Takes new flows.
    pub usable: bool,
    /// File and operators want it to take flows.
    pub wanted: bool,
    /// Out of service by the controller's own judgement of failures.
    pub ejected: bool,
    /// Its recent flows.
    pub recent: Ratio,
}

/// What holds, with the numbers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// It is the last usable backend.
    LastUsable,
    /// Too many are out.
    MaxEjected {
        /// Out already.
        ejected: u32,
        /// Wanted in service.
        wanted: u32,
        /// How many of them may be out, percent.
        percent: u32,
    },
    /// It fails no more than its peers do.
    LikePeers {
        /// Its own failures, percent.
        own_percent: u64,
        /// Those of the peer at the lower quartile, percent.
        peer_percent: u64,
    },
    /// The failure is of an attempt that failed already.
    OnePerAttempt,
    /// One flow first.
    HalfOpenReturn,
    /// Not all at once.
    Jitter {
        /// By how much the return is later, microseconds.
        delay_us: u64,
    },
}

impl Guard {
    /// The name in `status`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::LastUsable => "last-usable",
            Self::MaxEjected { .. } => "max-ejected-percent",
            Self::LikePeers { .. } => "like-peers",
            Self::OnePerAttempt => "one-per-attempt",
            Self::HalfOpenReturn => "half-open-return",
            Self::Jitter { .. } => "jitter",
        }
    }
}

impl core::fmt::Display for Guard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::LastUsable => write!(f, "it is the last usable backend of the service"),
            Self::MaxEjected {
                ejected,
                wanted,
                percent,
            } => write!(
                f,
                "{ejected} of {wanted} backends are out already, and at most {percent} % may be"
            ),
            Self::LikePeers {
                own_percent,
                peer_percent,
            } => write!(
                f,
                "{own_percent} % of its flows fail and {peer_percent} % of its peers': the cause \
                 is not this backend"
            ),
            Self::OnePerAttempt => write!(f, "an attempt that failed twice counts once"),
            Self::HalfOpenReturn => write!(f, "one flow must complete its handshake first"),
            Self::Jitter { delay_us } => write!(
                f,
                "it stays out {:.1} s longer, so that not all come back at once",
                *delay_us as f64 / 1e6
            ),
        }
    }
}

/// Flows from which on a peer's ratio says something.
const PEER_FLOWS: u64 = 4;
/// A ratio up to so many times a peer's is like it. A dead server among good
/// ones fails all its flows and they hardly any; a cause that hits all of them
/// hits them alike, give or take what chance does to a few flows.
const ALIKE: u64 = 2;

/// What forbids to take the backend at `position` out of service, if anything.
///
/// The peer that it is compared with is the one at the lower quartile: half of
/// a service may have failed together, and its failures must not excuse each
/// other.
pub fn judge(position: usize, peers: &[Peer], max_ejected_percent: u32) -> Option<Guard> {
    let own = peers.get(position)?;
    let others = || {
        let numbered = peers.iter().enumerate();
        numbered.filter_map(|(at, peer)| (at != position).then_some(peer))
    };
    if !others().any(|peer| peer.usable) {
        return Some(Guard::LastUsable);
    }
    let count = |which: fn(&&Peer) -> bool| peers.iter().filter(which).count() as u32;
    let (wanted, ejected) = (count(|peer| peer.wanted), count(|peer| peer.ejected));
    if (u64::from(ejected) + 1) * 100 > u64::from(max_ejected_percent) * u64::from(wanted) {
        return Some(Guard::MaxEjected {
            ejected,
            wanted,
            percent: max_ejected_percent,
        });
    }
    let mut ratios: alloc::vec::Vec<Ratio> = others()
        .map(|peer| peer.recent)
        .filter(|recent| recent.whole() >= PEER_FLOWS)
        .collect();
    ratios.sort_unstable_by(|a, b| a.compare(*b));
    let peer = *ratios.get(ratios.len().saturating_sub(1) / 4)?;
    let alike = Ratio {
        failures: peer.failures.saturating_mul(ALIKE),
        flows: peer.whole(),
    };
    // `alike` may exceed 1; only the products are compared.
    let own_part = u128::from(own.recent.failures) * u128::from(alike.flows);
    let peer_part = u128::from(alike.failures) * u128::from(own.recent.whole());
    (peer.failures > 0 && own_part <= peer_part).then_some(Guard::LikePeers {
        own_percent: own.recent.percent(),
        peer_percent: peer.percent(),
    })
}

/// Largest part of an outage by which jitter lengthens it: a tenth.
const JITTER_PART: u64 = 10;

/// By how much an outage of `length_us` is lengthened, microseconds: nothing
/// while no other backend is out, else up to a tenth, by 32 random bits.
pub fn jitter_us(length_us: u64, others_out: bool, bits: u32) -> u64 {
    if !others_out {
        return 0;
    }
    let most_us = u128::from(length_us / JITTER_PART);
    ((most_us * u128::from(bits)) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `u` usable, `e` ejected, `g` gated; each with failures and flows.
    fn peers(text: &str, ratios: &[(u64, u64)]) -> alloc::vec::Vec<Peer> {
        text.chars()
            .zip(ratios)
            .map(|(kind, &(failures, flows))| Peer {
                usable: kind == 'u',
                wanted: kind != 'g',
                ejected: kind == 'e',
                recent: Ratio { failures, flows },
            })
            .collect()
    }

    #[test]
    fn who_is_kept() {
        const BAD: (u64, u64) = (9, 9);
        const GOOD: (u64, u64) = (0, 50);
        // Peers (the first one is judged), their flows, percent; guard.
        type Row = (&'static str, &'static [(u64, u64)], u32, &'static str);
        let rows: &[Row] = &[
            ("u", &[BAD], 100, "last-usable"),
            ("ue", &[BAD, BAD], 100, "last-usable"),
            ("ug", &[BAD, GOOD], 100, "last-usable"),
            ("uu", &[BAD, GOOD], 50, ""),
            ("uu", &[BAD, GOOD], 49, "max-ejected-percent"),
            ("uu", &[BAD, GOOD], 0, "max-ejected-percent"),
            ("uue", &[BAD, GOOD, BAD], 50, "max-ejected-percent"),
            ("uueu", &[BAD, GOOD, BAD, GOOD], 50, ""),
            // Gated ones are not counted: one of two is half of them.
            ("uug", &[BAD, GOOD, GOOD], 40, "max-ejected-percent"),
            // All alike.
            ("uuu", &[BAD, BAD, BAD], 50, "like-peers"),
            ("uuu", &[(5, 50), (4, 50), (6, 50)], 50, "like-peers"),
            ("uuu", &[(5, 50), (3, 50), (6, 50)], 50, "like-peers"),
            ("uuu", &[(9, 50), (3, 50), (4, 50)], 50, ""),
            // Half of them failed together.
            ("uuuu", &[BAD, BAD, GOOD, GOOD], 50, ""),
            ("uuuu", &[BAD, BAD, BAD, GOOD], 75, ""),
            // Peers of which too little is known say nothing.
            ("uu", &[BAD, (3, 3)], 50, ""),
            ("uu", &[BAD, (0, 0)], 50, ""),
            // A failure told of before its flow was counted.
            ("uu", &[(9, 0), (9, 0)], 50, "like-peers"),
        ];
        for &(text, ratios, percent, expected) in rows {
            let found = judge(0, &peers(text, ratios), percent);
            let name = found.as_ref().map_or("", Guard::as_str);
            assert_eq!(name, expected, "{text} {ratios:?} {percent}: {found:?}");
        }
        assert_eq!(judge(0, &[], 50), None);
    }

    #[test]
    fn returns_are_spread_over_a_tenth() {
        for (length, out, bits, expected) in [
            (30_000_000, false, u32::MAX, 0),
            (30_000_000, true, 0, 0),
            (30_000_000, true, 1 << 31, 1_500_000),
            (30_000_000, true, u32::MAX, 2_999_999),
            (0, true, u32::MAX, 0),
            (u64::MAX, true, u32::MAX, 1_844_674_406_941_458_431),
        ] {
            assert_eq!(jitter_us(length, out, bits), expected, "{length} {bits}");
        }
    }
}
