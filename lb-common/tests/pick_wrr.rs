//! `weighted-round-robin`: runs in configuration order, whatever is down,
//! drained or refused, and exact totals from several CPUs.
//!
//! facebookincubator/katran#35: weights 1:10 behaved as 1:1, since they had to
//! sum up to nearly the ring's size; here any integers work. acassen/keepalived
//! #1757: weight 0 silently became 1; here it drains. envoyproxy/envoy#14360 and
//! #29953: the first picks after a change were biased; here a new list says at
//! which cursor value it begins.

#[path = "table/pool.rs"]
mod pool;
#[path = "table/random.rs"]
mod random;

use lb_common::pick::{Picked, Pool as _, weighted_round_robin};
use pool::{DOWN, HostPool, Row};
use random::Random;

fn letter(backend: u16) -> char {
    (b'@' + backend as u8) as char
}

/// Picks, as letters in the order of the list; `-` is none.
fn order(pool: &HostPool, picks: usize) -> String {
    (0..picks)
        .map(|_| weighted_round_robin(pool).map_or('-', |picked| letter(picked.backend)))
        .collect()
}

fn rows(weights: &[u32], down: &str, refused: &str) -> Vec<Row> {
    let named = |list: &str, position: usize| list.contains((b'A' + position as u8) as char);
    weights
        .iter()
        .enumerate()
        .map(|(position, &weight)| Row {
            flags: if named(down, position) {
                DOWN
            } else {
                pool::TAKES
            },
            refused: named(refused, position),
            ..Row::weight(weight)
        })
        .collect()
}

#[test]
fn orders() {
    // Weights, down, refused, cursor value of slot 0, picks.
    const FAR: u64 = u64::MAX - 2;
    let table: &[(&[u32], &str, &str, u64, &str)] = &[
        (&[3, 1, 2], "", "", 0, "AAABCCAAABCC"),
        (&[3, 1, 2], "B", "", 0, "AAACCAAACC"),
        (&[3, 1, 2], "A", "", 0, "BCCBCCBCC"),
        (&[3, 1, 2], "C", "", 0, "AAABAAAB"),
        (&[3, 1, 2], "AB", "", 0, "CCCC"),
        (&[3, 1, 2], "BC", "", 0, "AAAA"),
        (&[3, 1, 2], "ABC", "", 0, "----"),
        (&[3, 0, 2], "", "", 0, "AAACCAAACC"),
        (&[0, 0, 0], "", "", 0, "---"),
        (&[0, 5, 0], "", "", 0, "BBBBBBB"),
        (&[0, 5, 0], "B", "", 0, "--"),
        (&[], "", "", 0, "--"),
        (&[1], "", "", 0, "AAA"),
        // The cursor wraps within the first cycle and goes on.
        (&[3, 1, 2], "", "", FAR, "AAABCCAAABCC"),
        (&[3, 1, 2], "B", "", FAR, "AAACCAAACC"),
        (&[2, 2], "A", "", FAR, "BBBB"),
        // A refused backend's turns go to the next one; the cursor moves by one,
        // so that its run is not lost for flows that it is not refused.
        (&[3, 1, 2], "", "A", 0, "BBBBCCBBBB"),
        (&[3, 1, 2], "", "AB", 0, "CCCCCC"),
        (&[3, 1, 2], "B", "C", 0, "AAAAAAAA"),
        (&[3, 1, 2], "B", "AC", 0, "---"),
        (&[3, 1, 2], "", "ABC", 0, "---"),
    ];
    for (weights, down, refused, base, expected) in table {
        let pool = HostPool::new(rows(weights, down, refused), *base);
        assert_eq!(
            order(&pool, expected.len()),
            *expected,
            "weights {weights:?}, down {down:?}, refused {refused:?}, base {base}"
        );
    }
}

