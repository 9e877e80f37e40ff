//! The `slow_start`, `inband` and `syn_guard` cases of `vectors.json`.
//! `STEERLINE_VECTORS=FILE` replaces the file.
#![cfg(feature = "control")]

use lb_common::atomic::Word;
use lb_common::control::slow_start::server_ceiling;
use lb_common::control::{Check, Inband, InbandParameters, Ramp, RampList};
use lb_common::syn_guard::{Guarded, Limit};
use serde_json::Value;

fn check(system: &str, case: fn(&Value, &Value)) {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    let mut count = 0;
    for one in all.iter().filter(|case| case["system"] == system) {
        println!("{system}: {}", one["name"]);
        case(&one["input"], &one["expect"]);
        count += 1;
    }
    assert!(count > 0, "the vector file has no {system} case");
}

fn number<T: TryFrom<u64>>(value: &Value) -> T {
    let number = value.as_u64().expect("a number");
    T::try_from(number).ok().expect("a number of its range")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

/// Ceiling and, for a port's ramp, rate of a second.
fn limits(input: &Value, second: u64) -> (u32, Option<u32>) {
    let ramp = match input["ramp"].as_str() {
        Some("default_server") => {
            return (server_ceiling(second).expect("within the ramp"), None);
        }
        Some("default_port") => Ramp::Default,
        _ => Ramp::List(RampList {
            rate1: number(&input["rate1"]),
            interval1_s: number(&input["interval1_s"]),
            rate2: number(&input["rate2"]),
            interval2_s: number(&input["interval2_s"]),
            maximum: number(&input["maximum"]),
        }),
    };
    match ramp.limits(second) {
        Some(limits) => (limits.ceiling, Some(limits.rate)),
        None => (ramp.maximum().expect("a list's maximum"), None),
    }
}

#[test]
fn slow_start() {
    check("slow_start", |input, expect| {
        for (second, ceiling) in (1..).zip(list(&expect["ceiling_by_second"])) {
            let found = limits(input, second).0;
            assert_eq!(found, number::<u32>(ceiling), "second {second}");
        }
        for (second, rate) in (1..).zip(expect["rate_by_second"].as_array().into_iter().flatten()) {
            let found = limits(input, second).1;
            assert_eq!(found, Some(number(rate)), "second {second}");
        }
    });
}

#[test]
fn inband() {
    const MS: u64 = 1_000;
    check("inband", |input, expect| {
        let mut parameters = InbandParameters {
            check: match input["check"].as_str() {
                Some("count") => Check::Count,
                Some("log") => Check::Log,
                Some("remove") => Check::Remove,
                other => panic!("check {other:?}"),
            },
            failures: number(&input["failures"]),
            reset_time_us: number::<u64>(&input["reset_time_ms"]) * MS,
            resume_service_us: number::<u64>(&input["resume_service_s"]) * 1_000 * MS,
        };
        let mut inband = Inband::default();
        inband.reconfigure(&parameters, 0);
        let mut logged = Vec::new();
        let states = list(&expect["state_after"]);
        for (step, state) in list(&input["script"]).zip(states) {
            let at_ms: u64 = number(&step[0]);
            let now_us = at_ms * MS;
            match step[1].as_str() {
                Some("fail") => {
                    let verdict = inband.failure(&parameters, true, now_us);
                    if verdict.log {
                        logged.push(at_ms);
                    }
                    if verdict.remove {
                        inband.remove(&parameters, 0, now_us);
                    }
                }
                Some("clock") => {
                    inband.expire(now_us);
                }
                Some("failures") => parameters.failures = number(&step[2]),
                Some("reset") => parameters.reset_time_us = number::<u64>(&step[2]) * MS,
                Some("resume") => {
                    parameters.resume_service_us = number::<u64>(&step[2]) * 1_000 * MS;
                }
                other => panic!("step {other:?}"),
            }
            inband.reconfigure(&parameters, now_us);
            let failed = inband.outage().is_some();
            assert_eq!(failed, *state == "failed", "after {step}");
        }
        assert_eq!(inband.total, number::<u64>(&expect["total"]));
        let expected: Vec<u64> = list(&expect["logged_at"]).map(number).collect();
        assert_eq!(logged, expected);
    });
}

#[test]
fn syn_guard() {
    check("syn_guard", |input, expect| {
        let limit = Limit {
            unanswered: number(&input["unanswered"]),
            interval_us: number::<u32>(&input["interval_ms"]) * 1_000,
        };
        let guarded = Guarded {
            origin_us: Word::new(0),
            window: Word::new(0),
        };
        let verdicts = list(&expect["verdicts"]);
        for (event, verdict) in list(&input["events"]).zip(verdicts) {
            // An origin of 0 is none: the same events, later.
            let now_us = 77_000_000 + number::<u64>(&event[0]) * 1_000;
            let found = match event[1].as_str() {
                Some("syn") if guarded.admits_syn(&limit, now_us) => "pass",
                Some("syn") => "drop",
                Some("syn_ack") => {
                    guarded.answered(&limit, now_us);
                    "answered"
                }
                other => panic!("event {other:?}"),
            };
            assert_eq!(found, *verdict, "at {event}");
        }
    });
}
