//! `aca` with `pick = "connections"` against a slow reference, and with
//! `pick = "shares"` on a ring.
//!
//! haproxy/haproxy#1099: what is equalised is the number of live flows over
//! weight and speed, not the total of flows. cilium/cilium#47900: the rule is
//! written down here, to the last tie.

#[path = "table/pool.rs"]
mod pool;
#[path = "table/random.rs"]
mod random;

use lb_common::admission::Admission;
use lb_common::pick::{Picked, aca_connections, aca_shares};
use pool::{DOWN, HostPool, Row, TAKES};
use random::Random;

const MOST_LIVE: u32 = (1 << 24) - 1;

fn takes(row: &Row) -> bool {
    row.flags == TAKES && row.weight > 0 && !row.refused && !row.admission.full
}

/// Sorts by (live + 1) × relative ÷ weight as a fraction, then higher weight,
/// then order; those that a budget spares behind all others.
fn reference(rows: &[Row]) -> Option<Picked> {
    let mut usable: Vec<(usize, &Row)> = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| takes(row))
        .collect();
    usable.sort_by(|(_, a), (_, b)| {
        let cost = |row: &Row| (u128::from(row.live) + 1) * u128::from(row.relative);
        let cheaper = (cost(a) * u128::from(b.weight)).cmp(&(cost(b) * u128::from(a.weight)));
        let spared = a.admission.spared.cmp(&b.admission.spared);
        spared.then(cheaper).then(b.weight.cmp(&a.weight))
    });
    let (position, row) = usable.first()?;
    Some(Picked {
        overruled: row.admission.spared,
        ..Picked::plain(*position as u16 + 1)
    })
}

fn no_trial(backend: Option<u16>) -> Option<Picked> {
    backend.map(Picked::plain)
}

#[test]
fn random_states_agree_with_the_reference() {
    let mut random = Random::new(1_099);
    for round in 0..100_000 {
        // Small numbers make ties, large ones the extremes.
        let (live, relative, weight) = match round % 3 {
            0 => (4, 3, 4),
            1 => (1_000, 2_000, 300),
            _ => (u64::from(MOST_LIVE) + 1, 65_280, 65_535),
        };
        let rows: Vec<Row> = (0..random.below(9))
            .map(|_| Row {
                flags: if random.below(8) == 0 { DOWN } else { TAKES },
                weight: random.below(weight + 1) as u32,
                relative: (256 + random.below(relative)) as u32,
                live: random.below(live) as u32,
                refused: random.below(16) == 0,
                admission: Admission {
                    spared: random.below(3) == 0,
                    full: random.below(16) == 0,
                    dummies: 0,
                },
            })
            .collect();
        let expected = reference(&rows);
        let pool = HostPool::new(rows, 0);
        assert_eq!(aca_connections(&pool, true), expected, "{:?}", pool.rows);
    }
}

#[test]
fn ties_and_extremes() {
    let row = |live, relative, weight| Row {
        live,
        relative,
        ..Row::weight(weight)
    };
    let table: &[(&str, &[Row], Option<u16>)] = &[
        ("nobody", &[], None),
        ("order", &[row(2, 256, 5), row(2, 256, 5)], Some(1)),
        ("higher weight", &[row(1, 256, 1), row(3, 256, 2)], Some(2)),
        (
            "idle, but slower and lighter",
            &[row(9, 256, 10), row(0, 512, 1)],
            Some(1),
        ),
        (
            "twice as slow, half the flows",
            &[row(3, 256, 1), row(1, 512, 1)],
            Some(1),
        ),
        (
            "everything at its largest, one flow less",
            &[
                row(MOST_LIVE, 65_535, 65_535),
                row(MOST_LIVE - 1, 65_535, 65_535),
            ],
            Some(2),
        ),
        (
            "everything at its largest, a little faster",
            &[
                row(MOST_LIVE, 65_535, 65_535),
                row(MOST_LIVE, 65_534, 65_535),
            ],
            Some(2),
        ),
        (
            "everything at its largest, a little lighter",
            &[
                row(MOST_LIVE, 65_535, 65_534),
                row(MOST_LIVE, 65_535, 65_535),
            ],
            Some(2),
        ),
        (
            "largest against smallest",
            &[row(MOST_LIVE, 65_535, 1), row(0, 256, 65_535)],
            Some(2),
        ),
        ("weight 0", &[Row::weight(0)], None),
        (
            "down",
            &[Row {
                flags: DOWN,
                ..Row::weight(1)
            }],
            None,
        ),
        (
            "not present",
            &[Row {
                flags: 2,
                ..Row::weight(1)
            }],
            None,
        ),
        (
            "refused",
            &[
                Row {
                    refused: true,
                    ..Row::weight(9)
                },
                row(900, 65_535, 1),
            ],
            Some(2),
        ),
    ];
    for (name, rows, expected) in table {
        assert_eq!(reference(rows), no_trial(*expected), "reference: {name}");
        let pool = HostPool::new(rows.to_vec(), 0);
        assert_eq!(aca_connections(&pool, true), no_trial(*expected), "{name}");
    }
}

/// Gives a backend a trial credit.
fn grant(pool: &HostPool, backend: u16) {
    pool.trials[usize::from(backend) - 1].store(1);
}

type Pick = fn(&HostPool, bool) -> Option<Picked>;

/// Both picks, by name.
const PICKS: [(&str, Pick); 2] = [
    ("connections", aca_connections::<HostPool>),
    ("shares", aca_shares::<HostPool>),
];

