//! Where a new flow goes, and who gives way to it.
//!
//! cilium/cilium#20068 and #24177: new connections pushed live ones out unseen,
//! or the table failed closed; here a live flow past its handshake stays, and
//! what cannot be placed is told. facebookincubator/katran#106: long idle flows
//! were evicted by others; here by their own timeout only.
//! kubernetes/kubernetes#81775: a client that reuses a port meets the remains of
//! its old flow. cilium/cilium#32472: a SYN went to a backend that was gone.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/plant.rs"]
mod plant;
#[path = "table/prune.rs"]
mod prune;
#[path = "table/scan.rs"]
mod scan;
mod table;

use drive::{Flow, Outcome, backend_endpoint, find, open};
use lb_common::abi::SPILL_SLOTS;
use lb_common::flow::{Paired, Slot, Table as _, expire, meta};
use lb_common::hash::Home;
use lb_common::tcp::Side::{Client, Server};
use lb_common::tcp::State::{
    self, Answered, ClientFin, Closed, Conversing, Datagram, Established, HalfOpen, Reset,
    ServerFin,
};
use plant::{fill, plant};
use table::{Host, TIMEOUTS};

const HOME: Home = Home {
    primary: 0,
    secondary: 1,
};
/// Clients of planted flows are numbered from here; the new flow's is 1.
const OTHERS: u32 = 100;
const LIVE: (State, u32) = (Established, 100);
const NOW: u32 = 120;

fn host(spill: usize) -> Host {
    Host::new(4, spill, 8)
}

fn syn(host: &Host, flow: Flow, backend: u16, tick: u32) -> Outcome {
    open(
        host,
        flow,
        plant::moment(tick),
        false,
        |_| false,
        |_, _| Some(backend),
    )
}

/// The new flow of most tests.
fn new_flow() -> Flow {
    Flow::of(drive::TCP, HOME, 1, 1)
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

#[test]
fn the_primary_bucket_until_it_holds_more_than_two_then_the_emptier() {
    // Flows in each bucket, and where the next one goes.
    let table = [
        ((0, 0), Slot::way(0, 0)),
        ((2, 0), Slot::way(0, 2)),
        ((3, 0), Slot::way(1, 0)),
        ((3, 2), Slot::way(1, 2)),
        ((3, 3), Slot::way(0, 3)),
        ((2, 4), Slot::way(0, 2)),
        ((4, 0), Slot::way(1, 0)),
        ((4, 3), Slot::way(1, 3)),
        ((3, 4), Slot::way(0, 3)),
        ((4, 4), Slot::spill(0)),
    ];
    for ((primary, secondary), expected) in table {
        let host = host(4);
        fill(&host, 0, OTHERS, 7, &[LIVE; 4][..primary]);
        fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4][..secondary]);
        let slot = placed(syn(&host, new_flow(), 1, NOW));
        assert_eq!(slot, expected, "{primary} and {secondary} flows");
        assert_eq!(find(&host, new_flow(), Client, 0).unwrap().slot, expected);
        assert_books(&host);
    }
}

#[test]
fn a_flow_is_found_from_both_sides_with_its_words() {
    for (full, spilled) in [(0, false), (4, true)] {
        let host = host(4);
        fill(&host, 0, OTHERS, 7, &[LIVE; 4][..full]);
        fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4][..full]);
        let flow = new_flow();
        let slot = placed(syn(&host, flow, 5, NOW));
        assert_eq!(slot.is_spill(), spilled);
        for (side, backend) in [(Client, 0), (Server, 5)] {
            let found = find(&host, flow, side, backend).unwrap();
            assert_eq!(found.slot, slot);
            assert_eq!(found.client, 0x0000_0001_9c40_0601, "0.0.0.1:40000, TCP");
            assert_eq!(
                found.virtual_end, 0xc633_6401_0050_0005,
                "VIP 198.51.100.1:80, backend 5"
            );
            assert_eq!(found.backend_end, 0x0a00_0005_1f90_0000, "10.0.0.5:8080");
            assert_eq!((found.backend(), found.state()), (5, HalfOpen));
            assert_eq!(found.virtual_endpoint(), flow.vip);
            assert_eq!(found.backend_endpoint(), backend_endpoint(5));
            assert_eq!((meta::tick(found.meta), meta::hop(found.meta)), (NOW, 0));
            assert_eq!(found.meta & meta::TENTATIVE, 0, "an open flow is settled");
        }
        assert_eq!(
            find(&host, flow, Server, 4),
            None,
            "another server's packet"
        );
        assert_eq!(
            find(&host, Flow::of(drive::TCP, HOME, 1, 2), Client, 0),
            None,
            "another VIP"
        );
        assert_eq!(
            find(&host, Flow::of(drive::TCP, HOME, 2, 1), Client, 0),
            None,
            "another client"
        );
    }
}

