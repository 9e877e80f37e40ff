//! Capacity means what it says: n flows of capacity hold n live flows while
//! flows come and go, and fewer than one opening in 100,000 finds no place.
//!
//! aquasecurity/tracee#3930: a table that evicts early. Prints how much of the
//! spill is used (`--nocapture`). Buckets and spill are sized as the daemon does:
//! the next power of two of n/2 buckets of four ways, max(1,024, n/64) entries.
//! n a power of two is the worst case: then exactly half of the ways are taken.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/kinds.rs"]
mod kinds;
#[path = "table/prune.rs"]
mod prune;
#[path = "table/random.rs"]
mod random;
#[path = "table/scan.rs"]
mod scan;
mod table;

use std::collections::VecDeque;

use drive::{Flow, Kind, Moment, Outcome, TCP, bare, find, open, send};
use kinds::{DATAGRAMS, DIRECT_DATAGRAMS, DIRECT_TCP, datagram};
use lb_common::abi::WAYS;
use lb_common::flow::{Table as _, at, expire};
use lb_common::hash::{Home, home};
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use lb_common::tcp::{Side, State};
use random::Random;
use table::{Host, TIMEOUTS};

const BACKENDS: u16 = 16;
/// The tick of everything but the ends of flows.
const NOW: u32 = 100_000;

/// What a run measured.
#[derive(Debug, Default)]
struct Measured {
    openings: u64,
    unplaced: u64,
    /// Spill entries once there were n flows.
    filled: usize,
    /// Most spill entries, those included that the sweep has not removed yet.
    most: usize,
}

struct Churn {
    host: Host,
    kinds: &'static [Kind],
    secret: [u64; 2],
    random: Random,
    live: Vec<Flow>,
    /// Ended and not to be replaced yet, the oldest first.
    lingering: VecDeque<Flow>,
    next_client: u32,
    measured: Measured,
}

impl Churn {
    fn new(n: u32, seed: u64, kinds: &'static [Kind]) -> Self {
        let buckets = n.div_ceil(WAYS as u32 / 2).next_power_of_two();
        let spill = (n / 64).max(1_024) as usize;
        let mut random = Random::new(seed);
        Self {
            host: Host::new(buckets, spill, usize::from(BACKENDS)),
            kinds,
            secret: [random.bits(), random.bits()],
            random,
            live: Vec::new(),
            lingering: VecDeque::new(),
            next_client: 0,
            measured: Measured::default(),
        }
    }

    fn segment(&self, flow: Flow, side: Side, bits: u8, tick: u32) {
        let found = find(&self.host, flow, Side::Client, 0).expect("the flow is there");
        let arrival = if flow.kind.datagrams {
            datagram(side, 100)
        } else {
            let payload = if bits == ACK { 100 } else { 0 };
            lb_common::flow::Arrival {
                payload,
                ..bare(side, bits)
            }
        };
        send(&self.host, &found, &arrival, Moment { tick, micros: 0 }, 1);
    }

    /// Everything that makes a new flow one that is never evicted.
    fn establish(&self, flow: Flow) {
        match (flow.kind.datagrams, flow.kind.direct) {
            (false, false) => {
                self.segment(flow, Side::Server, SYN | ACK, NOW);
                self.segment(flow, Side::Client, ACK, NOW);
            }
            (true, false) => self.segment(flow, Side::Server, 0, NOW),
            (false, true) => {
                self.segment(flow, Side::ClientAlone, ACK, NOW - 1);
                self.segment(flow, Side::ClientAlone, ACK, NOW);
            }
            (true, true) => self.segment(flow, Side::ClientAlone, 0, NOW),
        }
    }

    /// A new client opens a flow and completes the handshake. Clients come in a
    /// row, as from behind a translator: it is the hash that spreads them.
    fn open(&mut self) {
        self.next_client += 1;
        let kind = self.kinds[self.next_client as usize % self.kinds.len()];
        let mut flow = Flow::of(
            kind,
            Home {
                primary: 0,
                secondary: 0,
            },
            self.next_client,
            1,
        );
        flow.home = home(flow.client, self.secret, self.host.buckets.len() as u32 - 1);
        let backend = 1 + self.random.below(u64::from(BACKENDS) - 1) as u16;
        self.measured.openings += 1;
        let tick = NOW - u32::from(flow.kind.direct);
        let at = Moment { tick, micros: 0 };
        match open(&self.host, flow, at, false, |_| false, |_, _| Some(backend)) {
            Outcome::Opened {
                evicted_half_open, ..
            } => {
                assert!(!evicted_half_open, "nothing is half-open here");
            }
            Outcome::Full => {
                self.measured.unplaced += 1;
                return;
            }
            other => panic!("{other:?}"),
        }
        self.establish(flow);
        self.live.push(flow);
    }

