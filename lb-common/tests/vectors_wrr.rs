//! The `wrr` cases of `vectors.json`: weights, backends that are down, and the
//! order of picks. `STEERLINE_VECTORS=FILE` replaces the file.

#[path = "table/pool.rs"]
mod pool;

use lb_common::pick::weighted_round_robin;
use pool::{DOWN, HostPool, Row, TAKES};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    all.into_iter()
        .filter(|case| case["system"] == "wrr")
        .collect()
}

fn check(case: &Value) {
    let name = case["name"].as_str().expect("a case has a name");
    let input = &case["input"];
    let down = input["down"].as_array().expect("a list of backends");
    // In the order of their letters, which is how every case lists them.
    let (names, rows): (Vec<&String>, Vec<Row>) = input["weights"]
        .as_object()
        .expect("weights by backend")
        .iter()
        .map(|(backend, weight)| {
            let weight = u32::try_from(weight.as_u64().expect("a weight")).expect("32 bits");
            let flags = if down.iter().any(|d| d == backend) {
                DOWN
            } else {
                TAKES
            };
            (
                backend,
                Row {
                    flags,
                    ..Row::weight(weight)
                },
            )
        })
        .unzip();
    let pool = HostPool::new(rows, 0);
    let order: String = (0..input["picks"].as_u64().expect("a number of picks"))
        .map(
            |_| match weighted_round_robin(&pool).map(|picked| picked.backend) {
                Some(backend) => names[usize::from(backend) - 1].as_str(),
                None => "-",
            },
        )
        .collect();
    assert_eq!(
        order,
        case["expect"]["order"].as_str().expect("an order"),
        "{name}"
    );
}

#[test]
fn every_case_holds() {
    let cases = cases();
    assert!(!cases.is_empty(), "the vector file has no wrr case");
    cases.iter().for_each(check);
}