/// A bucket full of the row's flows, the other one full of live ones, no spill:
/// which way the new flow gets, or none.
#[test]
fn the_replacement_order() {
    const OVER: (State, u32) = (Closed, NOW - TIMEOUTS[Closed as usize]);
    const LINGERS: (State, u32) = (Closed, OVER.1 + 1);
    const RESET: (State, u32) = (Reset, NOW - TIMEOUTS[Reset as usize]);
    let past = |state: State, more: u32| {
        (
            state,
            NOW.wrapping_sub(TIMEOUTS[state as usize] + more) & 0xff_ffff,
        )
    };
    let open = |tick| (HalfOpen, tick);
    // Name, the bucket's flows, and the way that the new one gets, if any, and
    // whether a half-open flow had to go.
    type Row<'a> = (&'a str, &'a [(State, u32)], Option<(usize, bool)>);
    let table: &[Row] = &[
        ("free before ended", &[OVER, LIVE, LIVE], Some((3, false))),
        (
            "ended before silent",
            &[past(ServerFin, 0), past(Established, 9), OVER, LIVE],
            Some((2, false)),
        ),
        (
            "silent before half-open",
            &[open(100), open(101), past(Established, 0), LIVE],
            Some((2, false)),
        ),
        (
            "of the ended the longest",
            &[OVER, (Closed, OVER.1 - 1), RESET, LIVE],
            Some((2, false)),
        ),
        (
            "of the silent the longest",
            &[
                past(Answered, 1),
                past(ServerFin, 2),
                past(ClientFin, 3),
                LIVE,
            ],
            Some((1, false)),
        ),
        (
            "a silent half-open one is silent",
            &[LIVE, LIVE, past(HalfOpen, 0), LIVE],
            Some((2, false)),
        ),
        (
            "the oldest half-open",
            &[open(110), open(105), (Answered, 104), open(106)],
            Some((2, true)),
        ),
        (
            "unanswered datagrams are half-open",
            &[open(110), (Datagram, 105), (Conversing, 100), open(106)],
            Some((1, true)),
        ),
        (
            "silent conversations are silent",
            &[open(1), past(Conversing, 0), (Conversing, 100), LIVE],
            Some((1, false)),
        ),
        (
            "conversations are live",
            &[(Conversing, 100), (Conversing, 1), LIVE, LIVE],
            None,
        ),
        (
            "closed and lingering before half-open",
            &[open(100), LINGERS, (Closed, LINGERS.1 + 1), LIVE],
            Some((1, false)),
        ),
        (
            "silent before lingering",
            &[LINGERS, LIVE, past(Established, 0), LIVE],
            Some((2, false)),
        ),
        (
            "half-open rather than reset and lingering",
            &[LIVE, (Reset, 110), open(119), LIVE],
            Some((2, true)),
        ),
        ("nobody", &[LIVE, LIVE, LIVE, (Reset, RESET.1 + 1)], None),
        (
            "closing flows are live",
            &[(ClientFin, 100), (ServerFin, 100), LIVE, LIVE],
            None,
        ),
    ];
    for (bucket, other) in [(0, 1), (1, 0)] {
        for (name, rows, expected) in table {
            let host = host(0);
            fill(&host, bucket, OTHERS, 7, rows);
            fill(&host, other, OTHERS + 10, 7, &[(Established, 119); 4]);
            let before: Vec<u64> = host
                .live
                .iter()
                .map(|live| live.syn_timeouts.load())
                .collect();
            match (syn(&host, new_flow(), 1, NOW), expected) {
                (Outcome::Full, None) => {}
                (
                    Outcome::Opened {
                        slot,
                        evicted_half_open,
                        spilled: false,
                    },
                    Some((way, evicts)),
                ) => {
                    assert_eq!(slot, Slot::way(bucket, *way as u32), "{name}");
                    assert_eq!(evicted_half_open, *evicts, "{name}");
                    // A flow that had to go under pressure is nobody's failure;
                    // one that was silent in the handshake for its time is.
                    let failures: u64 = host.live.iter().map(|live| live.syn_timeouts.load()).sum();
                    let timed_out = *name == "a silent half-open one is silent";
                    assert_eq!(
                        failures - before.iter().sum::<u64>(),
                        u64::from(timed_out),
                        "{name}"
                    );
                }
                (outcome, expected) => panic!("{name}: {outcome:?}, expected {expected:?}"),
            }
            assert_books(&host);
        }
    }
}

