//! What packets change of a flow's state, and of the books of its backend:
//! counts through every path, and one report a flow.
//!
//! facebookincubator/katran#14: a new SYN, a repeated one and a packet of no
//! flow are different things. cilium/cilium#20407: a client's FIN that the
//! server never answers ends by its own timeout. kubernetes/ingress-nginx#9882:
//! a server that resets instantly is a failure, not a fast answer.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/scan.rs"]
mod scan;
mod table;
#[path = "table/world.rs"]
mod world;

use drive::{Kind, Outcome, TCP, find};
use lb_common::abi::measure::SYN_TO_FIN;
use lb_common::flow::{Arrival, Table as _, Tracked, expire, meta};
use lb_common::tcp::Side::{self, Client, Server};
use lb_common::tcp::State::{self, HalfOpen};
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use table::{Host, TIMEOUTS};
use world::{BACKEND, NOW, World};

/// What a row does after the client's SYN.
#[derive(Clone, Copy, Debug)]
enum Do {
    /// The server's segment.
    S(u8),
    /// The client's.
    C(u8),
    /// The sweep, when the state's timeout has passed.
    Sweep,
    /// The client's SYN on a tuple that is over.
    Reopen,
}
use Do::{C, Reopen, S, Sweep};

/// Half-opened, half-closed, opened, closed, resets, SYN timeouts.
type Books = [u64; 6];

fn books(host: &Host) -> Books {
    let live = &host.live[usize::from(BACKEND)];
    [
        &live.half_opened,
        &live.half_closed,
        &live.opened,
        &live.closed,
        &live.resets,
        &live.syn_timeouts,
    ]
    .map(|word| word.load())
}

