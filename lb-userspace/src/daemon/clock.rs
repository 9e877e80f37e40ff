//! The one place that reads clocks: that of the packet path, and the time of
//! day for people.

use lb_common::abi::tick_of;
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// Nanoseconds of `CLOCK_MONOTONIC`, which is what `bpf_ktime_get_ns` reads.
fn monotonic_ns() -> u64 {
    // The clock exists on every Linux; zero would only make everything young.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

/// Monotonic microseconds, the engine's time.
pub(crate) fn micros() -> u64 {
    monotonic_ns() / 1_000
}

/// The packet path's tick.
pub(crate) fn tick() -> u32 {
    tick_of(monotonic_ns())
}

/// The tick of a time of the engine.
pub(crate) fn tick_at(micros: u64) -> u32 {
    tick_of(micros.saturating_mul(1_000))
}

/// The time of day in UTC, as RFC 3339 writes it, to the millisecond.
pub(crate) fn utc() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // A clock before 1970 is not set; any time does then.
    format_utc(since.unwrap_or_default())
}

fn format_utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day_of_month) = civil(day);
    format!(
        "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60,
        since_epoch.subsec_millis()
    )
}

/// Year, month and day of the month of a day since 1970-01-01, in the Gregorian
/// calendar: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`, for days that are not negative.
fn civil(day: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the leap day is the last; eras of 400 years.
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(format_utc(Duration::from_millis(millis)), text);
        }
    }
}
