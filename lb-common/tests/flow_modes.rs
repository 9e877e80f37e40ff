//! DATAGRAMS and direct return: counts, reports and measures through every path.
//!
//! kubernetes/kubernetes#76664: datagrams have no end, so their first answer is
//! what is reported. cilium/cilium#20407: in direct return the server's FIN is
//! never seen, the client's ends the flow.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/kinds.rs"]
mod kinds;
#[path = "table/memory.rs"]
mod memory;
#[path = "table/scan.rs"]
mod scan;
mod table;
#[path = "table/world.rs"]
mod world;

use drive::{CLIENT_ISN, Kind, Outcome, SERVER_ISN, bare, find};
use kinds::{DATAGRAMS, DIRECT_DATAGRAMS, DIRECT_TCP, datagram};
use lb_common::abi::measure::{FIRST_RESPONSE, SYN_TO_FIN, SYN_TO_SYN_ACK};
use lb_common::flow::{Arrival, Table as _, Tracked, at, expire, meta};
use lb_common::tcp::Side::{Client, ClientAlone, Server};
use lb_common::tcp::State::{self, Closed, Conversing, Datagram, Established, HalfOpen, Reset};
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use memory::words;
use table::TIMEOUTS;
use world::{BACKEND, World};

/// What a row does after the packet that opened the flow.
#[derive(Clone, Copy, Debug)]
enum Do {
    /// The client's packet: flags, bytes of the client before it, payload.
    C(u8, u32, u32),
    /// The server's datagram.
    S,
    /// Time passes.
    Tick,
    /// The sweep, when the state's timeout has passed.
    Sweep,
    /// The tuple begins anew.
    Reopen,
}
use Do::{C, Reopen, S, Sweep, Tick};

impl World {
    fn client(&self, bits: u8, sent: u32, payload: u32) -> Tracked {
        let side = self.flow.kind.client;
        if self.flow.kind.datagrams {
            return self.send(&datagram(side, payload));
        }
        let segment = bare(side, bits);
        self.send(&Arrival {
            sequence: segment.sequence.wrapping_add(sent),
            payload,
            ..segment
        })
    }

    fn acknowledge(&self, bits: u8, bytes: u32) -> Tracked {
        let segment = bare(ClientAlone, bits);
        self.send(&Arrival {
            acknowledgement: segment.acknowledgement.wrapping_add(bytes),
            ..segment
        })
    }

    /// The sweep of this flow, a tick early and in time.
    fn sweep(&mut self) {
        self.at.tick += TIMEOUTS[self.state() as usize];
        let found = find(&self.host, self.flow, Client, 0).expect("the flow is there");
        let (way, cold) = at(&self.host, found.slot, found.client).expect("it was found");
        let timeout = |state: State| TIMEOUTS[state as usize];
        let live = |backend| self.host.live(backend);
        let repeats = || cold.syn_repeats.load();
        let now = self.at.tick;
        assert_eq!(expire(way, now - 1, timeout, live, repeats), None);
        let expired = expire(way, now, timeout, live, repeats).expect("its time is up");
        assert_eq!(expired.backend, BACKEND);
    }

