//! Budgets in the picks: who is spared is passed over, nobody is left without a
//! backend for it, and a maximum is a maximum.

#[path = "table/pool.rs"]
mod pool;

use lb_common::admission::Admission;
use lb_common::pick::{
    Picked, aca_connections, aca_shares, weighted_least_connections, weighted_round_robin,
};
use pool::{DOWN, HostPool, Row};

/// Backends of these weights; a letter each: `.` in service, `s` spared, `f`
/// full, `d` down, `r` refused to this flow, `R` refused and spared.
fn rows(weights: &[u32], kinds: &str) -> Vec<Row> {
    let row = |(&weight, kind): (&u32, char)| Row {
        flags: if kind == 'd' { DOWN } else { pool::TAKES },
        refused: matches!(kind, 'r' | 'R'),
        admission: Admission {
            spared: matches!(kind, 's' | 'R'),
            full: kind == 'f',
            dummies: 0,
        },
        ..Row::weight(weight)
    };
    weights.iter().zip(kinds.chars()).map(row).collect()
}

/// A pick as a letter: upper case on its merit, lower case against a budget.
fn letter(picked: Option<Picked>) -> char {
    match picked {
        None => '-',
        Some(picked) => {
            let base = if picked.overruled { b'`' } else { b'@' };
            (base + picked.backend as u8) as char
        }
    }
}

#[test]
fn round_robin() {
    // Weights, kinds, picks.
    let table: &[(&[u32], &str, &str)] = &[
        (&[3, 1, 2], "...", "AAABCCAAABCC"),
        // A spared backend's run is jumped as if it were down.
        (&[3, 1, 2], ".s.", "AAACCAAACC"),
        (&[3, 1, 2], "s..", "BCCBCC"),
        (&[3, 1, 2], "ss.", "CCCC"),
        (&[3, 1, 2], ".f.", "AAACCAAACC"),
        // All spared: budgets do not count, and neither does the jump.
        (&[3, 1, 2], "sss", "aaabccaaabcc"),
        (&[3, 1, 2], "sds", "aaaccaaacc"),
        (&[3, 1, 2], "sfs", "aaaccaaacc"),
        (&[3, 1, 2], "fff", "----"),
        (&[3, 1, 2], "fdf", "----"),
        (&[2, 1], "sr", "aaaaaa"),
        (&[2, 1], "Rr", "---"),
        (&[1], "s", "aaa"),
    ];
    for &(weights, kinds, expected) in table {
        let pool = HostPool::new(rows(weights, kinds), 0);
        let order: String = expected
            .chars()
            .map(|_| letter(weighted_round_robin(&pool)))
            .collect();
        assert_eq!(order, expected, "{weights:?} {kinds}");
    }
}

#[test]
fn the_cheapest_and_the_ring() {
    // Kinds of three equal backends; who is picked by connections and shares.
    for (kinds, expected) in [
        ("...", 'A'),
        ("s..", 'B'),
        ("ss.", 'C'),
        ("f..", 'B'),
        ("sss", 'a'),
        ("fss", 'b'),
        ("fsd", 'b'),
        ("fff", '-'),
        ("Rsr", 'b'),
    ] {
        let mut pool = HostPool::new(rows(&[1, 1, 1], kinds), 0);
        pool.ring = vec![1, 2, 3];
        assert_eq!(letter(aca_connections(&pool, true)), expected, "{kinds}");
        assert_eq!(letter(aca_shares(&pool, true)), expected, "{kinds}");
        assert_eq!(
            letter(weighted_least_connections(&pool)),
            expected,
            "{kinds}"
        );
        // A credit for a trial does not reach past a budget.
        let pool = HostPool::new(rows(&[1, 1, 1], kinds), 0);
        pool.trials[0].store(1);
        let picked = aca_connections(&pool, true).map(|picked| (picked.backend, picked.trial));
        assert_eq!(picked == Some((1, true)), kinds.starts_with('.'), "{kinds}");
    }
    // The ring is short of them, the list is not.
    let mut pool = HostPool::new(rows(&[1, 1, 1], "ss."), 0);
    pool.ring = vec![1, 2];
    assert_eq!(letter(aca_shares(&pool, false)), 'C');
}

/// Spec 4.5: others at 100 connections; with 100 dummies a newcomer takes its
/// turn, with 50 it gets the next fifty.
#[test]
fn dummies() {
    for (dummies, own, expected) in [
        (100, 0, 'A'),
        (99, 0, 'B'),
        (50, 0, 'B'),
        (50, 49, 'B'),
        (50, 50, 'A'),
        (0, 99, 'B'),
        (0, 100, 'A'),
    ] {
        let mut rows = rows(&[1, 1, 1], "...");
        (rows[0].live, rows[1].live, rows[2].live) = (100, own, 100);
        rows[1].admission.dummies = dummies;
        let pool = HostPool::new(rows, 0);
        assert_eq!(
            letter(weighted_least_connections(&pool)),
            expected,
            "{dummies} {own}"
        );
    }
}
