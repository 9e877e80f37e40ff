//! Ports of the pool: in a row, once each, taken over when their flow is gone.

use lb_common::abi::{FIRST_POOL_PORT, POOL_CELLS, pool_cell};
use lb_common::atomic::Word;
use lb_common::ports::{PORTS_PER_ADDRESS, PROBES, Ports, allocate, allocated};

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool on the heap, and who still has a flow.
struct Host {
    addresses: (u32, u32),
    turns: Vec<AtomicU64>,
    cells: Vec<Word>,
    live: Mutex<BTreeMap<(u64, u32, u16), ()>>,
    all_live: bool,
}

impl Host {
    fn new(first: u32, count: u32) -> Self {
        let all = first + count;
        Self {
            addresses: (first, count),
            turns: (0..all).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..all * POOL_CELLS).map(|_| Word::new(0)).collect(),
            live: Mutex::default(),
            all_live: false,
        }
    }

    fn open(&self, client: u64, is_udp: bool, start: u32) -> Option<(u32, u16)> {
        match allocate(self, client, is_udp, start) {
            0 => None,
            given => {
                let (pool, port) = allocated(given);
                self.live
                    .lock()
                    .expect("no holder panics")
                    .insert((client, pool, port), ());
                Some((pool, port))
            }
        }
    }
}

impl Ports for Host {
    fn addresses(&self) -> (u32, u32) {
        self.addresses
    }
    fn turn(&self, pool: u32) -> u64 {
        self.turns[pool as usize].fetch_add(1, Ordering::Relaxed)
    }
    fn cell(&self, index: u32) -> Option<&Word> {
        self.cells.get(index as usize)
    }
    fn is_taken(&self, word: u64, pool: u32, port: u16) -> bool {
        self.all_live
            || self
                .live
                .lock()
                .expect("no holder panics")
                .contains_key(&(word, pool, port))
    }
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, mut visit: V) {
        for index in 0..count {
            if !visit(index) {
                return;
            }
        }
    }
}

#[test]
fn ports_are_given_in_a_row_and_once() {
    for (first, count, start, expected) in [
        (1, 1, 0, vec![(1, 1_024), (1, 1_025), (1, 1_026)]),
        (1, 1, 7, vec![(1, 1_024), (1, 1_025), (1, 1_026)]),
        (1, 2, 0, vec![(1, 1_024), (1, 1_025), (1, 1_026)]),
        (1, 2, 1, vec![(2, 1_024), (2, 1_025), (2, 1_026)]),
        (3, 2, 3, vec![(4, 1_024), (4, 1_025), (4, 1_026)]),
    ] {
        let host = Host::new(first, count);
        let given: Vec<_> = (1..=3)
            .map(|client| host.open(client, false, start).unwrap())
            .collect();
        assert_eq!(given, expected, "{first} {count} {start}");
        // The other protocol's ports are others.
        let cell = pool_cell(given[0].0, true, given[0].1);
        assert_eq!(host.cells[cell as usize].load(), 0);
        assert_eq!(
            host.cells[pool_cell(given[0].0, false, given[0].1) as usize].load(),
            1
        );
    }
    assert_eq!(Host::new(1, 0).open(1, false, 0), None);
}

#[test]
fn every_port_is_given_before_one_is_given_again() {
    // A connection that just ended keeps its endpoint in the server's TIME_WAIT:
    // its port comes last.
    let host = Host::new(1, 1);
    let mut seen = BTreeMap::new();
    for client in 1..=PORTS_PER_ADDRESS {
        let (_, port) = host.open(client, false, 0).unwrap();
        assert!(port >= FIRST_POOL_PORT);
        assert_eq!(seen.insert(port, client), None);
        host.live.lock().unwrap().clear();
    }
    let again = host.open(u64::MAX, false, 0).unwrap();
    assert_eq!(again, (1, FIRST_POOL_PORT));
}

#[test]
fn a_port_is_taken_over_when_its_flow_is_gone_and_never_before() {
    let host = Host::new(1, 1);
    for client in 1..=PORTS_PER_ADDRESS {
        host.open(client, true, 0).unwrap();
    }
    // All are taken: no more cells than the bound are looked at.
    let before = host.turns[1].load(Ordering::Relaxed);
    assert_eq!(host.open(u64::MAX, true, 0), None);
    let looked = host.turns[1].load(Ordering::Relaxed) - before;
    assert_eq!(looked, u64::from(PROBES));
    // TCP's are not.
    assert!(host.open(u64::MAX, false, 0).is_some());
    // One flow ends, within reach of the next turn.
    let turn = host.turns[1].load(Ordering::Relaxed) % PORTS_PER_ADDRESS;
    let port = FIRST_POOL_PORT + turn as u16 + 9;
    let holder = host.cells[pool_cell(1, true, port) as usize].load();
    host.live.lock().unwrap().remove(&(holder, 1, port));
    assert_eq!(host.open(77_777_777, true, 0), Some((1, port)));
    assert_eq!(
        host.cells[pool_cell(1, true, port) as usize].load(),
        77_777_777
    );
}

#[test]
fn a_full_address_leaves_its_flows_to_the_others() {
    let mut host = Host::new(1, 2);
    for client in 1..=PORTS_PER_ADDRESS {
        let cell = pool_cell(1, false, FIRST_POOL_PORT + (client - 1) as u16);
        host.cells[cell as usize].store(client);
    }
    host.all_live = true;
    assert_eq!(host.open(1_000_001, false, 0), Some((2, FIRST_POOL_PORT)));
}

#[test]
fn two_cpus_never_have_one_port() {
    let host = Host {
        all_live: true,
        ..Host::new(1, 1)
    };
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let host = &host;
            scope.spawn(move || {
                for number in 0..20_000 {
                    let client = 1 + thread * 1_000_000 + number;
                    let given = allocate(host, client, false, 0);
                    assert_ne!(given, 0);
                    let (pool, port) = allocated(given);
                    let cell = pool_cell(pool, false, port) as usize;
                    assert_eq!(host.cells[cell].load(), client);
                }
            });
        }
    });
    let mut holders: Vec<u64> = host
        .cells
        .iter()
        .map(Word::load)
        .filter(|word| *word != 0)
        .collect();
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), 40_000);
}