/// The pool of the tests below: backend 3 is the worst and not in the ring.
fn pool_with_a_laggard() -> HostPool {
    let laggard = Row {
        live: 5_000,
        relative: 60_000,
        ..Row::weight(1)
    };
    let mut pool = HostPool::new(vec![Row::weight(9), Row::weight(9), laggard], 0);
    pool.ring = vec![1, 2];
    pool
}

#[test]
fn a_trial_goes_first_and_once() {
    for (name, pick) in PICKS {
        let pool = pool_with_a_laggard();
        grant(&pool, 3);
        assert_ne!(
            pick(&pool, false).unwrap().backend,
            3,
            "{name}: no trials now"
        );
        assert_eq!(
            pick(&pool, true),
            Some(Picked {
                trial: true,
                ..Picked::plain(3)
            }),
            "{name}"
        );
        for _ in 0..9 {
            let picked = pick(&pool, true).unwrap();
            assert!(picked.backend != 3 && !picked.trial, "{name}");
        }
    }
}

#[test]
fn a_trial_does_not_override_down_weight_or_refusal() {
    for (name, pick) in PICKS {
        for spoil in [
            (|row: &mut Row| row.flags = DOWN) as fn(&mut Row),
            |row| row.weight = 0,
            |row| row.refused = true,
        ] {
            let mut pool = pool_with_a_laggard();
            grant(&pool, 3);
            spoil(&mut pool.rows[2]);
            assert_ne!(pick(&pool, true).unwrap().backend, 3, "{name}");
            // The credit is still there.
            pool.rows[2] = Row::weight(1);
            assert_eq!(
                pick(&pool, true),
                Some(Picked {
                    trial: true,
                    ..Picked::plain(3)
                }),
                "{name}"
            );
        }
    }
}

/// Another CPU takes the credit between this one's look and its grip.
#[test]
fn a_trial_that_is_gone_is_no_trial() {
    for (name, pick) in PICKS {
        let pool = pool_with_a_laggard();
        // Looks like a credit, but is none to take.
        pool.trials[2].store(2);
        let picked = pick(&pool, true).unwrap();
        assert!(picked.backend != 3 && !picked.trial, "{name}: {picked:?}");
    }
}

#[test]
fn racing_cpus_take_a_credit_once() {
    for (name, pick) in PICKS {
        let pool = pool_with_a_laggard();
        let barrier = std::sync::Barrier::new(3);
        let taken: usize = std::thread::scope(|scope| {
            let cpus: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut taken = 0;
                        for _ in 0..3_000 {
                            if barrier.wait().is_leader() {
                                grant(&pool, 3);
                            }
                            barrier.wait();
                            taken += usize::from(pick(&pool, true).unwrap().trial);
                            taken += usize::from(pick(&pool, true).unwrap().trial);
                        }
                        taken
                    })
                })
                .collect();
            cpus.into_iter().map(|cpu| cpu.join().unwrap()).sum()
        });
        assert_eq!(taken, 3_000, "{name}");
    }
}

#[test]
fn rings() {
    type Spoil = fn(&mut Row);
    let down: Spoil = |row| row.flags = DOWN;
    let refused: Spoil = |row| row.refused = true;
    let drained: Spoil = |row| row.weight = 0;
    // Name, ring, what is wrong with which backend, the first picks.
    type Case<'a> = (&'a str, &'a [u16], &'a [(usize, Spoil)], &'a [u16]);
    let table: &[Case] = &[
        ("round and round", &[1, 2, 1, 3], &[], &[1, 2, 1, 3, 1, 2]),
        (
            "a refused slot draws again",
            &[1, 2, 1, 3],
            &[(2, refused)],
            &[1, 1, 3, 1, 1, 3],
        ),
        ("down", &[1, 2, 1, 3], &[(1, down)], &[2, 3, 2, 3]),
        (
            "drained",
            &[1, 2, 1, 3],
            &[(3, drained)],
            &[1, 2, 1, 1, 2, 1],
        ),
        ("a slot of nobody", &[9, 2, 0, 3], &[], &[2, 3, 2, 3]),
        ("an empty ring falls back to the list", &[], &[], &[1, 1]),
        (
            "the list, too, skips",
            &[],
            &[(1, down), (2, refused)],
            &[3, 3],
        ),
        (
            "nobody in the ring: the list",
            &[1, 1, 2],
            &[(1, down), (2, down)],
            &[3, 3],
        ),
    ];
    for (name, ring, spoils, expected) in table {
        let mut pool = HostPool::new(vec![Row::weight(5); 3], 0);
        pool.ring = ring.to_vec();
        for (backend, spoil) in *spoils {
            spoil(&mut pool.rows[backend - 1]);
        }
        let picks: Vec<u16> = (0..expected.len())
            .map(|_| aca_shares(&pool, true).unwrap().backend)
            .collect();
        assert_eq!(picks, *expected, "{name}");
    }
    let mut pool = HostPool::new(
        vec![
            Row {
                flags: DOWN,
                ..Row::weight(5)
            };
            3
        ],
        0,
    );
    pool.ring = vec![1, 2, 3];
    assert_eq!(aca_shares(&pool, true), None);
    assert_eq!(aca_shares(&HostPool::new(Vec::new(), 0), true), None);
}

/// A usable backend far away in a ring of refused slots is found by the list
/// when the draws give up: a flow is refused only when all refuse it.
#[test]
fn a_rare_slot_is_never_missed() {
    let mut pool = HostPool::new(
        vec![
            Row {
                flags: DOWN,
                ..Row::weight(250)
            },
            Row::weight(1),
        ],
        0,
    );
    pool.ring = vec![1; 4_096];
    pool.ring[4_000] = 2;
    for _ in 0..200 {
        assert_eq!(aca_shares(&pool, false).unwrap().backend, 2);
    }
}
