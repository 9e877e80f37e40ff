//! The scale of one size class: from an average response to a load and to a
//! ratio (spec 1.3).

use super::aca::{AcaParameters, Calculation, LOAD_BEST, LOAD_OUT};
use crate::abi::RELATIVE_ONE;

/// Steps between [`LOAD_BEST`] and the highest load still in rotation, 254:
/// what the dynamic step fits the spread into (spec 1.3).
const STEPS: u64 = 252;
/// Largest value of `relative` that the packet path multiplies (design 3.3).
const RELATIVE_MAX: u64 = 65_535;

/// How one class turns averages into loads.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    best_us: u64,
    /// The average that has load 2.
    zero_us: u64,
    step_us: u64,
}

impl Scale {
    /// Of the averages of a class, microseconds; `None` without any.
    pub(super) fn new(
        parameters: &AcaParameters,
        averages: impl Iterator<Item = u64>,
    ) -> Option<Self> {
        let (best_us, worst_us) = averages.fold(None, |range, us| match range {
            None => Some((us, us)),
            Some((best, worst)) => Some((us.min(best), us.max(worst))),
        })?;
        let step_us = parameters.load_step_ms.saturating_mul(1_000);
        let (zero_us, step_us) = match parameters.calculation {
            Calculation::Relative if parameters.dynamic_step => {
                // Whole milliseconds, as on the CSS.
                let widened_ms = (worst_us - best_us).div_ceil(STEPS * 1_000);
                (best_us, step_us.max(widened_ms.saturating_mul(1_000)))
            }
            Calculation::Relative => (best_us, step_us),
            Calculation::Absolute { sensitivity } => (0, absolute_step_us(step_us, sensitivity)),
        };
        Some(Self {
            best_us,
            zero_us,
            step_us,
        })
    }

    /// Load of an average, 2..=255.
    pub(super) fn load(&self, average_us: u64) -> u8 {
        let steps = (average_us - self.zero_us) / self.step_us;
        u8::try_from(steps.saturating_add(u64::from(LOAD_BEST))).unwrap_or(LOAD_OUT)
    }

    /// An average below one microsecond counts as one: the ratio to a best of
    /// zero would be no number.
    pub(super) fn relative(&self, average_us: u64) -> u32 {
        let ratio = average_us.max(1).saturating_mul(u64::from(RELATIVE_ONE)) / self.best_us.max(1);
        // At most 65,535 after `min`, so the conversion loses nothing.
        ratio.min(RELATIVE_MAX) as u32
    }
}

/// √2 in millionths, rounded.
const SQRT_2: u128 = 1_414_214;

/// The step of absolute loads: `step_us` × 2^((21 − sensitivity) ÷ 2), rounded
/// down, at least one microsecond (spec 1.3).
fn absolute_step_us(step_us: u64, sensitivity: u8) -> u64 {
    let halvings = i32::from(sensitivity) - 21;
    let whole = halvings.div_euclid(2);
    // 64 bits, 21 of the root, at most 10 of the shift.
    let root = if halvings.rem_euclid(2) == 0 {
        u128::from(step_us) * 2_000_000
    } else {
        // One halving of the exponent's half: divided by √2.
        u128::from(step_us) * SQRT_2
    };
    let scaled = if whole >= 0 {
        root >> whole
    } else {
        root << -whole
    } / 2_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_steps() {
        // Sensitivity, step of 10 ms in microseconds.
        for (sensitivity, step_us) in [
            (21, 10_000),
            (20, 14_142),
            (19, 20_000),
            (17, 40_000),
            (1, 10_240_000),
            (22, 7_071),
            (23, 5_000),
            (24, 3_535),
            (25, 2_500),
        ] {
            assert_eq!(
                absolute_step_us(10_000, sensitivity),
                step_us,
                "{sensitivity}"
            );
        }
        assert_eq!(absolute_step_us(1, 25), 1);
        assert_eq!(absolute_step_us(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn absolute_loads() {
        let parameters = |sensitivity| AcaParameters {
            calculation: Calculation::Absolute { sensitivity },
            ..AcaParameters::default()
        };
        // Sensitivity, average in microseconds, load. Others do not matter,
        // and the dynamic step does not widen the scale.
        for (sensitivity, average_us, load) in [
            (21, 0, 2),
            (21, 9_999, 2),
            (21, 10_000, 3),
            (21, 100_000, 12),
            (21, 2_520_000, 254),
            (21, 2_530_000, 255),
            (21, u64::MAX, 255),
            (23, 100_000, 22),
            (19, 100_000, 7),
        ] {
            for other_us in [0, average_us, u64::MAX] {
                let scale =
                    Scale::new(&parameters(sensitivity), [average_us, other_us].into_iter());
                let found = scale.map(|scale| scale.load(average_us));
                assert_eq!(found, Some(load), "{sensitivity} {average_us} {other_us}");
            }
        }
    }
}
