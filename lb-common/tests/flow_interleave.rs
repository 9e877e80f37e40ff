//! Two CPUs that open flows of one client endpoint at the same time: the second
//! one's whole opening is run at every single access of the first one to the
//! maps.
//!
//! Whatever the moment, one tuple ends up as one flow with one backend that
//! both CPUs name (cilium/cilium#17729: a stale entry sends to a wrong
//! backend), two tuples never as one four-tuple at a server, and the books agree
//! with the table. The table differs between the two CPUs' views by a tick, so
//! that they choose different places.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/plant.rs"]
mod plant;
#[path = "table/scan.rs"]
mod scan;
mod table;

use std::cell::{Cell, RefCell};

use drive::{Flow, Outcome, backend_endpoint, open};
use lb_common::abi::SpillKey;
use lb_common::flow::{Bucket, ColdWays, LiveWords, Opening, Paired, SpilledWay, Table, meta};
use lb_common::hash::Home;
use lb_common::tcp::State::{self, Closed, Established, HalfOpen, Reset};
use table::Host;

const BACKENDS: u16 = 8;
const OTHERS: u16 = 7;
const HOME: Home = Home {
    primary: 0,
    secondary: 1,
};

/// The maps, with something else happening at access number `at`.
struct Interrupted<'a> {
    host: &'a Host,
    accesses: Cell<u32>,
    at: u32,
    other: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl Interrupted<'_> {
    fn access(&self) -> &Host {
        let number = self.accesses.get();
        self.accesses.set(number + 1);
        if number == self.at
            && let Some(other) = self.other.take()
        {
            other();
        }
        self.host
    }
}

impl Table for Interrupted<'_> {
    fn bucket(&self, index: u32) -> Option<&Bucket> {
        self.access().bucket(index)
    }
    fn cold(&self, index: u32) -> Option<&ColdWays> {
        self.access().cold(index)
    }
    fn spilled(&self, key: &SpillKey) -> Option<&SpilledWay> {
        self.access().spilled(key)
    }
    fn spill(&self, key: &SpillKey, opening: &Opening) -> bool {
        self.access().spill(key, opening)
    }
    fn live(&self, backend: u16) -> Option<&LiveWords> {
        self.access().live(backend)
    }
    fn timeout(&self, state: State) -> u32 {
        self.access().timeout(state)
    }
}

