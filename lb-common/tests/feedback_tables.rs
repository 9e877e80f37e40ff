//! The worked tables of the specification's sections 1, 3, 4 and 5 that are not
//! in `vectors.json`.
#![cfg(feature = "control")]

use lb_common::control::aca::{Calculation, Record};
use lb_common::control::fail_detect::Phase;
use lb_common::control::slow_start::{self, SECOND_US, dummies_at_entry, dummies_left, second};
use lb_common::control::{
    Aca, AcaParameters, Curve, FailDetect, FailDetectParameters, Ramp, RampList, SizeClass,
};

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

fn aca(parameters: AcaParameters, short_ms: &[u64]) -> Aca {
    let backends = short_ms.iter().map(|_| (true, Record::default()));
    let mut aca = Aca::new(parameters, backends, 0);
    for (position, ms) in short_ms.iter().enumerate() {
        aca.report(position, SizeClass::Short, ms * MS, 0);
    }
    aca.recompute(0);
    aca
}

/// Spec 1.4: left at 500 s with an ageout of 60 s, back at 560 s, not before.
#[test]
fn out_for_the_ageout() {
    let parameters = AcaParameters {
        dynamic_step: false,
        load_threshold: 99,
        ..AcaParameters::default()
    };
    let mut aca = aca(parameters, &[0, 970]);
    aca.report(1, SizeClass::Short, 100_000 * MS, 500 * S);
    aca.report(0, SizeClass::Short, 0, 500 * S);
    aca.recompute(500 * S);
    for (now_us, load, out) in [
        (500 * S, 255, true),
        (559_999 * MS, 255, true),
        (560 * S, 2, false),
    ] {
        aca.expire(now_us);
        let found = (aca.load(1).average, aca.record(1).overload.is_some());
        assert_eq!(found, (load, out), "at {now_us}");
    }
}

