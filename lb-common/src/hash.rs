//! Keyed hashes of the packet path, computed alike by kernel and host.

use crate::abi::{Address, endpoint4, halves6};

/// Where a flow may live: two different buckets, unless the table has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Tried first, and filled first while it has few flows.
    pub primary: u32,
    /// Filled once the primary holds more than two flows.
    pub secondary: u32,
}

/// Mixes a 64-bit value under a 128-bit secret.
///
/// The finalizer of MurmurHash3 (xor-shift, multiply; Appleby, public domain)
/// with the two halves of the secret added before each multiplication, so that
/// which keys collide is not known without the secret.
#[inline(always)]
pub const fn mix(value: u64, secret: [u64; 2]) -> u64 {
    let mut h = value ^ secret[0];
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = h.wrapping_add(secret[1]);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

/// The buckets of a flow key in a table of `mask + 1` buckets.
#[inline(always)]
pub const fn home(key: u64, secret: [u64; 2], mask: u32) -> Home {
    let h = mix(key, secret);
    let primary = h as u32 & mask;
    let mut secondary = (h >> 32) as u32 & mask;
    if secondary == primary {
        secondary = primary ^ (1 & mask);
    }
    Home { primary, secondary }
}

/// What stands for an IPv6 address in the words of a flow. Which addresses
/// share a tag is not known without the secret; flows compare the addresses
/// themselves too.
#[inline(always)]
pub const fn tag6(address: [u64; 2], secret: [u64; 2]) -> u32 {
    (mix(mix(address[0], secret) ^ address[1], secret) >> 32) as u32
}

/// An IPv6 endpoint as a 48-bit number: the address's tag, then the port.
#[inline(always)]
pub const fn endpoint6(address: [u64; 2], port: u16, secret: [u64; 2]) -> u64 {
    endpoint4(tag6(address, secret), port)
}

/// Position of an IPv6 address in the hot filter. Two multiplications (by the
/// constants of [`mix`]), so that the regular addresses of one network do not
/// fall on each other's bits.
#[inline(always)]
pub const fn filter_bit6(address: [u64; 2]) -> u32 {
    let folded = address[0].wrapping_mul(0xff51_afd7_ed55_8ccd) ^ address[1];
    (folded.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 48) as u32
}

/// Position of an address in the 65,536-bit hot filter.
#[inline(always)]
pub const fn filter_bit4(address: u32) -> u32 {
    address.wrapping_mul(0x9e37_79b1) >> 16
}

/// Position of an [`Address`] of either family in the hot filter.
pub const fn filter_bit(address: &Address, family: u8) -> u32 {
    let halves = halves6(*address);
    if family == 4 {
        filter_bit4((halves[0] >> 32) as u32)
    } else {
        filter_bit6(halves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_buckets_of_a_flow_differ_and_spread() {
        let secret = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        let mask = 255;
        let mut counts = [0u32; 256];
        for key in 0..65_536u64 {
            let home = home(key << 16, secret, mask);
            assert_ne!(home.primary, home.secondary, "key {key}");
            counts[home.primary as usize] += 1;
            counts[home.secondary as usize] += 1;
        }
        // 512 expected per bucket; 6 standard deviations of a binomial are 136.
        for (bucket, count) in counts.iter().enumerate() {
            assert!((376..=648).contains(count), "bucket {bucket} holds {count}");
        }
    }

    #[test]
    fn regular_addresses_have_filter_bits_of_their_own() {
        // 64 networks of 64 hosts: of 65,536 bits they take 3,970 if they fall at
        // random, with a standard deviation of 11.
        let mut bits = std::collections::BTreeSet::new();
        for network in 0..64u64 {
            for host in 0..64u64 {
                bits.insert(filter_bit6([0xfc00_0000_0000_0000 | network << 32, host]));
            }
        }
        assert!(bits.len() > 3_900, "{} bits", bits.len());
    }

    #[test]
    fn tags_hang_on_both_halves_and_the_secret() {
        let secret = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        let tag = tag6([1, 2], secret);
        for (address, secret) in [([2, 2], secret), ([1, 3], secret), ([1, 2], [5, 6])] {
            assert_ne!(tag6(address, secret), tag, "{address:?}");
        }
    }

    #[test]
    fn a_single_bucket_serves_as_both() {
        assert_eq!(
            home(7, [1, 2], 0),
            Home {
                primary: 0,
                secondary: 0
            }
        );
    }
}
