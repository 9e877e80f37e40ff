//! Several CPUs at once: a test run executes on the CPU that asks for it.

use std::{
    collections::BTreeMap,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use lb_common::{flow::meta, reason::Reason, tcp::State};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use steerline_tests::{
    packets::{Counter, Lab, Port, Talk, flag::SYN, scene::A, verdict},
    world::skip_unless_root,
};

use crate::REASON;

/// Flows that both open, and the table in which they do: full enough for the
/// second bucket and the spill to be used.
const FLOWS: usize = 4_000;
const BUCKETS: u32 = 1_024;
const SPILL: u32 = 4_096;
/// Times that the whole is repeated, on an emptied table.
const ROUNDS: usize = 5;

/// Two CPUs that this process may use.
pub(crate) fn two_cpus() -> Option<[usize; 2]> {
    let set = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    Some([cpus.next()?, cpus.next()?])
}

pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a CPU number");
    sched_setaffinity(Pid::from_raw(0), &set).expect("pinning a thread");
}

/// Where each flow's SYN was sent, as one CPU saw it.
fn open_all(lab: &Lab, frames: &[Vec<u8>], turn: &[AtomicUsize], start: &Barrier) -> Vec<[u8; 6]> {
    start.wait();
    frames
        .iter()
        .zip(turn)
        .map(|(frame, turn)| {
            // Both are at the same flow at the same time.
            turn.fetch_add(1, SeqCst);
            while turn.load(SeqCst) < 2 {
                std::hint::spin_loop();
            }
            let (verdict, out) = lab.run(frame, Port::Front);
            assert_eq!(verdict, verdict::REDIRECT);
            let mut endpoint = [0; 6];
            endpoint[..4].copy_from_slice(&out[30..34]);
            endpoint[4..].copy_from_slice(&out[36..38]);
            endpoint
        })
        .collect()
}

/// How many ways hold the flow of each client word.
fn ways(lab: &Lab) -> BTreeMap<u64, usize> {
    let mut ways = BTreeMap::new();
    let mut note = |client: u64, word: u64| {
        if meta::is_flow(word) {
            *ways.entry(client).or_default() += 1;
        }
    };
    for index in 0..lab.maps.flows4.len() {
        let bucket = lab.maps.flows4.read(index);
        bucket
            .ways
            .iter()
            .for_each(|way| note(way.client, way.meta));
    }
    for entry in lab.maps.spill4.iter().flatten() {
        note(entry.1.way.client, entry.1.way.meta);
    }
    ways
}

#[test]
fn two_cpus_that_open_the_same_flows_open_each_once() {
    if skip_unless_root(REASON) {
        return;
    }
    let Some(cpus) = two_cpus() else {
        println!("skipped, one CPU: this test needs two");
        return;
    };
    let mut lab = Lab::new(BUCKETS, SPILL).expect("a laboratory");
    let frames: Vec<Vec<u8>> = (0..FLOWS)
        .map(|number| {
            Talk::web(10_000 + number as u16, A)
                .client_frame(SYN)
                .bytes()
        })
        .collect();
    let mut raced = 0;
    for round in 0..ROUNDS {
        lab.reset();
        let before = lab.snapshot();
        let turn: Vec<AtomicUsize> = (0..FLOWS).map(|_| AtomicUsize::new(0)).collect();
        let start = Barrier::new(cpus.len());
        let shared = &lab;
        let [one, other] = thread::scope(|scope| {
            cpus.map(|cpu| {
                let (frames, turn, start) = (&frames, &turn, &start);
                scope.spawn(move || {
                    pin(cpu);
                    shared.enter().expect("the laboratory's namespace");
                    open_all(shared, frames, turn, start)
                })
            })
            .map(|thread| thread.join().expect("a thread"))
        });
        let moved = before.moved(&lab.snapshot());
        let reason = |reason| moved.of(Counter::Reason(reason));
        let flows = FLOWS as i64;

        let different = one
            .iter()
            .zip(&other)
            .filter(|(one, other)| one != other)
            .count();
        assert_eq!(
            different, 0,
            "round {round}: flows whose two SYNs went to two servers"
        );
        let ways = ways(&lab);
        let doubled = ways.values().filter(|count| **count > 1).count();
        assert_eq!(doubled, 0, "round {round}: flows with more than one way");
        assert_eq!(ways.len(), FLOWS, "round {round}: flows in the table");
        assert_eq!(
            moved.of(Counter::flows(State::HalfOpen)),
            flows,
            "round {round}"
        );
        assert_eq!(
            moved.of(Counter::flows(State::Busy)),
            0,
            "round {round}: ways left busy"
        );
        assert_eq!(reason(Reason::Forwarded), 2 * flows, "round {round}");
        assert_eq!(reason(Reason::NewFlow), flows, "round {round}");
        assert_eq!(
            reason(Reason::Withdrawn) + reason(Reason::SynRepeated),
            flows,
            "round {round}: the other SYN of each flow was a twin or came a moment later"
        );
        lab.books_agree().expect("the books agree with the table");
        raced += reason(Reason::Withdrawn);
    }
    println!("{raced} of {} openings met a twin", ROUNDS * FLOWS);
    assert!(raced > 0, "the CPUs never met: this test shows nothing");
}
