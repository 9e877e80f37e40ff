//! One client endpoint with several VIPs: which backends it may be given again.
//!
//! In `nat` a server must not see one four-tuple twice. A server that answers
//! directly sees the VIP instead of itself, so that nothing can look alike.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/kinds.rs"]
mod kinds;
#[path = "table/plant.rs"]
mod plant;
#[path = "table/scan.rs"]
mod scan;
mod table;

use drive::{Flow, Kind, Outcome, TCP, backend_endpoint, find, open};
use kinds::{DATAGRAMS, DIRECT_DATAGRAMS, DIRECT_TCP, datagram};
use lb_common::flow::{Paired, Slot, Table as _, expire};
use lb_common::hash::Home;
use lb_common::tcp::Side::{Client, Server};
use lb_common::tcp::State::{self, Closed, Established};
use plant::{advance, fill};
use table::{Host, TIMEOUTS};

const HOME: Home = Home {
    primary: 0,
    secondary: 1,
};
/// Clients of planted flows are numbered from here.
const OTHERS: u32 = 100;
const LIVE: (State, u32) = (Established, 100);
const NOW: u32 = 120;

fn host(spill: usize) -> Host {
    Host::new(4, spill, 8)
}

fn placed(outcome: Outcome) -> Slot {
    match outcome {
        Outcome::Opened { slot, .. } => slot,
        other => panic!("not opened: {other:?}"),
    }
}

fn assert_books(host: &Host) {
    for backend in 0..8 {
        assert_eq!(
            host.booked(backend),
            host.scan(backend),
            "backend {backend}"
        );
    }
}

/// Opens a flow to the one backend, unless the client is paired with it.
fn open_one(host: &Host, flow: Flow, backend: u16) -> Outcome {
    let choose = |host: &Host, paired: &Paired| {
        let free = flow.kind.direct || !paired.contains(host, backend_endpoint(backend));
        free.then_some(backend)
    };
    open(host, flow, plant::moment(NOW), false, |_| false, choose)
}

/// Flows of both kinds share a backend; answers belong to the one through us.
#[test]
fn direct_return_pairs_with_nothing() {
    let pairs: [(Kind, Kind); 2] = [(TCP, DIRECT_TCP), (DATAGRAMS, DIRECT_DATAGRAMS)];
    for full in [0, 3, 4] {
        for (through, direct) in pairs {
            for direct_first in [false, true] {
                let host = host(8);
                fill(&host, 0, OTHERS, 7, &[LIVE; 4][..full]);
                fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4][..full]);
                let through = Flow::of(through, HOME, 1, 1);
                let direct = Flow::of(direct, HOME, 1, 2);
                let order = if direct_first {
                    [direct, through]
                } else {
                    [through, direct]
                };
                for flow in order {
                    placed(open_one(&host, flow, 3));
                }
                placed(open_one(&host, Flow { vip: 7, ..direct }, 3));
                let again = Flow { vip: 8, ..through };
                assert_eq!(open_one(&host, again, 3), Outcome::Collision);
                let answer = find(&host, through, Server, 3).expect("the flow is there");
                assert_eq!(answer.virtual_endpoint(), through.vip);
                if through.kind.datagrams {
                    let at = plant::moment(NOW);
                    let ended = drive::send(&host, &answer, &datagram(Server, 1), at, 1).ended;
                    assert_eq!(ended.map(|ended| ended.backend), Some(3));
                    assert_eq!(ended.map(|ended| ended.failed), Some(false));
                }
                let own = find(&host, direct, direct.kind.client, 0).expect("the flow is there");
                assert_eq!((own.backend(), own.backend_end), (3, 0));
                assert_books(&host);
            }
        }
    }
}

/// A client endpoint that has a flow with a backend through one VIP does not
/// get that backend through another: the server would see one tuple twice.
#[test]
fn a_paired_backend_is_skipped() {
    // How many of the buckets' ways are taken by others.
    for full in [0, 3, 4] {
        let host = host(8);
        fill(&host, 0, OTHERS, 7, &[LIVE; 4][..full]);
        fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4][..full]);
        let try_open = |client, vip| {
            let choose = |host: &Host, paired: &Paired| {
                [1u16, 2, 3]
                    .into_iter()
                    .find(|&b| !paired.contains(host, backend_endpoint(b)))
            };
            let flow = Flow::of(drive::TCP, HOME, client, vip);
            open(&host, flow, plant::moment(NOW), false, |_| false, choose)
        };
        for (vip, backend) in [(1, 1), (2, 2), (3, 3)] {
            placed(try_open(1, vip));
            let found = find(&host, Flow::of(drive::TCP, HOME, 1, vip), Client, 0).unwrap();
            assert_eq!(found.backend(), backend);
        }
        assert_eq!(try_open(1, 4), Outcome::Collision, "{full} others");
        placed(try_open(2, 4));

        // Replies of each server belong to its own VIP's flow.
        for (vip, backend) in [(1, 1), (2, 2), (3, 3)] {
            let found = find(&host, Flow::of(drive::TCP, HOME, 1, vip), Server, backend).unwrap();
            assert_eq!(
                found.virtual_endpoint(),
                Flow::of(drive::TCP, HOME, 1, vip).vip
            );
        }

        // Lingering, it still is in the way of replies; gone, it is not.
        advance(&host, Flow::of(drive::TCP, HOME, 1, 2), 2, Closed, NOW);
        assert_eq!(try_open(1, 4), Outcome::Collision);
        host.each_flow(|way| {
            expire(
                way,
                NOW + TIMEOUTS[Closed as usize],
                |state| TIMEOUTS[state as usize],
                |b| host.live(b),
                || 0,
            );
        });
        placed(try_open(1, 4));
        assert_eq!(
            find(&host, Flow::of(drive::TCP, HOME, 1, 4), Client, 0)
                .unwrap()
                .backend(),
            2
        );
        assert_books(&host);
    }
}