#[test]
fn the_spill_comes_before_half_open_flows_and_after_all_others() {
    let rows = [LIVE, LIVE, LIVE, (HalfOpen, 110)];
    let host = host(1);
    fill(&host, 0, OTHERS, 7, &rows);
    fill(&host, 1, OTHERS + 10, 7, &rows);
    let marked = |host: &Host| {
        [0, 1, 2, 3].map(|i| host.buckets[i].ways[0].meta.load() & meta::SPILLED != 0)
    };
    assert_eq!(marked(&host), [false; 4]);

    let first = syn(&host, new_flow(), 1, NOW);
    let expected = Outcome::Opened {
        slot: Slot::spill(0),
        evicted_half_open: false,
        spilled: true,
    };
    assert_eq!(first, expected);
    assert_eq!(
        marked(&host),
        [true, false, false, false],
        "the primary bucket only"
    );

    // The spill is full now.
    let second = Flow::of(drive::TCP, HOME, 2, 1);
    let outcome = syn(&host, second, 2, NOW);
    assert!(matches!(
        outcome,
        Outcome::Opened {
            evicted_half_open: true,
            spilled: false,
            ..
        }
    ));
    assert_books(&host);

    // The mark outlives whoever has the way that carries it.
    for round in 0..20 {
        let way = &host.bucket(0).unwrap().ways[0];
        let far = NOW + 2_000 + round * 200;
        assert!(expire(way, far, |_| 0, |b| host.live(b), || 0).is_some());
        assert_eq!(marked(&host), [true, false, false, false], "swept");
        let flow = Flow::of(
            drive::TCP,
            Home {
                primary: 0,
                secondary: 0,
            },
            1_000 + round,
            1,
        );
        assert_eq!(plant(&host, flow, 3, Established, far), Slot::way(0, 0));
        assert_eq!(marked(&host), [true, false, false, false], "taken again");
        assert!(find(&host, new_flow(), Client, 0).is_some());
    }
    assert_books(&host);
}

#[test]
fn closed_flows_yield_before_the_spill_is_used_but_not_to_a_free_way() {
    const LINGERS: (State, u32) = (Closed, 119);
    for (other, expected) in [(3, Slot::way(1, 3)), (4, Slot::way(0, 1))] {
        let host = host(4);
        fill(&host, 0, OTHERS, 7, &[LIVE, LINGERS, LIVE, LIVE]);
        fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4][..other]);
        assert_eq!(placed(syn(&host, new_flow(), 1, NOW)), expected);
        assert_books(&host);
    }
}

