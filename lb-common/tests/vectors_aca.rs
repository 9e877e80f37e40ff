//! The `aca` cases of `vectors.json`: inputs and expected results of the
//! adaptive load calculation. `STEERLINE_VECTORS=FILE` replaces the file.
#![cfg(feature = "control")]

use lb_common::control::aca::{Record, loads};
use lb_common::control::{Aca, AcaParameters, PerClass, SizeClass};
use serde_json::Value;

/// Integer share weights round 65,536 ÷ (load − 1), which moves a share by less
/// than this; the expected ones are printed to five decimals.
const SHARE_TOLERANCE: f64 = 0.000_01;

fn cases() -> Vec<Value> {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    all.into_iter()
        .filter(|case| case["system"] == "aca")
        .collect()
}

/// Milliseconds with a fraction, as microseconds.
fn microseconds(value: &Value) -> Option<u64> {
    value.as_f64().map(|ms| (ms * 1_000.0).round() as u64)
}

fn load_of(value: &Value) -> Option<u8> {
    value
        .as_u64()
        .map(|load| u8::try_from(load).expect("a load fits 8 bits"))
}

fn check(case: &Value) {
    let name = case["name"].as_str().expect("a case has a name");
    let (input, expect) = (&case["input"], &case["expect"]);
    let parameters = AcaParameters {
        load_step_ms: input["load_step_ms"].as_u64().expect("a step"),
        dynamic_step: input["dynamic_step"].as_bool().expect("a step kind"),
        load_threshold: load_of(&input["load_threshold"]).expect("a threshold"),
        ..AcaParameters::default()
    };
    let backends: Vec<&String> = expect["load"].as_object().expect("loads").keys().collect();
    let averages: Vec<PerClass<Option<u64>>> = backends
        .iter()
        .map(|&backend| PerClass {
            short: microseconds(&input["average_ms"]["short"][backend]),
            long: microseconds(&input["average_ms"]["long"][backend]),
        })
        .collect();

    let direct = loads(
        &parameters,
        &averages.iter().copied().map(Some).collect::<Vec<_>>(),
    );
    let mut aca = Aca::new(
        parameters,
        backends.iter().map(|_| (true, Record::default())),
        0,
    );
    for (position, averages) in averages.iter().enumerate() {
        for class in SizeClass::ALL {
            if let Some(average_us) = averages.get(class) {
                aca.report(position, class, average_us, 0);
            }
        }
    }
    aca.recompute(0);

    let weights = aca.share_weights(&vec![1; backends.len()]);
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    for (position, &backend) in backends.iter().enumerate() {
        let load = direct[position];
        assert_eq!(load, aca.load(position), "{name}: {backend}");
        assert_eq!(
            load.classes.short,
            load_of(&expect["load_short"][backend]),
            "{name}: {backend}"
        );
        assert_eq!(
            load.classes.long,
            load_of(&expect["load_long"][backend]),
            "{name}: {backend}"
        );
        assert_eq!(
            Some(load.average),
            load_of(&expect["load"][backend]),
            "{name}: {backend}"
        );
        let expected = expect["share_inverse_curve"][backend]
            .as_f64()
            .expect("a share");
        let share = f64::from(weights[position]) / sum;
        assert!(
            (share - expected).abs() < SHARE_TOLERANCE,
            "{name}: {backend} has share {share}, expected {expected}"
        );
    }
}

#[test]
fn every_case_holds() {
    let cases = cases();
    assert!(!cases.is_empty(), "the vector file has no aca case");
    cases.iter().for_each(check);
}