/// A row: what is in the two buckets (state and tick, way by way), and the
/// clocks of the two CPUs.
struct Row {
    name: &'static str,
    buckets: [&'static [(State, u32)]; 2],
    spill: usize,
    /// The state of the tuple's own former flow, with backend 6.
    own: Option<State>,
    ticks: (u32, u32),
}

const LIVE: (State, u32) = (Established, 100);
/// Free for one whose clock shows 110, since resets linger for 20 ticks.
const ENDING: (State, u32) = (Reset, 90);
/// Older than a closed flow that is free already, and free at 111.
const OLDER: (State, u32) = (Reset, 91);
const OVER: (State, u32) = (Closed, 50);

const ROWS: &[Row] = &[
    Row {
        name: "empty",
        buckets: [&[], &[]],
        spill: 8,
        own: None,
        ticks: (110, 110),
    },
    Row {
        name: "a lower way becomes free in between",
        buckets: [&[OLDER, (Closed, 95), LIVE, LIVE], &[]],
        spill: 8,
        own: None,
        ticks: (110, 111),
    },
    Row {
        name: "the primary bucket becomes free in between",
        buckets: [&[LIVE, LIVE, LIVE, ENDING], &[LIVE, LIVE, OVER, LIVE]],
        spill: 8,
        own: None,
        ticks: (109, 110),
    },
    Row {
        name: "spill or bucket",
        buckets: [&[LIVE, LIVE, LIVE, LIVE], &[LIVE, LIVE, ENDING, LIVE]],
        spill: 8,
        own: None,
        ticks: (109, 110),
    },
    Row {
        name: "spill",
        buckets: [&[LIVE, LIVE, LIVE, LIVE], &[LIVE, LIVE, LIVE, LIVE]],
        spill: 8,
        own: None,
        ticks: (110, 110),
    },
    Row {
        name: "the oldest half-open one, or one that ended",
        buckets: [
            &[LIVE, LIVE, LIVE, (HalfOpen, 90)],
            &[LIVE, ENDING, LIVE, LIVE],
        ],
        spill: 0,
        own: None,
        ticks: (109, 110),
    },
    Row {
        name: "own lingering flow",
        buckets: [&[LIVE, LIVE], &[LIVE]],
        spill: 8,
        own: Some(Closed),
        ticks: (110, 110),
    },
    Row {
        name: "own half-open flow of a backend that drains",
        buckets: [&[LIVE, LIVE], &[LIVE]],
        spill: 8,
        own: Some(HalfOpen),
        ticks: (100, 101),
    },
];

const DRAINED: u16 = 6;

fn prepare(row: &Row) -> Host {
    let host = Host::new(2, row.spill, usize::from(BACKENDS));
    for (bucket, rows) in row.buckets.iter().enumerate() {
        plant::fill(
            &host,
            bucket as u32,
            1_000 * (bucket as u32 + 1),
            OTHERS,
            rows,
        );
    }
    if let Some(state) = row.own {
        plant::plant(&host, Flow::of(drive::TCP, HOME, 1, 1), DRAINED, state, 100);
    }
    host
}

/// Opens VIP number `vip` of client 1; prefers `backend`, else takes the other
/// of 1 and 2.
fn syn<T: Table>(table: &T, vip: u16, backend: u16, tick: u32) -> Outcome {
    let choose = |table: &T, paired: &Paired| {
        [backend, 3 - backend]
            .into_iter()
            .find(|&backend| !paired.contains(table, backend_endpoint(backend)))
    };
    let flow = Flow::of(drive::TCP, HOME, 1, vip);
    open(
        table,
        flow,
        plant::moment(tick),
        false,
        |backend| backend == DRAINED,
        choose,
    )
}

/// The backends of the live flows of client 1, by VIP.
fn flows_of_the_client(host: &Host) -> Vec<(u64, u16)> {
    let client = Flow::of(drive::TCP, HOME, 1, 1).client;
    let mut all = Vec::new();
    host.each_flow(|way| {
        let virtual_end = way.virtual_end.load();
        if way.client.load() == client && !meta::state(way.meta.load()).is_ended() {
            all.push((virtual_end >> 16, virtual_end as u16));
        }
    });
    all.sort_unstable();
    all
}

/// Runs the row with the second opening, which prefers backend `prefer`, at
/// every access of the first, which prefers 1; `check` gets both outcomes and
/// the table.
fn at_every_access(
    row: &Row,
    vips: (u16, u16),
    prefer: u16,
    check: impl Fn(Outcome, Outcome, &Host, &str),
) {
    for (first, second) in [row.ticks, (row.ticks.1, row.ticks.0)] {
        for at in 0.. {
            let host = prepare(row);
            let outcome = Cell::new(None);
            let other = || outcome.set(Some(syn(&host, vips.1, prefer, second)));
            let interrupted = Interrupted {
                host: &host,
                accesses: Cell::new(0),
                at,
                other: RefCell::new(Some(Box::new(other))),
            };
            let mine = syn(&interrupted, vips.0, 1, first);
            if interrupted.accesses.get() <= at {
                assert!(
                    at > 8,
                    "{}: an opening takes more accesses than {at}",
                    row.name
                );
                break;
            }
            drop(interrupted);
            let theirs = outcome.get().expect("the other CPU had its turn");
            let name = format!("{}: clocks {first} and {second}, access {at}", row.name);
            check(mine, theirs, &host, &name);
            for backend in 0..BACKENDS {
                assert_eq!(
                    host.booked(backend),
                    host.scan(backend),
                    "{name}: backend {backend}"
                );
            }
        }
    }
}

#[test]
fn one_tuple_is_one_flow_with_one_backend() {
    for row in ROWS {
        at_every_access(row, (1, 1), 2, |mine, theirs, host, name| {
            let flows = flows_of_the_client(host);
            assert_eq!(flows.len(), 1, "{name}: {flows:?}, {mine:?} and {theirs:?}");
            let backend = flows[0].1;
            for (outcome, own) in [(mine, 1), (theirs, 2)] {
                match outcome {
                    Outcome::Opened { .. } => assert_eq!(backend, own, "{name}"),
                    Outcome::Existing(named) => assert_eq!(backend, named, "{name}"),
                    Outcome::Collision | Outcome::Full => panic!("{name}: {outcome:?}"),
                }
            }
            assert_ne!(
                matches!(mine, Outcome::Opened { .. }),
                matches!(theirs, Outcome::Opened { .. }),
                "{name}: {mine:?} and {theirs:?}"
            );
        });
    }
}

#[test]
fn two_vips_of_one_client_never_share_a_server() {
    for row in ROWS.iter().filter(|row| row.own.is_none() && row.spill > 0) {
        at_every_access(row, (1, 2), 1, |mine, theirs, host, name| {
            let flows = flows_of_the_client(host);
            let [(_, first), (_, second)] = flows[..] else {
                panic!("{name}: {flows:?}, {mine:?} and {theirs:?}")
            };
            assert_ne!(first, second, "{name}");
        });
    }
}
