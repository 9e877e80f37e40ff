//! Percentiles from the log₂ histogram of a teardown report.
//!
//! Bucket b holds measurements of 2^b to 2^(b+1) − 1 microseconds, bucket 0
//! also those of 0, and the last one all longer ones. Within a bucket the
//! measurements are taken as evenly spread. The true percentile lies in the
//! same bucket, so the result is off by less than a factor of two either way
//! (typically by a few per cent where a bucket holds many flows); in the last
//! bucket, from 36 minutes up, it is only a lower bound.

use crate::abi::HISTOGRAM_BUCKETS;

/// The `percent`th percentile in microseconds, `None` if the histogram is
/// empty. `percent` above 100 counts as 100.
pub fn percentile_us(histogram: &[u64; HISTOGRAM_BUCKETS], percent: u8) -> Option<u64> {
    let total: u128 = histogram.iter().map(|&count| u128::from(count)).sum();
    if total == 0 {
        return None;
    }
    let rank = (total * u128::from(percent.min(100))).div_ceil(100).max(1);
    let mut before = 0u128;
    for (bucket, &count) in histogram.iter().enumerate() {
        let count = u128::from(count);
        if rank <= before + count {
            let width = 1u128 << bucket;
            // The measurement of rank k among n sits at (k − ½) / n.
            let offset = width * (2 * (rank - before) - 1) / (2 * count);
            let value = if bucket == 0 { offset } else { width + offset };
            return u64::try_from(value).ok();
        }
        before += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(measurements: &[u64]) -> [u64; HISTOGRAM_BUCKETS] {
        let mut histogram = [0; HISTOGRAM_BUCKETS];
        for &us in measurements {
            histogram[(us.max(1).ilog2() as usize).min(HISTOGRAM_BUCKETS - 1)] += 1;
        }
        histogram
    }

    #[test]
    fn rows() {
        let cases: &[(&[u64], u8, Option<u64>)] = &[
            (&[], 50, None),
            (&[0], 50, Some(0)),
            (&[1_024], 0, Some(1_536)),
            (&[1_024], 50, Some(1_536)),
            (&[1_024], 200, Some(1_536)),
            // Two in one bucket sit at its quarters.
            (&[1_024, 2_047], 50, Some(1_280)),
            (&[1_024, 2_047], 99, Some(1_792)),
            (&[16, 16, 16, 70_000], 50, Some(24)),
            (&[16, 16, 16, 70_000], 99, Some(98_304)),
            (&[u64::MAX], 50, Some(3 << 30)),
        ];
        for &(measurements, percent, expected) in cases {
            let got = percentile_us(&histogram(measurements), percent);
            assert_eq!(got, expected, "{measurements:?} {percent}");
        }
        assert!(percentile_us(&[u64::MAX; HISTOGRAM_BUCKETS], 99).is_some());
    }

    #[test]
    fn the_error_is_within_a_factor_of_two() {
        let mut measurements: Vec<u64> = (1..2_000).map(|n| n * n % 50_021).collect();
        let histogram = histogram(&measurements);
        measurements.sort_unstable();
        for percent in [1, 10, 50, 90, 99, 100] {
            let rank = (measurements.len() * percent).div_ceil(100);
            let exact = measurements[rank - 1] as f64;
            let got = percentile_us(&histogram, percent as u8).unwrap() as f64;
            assert!(
                got / exact < 2.0 && exact / got < 2.0,
                "{percent}: {got} for {exact}"
            );
        }
    }
}
