//! Durations as the configuration file writes them: a number and a unit.

use std::time::Duration;

/// Units by their length in microseconds, longest first.
const UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Digits accepted after the decimal point: 10^9 times an hour in microseconds
/// still fits 64 bits.
const FRACTION_DIGITS: usize = 9;

/// Parses `10ms`, `1.5s`, `0s`. The error is half a sentence.
pub(super) fn parse(text: &str) -> Result<Duration, &'static str> {
    let unit_at = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    if number.is_empty() {
        return Err("a duration is a number and a unit, such as \"60s\"");
    }
    if unit.is_empty() {
        return Err("the unit is missing; write us, ms, s, m or h behind the number");
    }
    let Some((_, scale)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err("the unit is unknown; units are us, ms, s, m and h");
    };
    let (whole, fraction) = match number.split_once('.') {
        None => (number, None),
        Some((whole, fraction)) => (whole, Some(fraction)),
    };
    let malformed = "the number is malformed; write it like 1.5";
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) {
        return Err(malformed);
    }
    let too_long = "the duration is too long";
    let whole: u64 = whole.parse().map_err(|_| too_long)?;
    let mut micros = whole.checked_mul(scale).ok_or(too_long)?;
    if let Some(fraction) = fraction {
        let too_fine = "the shortest step is 1us";
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > FRACTION_DIGITS {
            return Err(too_fine);
        }
        if !fraction.is_empty() {
            let numerator: u64 = fraction.parse().map_err(|_| malformed)?;
            let denominator = 10_u64.pow(fraction.len() as u32);
            let scaled = numerator * scale;
            if !scaled.is_multiple_of(denominator) {
                return Err(too_fine);
            }
            micros = micros.checked_add(scaled / denominator).ok_or(too_long)?;
        }
    }
    Ok(Duration::from_micros(micros))
}

/// Writes a duration in the longest unit that needs no fraction, such that
/// `parse` reads it back; finer parts than a microsecond are dropped.
pub fn format(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    let (name, scale) = UNITS
        .into_iter()
        .find(|(_, scale)| micros.is_multiple_of(u128::from(*scale)))
        .unwrap_or(("us", 1));
    format!("{}{name}", micros / u128::from(scale))
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn readable_durations() {
        for (text, micros, written) in [
            ("0s", 0, "0s"),
            ("0ms", 0, "0s"),
            ("1us", 1, "1us"),
            ("100ms", 100_000, "100ms"),
            ("1.5s", 1_500_000, "1500ms"),
            ("1.50s", 1_500_000, "1500ms"),
            ("0.25ms", 250, "250us"),
            ("60s", 60_000_000, "1m"),
            ("90s", 90_000_000, "90s"),
            ("2m", 120_000_000, "2m"),
            ("1h", 3_600_000_000, "1h"),
            ("0.5h", 1_800_000_000, "30m"),
            ("1.000000001h", 3_600_000_003, ""),
            ("1000000000s", 1_000_000_000_000_000, "1000000000s"),
        ] {
            match parse(text) {
                Ok(duration) if written.is_empty() => panic!("{text}: {duration:?}"),
                Ok(duration) => {
                    assert_eq!(duration.as_micros(), micros, "{text}");
                    assert_eq!(format(duration), written, "{text}");
                    assert_eq!(parse(written), Ok(duration), "{text}");
                }
                Err(problem) => assert!(written.is_empty(), "{text}: {problem}"),
            }
        }
    }

    #[test]
    fn unreadable_durations() {
        for (text, problem) in [
            ("", "a number and a unit"),
            ("s", "a number and a unit"),
            ("-1s", "a number and a unit"),
            (" 1s", "a number and a unit"),
            ("10", "unit is missing"),
            ("0", "unit is missing"),
            ("10 s", "unit is unknown"),
            ("10sec", "unit is unknown"),
            ("10S", "unit is unknown"),
            ("1m30s", "unit is unknown"),
            ("1d", "unit is unknown"),
            ("1.s", "malformed"),
            (".5s", "malformed"),
            ("1.2.3s", "malformed"),
            ("0.5us", "shortest step"),
            ("0.0001ms", "shortest step"),
            ("1.0000000001s", "shortest step"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615h", "too long"),
        ] {
            let found = parse(text).expect_err(text);
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