    /// A random flow ends at `tick`, in one of the ways in which flows end.
    fn close(&mut self, tick: u32) -> Flow {
        let number = self.random.below(self.live.len() as u64) as usize;
        let flow = self.live.swap_remove(number);
        if flow.kind.datagrams {
            // They only fall silent.
            let found = find(&self.host, flow, Side::Client, 0).expect("the flow is there");
            let (way, _) = at(&self.host, found.slot, found.client).expect("it was found");
            let expired = expire(way, NOW, |_| 0, |b| self.host.live(b), || 0);
            assert!(expired.is_some());
        } else if self.random.below(10) == 0 {
            self.segment(flow, flow.kind.client, RST, tick);
        } else if flow.kind.direct {
            self.segment(flow, Side::ClientAlone, FIN | ACK, tick);
        } else {
            self.segment(flow, Side::Server, FIN | ACK, tick);
            self.segment(flow, Side::Client, FIN | ACK, tick);
        }
        flow
    }

    /// The sweep: frees ways whose time is up and removes dead spill entries.
    fn sweep(&mut self) {
        self.measured.most = self.measured.most.max(prune::entries(&self.host));
        let live = |backend| self.host.live(backend);
        self.host.each_flow(|way| {
            expire(way, NOW, |state| TIMEOUTS[state as usize], live, || 0);
        });
        prune::prune(&mut self.host);
    }

    /// Every live flow is there, and books and table agree.
    fn check(&self) {
        for &flow in &self.live {
            assert!(
                find(&self.host, flow, Side::Client, 0).is_some(),
                "a live flow was evicted"
            );
        }
        let mut active = 0;
        for backend in 0..BACKENDS {
            assert_eq!(
                self.host.booked(backend),
                self.host.scan(backend),
                "backend {backend}"
            );
            active += self.host.booked(backend).1;
        }
        assert_eq!(active, self.live.len() as u64);
    }
}

/// Fills to n live flows, then replaces random ones until `turns` × n were
/// replaced, with `lingering` flows besides that have ended and still linger.
/// A sweep comes after every n/16 replacements.
fn churn(n: u32, lingering: u32, turns: u32, kinds: &'static [Kind]) -> Measured {
    const LONG_AGO: u32 = NOW - TIMEOUTS[State::Reset as usize];
    let mut churn = Churn::new(n, u64::from(n), kinds);
    while churn.live.len() < n as usize {
        churn.open();
    }
    churn.check();
    churn.measured.filled = prune::entries(&churn.host);
    for step in 0..n * turns {
        if lingering == 0 {
            churn.close(LONG_AGO);
        } else {
            let flow = churn.close(NOW);
            churn.lingering.push_back(flow);
        }
        if churn.lingering.len() > lingering as usize {
            let flow = churn
                .lingering
                .pop_front()
                .expect("it is longer than nothing");
            // Unless it had to go already.
            if let Some(found) = find(&churn.host, flow, Side::Client, 0) {
                let (way, _) = at(&churn.host, found.slot, found.client).expect("it was found");
                expire(way, NOW + 100, |_| 100, |b| churn.host.live(b), || 0)
                    .expect("its time is up");
            }
        }
        churn.open();
        if churn.live.len() < n as usize {
            // Once more for the one that found no place.
            churn.open();
        }
        if step % (n / 16) == 0 {
            churn.sweep();
        }
    }
    churn.sweep();
    churn.check();
    let measured = churn.measured;
    let share = |count: usize| count as f64 * 100.0 / f64::from(n);
    println!(
        "{n} live and {lingering} lingering flows in {} ways: {} openings, {} unplaced; spill: {} \
         entries after filling ({:.3} % of n), at most {} ({:.3} %) of {}",
        churn.host.buckets.len() * WAYS,
        measured.openings,
        measured.unplaced,
        measured.filled,
        share(measured.filled),
        measured.most,
        share(measured.most),
        (n / 64).max(1_024),
    );
    measured
}

#[test]
fn capacity_means_what_it_says() {
    for n in [10_000, 16_384, 65_536, 65_537, 100_000] {
        let measured = churn(n, 0, 4, &[TCP]);
        assert!(
            measured.unplaced * 100_000 < measured.openings,
            "{n} flows: {} of {} openings found no place",
            measured.unplaced,
            measured.openings
        );
    }
}

/// At 10 s of linger, 6,500 connections a second leave as many flows lingering as
/// this table has live ones. Closed flows are not in the way of new ones. Those
/// that were reset, here one in ten, stay for their linger, and the last row has
/// so many of them that live and reset ones together exceed the capacity.
#[test]
fn lingering_flows_give_way() {
    // Lingering flows; openings of which less than one may find no place.
    for (lingering, one_in) in [(8_192, 100_000), (16_384, 100_000), (65_536, 200)] {
        let measured = churn(65_536, lingering, 2, &[TCP]);
        assert!(
            measured.unplaced * one_in < measured.openings,
            "{lingering} lingering: {} of {} openings found no place",
            measured.unplaced,
            measured.openings
        );
    }
}

/// The same with datagrams and direct return among them.
#[test]
fn every_kind_of_flow_has_its_place() {
    const KINDS: [Kind; 4] = [TCP, DATAGRAMS, DIRECT_TCP, DIRECT_DATAGRAMS];
    for n in [10_000, 16_384] {
        let measured = churn(n, 0, 4, &KINDS);
        assert!(
            measured.unplaced * 100_000 < measured.openings,
            "{n} flows: {} of {} openings found no place",
            measured.unplaced,
            measured.openings
        );
    }
}
