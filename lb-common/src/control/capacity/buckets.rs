//! Layer-4 hash buckets: which cache holds what, who helps out, and how the
//! flows come home (spec 2.3).
//!
//! A flow's addresses choose one of 256 buckets, and each bucket has a *home*,
//! the cache that got its first flow. While the home takes no new flows they
//! *overflow* to another one. Overflow never changes the home, so what was
//! cached there is used again as soon as the home has recovered; only a cache
//! that goes away (HALTING, OFFLINE) loses its homes. With nobody left a flow
//! goes past the caches, to the origin.

use alloc::vec;
use alloc::vec::Vec;

use super::{CacheState, NewFlows};

/// Buckets of a cache group (spec 2.1).
pub const BUCKETS: usize = 256;

/// Which bits of the addresses decide the bucket; `hash-mask` of the ServerIron.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashMask {
    /// Bits of the destination address that count.
    pub destination: u32,
    /// Bits of the source address that count.
    pub source: u32,
}

impl HashMask {
    /// 255.255.255.0 0.0.0.0: all of a destination network goes to one cache,
    /// whoever asks (spec 2.1).
    pub const DEFAULT: Self = Self {
        destination: 0xffff_ff00,
        source: 0,
    };

    /// The bucket of a flow. The manual does not publish the hash; the sum of
    /// the masked addresses' bytes spreads any run of networks evenly.
    pub fn bucket(self, destination: u32, source: u32) -> u8 {
        let masked = [destination & self.destination, source & self.source];
        let bytes = masked.into_iter().flat_map(u32::to_be_bytes);
        bytes.fold(0, u8::wrapping_add)
    }
}

/// Where a new flow goes. Caches are positions in configuration order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To the home of its bucket, which it may just have become.
    Home(usize),
    /// To another cache for now; the bucket's home, if any, stays.
    Overflow(usize),
    /// To the origin: no cache takes it.
    Bypass,
}

impl Choice {
    /// The cache, if any.
    pub const fn cache(self) -> Option<usize> {
        match self {
            Self::Home(cache) | Self::Overflow(cache) => Some(cache),
            Self::Bypass => None,
        }
    }
}

/// The buckets of one group of caches.
#[derive(Clone, Debug)]
pub struct Buckets {
    states: Vec<CacheState>,
    home: Vec<Option<usize>>,
    /// States up to this one help out for a STRESSED home. The manual's Table
    /// 9 and Table 11 differ on BURDENED; the spec (2.5) reads 1 to 3.
    helps: CacheState,
}

impl Buckets {
    /// A group of `caches`, all OFFLINE. `burdened_helps` is the reading of
    /// spec 2.5: true for states 1 to 3, false for 1 and 2.
    pub fn new(caches: usize, burdened_helps: bool) -> Self {
        Self {
            states: vec![CacheState::Offline; caches],
            home: vec![None; BUCKETS],
            helps: if burdened_helps {
                CacheState::Burdened
            } else {
                CacheState::Normal
            },
        }
    }

    /// Takes a cache's new state. True if its buckets were cleared. A cache
    /// that is not there is ignored.
    pub fn set_state(&mut self, cache: usize, state: CacheState) -> bool {
        let Some(known) = self.states.get_mut(cache) else {
            return false;
        };
        *known = state;
        let clears = state.layer4().clears_buckets;
        if clears {
            for home in &mut self.home {
                if *home == Some(cache) {
                    *home = None;
                }
            }
        }
        clears
    }

    /// The home of a bucket.
    pub fn home(&self, bucket: u8) -> Option<usize> {
        self.home[usize::from(bucket)]
    }

    /// Makes a cache the home of a bucket, as after a restart.
    pub fn set_home(&mut self, bucket: u8, cache: usize) {
        if cache < self.states.len() {
            self.home[usize::from(bucket)] = Some(cache);
        }
    }

    /// Where a new flow of a bucket goes. The first flow of a bucket makes its
    /// home.
    pub fn open(&mut self, bucket: u8) -> Choice {
        let good = self.in_state(|state| state <= self.helps);
        let Some(home) = self.home(bucket) else {
            let new = self.in_state(CacheState::is_good);
            if let Some(cache) = pick(&new, bucket) {
                self.home[usize::from(bucket)] = Some(cache);
                return Choice::Home(cache);
            }
            // A stressed cache serves, and does not become the home.
            let stressed = self.in_state(|state| state == CacheState::Stressed);
            return pick(&stressed, bucket).map_or(Choice::Bypass, Choice::Overflow);
        };
        match self.states[home].layer4().new {
            NewFlows::Allow => Choice::Home(home),
            NewFlows::LastResort => {
                pick(&good, bucket).map_or(Choice::Home(home), Choice::Overflow)
            }
            // Stressed caches refuse overflow.
            NewFlows::Refuse => pick(&good, bucket).map_or(Choice::Bypass, Choice::Overflow),
        }
    }