#[test]
fn only_a_marked_bucket_looks_into_the_spill() {
    let host = host(4);
    fill(&host, 0, OTHERS, 7, &[LIVE; 4]);
    fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4]);
    placed(syn(&host, new_flow(), 1, NOW));
    let word = &host.bucket(0).unwrap().ways[0].meta;
    assert!(word.replace(word.load(), word.load() & !meta::SPILLED));
    assert_eq!(find(&host, new_flow(), Client, 0), None);
    word.set_bits(meta::SPILLED);
    assert!(find(&host, new_flow(), Client, 0).is_some());
}

/// One client endpoint, many VIPs: the spill has `SPILL_SLOTS` places for it,
/// and takes the place of one that is over.
#[test]
fn a_client_endpoint_has_a_few_places_in_the_spill() {
    let mut host = host(64);
    fill(&host, 0, OTHERS, 7, &[LIVE; 4]);
    fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4]);
    let flow = |vip| Flow::of(drive::TCP, HOME, 1, vip);
    for number in 0..SPILL_SLOTS {
        let slot = plant(
            &host,
            flow(number as u16),
            number as u16 + 1,
            Established,
            NOW,
        );
        assert_eq!(slot, Slot::spill(number));
    }
    assert_eq!(syn(&host, flow(9), 6, NOW), Outcome::Full);
    assert_eq!(prune::entries(&host), SPILL_SLOTS as usize);

    // Its second flow ends, and lingers.
    let over = |host: &Host, tick| {
        let found = find(host, flow(1), Client, 0).unwrap();
        let at = plant::moment(tick);
        drive::send(host, &found, &drive::bare(Server, 4), at, 1);
        assert_eq!(find(host, flow(1), Client, 0).unwrap().state(), Reset);
    };
    over(&host, NOW);
    assert_eq!(
        syn(&host, flow(9), 6, NOW + TIMEOUTS[Reset as usize] - 1),
        Outcome::Full
    );
    let outcome = syn(&host, flow(9), 6, NOW + TIMEOUTS[Reset as usize]);
    assert_eq!(placed(outcome), Slot::spill(1));
    assert_eq!(find(&host, flow(1), Client, 0), None);
    assert_books(&host);

    prune::prune(&mut host);
    assert_eq!(
        prune::entries(&host),
        SPILL_SLOTS as usize,
        "none of them is dead"
    );
}

/// kubernetes/kubernetes#81775 and cilium/cilium#32472: a SYN on a tuple that is
/// over, or that no usable backend answered, begins a new flow in the same way.
#[test]
fn a_tuple_reuses_its_own_place() {
    for spilled in [false, true] {
        for (state, drained, reopens) in [
            (Closed, false, true),
            (Reset, false, true),
            (Closed, true, true),
            (HalfOpen, true, true),
            (HalfOpen, false, false),
            (Answered, false, false),
            (Established, false, false),
            (ClientFin, false, false),
            (ServerFin, false, false),
        ] {
            let host = host(4);
            if spilled {
                fill(&host, 0, OTHERS, 7, &[LIVE; 4]);
                fill(&host, 1, OTHERS + 10, 7, &[LIVE; 4]);
            }
            let slot = plant(&host, new_flow(), 6, state, NOW);
            assert_eq!(slot.is_spill(), spilled);
            let generation = find(&host, new_flow(), Client, 0).unwrap().meta & meta::GENERATION;
            let drains = |backend| drained && backend == 6;
            let choose = |_: &Host, paired: &Paired| {
                assert!(!paired.any(), "its own former flow pairs it with nobody");
                Some(2)
            };
            let outcome = open(&host, new_flow(), plant::moment(NOW), false, drains, choose);
            let found = find(&host, new_flow(), Client, 0).unwrap();
            assert_eq!(found.slot, slot);
            if reopens {
                assert_eq!(placed(outcome), slot, "{state:?}");
                assert_eq!((found.backend(), found.state()), (2, HalfOpen));
                assert_ne!(found.meta & meta::GENERATION, generation);
                assert_eq!(host.scan(6), (0, 0));
                assert_eq!(find(&host, new_flow(), Server, 6), None);
            } else {
                assert_eq!(outcome, Outcome::Existing(6), "{state:?}");
            }
            assert_books(&host);
        }
    }
}
