//! The adaptive load calculation over time: threshold, ageout, smoothing.
#![cfg(feature = "control")]

use lb_common::control::aca::{Record, loads};
use lb_common::control::{Aca, AcaParameters, Load, PerClass, SizeClass};

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

fn static_step(load_threshold: u8) -> AcaParameters {
    AcaParameters {
        dynamic_step: false,
        load_threshold,
        ..AcaParameters::default()
    }
}

/// A service whose backends just reported these short averages, in ms.
fn reported(parameters: AcaParameters, averages_ms: &[u64], now_us: u64) -> Aca {
    let mut aca = Aca::new(
        parameters,
        averages_ms.iter().map(|_| (true, Record::default())),
        0,
    );
    for (position, &ms) in averages_ms.iter().enumerate() {
        aca.report(position, SizeClass::Short, ms * MS, now_us);
    }
    aca.recompute(now_us);
    aca
}

/// Load and whether in rotation, of every backend.
fn rotation(aca: &Aca, backends: usize) -> Vec<(u8, bool)> {
    (0..backends)
        .map(|position| {
            let in_rotation = aca.record(position).overload.is_none();
            (aca.load(position).average, in_rotation)
        })
        .collect()
}

#[test]
fn threshold_is_strict_and_ageout_returns_to_load_2() {
    // Spec 1.4: threshold 99, left at 500 s, back at 560 s exactly.
    let mut aca = reported(static_step(99), &[0, 970, 980], 500 * S);
    assert_eq!(rotation(&aca, 3), [(2, true), (99, true), (100, false)]);
    assert_eq!(aca.poll_timeout(), Some(560 * S));

    // The others go on reporting, so that only the one ages.
    for position in [0, 1] {
        aca.report(position, SizeClass::Short, 0, 550 * S);
    }
    aca.recompute(550 * S);
    for (now_us, changed, last) in [
        (559 * S + 999 * MS, false, (100, false)),
        (560 * S, true, (2, true)),
        (560 * S, false, (2, true)),
    ] {
        assert_eq!(aca.expire(now_us), changed, "at {now_us}");
        assert_eq!(rotation(&aca, 3)[2], last, "at {now_us}");
    }
}

#[test]
fn out_of_rotation_is_for_the_whole_ageout() {
    let mut aca = reported(static_step(99), &[0, 980], 0);
    aca.report(1, SizeClass::Short, 0, 10 * S);
    aca.recompute(10 * S);
    assert_eq!(rotation(&aca, 2), [(2, true), (2, false)]);
    assert_eq!(aca.share_weights(&[8, 8]), [1, 0]);
}

#[test]
fn stale_data_are_forgotten_by_class() {
    let mut aca = reported(static_step(254), &[100, 150], 0);
    for (position, ms) in [(0, 400), (1, 500)] {
        aca.report(position, SizeClass::Long, ms * MS, 30 * S);
    }
    aca.recompute(30 * S);
    // Now, whether anything was forgotten, classes of the second backend, load.
    let rows = [
        (59 * S, false, (Some(7), Some(12)), 9),
        (60 * S, true, (None, Some(12)), 12),
        (89 * S, false, (None, Some(12)), 12),
        (90 * S, true, (None, None), 2),
        (900 * S, false, (None, None), 2),
    ];
    for (now_us, changed, classes, average) in rows {
        assert_eq!(aca.expire(now_us), changed, "at {now_us}");
        let load = aca.load(1);
        assert_eq!(
            (load.classes.short, load.classes.long),
            classes,
            "at {now_us}"
        );
        assert_eq!(load.average, average, "at {now_us}");
    }
    assert_eq!(aca.poll_timeout(), None);
}

#[test]
fn an_ageout_of_zero_is_never() {
    let parameters = AcaParameters {
        ageout_us: 0,
        ..static_step(99)
    };
    let mut aca = reported(parameters, &[0, 980], 0);
    assert!(!aca.expire(u64::MAX));
    assert_eq!(aca.poll_timeout(), None);
    assert_eq!(rotation(&aca, 2), [(2, true), (100, false)]);
}