#[test]
fn counts_and_reports_through_every_path() {
    const HANDSHAKE: [Do; 2] = [S(SYN | ACK), C(ACK)];
    // Name, after the handshake or before it, segments, the books at the end,
    // and the reports: `true` is a failure.
    type Row = (&'static str, bool, &'static [Do], Books, &'static [bool]);
    let table: &[Row] = &[
        ("half-open", false, &[], [1, 0, 0, 0, 0, 0], &[]),
        (
            "SYN repeated",
            false,
            &[C(SYN), C(SYN)],
            [1, 0, 0, 0, 0, 0],
            &[],
        ),
        (
            "nobody answers",
            false,
            &[C(SYN), Sweep],
            [1, 1, 0, 0, 0, 1],
            &[],
        ),
        (
            "answered",
            false,
            &[S(SYN | ACK), S(SYN | ACK)],
            [1, 0, 0, 0, 0, 0],
            &[],
        ),
        (
            "the client vanishes",
            false,
            &[S(SYN | ACK), Sweep],
            [1, 1, 0, 0, 0, 0],
            &[],
        ),
        (
            "the client gives up",
            false,
            &[C(RST), Sweep],
            [1, 1, 0, 0, 0, 0],
            &[],
        ),
        (
            "the client gives up late",
            false,
            &[S(SYN | ACK), C(RST)],
            [1, 1, 0, 0, 0, 0],
            &[],
        ),
        (
            "refused",
            false,
            &[S(RST | ACK), Sweep],
            [1, 1, 0, 0, 1, 0],
            &[true],
        ),
        (
            "refused twice",
            false,
            &[S(RST | ACK), S(RST | ACK)],
            [1, 1, 0, 0, 1, 0],
            &[true],
        ),
        (
            "refused after the answer",
            false,
            &[S(SYN | ACK), S(RST)],
            [1, 1, 0, 0, 1, 0],
            &[true],
        ),
        (
            "established",
            true,
            &[C(ACK), S(ACK)],
            [1, 1, 1, 0, 0, 0],
            &[],
        ),
        ("idle", true, &[Sweep], [1, 1, 1, 1, 0, 0], &[]),
        (
            "client closes first",
            true,
            &[C(FIN | ACK), S(ACK), S(FIN | ACK), C(ACK)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "server closes first",
            true,
            &[S(FIN | ACK), C(ACK), C(FIN | ACK), S(ACK)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "FINs repeated",
            true,
            &[S(FIN | ACK), S(FIN | ACK), C(FIN | ACK), C(FIN | ACK)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "FIN with the last ACK of the handshake",
            false,
            &[S(SYN | ACK), C(FIN | ACK), S(FIN | ACK)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "server's FIN, the client's ACK not seen",
            false,
            &[S(SYN | ACK), S(FIN | ACK)],
            [1, 1, 1, 0, 0, 0],
            &[false],
        ),
        (
            "one-sided close of the client",
            true,
            &[C(FIN | ACK), S(ACK)],
            [1, 1, 1, 0, 0, 0],
            &[],
        ),
        (
            "one-sided close of the client, silent",
            true,
            &[C(FIN | ACK), Sweep],
            [1, 1, 1, 1, 0, 0],
            &[],
        ),
        (
            "one-sided close of the server, silent",
            true,
            &[S(FIN | ACK), Sweep],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "client aborts",
            true,
            &[C(RST | ACK), Sweep],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "server resets",
            true,
            &[S(RST), Sweep],
            [1, 1, 1, 1, 1, 0],
            &[true],
        ),
        (
            "both reset",
            true,
            &[S(RST), C(RST)],
            [1, 1, 1, 1, 1, 0],
            &[true],
        ),
        (
            "server resets what the client closed",
            true,
            &[C(FIN | ACK), S(RST)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "client resets what the server closed",
            true,
            &[S(FIN | ACK), C(RST)],
            [1, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "blind reset as from the server",
            true,
            &[S(RST), S(ACK)],
            [1, 1, 2, 1, 1, 0],
            &[true],
        ),
        (
            "blind reset as from the client",
            true,
            &[C(RST), C(ACK)],
            [1, 1, 2, 1, 0, 0],
            &[false],
        ),
        (
            "restored, closed",
            true,
            &[S(RST), S(ACK), C(FIN | ACK), S(FIN | ACK)],
            [1, 1, 2, 2, 1, 0],
            &[true],
        ),
        (
            "restored by a FIN",
            true,
            &[S(RST), S(FIN | ACK), C(FIN | ACK)],
            [1, 1, 2, 2, 1, 0],
            &[true],
        ),
        (
            "reset, restored, reset",
            true,
            &[S(RST), S(ACK), S(RST), S(ACK), Sweep],
            [1, 1, 3, 3, 1, 0],
            &[true],
        ),
        (
            "the other side's stragglers restore nothing",
            true,
            &[S(RST), C(ACK), C(FIN | ACK)],
            [1, 1, 1, 1, 1, 0],
            &[true],
        ),
        (
            "given up before the handshake's end: nothing a client sends restores it",
            false,
            &[C(RST), C(ACK), Sweep],
            [1, 1, 0, 0, 0, 0],
            &[],
        ),
        (
            "port reused",
            true,
            &[C(FIN | ACK), S(FIN | ACK), Reopen],
            [2, 1, 1, 1, 0, 0],
            &[false],
        ),
        (
            "port reused, closed again",
            true,
            &[
                S(FIN | ACK),
                C(FIN | ACK),
                Reopen,
                S(SYN | ACK),
                C(ACK),
                S(FIN | ACK),
            ],
            [2, 2, 2, 1, 0, 0],
            &[false, false],
        ),
    ];
    for (name, handshake, segments, expected, reports) in table {
        let mut world = World::of(TCP, SYN_TO_FIN);
        let before: &[Do] = if *handshake { &HANDSHAKE } else { &[] };
        let mut ended = Vec::new();
        let mut last = books(&world.host);
        for step in before.iter().chain(*segments) {
            let tracked = match *step {
                S(bits) => world.bare(Server, bits),
                C(bits) => world.bare(Client, bits),
                Sweep => {
                    world.at.tick += TIMEOUTS[world.state() as usize];
                    let (at, live) = (world.at.tick, |backend| world.host.live(backend));
                    let timeout = |state: State| TIMEOUTS[state as usize];
                    world.host.each_flow(|way| {
                        assert_eq!(
                            expire(way, at - 1, timeout, live, || 0),
                            None,
                            "{name}: too early"
                        );
                        let expired = expire(way, at, timeout, live, || 0).expect("its time is up");
                        assert_eq!(expired.backend, BACKEND, "{name}");
                    });
                    assert_eq!(find(&world.host, world.flow, Client, 0), None, "{name}");
                    Tracked::default()
                }
                Reopen => {
                    assert!(matches!(world.syn(), Outcome::Opened { .. }), "{name}");
                    Tracked::default()
                }
            };
            ended.extend(tracked.ended);
            let now = books(&world.host);
            assert!(
                last.iter().zip(now).all(|(a, b)| *a <= b),
                "{name}: a count fell"
            );
            last = now;
            assert_eq!(
                world.host.booked(BACKEND),
                world.host.scan(BACKEND),
                "{name}: {step:?}"
            );
        }
        assert_eq!(last, *expected, "{name}");
        assert_eq!(
            ended.iter().map(|end| end.failed).collect::<Vec<_>>(),
            *reports,
            "{name}"
        );
        for end in ended {
            assert_eq!(end.backend, BACKEND, "{name}");
            assert_eq!(
                end.sample_us.is_none(),
                end.failed,
                "{name}: a failure has no time"
            );
        }
    }
}

#[test]
fn what_track_tells() {
    let world = World::of(TCP, SYN_TO_FIN);
    assert_eq!(
        world.bare(Client, SYN),
        Tracked {
            repeated_syn: true,
            ..Tracked::default()
        }
    );
    assert_eq!(world.state(), HalfOpen);
    let answered = Tracked {
        answered: true,
        ..Tracked::default()
    };
    assert_eq!(world.bare(Server, SYN | ACK), answered);
    assert_eq!(world.bare(Server, SYN | ACK), Tracked::default());
    assert_eq!(
        world.bare(Client, SYN),
        Tracked::default(),
        "the server has answered"
    );
    world.bare(Client, ACK);
    assert_eq!(world.state(), State::Established);
    let reset = world.bare(Server, RST);
    assert!(reset.ended.is_some_and(|end| end.failed));
    let restored = Tracked {
        restored: true,
        ..Tracked::default()
    };
    assert_eq!(world.bare(Server, ACK), restored);
    assert_eq!(world.bare(Server, ACK), Tracked::default());
}

/// A repeated SYN or SYN-ACK does not prolong the handshake, nor stragglers the
/// linger; established flows live as long as they speak.
#[test]
fn who_prolongs() {
    type Row = (&'static [(Side, u8)], (Side, u8), bool);
    let rows: &[Row] = &[
        (&[], (Client, SYN), false),
        (&[], (Server, SYN | ACK), true),
        (&[(Server, SYN | ACK)], (Server, SYN | ACK), false),
        (&[(Server, SYN | ACK)], (Client, ACK), true),
        (&[(Server, SYN | ACK), (Client, ACK)], (Server, ACK), true),
        (
            &[(Server, SYN | ACK), (Client, ACK), (Client, FIN | ACK)],
            (Server, ACK),
            true,
        ),
        (&[(Server, RST)], (Client, ACK), false),
        (
            &[
                (Server, SYN | ACK),
                (Client, FIN | ACK),
                (Server, FIN | ACK),
            ],
            (Client, ACK),
            false,
        ),
    ];
    for (before, segment, prolongs) in rows {
        let mut world = World::of(TCP, SYN_TO_FIN);
        for &(side, bits) in *before {
            world.bare(side, bits);
        }
        // Flows that go on are noted every two seconds.
        world.at.tick += 8;
        world.bare(segment.0, segment.1);
        let found = find(&world.host, world.flow, Client, 0).unwrap();
        let expected = if *prolongs { NOW + 8 } else { NOW };
        assert_eq!(meta::tick(found.meta), expected, "{before:?}, {segment:?}");
    }
}

/// A flow that goes on is written to every two seconds and not in between; one of
/// direct return until it is assured at every tick.
#[test]
fn how_often_flows_are_noted() {
    let direct = Kind {
        direct: true,
        client: Side::ClientAlone,
        ..TCP
    };
    for (kind, ticks, noted) in [
        (TCP, 1, false),
        (TCP, 7, false),
        (TCP, 8, true),
        (direct, 0, false),
        (direct, 1, true),
    ] {
        let mut world = World::of(kind, SYN_TO_FIN);
        if !kind.direct {
            world.bare(Server, SYN | ACK);
        }
        world.bare(kind.client, ACK);
        world.at.tick += ticks;
        world.send(&Arrival {
            payload: 100,
            ..drive::bare(kind.client, ACK)
        });
        let found = find(&world.host, world.flow, Client, 0).unwrap();
        let expected = if noted { NOW + ticks } else { NOW };
        assert_eq!(meta::tick(found.meta), expected, "{kind:?} after {ticks}");
    }
}

/// Whoever forges a SYN does not see the server's sequence number: an ACK that
/// does not prove it leaves the handshake where it is, to time out.
#[test]
fn a_blind_acknowledgement_completes_no_handshake() {
    // Distance of the acknowledgement from the server's first byte.
    let rows: &[(u32, State)] = &[
        (0, State::Established),
        (1_460, State::Established),
        ((1 << 17) - 1, State::Established),
        (1 << 17, State::Answered),
        (0x8000_0000, State::Answered),
        (u32::MAX, State::Answered),
    ];
    for (distance, expected) in rows {
        for bits in [ACK, ACK | FIN] {
            let world = World::of(TCP, SYN_TO_FIN);
            world.bare(Server, SYN | ACK);
            let mut segment = drive::bare(Client, bits);
            segment.acknowledgement = segment.acknowledgement.wrapping_add(*distance);
            world.send(&segment);
            let expected = match (expected, bits & FIN != 0) {
                (State::Established, true) => State::ClientFin,
                (expected, _) => *expected,
            };
            assert_eq!(world.state(), expected, "{distance:#x} {bits:#x}");
        }
    }
}
