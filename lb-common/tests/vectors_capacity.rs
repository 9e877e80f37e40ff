//! The `capacity` cases of `vectors.json`: states of caches, and where new
//! flows of their buckets go. `STEERLINE_VECTORS=FILE` replaces the file.
#![cfg(feature = "control")]

use lb_common::control::capacity::{Buckets, CacheState};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    all.into_iter()
        .filter(|case| case["system"] == "capacity")
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// What no answer and an answer of another type mean.
fn state_of(value: &Value) -> CacheState {
    value
        .as_i64()
        .map_or(CacheState::Offline, CacheState::from_value)
}

fn check_flows(case: &Value) {
    let name = &case["name"];
    let (states, homes) = (list(&case["input"]["states"]), list(&case["input"]["home"]));
    let position = |home: &Value| {
        let text = home.as_str().expect("a cache").trim_start_matches('C');
        text.parse::<usize>().expect("a number") - 1
    };
    let mut buckets = Buckets::new(states.len(), true);
    for (bucket, home) in homes.iter().enumerate() {
        buckets.set_state(position(home), CacheState::Normal);
        buckets.set_home(bucket as u8, position(home));
    }
    for (cache, state) in states.iter().enumerate() {
        buckets.set_state(cache, state_of(state));
    }
    for (bucket, expected) in list(&case["input"]["bucket"])
        .iter()
        .zip(list(&case["expect"]["new_flow"]))
    {
        let number = bucket.as_u64().expect("a bucket") as u8;
        let got = match buckets.open(number).cache() {
            Some(cache) => format!("C{}", cache + 1),
            None => "bypass".to_owned(),
        };
        assert_eq!(
            got,
            expected.as_str().expect("a choice"),
            "{name}: {bucket}"
        );
    }
}

fn check_values(case: &Value) {
    let values = list(&case["input"]["values"]);
    for (value, expected) in values.iter().zip(list(&case["expect"]["state"])) {
        assert_eq!(state_of(value).as_str(), expected, "{value}");
    }
}

#[test]
fn every_case_holds() {
    let cases = cases();
    let (values, flows): (Vec<_>, Vec<_>) = cases
        .iter()
        .partition(|case| case["input"]["values"].is_array());
    assert!(!values.is_empty() && !flows.is_empty(), "a kind is missing");
    flows.into_iter().for_each(check_flows);
    values.into_iter().for_each(check_values);
}
