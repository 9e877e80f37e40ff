//! From loads to integer share weights: a backend's share is proportional to
//! its weight ÷ (load − 1), or to its weight and its bucket (spec 1.3, 1.5).

use alloc::vec::Vec;

use super::aca::LOAD_BEST;
use super::ring::gcd;
use crate::abi::RING_SLOTS;

/// Share weight of load 2 per unit of configured weight, where the exact ratio
/// is too long for a ring (spec 1.3).
const SHARE_ONE: u64 = 65_536;

/// How a share falls with the load, `curve` (spec 1.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Curve {
    /// As 1 ÷ (load − 1).
    #[default]
    Reciprocal,
    /// By twelve buckets, each half of the one before: bucket
    /// 1 + ⌊12 × ln(load − 1) ÷ ln 254⌋, at most 12.
    Bucket,
}

/// Buckets of [`Curve::Bucket`] (spec 1.1, "bucket" 1 to 12).
const BUCKETS: u32 = 12;

/// The bucket of a load, 1..=12. ln(L) ÷ ln 254 ≥ k ÷ 12 is L^12 ≥ 254^k, which
/// integers of 128 bits decide exactly.
pub fn bucket(load: u8) -> u32 {
    let power = u128::from(divisor(load)).pow(BUCKETS);
    (1..BUCKETS)
        .take_while(|&k| 254u128.pow(k) <= power)
        .count() as u32
        + 1
}

/// Share weights of backends given as (configured weight 0..=65,535, load
/// 2..=254). A weight of 0 has no share.
///
/// By bucket they are exact. By the reciprocal, where one exact period of the ratios fits a ring, the weights are those
/// ratios in lowest terms: loads 2, 3 and 12 give 22, 11 and 2, and with them
/// the order that spec 1.4 prints. Otherwise they are
/// `round(weight × 65,536 ÷ (load − 1))`, at least 1, which moves a share by
/// at most 0.2 % of itself (load 254). Always using those would decide ties
/// between backends by their rounding: 5,958 for load 12 is a little too much,
/// and its first turn would come four picks early.
pub fn share_weights(curve: Curve, backends: &[(u32, u8)]) -> Vec<u32> {
    match curve {
        // 16 + 11 bits.
        Curve::Bucket => backends
            .iter()
            .map(|&(weight, load)| weight << (BUCKETS - bucket(load)))
            .collect(),
        Curve::Reciprocal => reciprocal(backends),
    }
}

fn reciprocal(backends: &[(u32, u8)]) -> Vec<u32> {
    exact(backends).unwrap_or_else(|| {
        backends
            .iter()
            .map(|&(weight, load)| rounded(weight, load))
            .collect()
    })
}

fn divisor(load: u8) -> u64 {
    u64::from(load.max(LOAD_BEST)) - 1
}

/// The ratios in lowest terms, if they sum to no more than a ring has slots.
fn exact(backends: &[(u32, u8)]) -> Option<Vec<u32>> {
    let taking = || backends.iter().filter(|&&(weight, _)| weight > 0);
    let common = taking().try_fold(1u64, |common, &(_, load)| {
        let divisor = divisor(load);
        common.checked_mul(divisor / gcd(common, divisor))
    })?;
    let scaled = backends
        .iter()
        .map(|&(weight, load)| u64::from(weight).checked_mul(common / divisor(load)))
        .collect::<Option<Vec<u64>>>()?;
    let unit = scaled
        .iter()
        .fold(0, |unit, &weight| gcd(unit, weight))
        .max(1);
    let weights: Vec<u64> = scaled.iter().map(|&weight| weight / unit).collect();
    let period = weights
        .iter()
        .try_fold(0u64, |sum, &weight| sum.checked_add(weight))?;
    if period > u64::from(RING_SLOTS) {
        return None;
    }
    weights
        .into_iter()
        .map(|weight| u32::try_from(weight).ok())
        .collect()
}

fn rounded(weight: u32, load: u8) -> u32 {
    if weight == 0 {
        return 0;
    }
    let divisor = divisor(load);
    let rounded = (2 * u64::from(weight) * SHARE_ONE + divisor) / (2 * divisor);
    // A weight of at most 65,535 keeps this within 32 bits.
    u32::try_from(rounded).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_where_a_ring_holds_it_else_rounded() {
        // (configured weight, load) of each backend; share weights.
        type Row = (&'static [(u32, u8)], &'static [u32]);
        let rows: &[Row] = &[
            (&[(1, 2), (1, 3), (1, 12)], &[22, 11, 2]),
            (&[(2, 2), (0, 3), (3, 12)], &[22, 0, 3]),
            (&[(8, 2), (8, 2)], &[1, 1]),
            (&[(1, 2), (1, 254)], &[253, 1]),
            (&[(0, 2), (0, 9)], &[0, 0]),
            (&[], &[]),
            (&[(1, 2), (1, 12), (1, 200)], &[2_189, 199, 11]),
            // From here on a period is longer than a ring.
            (&[(1, 2), (1, 231), (1, 232)], &[65_536, 285, 284]),
            (
                &[(65_535, 2), (1, 2), (1, 254)],
                &[4_294_901_760, 65_536, 259],
            ),
            (
                &[(1, 2), (1, 254), (1, 252), (1, 250)],
                &[65_536, 259, 261, 263],
            ),
        ];
        for &(backends, expected) in rows {
            assert_eq!(
                share_weights(Curve::Reciprocal, backends),
                expected,
                "{backends:?}"
            );
        }
    }

    #[test]
    fn buckets() {
        // Where each bucket begins: the load after the power of 254 to k ÷ 12.
        let begins = [2, 3, 4, 5, 8, 12, 17, 27, 42, 65, 102, 162];
        for (bucket_number, begin) in (1..).zip(begins) {
            assert_eq!(bucket(begin), bucket_number, "load {begin}");
            if bucket_number > 1 {
                assert_eq!(bucket(begin - 1), bucket_number - 1, "load {begin}");
            }
        }
        assert_eq!(bucket(254), 12);
        let weights = share_weights(Curve::Bucket, &[(1, 2), (2, 3), (0, 2), (65_535, 254)]);
        assert_eq!(weights, [2_048, 2_048, 0, 65_535]);
    }
}