/// Spec 1.3, 1.5: what `variance`, `curve` and weights make of loads.
#[test]
fn selection() {
    // Averages in ms above a first of 0 with a step of 10 ms; variance, curve,
    // weights; share weights.
    type Row = (&'static [u64], u8, Curve, &'static [u32], &'static [u32]);
    let rows: &[Row] = &[
        (
            &[0, 10, 100],
            0,
            Curve::Reciprocal,
            &[1, 1, 1],
            &[22, 11, 2],
        ),
        (
            &[0, 10, 100],
            1,
            Curve::Reciprocal,
            &[1, 1, 1],
            &[11, 11, 1],
        ),
        (
            &[0, 10, 100],
            9,
            Curve::Reciprocal,
            &[1, 1, 1],
            &[11, 11, 1],
        ),
        (&[0, 10, 100], 10, Curve::Reciprocal, &[1, 1, 1], &[1, 1, 1]),
        (&[0, 10, 100], 0, Curve::Reciprocal, &[1, 2, 11], &[1, 1, 1]),
        (
            &[0, 10, 100],
            0,
            Curve::Bucket,
            &[1, 1, 1],
            &[2_048, 1_024, 64],
        ),
        (
            &[0, 10, 100],
            1,
            Curve::Bucket,
            &[1, 1, 1],
            &[2_048, 2_048, 64],
        ),
        (
            &[0, 10, 100],
            0,
            Curve::Bucket,
            &[1, 2, 32],
            &[2_048, 2_048, 2_048],
        ),
    ];
    for &(averages, variance, curve, weights, expected) in rows {
        let parameters = AcaParameters {
            dynamic_step: false,
            variance,
            curve,
            ..AcaParameters::default()
        };
        let found = aca(parameters, averages).share_weights(weights);
        assert_eq!(
            found, expected,
            "{averages:?} {variance} {curve:?} {weights:?}"
        );
    }
    // By connections, whoever is within the variance is like the best of them.
    for (variance, relatives) in [(0, [256, 384, 512]), (1, [256, 256, 512])] {
        let parameters = AcaParameters {
            dynamic_step: false,
            variance,
            ..AcaParameters::default()
        };
        let aca = aca(parameters, &[20, 30, 40]);
        let found = [0, 1, 2].map(|position| aca.selection(position).relative);
        assert_eq!(found, relatives, "variance {variance}");
        assert_eq!([0, 1, 2].map(|p| aca.load(p).average), [2, 3, 4]);
    }
}

/// Absolute loads: all alike slow is slow, which the relative ones cannot see.
#[test]
fn absolute() {
    let parameters = |calculation| AcaParameters {
        calculation,
        ..AcaParameters::default()
    };
    for (calculation, loads) in [
        (Calculation::Relative, [2, 3]),
        (Calculation::Absolute { sensitivity: 21 }, [12, 13]),
        (Calculation::Absolute { sensitivity: 19 }, [7, 7]),
    ] {
        let aca = aca(parameters(calculation), &[100, 110]);
        assert_eq!(
            [0, 1].map(|p| aca.load(p).average),
            loads,
            "{calculation:?}"
        );
    }
}

/// Spec 3.3: rows of the tables by time and by second.
#[test]
fn slow_start_tables() {
    let list = |rate1, interval1_s, rate2, interval2_s, maximum| {
        Ramp::List(RampList {
            rate1,
            interval1_s,
            rate2,
            interval2_s,
            maximum,
        })
    };
    // Ramp; time in ms; rate and ceiling.
    let rows = [
        (Ramp::Default, 0, Some((10, 10))),
        (Ramp::Default, 9_999, Some((10, 100))),
        (Ramp::Default, 10_000, Some((20, 120))),
        (Ramp::Default, 19_999, Some((20, 300))),
        (Ramp::Default, 29_999, Some((30, 600))),
        (Ramp::Default, 39_999, Some((40, 1_000))),
        (Ramp::Default, 49_999, Some((50, 1_500))),
        (Ramp::Default, 59_999, Some((100, 2_500))),
        (Ramp::Default, 60_000, None),
        (Ramp::Off, 0, None),
        (list(10, 30, 20, 30, 600), 0, Some((10, 10))),
        (list(10, 30, 20, 30, 600), 29_000, Some((10, 300))),
        (list(10, 30, 20, 30, 600), 30_000, Some((20, 320))),
        (list(10, 30, 20, 30, 600), 43_000, Some((20, 580))),
        (list(10, 30, 20, 30, 600), 59_000, Some((20, 600))),
        (list(10, 30, 20, 30, 600), 60_000, None),
        (list(20, 30, 40, 30, 1_500), 51_000, Some((40, 1_480))),
        (list(20, 30, 40, 30, 1_500), 52_000, Some((40, 1_500))),
        (list(20, 60, 40, 120, 2_400), 59_000, Some((20, 1_200))),
        (list(20, 60, 40, 120, 2_400), 89_000, Some((40, 2_400))),
        (
            list(1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000),
            1_999_999_000,
            Some((1_000_000, 1_000_000)),
        ),
    ];
    for (ramp, ms, expected) in rows {
        let found = ramp.limits(second(ms * MS)).map(|l| (l.rate, l.ceiling));
        assert_eq!(found, expected, "{ramp:?} at {ms} ms");
    }
    for (n, ceiling) in [
        (1, Some(10)),
        (10, Some(100)),
        (20, Some(200)),
        (21, Some(420)),
        (22, Some(440)),
        (29, Some(580)),
        (30, None),
    ] {
        assert_eq!(slow_start::server_ceiling(n), ceiling, "second {n}");
    }
}

/// Spec 4.5: others at 100 connections of weight 1; 100 dummies, 50 at 15 s,
/// none at 30 s.
#[test]
fn dummies_table() {
    let dummies = dummies_at_entry(1, [(100, 1), (100, 1)]);
    for (seconds, left) in [(0, 100), (15, 50), (30, 0)] {
        assert_eq!(dummies_left(dummies, seconds * SECOND_US), left);
    }
}

/// Spec 4.5 and 4.2, event by event.
#[test]
fn failure_detection() {
    #[derive(Clone, Copy)]
    enum Step {
        /// So many failures of a client, with so many repeated SYNs.
        Fail(u32, u64, u32),
        Unknown(u32),
        Success,
        Assigned,
        /// Seconds since the start.
        Clock(u64),
    }
    use Step::*;
    // Title, retry in seconds, steps with the phase after each.
    type Row = (&'static str, u32, &'static [(Step, &'static str)]);
    let rows: &[Row] = &[
        (
            "one client is not enough",
            60,
            &[(Fail(8, 1, 1), "in"), (Fail(1, 2, 1), "failed")],
        ),
        (
            "unknown clients count as none",
            60,
            &[
                (Unknown(20), "in"),
                (Fail(1, 1, 0), "in"),
                (Fail(1, 2, 0), "failed"),
            ],
        ),
        (
            "a success begins anew",
            60,
            &[
                (Fail(6, 1, 1), "in"),
                (Fail(1, 2, 1), "in"),
                (Success, "in"),
                (Fail(7, 1, 1), "in"),
                (Fail(1, 2, 1), "failed"),
            ],
        ),
        (
            "the cycle",
            60,
            &[
                (Fail(7, 1, 1), "in"),
                (Fail(1, 2, 1), "failed"),
                (Clock(59), "failed"),
                (Success, "failed"),
                (Assigned, "failed"),
                (Fail(9, 3, 3), "failed"),
                (Clock(60), "ready"),
                (Fail(9, 4, 4), "ready"),
                (Assigned, "testing"),
                (Fail(1, 5, 1), "failed"),
                (Clock(119), "failed"),
                (Clock(120), "ready"),
                (Assigned, "testing"),
                (Success, "in"),
            ],
        ),
        (
            "a test needs a retry, or a second failure",
            60,
            &[
                (Fail(7, 1, 1), "in"),
                (Fail(1, 2, 1), "failed"),
                (Clock(60), "ready"),
                (Assigned, "testing"),
                (Fail(1, 5, 0), "testing"),
                (Fail(1, 6, 0), "failed"),
            ],
        ),
        (
            "retry 0",
            0,
            &[
                (Fail(7, 1, 1), "in"),
                (Fail(1, 2, 1), "failed"),
                (Clock(1_000_000), "failed"),
            ],
        ),
    ];
    for &(title, retry_s, steps) in rows {
        let parameters = FailDetectParameters {
            retry_us: u64::from(retry_s) * S,
            ..FailDetectParameters::default()
        };
        let mut detect = FailDetect::default();
        let mut now_us = 0;
        for (at, &(step, expected)) in steps.iter().enumerate() {
            let mut fail = |count, client, repeats| {
                for _ in 0..count {
                    if detect.failure(&parameters, client, repeats) {
                        detect.fail(&parameters, 0, now_us);
                    }
                }
            };
            match step {
                Fail(count, client, repeats) => fail(count, Some(client), repeats),
                Unknown(count) => fail(count, None, 1),
                Success => {
                    detect.success();
                }
                Assigned => {
                    detect.assigned(now_us);
                }
                Clock(seconds) => {
                    now_us = seconds * S;
                    detect.expire(&parameters, now_us);
                }
            }
            let found = match detect.phase() {
                Phase::InService => "in",
                Phase::Failed { .. } => "failed",
                Phase::ReadyToTest => "ready",
                Phase::Testing { .. } => "testing",
            };
            assert_eq!(found, expected, "{title}: step {at}");
        }
    }
    // Off.
    let off = FailDetectParameters {
        connections: 0,
        ..FailDetectParameters::default()
    };
    let mut detect = FailDetect::default();
    assert!((0..1_000).all(|client| !detect.failure(&off, Some(client), 1)));
}