    fn in_state(&self, test: impl Fn(CacheState) -> bool) -> Vec<usize> {
        (0..self.states.len())
            .filter(|&cache| test(self.states[cache]))
            .collect()
    }
}

/// `pick(L, b)` of the spec.
fn pick(caches: &[usize], bucket: u8) -> Option<usize> {
    let position = usize::from(bucket).checked_rem(caches.len())?;
    caches.get(position).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1, C2 and C3 in these states, homes of the buckets 0, 1 and 2.
    fn group(states: [i64; 3]) -> Buckets {
        let mut buckets = Buckets::new(3, true);
        for cache in 0..3 {
            buckets.set_state(cache, CacheState::Underused);
            buckets.set_home(cache as u8, cache);
        }
        set(&mut buckets, states);
        buckets
    }

    fn set(buckets: &mut Buckets, states: [i64; 3]) {
        for (cache, value) in states.into_iter().enumerate() {
            buckets.set_state(cache, CacheState::from_value(value));
        }
    }

    fn open(buckets: &mut Buckets) -> [Option<usize>; 3] {
        [0, 1, 2].map(|bucket| buckets.open(bucket).cache())
    }

    /// Table 2.4 of the spec.
    #[test]
    fn where_new_flows_go() {
        let (c1, c2, c3, bypass) = (Some(0), Some(1), Some(2), None);
        for (states, expected) in [
            ([1, 2, 3], [c1, c2, c3]),
            ([4, 1, 3], [c2, c2, c3]),
            ([4, 4, 4], [c1, c2, c3]),
            ([5, 4, 4], [bypass, c2, c3]),
            ([5, 4, 1], [c3, c3, c3]),
            ([6, 6, 6], [bypass, bypass, bypass]),
            ([9, 4, 1], [c3, c3, c3]),
        ] {
            assert_eq!(open(&mut group(states)), expected, "{states:?}");
        }
    }

    #[test]
    fn a_cache_that_goes_away_loses_its_homes() {
        for (state, cleared) in [(7, true), (8, true), (9, false), (6, false), (5, false)] {
            let mut buckets = group([state, 1, 1]);
            assert_eq!(buckets.home(0).is_none(), cleared, "{state}");
            assert_eq!(buckets.open(0).cache(), Some(1), "{state}");
            set(&mut buckets, [1, 1, 1]);
            // Re-homed for good, or back at home after overflow.
            let home = if cleared { 1 } else { 0 };
            assert_eq!(buckets.open(0), Choice::Home(home), "{state}");
        }
    }

    #[test]
    fn overflow_ends_with_recovery() {
        let mut buckets = group([4, 1, 1]);
        assert_eq!(buckets.open(0), Choice::Overflow(1));
        set(&mut buckets, [1, 1, 1]);
        assert_eq!(open(&mut buckets), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn an_unhomed_bucket_is_not_given_to_a_stressed_cache() {
        let mut buckets = Buckets::new(3, true);
        assert_eq!(buckets.open(5), Choice::Bypass);
        set(&mut buckets, [4, 8, 4]);
        assert_eq!(buckets.open(5), Choice::Overflow(2));
        assert_eq!(buckets.open(4), Choice::Overflow(0));
        assert_eq!(buckets.home(5), None);
        set(&mut buckets, [4, 3, 4]);
        assert_eq!(buckets.open(5), Choice::Home(1));
    }

    #[test]
    fn whether_a_burdened_cache_helps_is_a_reading() {
        for (burdened_helps, choice) in [(true, Choice::Overflow(1)), (false, Choice::Home(0))] {
            let mut buckets = Buckets::new(2, burdened_helps);
            buckets.set_state(0, CacheState::Stressed);
            buckets.set_state(1, CacheState::Burdened);
            buckets.set_home(0, 0);
            assert_eq!(buckets.open(0), choice);
        }
    }

    #[test]
    fn the_mask_decides_the_bucket() {
        let (one, other, far) = (0xc000_0201, 0xc000_02fe, 0xc000_0301);
        let mask = HashMask::DEFAULT;
        assert_eq!(mask.bucket(one, 1), mask.bucket(other, 99));
        assert_ne!(mask.bucket(one, 1), mask.bucket(far, 1));
        let exact = HashMask {
            destination: u32::MAX,
            source: u32::MAX,
        };
        assert_ne!(exact.bucket(one, 1), exact.bucket(other, 1));
        assert_ne!(exact.bucket(one, 1), exact.bucket(one, 2));
        // Every bucket has its share of a run of networks.
        let mut counts = [0_u32; BUCKETS];
        for network in 0..4 * BUCKETS as u32 {
            counts[usize::from(mask.bucket(network << 8, 0))] += 1;
        }
        assert_eq!(counts.iter().sum::<u32>(), 4 * BUCKETS as u32);
        assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    }
}