#[test]
fn better_at_once_worse_smoothed() {
    // Smoothing, reports in order, average after the last; microseconds.
    let rows: &[(f64, &[u64], u64)] = &[
        (0.3, &[20_000], 20_000),
        (0.3, &[20_000, 120_000], 50_000),
        (0.3, &[20_000, 120_000, 120_000], 71_000),
        (0.3, &[120_000, 20_000], 20_000),
        (0.3, &[20_000, 120_000, 10_000], 10_000),
        (1.0, &[20_000, 120_000], 120_000),
        (1.0, &[120_000, 20_000], 20_000),
        (7.0, &[20_000, 120_000], 120_000),
        (0.0, &[20_000, 120_000], 50_000),
        (-1.0, &[20_000, 120_000], 50_000),
        (f64::NAN, &[20_000, 120_000], 50_000),
        (1.0, &[0, u64::MAX], u64::MAX),
    ];
    for &(smoothing, reports, expected) in rows {
        let parameters = AcaParameters {
            smoothing,
            ..AcaParameters::default()
        };
        let mut aca = Aca::new(parameters, [(true, Record::default())], 0);
        for &report in reports {
            aca.report(0, SizeClass::Short, report, 0);
            aca.recompute(0);
        }
        assert_eq!(
            aca.best_us(SizeClass::Short),
            Some(expected),
            "{smoothing} {reports:?}"
        );
    }
}

#[test]
fn relative_is_the_mean_ratio_over_classes_with_data() {
    // (short, long) averages in microseconds of each backend; relatives.
    type Averages = (Option<u64>, Option<u64>);
    let rows: &[(&[Averages], &[u32])] = &[
        (&[(None, None), (None, None)], &[256, 256]),
        (
            &[(Some(100), None), (Some(150), None), (None, None)],
            &[256, 384, 256],
        ),
        (
            &[(Some(100), Some(900)), (Some(300), Some(300))],
            &[512, 512],
        ),
        (&[(Some(100), None), (Some(300), Some(300))], &[256, 512]),
        (&[(Some(0), None), (Some(2), None)], &[256, 512]),
        (&[(Some(1), None), (Some(1_000_000), None)], &[256, 65_535]),
        (&[(Some(1), None), (Some(u64::MAX), None)], &[256, 65_535]),
    ];
    for &(averages, expected) in rows {
        let backends: Vec<_> = averages
            .iter()
            .map(|&(short, long)| Some(PerClass { short, long }))
            .collect();
        let relatives: Vec<u32> = loads(&AcaParameters::default(), &backends)
            .iter()
            .map(|load| load.relative)
            .collect();
        assert_eq!(relatives, expected, "{averages:?}");
    }
}

#[test]
fn a_backend_that_is_down_has_load_255_and_is_nobodys_best() {
    let short = |us| PerClass {
        short: Some(us),
        long: None,
    };
    let got = loads(
        &static_step(254),
        &[None, Some(short(100 * MS)), Some(short(110 * MS))],
    );
    let rows: Vec<(u8, u32)> = got
        .iter()
        .map(|load: &Load| (load.average, load.relative))
        .collect();
    assert_eq!(rows, [(255, 256), (2, 256), (3, 281)]);
}

#[test]
fn with_none_eligible_all_active_serve_equally() {
    // Short and long disagree, so that nobody is within a threshold of 5.
    let mut aca = Aca::new(
        static_step(5),
        [true, true, false].map(|active| (active, Record::default())),
        0,
    );
    for (position, short, long) in [(0, 100, 900), (1, 900, 100), (2, 1, 1)] {
        aca.report(position, SizeClass::Short, short * MS, 0);
        aca.report(position, SizeClass::Long, long * MS, 0);
    }
    assert!(!aca.last_resort());
    aca.recompute(0);
    assert!(aca.last_resort());
    assert_eq!(aca.share_weights(&[8, 1, 8]), [1, 1, 0]);
}

#[test]
fn times_of_another_boot_count_as_now() {
    let record = {
        let aca = reported(static_step(99), &[0, 980], 5_000 * S);
        [aca.record(0), aca.record(1)]
    };
    let aca = Aca::new(static_step(99), record.map(|record| (true, record)), 7 * S);
    assert_eq!(aca.poll_timeout(), Some(67 * S));
}
