//! Random streams of packets of every kind of flow through a table that is too
//! small for them: the books always say what a scan finds, no flow is reported
//! twice, and no flow that must stay is evicted.
//!
//! cilium/cilium#20068, kubernetes/kubernetes#76664. A failure names its seed.

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

use std::collections::BTreeMap;

use drive::{Flow, Kind, Moment, Outcome, TCP, bare, find, open, send};
use kinds::{DATAGRAMS, DIRECT_DATAGRAMS, DIRECT_TCP, datagram};
use lb_common::abi::measure::{FIRST_RESPONSE, SYN_TO_FIN};
use lb_common::abi::ticks_between;
use lb_common::flow::{Arrival, Found, Table as _, at, expire, meta};
use lb_common::hash::home;
use lb_common::tcp::Side::{Client, Server};
use lb_common::tcp::State::{self, Closed, Established, Reset};
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use random::Random;
use table::{Host, TIMEOUTS};

const BUCKETS: u32 = 4;
const SPILL: usize = 4;
const BACKENDS: u16 = 5;
const CLIENTS: u64 = 12;
const KINDS: [Kind; 4] = [TCP, DATAGRAMS, DIRECT_TCP, DIRECT_DATAGRAMS];
/// Ticks within which a half-closed client is heard again; see `flow::open`.
const RECEIVING: u32 = 4;

struct Stream {
    host: Host,
    random: Random,
    secret: [u64; 2],
    now: u32,
    /// Reports of the present flow of each tuple.
    reports: BTreeMap<(u64, u64), u32>,
    reported: u32,
    evicted: u32,
    full: u32,
    restored: u32,
}

impl Stream {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            host: Host::new(BUCKETS, SPILL, usize::from(BACKENDS)),
            secret: [random.bits(), random.bits()],
            random,
            now: 1_000,
            reports: BTreeMap::new(),
            reported: 0,
            evicted: 0,
            full: 0,
            restored: 0,
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            tick: self.now,
            micros: u64::from(self.now) << 18,
        }
    }

    fn flow(&self, client: u64, kind: Kind) -> Flow {
        let nowhere = lb_common::hash::Home {
            primary: 0,
            secondary: 0,
        };
        let number = KINDS.iter().position(|k| *k == kind).expect("a kind");
        let mut flow = Flow::of(kind, nowhere, client as u32, number as u16);
        flow.home = home(flow.client, self.secret, BUCKETS - 1);
        flow
    }

    fn any(&mut self) -> Flow {
        let client = 1 + self.random.below(CLIENTS);
        let kind = KINDS[self.random.below(4) as usize];
        self.flow(client, kind)
    }

    /// Whether a new flow may not push this one out.
    fn must_stay(&self, found: &Found) -> bool {
        let (state, word) = (found.state(), found.meta);
        let age = ticks_between(meta::tick(word), self.now);
        let unassured = word & meta::UNASSURED != 0;
        let half_closed = word & meta::ONE_SIDED != 0 && !unassured && age < RECEIVING;
        age < TIMEOUTS[state as usize]
            && match state {
                Closed => half_closed,
                Established => !unassured,
                Reset => true,
                other => other.is_active(),
            }
    }

    /// Slot and meta word of every flow that must stay.
    fn protected(&self) -> Vec<(Flow, Found)> {
        let flows = (1..=CLIENTS).flat_map(|client| KINDS.map(|kind| self.flow(client, kind)));
        flows
            .filter_map(|flow| Some((flow, find(&self.host, flow, Client, 0)?)))
            .filter(|(_, found)| self.must_stay(found))
            .collect()
    }

    fn open(&mut self) {
        let flow = self.any();
        let before = self.protected();
        let backend = 1 + self.random.below(u64::from(BACKENDS) - 1) as u16;
        let first_response = backend.is_multiple_of(2);
        let choose = |host: &Host, paired: &lb_common::flow::Paired| {
            let free = flow.kind.direct || !paired.contains(host, drive::backend_endpoint(backend));
            free.then_some(backend)
        };
        let outcome = open(
            &self.host,
            flow,
            self.moment(),
            first_response,
            |_| false,
            choose,
        );
        match outcome {
            Outcome::Opened {
                evicted_half_open, ..
            } => {
                self.reports.insert((flow.client, flow.vip), 0);
                self.evicted += u32::from(evicted_half_open);
            }
            Outcome::Full => self.full += 1,
            Outcome::Existing(_) | Outcome::Collision => {}
        }
        for (other, found) in before {
            if other == flow {
                // Its own former self gives its place.
                continue;
            }
            let now = find(&self.host, other, Client, 0).map(|now| now.meta & !meta::SPILLED);
            let before = found.meta & !meta::SPILLED;
            assert_eq!(now, Some(before), "{other:?} pushed out by {flow:?}");
        }
    }

    fn packet(&mut self) {
        const BITS: [u8; 9] = [ACK, ACK, ACK, SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, 0];
        let flow = self.any();
        let Some(found) = find(&self.host, flow, Client, 0) else {
            return;
        };
        let side = if flow.kind.direct || self.random.below(2) == 0 {
            flow.kind.client
        } else {
            Server
        };
        let payload = self.random.below(3) as u32 * 100;
        let arrival = if flow.kind.datagrams {
            datagram(side, payload)
        } else {
            let segment = bare(side, BITS[self.random.below(9) as usize]);
            Arrival {
                sequence: segment.sequence + self.random.below(400) as u32,
                acknowledgement: segment.acknowledgement + self.random.below(400) as u32,
                payload,
                ..segment
            }
        };
        let measure = if found.backend().is_multiple_of(2) {
            FIRST_RESPONSE
        } else {
            SYN_TO_FIN
        };
        let tracked = send(&self.host, &found, &arrival, self.moment(), measure);
        self.restored += u32::from(tracked.restored);
        if tracked.ended.is_some() {
            let count = self
                .reports
                .get_mut(&(flow.client, flow.vip))
                .expect("it was opened");
            *count += 1;
            self.reported += 1;
            assert_eq!(*count, 1, "{flow:?} was reported twice");
        }
    }

    fn sweep(&mut self) {
        for client in 1..=CLIENTS {
            for kind in KINDS {
                let flow = self.flow(client, kind);
                if let Some(found) = find(&self.host, flow, Client, 0)
                    && let Some((way, cold)) = at(&self.host, found.slot, found.client)
                {
                    let timeout = |state: State| TIMEOUTS[state as usize];
                    let live = |backend| self.host.live(backend);
                    expire(way, self.now, timeout, live, || cold.syn_repeats.load());
                }
            }
        }
        prune::prune(&mut self.host);
    }

    fn check(&self) {
        assert!(prune::entries(&self.host) <= SPILL);
        for backend in 0..BACKENDS {
            assert_eq!(
                self.host.booked(backend),
                self.host.scan(backend),
                "backend {backend}"
            );
        }
    }
}

#[test]
fn books_equal_a_scan_and_flows_are_reported_once() {
    let mut seen = [0; 4];
    for seed in 1..=40 {
        println!("seed {seed}");
        let mut stream = Stream::new(seed);
        for _ in 0..4_000 {
            match stream.random.below(100) {
                0..30 => stream.open(),
                30..90 => stream.packet(),
                90..98 => stream.now += 1,
                98 => stream.now += stream.random.below(60) as u32,
                _ => stream.sweep(),
            }
            stream.check();
        }
        for (sum, of) in seen.iter_mut().zip([
            stream.reported,
            stream.evicted,
            stream.full,
            stream.restored,
        ]) {
            *sum += of;
        }
    }
    println!("reported, evicted, full, restored: {seen:?}");
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}