/// Runs of 1,000 that one flow in ten may not use keep their shares: the other
/// nine are not sent away with it.
#[test]
fn a_refusal_does_not_end_a_run() {
    let mut pool = HostPool::new(rows(&[3_000, 1_000], "", ""), 0);
    let mut picks = [0u32; 2];
    for flow in 0..40_000u32 {
        pool.rows[0].refused = flow % 10 == 9;
        let backend = weighted_round_robin(&pool).unwrap().backend;
        picks[usize::from(backend) - 1] += 1;
    }
    assert_eq!(picks, [27_000, 13_000]);
}

#[test]
fn a_jump_ends_at_the_first_run_that_takes_flows_at_all() {
    let mut pool = HostPool::new(rows(&[2, 2, 2], "A", "B"), 0);
    assert_eq!(
        order(&pool, 1),
        "C",
        "the turn of B, which this flow is refused"
    );
    pool.rows[1].refused = false;
    assert_eq!(order(&pool, 7), "BCCBBCC");
}

#[test]
fn down_in_the_middle_of_its_run_is_obeyed_on_the_next_flow() {
    let mut pool = HostPool::new(rows(&[3, 1, 2], "", ""), 0);
    assert_eq!(order(&pool, 2), "AA");
    pool.rows[0].flags = DOWN;
    assert_eq!(order(&pool, 6), "BCCBCC");
    pool.rows[0].flags = pool::TAKES;
    assert_eq!(order(&pool, 7), "AAABCCA");
    // As drained: acassen/keepalived#1757.
    pool.rows[0].weight = 0;
    assert_eq!(order(&pool, 4), "BCCB");
    pool.rows[0].weight = 3;
    assert_eq!(order(&pool, 3), "CCA");
}

#[test]
fn a_thousand_members_of_which_one_is_up() {
    for up in [0, 1, 499, 998, 999] {
        let mut list = vec![
            Row {
                flags: DOWN,
                ..Row::weight(65_535)
            };
            1_000
        ];
        list[up] = Row::weight(1);
        let pool = HostPool::new(list, 17);
        for _ in 0..50 {
            let picked = weighted_round_robin(&pool);
            assert_eq!(picked, Some(Picked::plain(up as u16 + 1)));
        }
    }
}

#[test]
fn any_weights_in_any_phase_give_exact_totals_per_cycle() {
    let mut random = Random::new(35);
    for round in 0..200 {
        // One round in ten with weights as large as they may be.
        let largest = if round % 10 == 0 { 65_536 } else { 40 };
        let mut weights: Vec<u32> = (0..1 + random.below(12))
            .map(|_| random.below(largest) as u32)
            .collect();
        weights[0] = weights[0].max(1);
        let pool = HostPool::new(rows(&weights, "", ""), random.bits());
        let cycle: u32 = weights.iter().sum();
        pool.advance(random.below(u64::from(cycle)));
        let mut picks = vec![0u32; weights.len()];
        for _ in 0..cycle {
            picks[usize::from(weighted_round_robin(&pool).unwrap().backend) - 1] += 1;
        }
        assert_eq!(picks, weights);
    }
}

#[test]
fn several_cpus_give_exact_totals_per_cycle() {
    const CYCLES: u32 = 3_000;
    let weights = [50, 1, 0, 7, 42];
    let pool = HostPool::new(rows(&weights, "", ""), u64::MAX - 777);
    let totals = std::thread::scope(|scope| {
        let cpus: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut picks = [0u32; 5];
                    for _ in 0..25 * CYCLES {
                        picks[usize::from(weighted_round_robin(&pool).unwrap().backend) - 1] += 1;
                    }
                    picks
                })
            })
            .collect();
        cpus.into_iter().fold([0u32; 5], |sum, cpu| {
            let picks = cpu.join().unwrap();
            std::array::from_fn(|i| sum[i] + picks[i])
        })
    });
    assert_eq!(totals, weights.map(|weight| weight * CYCLES));
}
