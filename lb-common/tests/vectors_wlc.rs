//! The `wlc` cases of `vectors.json`, and least connections against a slow
//! reference over random streams. `STEERLINE_VECTORS=FILE` replaces the file.

#[path = "table/pool.rs"]
mod pool;

use lb_common::pick::weighted_least_connections;
use pool::{DOWN, HostPool, Row};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    all.into_iter()
        .filter(|case| case["system"] == "wlc")
        .collect()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("a number")).expect("32 bits")
}

fn check(case: &Value) {
    let name = case["name"].as_str().expect("a case has a name");
    let input = &case["input"];
    // In the order of their letters, which is how every case lists them.
    let (names, rows): (Vec<&String>, Vec<Row>) = input["weights"]
        .as_object()
        .expect("weights by backend")
        .iter()
        .map(|(backend, weight)| {
            let live = number(&input["active"][backend]);
            (
                backend,
                Row {
                    live,
                    ..Row::weight(number(weight))
                },
            )
        })
        .unzip();
    let mut pool = HostPool::new(rows, 0);
    let mut order = String::new();
    for _ in 0..number(&input["picks"]) {
        let picked = weighted_least_connections(&pool)
            .expect("somebody is usable")
            .backend;
        let position = usize::from(picked) - 1;
        pool.rows[position].live += 1;
        order += names[position];
    }
    assert_eq!(
        order,
        case["expect"]["order"].as_str().expect("an order"),
        "{name}"
    );
    for (backend, row) in names.iter().zip(&pool.rows) {
        assert_eq!(
            row.live,
            number(&case["expect"]["active"][backend.as_str()]),
            "{name}: {backend}"
        );
    }
}

#[test]
fn every_case_holds() {
    let cases = cases();
    assert!(!cases.is_empty(), "the vector file has no wlc case");
    cases.iter().for_each(check);
}

/// The same rule by exact fractions, one candidate at a time.
fn reference(rows: &[Row]) -> Option<u16> {
    let mut best: Option<usize> = None;
    for (position, row) in rows.iter().enumerate() {
        if row.flags == DOWN || row.weight == 0 || row.refused {
            continue;
        }
        let better = best.is_none_or(|best| {
            let best = &rows[best];
            let mine = u128::from(row.live) * u128::from(best.weight);
            let theirs = u128::from(best.live) * u128::from(row.weight);
            mine < theirs || mine == theirs && row.weight > best.weight
        });
        if better {
            best = Some(position);
        }
    }
    best.map(|position| position as u16 + 1)
}

/// Flows open and close at random; backends go down and come back. loxilb issue
/// 1020: the counts must not drift apart when the set changes.
#[test]
fn random_streams_agree_with_the_reference() {
    let mut seed = 7u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..100 {
        let count = 1 + random(64) as usize;
        let rows = (0..count).map(|_| Row::weight(random(9) as u32)).collect();
        let mut pool = HostPool::new(rows, 0);
        for _ in 0..1_000 {
            let position = random(count as u64) as usize;
            match random(4) {
                0 => pool.rows[position].live = pool.rows[position].live.saturating_sub(1),
                1 if random(20) == 0 => {
                    let row = &mut pool.rows[position];
                    row.flags = if row.flags == DOWN { pool::TAKES } else { DOWN };
                }
                _ => {
                    let picked = weighted_least_connections(&pool).map(|picked| picked.backend);
                    assert_eq!(picked, reference(&pool.rows));
                    if let Some(picked) = picked {
                        pool.rows[usize::from(picked) - 1].live += 1;
                    }
                }
            }
        }
    }
}
