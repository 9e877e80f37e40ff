//! Smooth weighted round robin, laid out as a ring of slots.
//!
//! Each pick adds every weight to its backend's credit, takes the highest
//! credit (ties: the first in configuration order) and charges it the sum of
//! all weights. A backend's picks are then spread out evenly rather than in
//! runs, and any stretch of n picks holds its share of n to within one or two.
//! After as many picks as the weights sum to, all credits are zero again: that
//! is the period, and a ring of exactly one period repeats without a seam.

use alloc::vec;
use alloc::vec::Vec;

use crate::abi::RING_SLOTS;

/// Lays out `weights` (backend index, weight) as a ring of at most `slots`
/// slots, never more than [`RING_SLOTS`]: one exact period if the weights,
/// divided by their greatest common divisor, sum to no more than that, else
/// the first so many picks. Weights of 0 get no slot; without any weight the
/// ring is empty.
///
/// A cut ring gives a backend its share of the slots to within one or two
/// slots, so one whose share is below half a slot may have none.
///
/// The work is slots × backends: 4 million steps for 1,000 backends.
pub fn smooth_ring(weights: &[(u16, u32)], slots: usize) -> Vec<u16> {
    let divisor = weights
        .iter()
        .fold(0, |divisor, &(_, weight)| gcd(divisor, u64::from(weight)));
    // At most the weight of one backend, so the conversion loses nothing.
    let divisor = divisor as i64;
    if divisor == 0 {
        return Vec::new();
    }
    let runners: Vec<(u16, i64)> = weights
        .iter()
        .filter(|&&(_, weight)| weight > 0)
        .map(|&(backend, weight)| (backend, i64::from(weight) / divisor))
        .collect();
    // 65,536 runners of 32 bits: within 48 bits, and so are all credits.
    let period: i64 = runners.iter().map(|&(_, weight)| weight).sum();
    let slots = slots.min(RING_SLOTS as usize);
    let length = usize::try_from(period).map_or(slots, |period| period.min(slots));

    let mut credits = vec![0i64; runners.len()];
    let mut ring = Vec::with_capacity(length);
    for _ in 0..length {
        let mut best = 0;
        for (position, &(_, weight)) in runners.iter().enumerate() {
            credits[position] += weight;
            if credits[position] > credits[best] {
                best = position;
            }
        }
        credits[best] -= period;
        ring.push(runners[best].0);
    }
    ring
}

/// Greatest common divisor; that of anything and 0 is the other.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(ring: &[u16]) -> String {
        ring.iter()
            .map(|&backend| char::from(b'A' + backend as u8))
            .collect()
    }

    #[test]
    fn order() {
        let cases: &[(&[u32], usize, &str)] = &[
            // Spec 1.4: loads 2, 3 and 12 are shares of 22:11:2.
            (&[22, 11, 2], 4_096, "ABAABAABACABAABAABAABAABACABAABAABA"),
            // The same, rounded: the third is a little too heavy and comes early.
            (
                &[65_536, 32_768, 5_958],
                35,
                "ABAABACABAABAABAABAABAABACABAABAABA",
            ),
            (&[5, 1, 1], 4_096, "AABACAA"),
            (&[10, 2, 2], 4_096, "AABACAA"),
            (&[7], 4_096, "A"),
            (&[0, 9, 0], 4_096, "B"),
            (&[1, 0, 1], 4_096, "AC"),
            (&[5, 1, 1], 3, "AAB"),
            (&[0, 0], 4_096, ""),
            (&[], 4_096, ""),
            (&[1, 1], 0, ""),
        ];
        for &(weights, slots, expected) in cases {
            let weights: Vec<_> = (0..).zip(weights.iter().copied()).collect();
            assert_eq!(
                letters(&smooth_ring(&weights, slots)),
                expected,
                "{weights:?}"
            );
        }
    }

    #[test]
    fn a_cut_ring_keeps_shares_to_within_two_slots() {
        let cases: &[&[u32]] = &[
            &[65_536, 259],
            &[65_536, 32_768, 5_958, 259],
            &[u32::MAX, u32::MAX - 1, 1],
            &[4_097, 1, 1],
        ];
        for &weights in cases {
            let indexed: Vec<_> = (0..).zip(weights.iter().copied()).collect();
            let ring = smooth_ring(&indexed, usize::MAX);
            assert_eq!(ring.len(), RING_SLOTS as usize);
            let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            for &(backend, weight) in &indexed {
                let have = ring.iter().filter(|&&slot| slot == backend).count() as f64;
                let fair = f64::from(weight) / sum * ring.len() as f64;
                assert!(
                    (have - fair).abs() < 2.0,
                    "{weights:?}: {backend} has {have} of {fair}"
                );
            }
        }
    }
}