    /// Half-opened, half-closed, opened, closed, resets, SYN timeouts.
    fn books(&self) -> [u64; 6] {
        let live = &self.host.live[usize::from(BACKEND)];
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
}

#[test]
fn counts_and_reports_through_every_path() {
    // Name, kind, packets, the books at the end, and how many reports.
    type Row = (&'static str, Kind, &'static [Do], [u64; 6], usize);
    let table: &[Row] = &[
        ("unanswered", DATAGRAMS, &[], [1, 0, 0, 0, 0, 0], 0),
        (
            "the client insists",
            DATAGRAMS,
            &[C(0, 0, 9), Tick, C(0, 0, 9), Tick, C(0, 0, 9)],
            [1, 0, 0, 0, 0, 0],
            0,
        ),
        (
            "nobody answers: no failure",
            DATAGRAMS,
            &[C(0, 0, 9), Sweep],
            [1, 1, 0, 0, 0, 0],
            0,
        ),
        ("answered", DATAGRAMS, &[S], [1, 1, 1, 0, 0, 0], 1),
        (
            "answered often",
            DATAGRAMS,
            &[S, S, C(0, 0, 9), Tick, S, Tick, C(0, 0, 9), S],
            [1, 1, 1, 0, 0, 0],
            1,
        ),
        (
            "silent after it",
            DATAGRAMS,
            &[S, Sweep],
            [1, 1, 1, 1, 0, 0],
            1,
        ),
        ("direct: one", DIRECT_DATAGRAMS, &[], [1, 0, 0, 0, 0, 0], 0),
        (
            "direct: more of the same tick",
            DIRECT_DATAGRAMS,
            &[C(0, 0, 9), C(0, 0, 0)],
            [1, 0, 0, 0, 0, 0],
            0,
        ),
        (
            "direct: one a tick later",
            DIRECT_DATAGRAMS,
            &[Tick, C(0, 0, 9)],
            [1, 1, 1, 0, 0, 0],
            0,
        ),
        (
            "direct: an empty one a tick later",
            DIRECT_DATAGRAMS,
            &[Tick, C(0, 0, 0), Tick, C(0, 0, 9)],
            [1, 1, 1, 0, 0, 0],
            0,
        ),
        (
            "direct: silent at once",
            DIRECT_DATAGRAMS,
            &[Sweep],
            [1, 1, 0, 0, 0, 0],
            0,
        ),
        (
            "direct: silent later",
            DIRECT_DATAGRAMS,
            &[Tick, C(0, 0, 9), Sweep],
            [1, 1, 1, 1, 0, 0],
            0,
        ),
        (
            "SYN once, nothing more: blames nobody",
            DIRECT_TCP,
            &[Sweep],
            [1, 1, 0, 0, 0, 0],
            0,
        ),
        (
            "SYN twice, nothing more",
            DIRECT_TCP,
            &[C(SYN, 0, 0), Sweep],
            [1, 1, 0, 0, 0, 1],
            0,
        ),
        (
            "SYN and SYN-ACK of the client: not repeated",
            DIRECT_TCP,
            &[C(SYN | ACK, 0, 0), Sweep],
            [1, 1, 0, 0, 0, 0],
            0,
        ),
        (
            "established",
            DIRECT_TCP,
            &[C(ACK, 0, 0), Tick, C(ACK, 0, 9)],
            [1, 1, 1, 0, 0, 0],
            0,
        ),
        (
            "idle",
            DIRECT_TCP,
            &[C(ACK, 0, 0), Sweep],
            [1, 1, 1, 1, 0, 0],
            0,
        ),
        (
            "closed",
            DIRECT_TCP,
            &[C(ACK, 0, 0), C(FIN | ACK, 0, 0), C(ACK, 1, 0), Sweep],
            [1, 1, 1, 1, 0, 0],
            1,
        ),
        (
            "closed by the handshake's last segment",
            DIRECT_TCP,
            &[C(FIN | ACK, 0, 0), Sweep],
            [1, 1, 0, 0, 0, 0],
            1,
        ),
        (
            "aborted",
            DIRECT_TCP,
            &[C(ACK, 0, 0), C(RST, 0, 0), Sweep],
            [1, 1, 1, 1, 0, 0],
            1,
        ),
        (
            "given up",
            DIRECT_TCP,
            &[C(RST, 0, 0), C(ACK, 0, 0), Sweep],
            [1, 1, 0, 0, 0, 0],
            0,
        ),
        (
            "blind FIN, restored, closed",
            DIRECT_TCP,
            &[
                C(ACK, 0, 0),
                C(FIN | ACK, 0, 0),
                C(ACK, 0, 9),
                C(FIN | ACK, 9, 0),
            ],
            [1, 1, 2, 2, 0, 0],
            1,
        ),
        (
            "blind RST, restored, idle",
            DIRECT_TCP,
            &[C(ACK, 0, 0), C(RST, 0, 0), C(ACK, 0, 9), Sweep],
            [1, 1, 2, 2, 0, 0],
            1,
        ),
        (
            "data repeated after the FIN restores nothing",
            DIRECT_TCP,
            &[C(ACK, 0, 0), C(FIN | ACK, 9, 0), C(ACK, 0, 9), Sweep],
            [1, 1, 1, 1, 0, 0],
            1,
        ),
        (
            "a blind FIN with data, restored",
            DIRECT_TCP,
            &[C(ACK, 0, 0), C(FIN | ACK, 0, 9), C(ACK, 0, 9), C(ACK, 9, 1)],
            [1, 1, 2, 1, 0, 0],
            1,
        ),
        (
            "port reused",
            DIRECT_TCP,
            &[
                C(ACK, 0, 0),
                C(FIN | ACK, 0, 0),
                Reopen,
                C(ACK, 0, 0),
                C(FIN | ACK, 0, 0),
            ],
            [2, 2, 2, 2, 0, 0],
            2,
        ),
    ];
    for measure in [SYN_TO_FIN, FIRST_RESPONSE] {
        for (name, kind, steps, expected, reports) in table {
            let mut world = World::of(*kind, measure);
            let mut reported = 0;
            for step in *steps {
                let tracked = match *step {
                    C(bits, sent, payload) => world.client(bits, sent, payload),
                    S => world.send(&datagram(Server, 9)),
                    Tick => {
                        world.at.tick += 1;
                        Tracked::default()
                    }
                    Sweep => {
                        world.sweep();
                        Tracked::default()
                    }
                    Reopen => {
                        assert!(matches!(world.syn(), Outcome::Opened { .. }), "{name}");
                        Tracked::default()
                    }
                };
                reported += usize::from(tracked.ended.is_some());
                assert_eq!(
                    world.host.booked(BACKEND),
                    world.host.scan(BACKEND),
                    "{name}: {step:?}"
                );
            }
            assert_eq!(world.books(), *expected, "{name}, measure {measure}");
            assert_eq!(reported, *reports, "{name}, measure {measure}");
        }
    }
}

/// The linger of a half-closed flow of direct return lasts while its client
/// speaks; handshakes are prolonged by nothing, unanswered datagrams by more.
#[test]
fn who_prolongs() {
    type Row = (Kind, &'static [(u8, u32)], (u8, u32), State, bool);
    let rows: &[Row] = &[
        (DIRECT_TCP, &[], (SYN, 0), HalfOpen, false),
        (DIRECT_TCP, &[], (ACK, 0), Established, true),
        (DIRECT_TCP, &[(ACK, 0)], (ACK, 0), Established, true),
        (
            DIRECT_TCP,
            &[(ACK, 0), (FIN | ACK, 0)],
            (ACK, 0),
            Closed,
            true,
        ),
        (DIRECT_TCP, &[(ACK, 0), (RST, 0)], (ACK, 0), Reset, true),
        (DATAGRAMS, &[], (0, 9), Datagram, true),
        (DIRECT_DATAGRAMS, &[], (0, 9), Conversing, true),
    ];
    for (kind, before, (bits, payload), state, prolongs) in rows {
        let mut world = World::of(*kind, SYN_TO_FIN);
        for (bits, payload) in *before {
            world.client(*bits, 0, *payload);
        }
        let begun = world.at.tick;
        world.at.tick += 8;
        world.client(*bits, 0, *payload);
        let found = find(&world.host, world.flow, Client, 0).expect("the flow is there");
        assert_eq!(found.state(), *state, "{kind:?} {before:?}");
        let expected = begun + 8 * u32::from(*prolongs);
        assert_eq!(meta::tick(found.meta), expected, "{kind:?} {before:?}");
    }
}

/// Distance of a segment's end from the recorded one, and whether it restores.
#[test]
fn what_lies_beyond_the_end() {
    let rows: &[(u32, bool)] = &[
        (0, false),
        (1, true),
        (1_460, true),
        (0x7fff_ffff, true),
        (0x8000_0000, true),
        (u32::MAX - (1 << 30), true),
        (u32::MAX - (1 << 30) + 1, false),
        (u32::MAX, false),
    ];
    for bits in [FIN | ACK, RST] {
        for (distance, restores) in rows {
            let world = World::of(DIRECT_TCP, SYN_TO_FIN);
            world.client(ACK, 0, 0);
            world.client(bits, 500, 0);
            let tracked = world.client(ACK, 499_u32.wrapping_add(*distance), 1);
            assert_eq!(tracked.restored, *restores, "{distance:#x} {bits:#x}");
        }
    }
}

/// SYN at 0, ACK after 700, request after 1,000, its answer acknowledged after
/// 5,000, FIN after 20,000 µs; the measure of a first response is less the trip.
#[test]
fn measures_of_direct_return() {
    for (measure, greeting, expected) in [
        (SYN_TO_FIN, 0, Some(20_000)),
        (SYN_TO_SYN_ACK, 0, Some(700)),
        (FIRST_RESPONSE, 0, Some(3_300)),
        (FIRST_RESPONSE, 40, Some(3_300)),
    ] {
        let mut world = World::of(DIRECT_TCP, measure);
        let start = world.at.micros;
        let after = |world: &mut World, micros: u64| world.at.micros = start + micros;
        after(&mut world, 700);
        world.acknowledge(ACK, 0);
        after(&mut world, 800);
        world.acknowledge(ACK, greeting);
        for (micros, sent) in [(1_000, 0), (1_100, 100), (1_200, 200)] {
            after(&mut world, micros);
            let segment = bare(ClientAlone, ACK);
            world.send(&Arrival {
                sequence: segment.sequence + sent,
                acknowledgement: SERVER_ISN + 1 + greeting,
                payload: 100,
                ..segment
            });
        }
        after(&mut world, 5_000);
        world.acknowledge(ACK, greeting + 10);
        after(&mut world, 9_000);
        world.acknowledge(ACK, greeting + 900);
        after(&mut world, 20_000);
        let ended = world
            .acknowledge(FIN | ACK, greeting + 900)
            .ended
            .expect("the client's FIN ends it");
        assert_eq!(ended.sample_us, expected, "measure {measure}");
        assert!(!ended.failed);
    }
}

#[test]
fn classes_by_acknowledged_bytes() {
    // Bytes acknowledged, bytes sent, and whether the flow is long.
    for (acknowledged, sent, long) in [
        (15_359, 0, false),
        (15_360, 0, true),
        (15_000, 359, false),
        (15_000, 360, true),
        (0, 15_360, true),
    ] {
        let world = World::of(DIRECT_TCP, SYN_TO_FIN);
        world.client(ACK, 0, 0);
        let fin = Arrival {
            sequence: CLIENT_ISN + 1 + sent,
            acknowledgement: SERVER_ISN + 1 + acknowledged,
            ..bare(ClientAlone, FIN | ACK)
        };
        let ended = world.send(&fin).ended.expect("the client's FIN ends it");
        assert_eq!(ended.long, long, "{acknowledged} and {sent}");
    }
}

/// The first answer of datagrams is the measure, whatever its size.
#[test]
fn measures_of_datagrams() {
    for (measure, payload, expected) in [
        (SYN_TO_FIN, 9, 2_000),
        (SYN_TO_FIN, 0, 2_000),
        (FIRST_RESPONSE, 9, 1_999),
        (FIRST_RESPONSE, 0, 1_999),
    ] {
        let mut world = World::of(DATAGRAMS, measure);
        world.at.micros += 2_000;
        let ended = world.send(&datagram(Server, payload)).ended;
        let ended = ended.expect("the first answer is reported");
        assert_eq!(ended.sample_us, Some(expected), "measure {measure}");
        assert!(!ended.long && !ended.failed);
    }
}

/// Between two ticks nothing is written: of a conversation, of an established
/// flow of direct return, of an unanswered datagram's flow by its client.
#[test]
fn quiet_packets_write_nothing() {
    for measure in [SYN_TO_FIN, FIRST_RESPONSE] {
        let world = World::of(DATAGRAMS, measure);
        let unanswered = words(&world.host);
        (0..9).for_each(|payload| _ = world.client(0, 0, payload));
        assert!(words(&world.host) == unanswered);
        world.send(&datagram(Server, 0));
        let answered = words(&world.host);
        for payload in 0..9 {
            world.send(&datagram(Server, payload));
            world.client(0, 0, payload);
        }
        assert!(words(&world.host) == answered);

        let mut world = World::of(DIRECT_DATAGRAMS, measure);
        world.at.tick += 1;
        world.client(0, 0, 9);
        let conversing = words(&world.host);
        (0..9).for_each(|payload| _ = world.client(0, 0, payload));
        assert!(words(&world.host) == conversing);
        // No answer is ever seen: nothing waits for one.
        let found = find(&world.host, world.flow, Client, 0).expect("the flow is there");
        assert_eq!(found.meta & meta::FIRST_RESPONSE, 0);
    }
    let world = World::of(DIRECT_TCP, SYN_TO_FIN);
    world.bare(ClientAlone, ACK);
    let established = words(&world.host);
    (0..9).for_each(|number| _ = world.client(ACK, number * 100, 100));
    assert!(words(&world.host) == established);
}
