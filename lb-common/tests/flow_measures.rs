//! What packets of an open flow note: bytes, times, the next hop; and that most
//! of them note nothing.
//!
//! kubernetes/ingress-nginx#9882: a fast failing server looked fast; the time of
//! a failure is no sample here.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/memory.rs"]
mod memory;
mod table;
#[path = "table/world.rs"]
mod world;

use drive::{CLIENT_ISN, Outcome, SERVER_ISN, TCP, bare, find};
use lb_common::abi::measure::{FIRST_RESPONSE, REQUEST_TO_RESPONSE, SYN_TO_FIN, SYN_TO_SYN_ACK};
use lb_common::flow::{Arrival, Ended, Tracked, meta, note_hop};
use lb_common::tcp::Side::{self, Client, Server};
use lb_common::tcp::State::Established;
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use memory::words;
use world::{BACKEND, World};

impl World {
    fn established(measure: u8) -> Self {
        let world = Self::of(TCP, measure);
        world.bare(Server, SYN | ACK);
        world.bare(Client, ACK);
        assert_eq!(world.state(), Established);
        world
    }

    fn data(&self, side: Side, sent: u32, acknowledged: u32, payload: u32) -> Tracked {
        let segment = bare(side, ACK);
        self.send(&Arrival {
            sequence: segment.sequence.wrapping_add(sent),
            acknowledgement: segment.acknowledgement.wrapping_add(acknowledged),
            payload,
            ..segment
        })
    }

    fn after(&mut self, micros: u64) {
        self.at.micros += micros;
    }
}

fn end(world: &World, arrival: &Arrival) -> Ended {
    world
        .send(arrival)
        .ended
        .expect("this segment ends the flow")
}

#[test]
fn classes_by_bytes_of_both_directions() {
    // Bytes from client and server before the server's FIN, the two initial
    // sequence numbers, and whether the flow is long.
    let table: &[(u32, u32, u32, u32, bool)] = &[
        (0, 15_359, CLIENT_ISN, SERVER_ISN, false),
        (0, 15_360, CLIENT_ISN, SERVER_ISN, true),
        (359, 15_000, CLIENT_ISN, SERVER_ISN, false),
        (360, 15_000, CLIENT_ISN, SERVER_ISN, true),
        (15_359, 0, CLIENT_ISN, SERVER_ISN, false),
        (15_360, 0, CLIENT_ISN, SERVER_ISN, true),
        (359, 15_000, u32::MAX - 100, u32::MAX - 200, false),
        (360, 15_000, u32::MAX - 100, u32::MAX - 200, true),
        (0, 0, u32::MAX, u32::MAX - 1, false),
        (0, 2_000_000_000, u32::MAX, 5, true),
    ];
    for &(client, server, client_isn, server_isn, long) in table {
        let world = World::of(TCP, SYN_TO_FIN);
        // The SYN again, with the row's number: the last one counts.
        world.send(&Arrival {
            sequence: client_isn,
            ..bare(Client, SYN)
        });
        world.send(&Arrival {
            sequence: server_isn,
            ..bare(Server, SYN | ACK)
        });
        let from = |isn: u32, bytes: u32| isn.wrapping_add(1).wrapping_add(bytes);
        world.send(&Arrival {
            sequence: from(client_isn, 0),
            acknowledgement: from(server_isn, 0),
            ..bare(Client, ACK)
        });
        let fin = Arrival {
            sequence: from(server_isn, server - server.min(10)),
            acknowledgement: from(client_isn, client),
            payload: server.min(10),
            ..bare(Server, FIN | ACK)
        };
        let ended = end(&world, &fin);
        assert_eq!(
            ended.long, long,
            "{client} and {server} from {client_isn} and {server_isn}"
        );
    }
}

/// Four gigabytes later the numbers are back where they began; the tick that saw
/// them far away has not forgotten.
#[test]
fn the_long_flag_is_sticky() {
    for (bytes, long) in [(15_359, false), (15_360, true)] {
        let mut world = World::established(SYN_TO_FIN);
        world.data(Server, bytes - 100, 0, 100);
        assert!(
            !end(&world, &bare(Server, FIN | ACK)).long,
            "not looked at within two seconds"
        );

        world = World::established(SYN_TO_FIN);
        world.at.tick += 8;
        world.data(Server, bytes - 100, 0, 100);
        world.bare(Client, ACK);
        assert_eq!(end(&world, &bare(Server, FIN | ACK)).long, long, "{bytes}");
    }
}

/// A repeated handshake and keep-alive probes lie one before the first byte:
/// nothing was transferred.
#[test]
fn numbers_before_the_start_are_no_bytes() {
    let probe = |side| {
        let segment = bare(side, ACK);
        Arrival {
            sequence: segment.sequence.wrapping_sub(1),
            ..segment
        }
    };
    for (name, arrival) in [
        ("SYN-ACK repeated", bare(Server, SYN | ACK)),
        ("SYN repeated", bare(Client, SYN)),
        ("client's keep-alive", probe(Client)),
        ("server's keep-alive", probe(Server)),
    ] {
        let mut world = World::established(SYN_TO_FIN);
        world.at.tick += 1;
        world.send(&arrival);
        assert!(!end(&world, &bare(Server, FIN | ACK)).long, "{name}");
    }
}

/// SYN at 0, SYN-ACK after 300, ACK after 700, client data after 1,000 and
/// 2,000, server data after 5,000 and 9,000, FIN after 20,000 µs.
#[test]
fn measures() {
    for (measure, expected) in [
        (SYN_TO_FIN, 20_000),
        (SYN_TO_SYN_ACK, 300),
        (FIRST_RESPONSE, 4_000),
    ] {
        let mut world = World::of(TCP, measure);
        let start = world.at.micros;
        let at = |world: &mut World, micros: u64| world.at.micros = start + micros;
        at(&mut world, 300);
        world.bare(Server, SYN | ACK);
        at(&mut world, 500);
        world.bare(Server, SYN | ACK);
        at(&mut world, 700);
        world.bare(Client, ACK);
        at(&mut world, 800);
        world.data(Server, 0, 0, 20); // A greeting answers nothing.
        at(&mut world, 1_000);
        world.data(Client, 0, 20, 100);
        at(&mut world, 2_000);
        world.data(Client, 100, 20, 100);
        at(&mut world, 5_000);
        world.data(Server, 20, 200, 1_000);
        at(&mut world, 9_000);
        world.data(Server, 1_020, 200, 1_000);
        at(&mut world, 20_000);
        let ended = end(&world, &bare(Server, FIN | ACK));
        assert_eq!(ended.sample_us, Some(expected), "measure {measure}");
    }
}

#[test]
fn a_measure_that_never_happened_is_no_sample() {
    // The answer is not seen in time, or no data came: no sample, and no zero.
    let mut world = World::established(FIRST_RESPONSE);
    world.data(Client, 0, 0, 100);
    world.after(10);
    assert_eq!(end(&world, &bare(Server, FIN | ACK)).sample_us, None);

    let world = World::established(FIRST_RESPONSE);
    world.data(Server, 0, 0, 100);
    assert_eq!(end(&world, &bare(Client, RST)).sample_us, None);

    // At once is a sample of no time for syn-to-fin, of the least for the rest.
    let world = World::established(SYN_TO_SYN_ACK);
    assert_eq!(end(&world, &bare(Server, FIN | ACK)).sample_us, Some(1));
    let world = World::established(SYN_TO_FIN);
    assert_eq!(end(&world, &bare(Server, FIN | ACK)).sample_us, Some(0));

    // Longer than 32 bits of microseconds hold.
    let mut world = World::of(TCP, SYN_TO_SYN_ACK);
    world.after(1 << 40);
    world.bare(Server, SYN | ACK);
    assert_eq!(
        end(&world, &bare(Server, FIN | ACK)).sample_us,
        Some(u64::from(u32::MAX))
    );
}

/// An established flow's packets write no word between two ticks, in either
/// direction, and neither do packets that change nothing later on.
#[test]
fn quiet_packets_write_nothing() {
    type Row = (u8, &'static [(Side, u8)], &'static str);
    let rows: &[Row] = &[
        (SYN_TO_FIN, &[], "established"),
        (SYN_TO_FIN, &[(Client, FIN | ACK)], "client's FIN"),
        (SYN_TO_FIN, &[(Server, FIN | ACK)], "server's FIN"),
        (
            SYN_TO_FIN,
            &[(Server, FIN | ACK), (Client, FIN | ACK)],
            "closed",
        ),
        (SYN_TO_SYN_ACK, &[], "another measure"),
    ];
    for (measure, before, name) in rows {
        let world = World::established(*measure);
        for &(side, bits) in *before {
            world.bare(side, bits);
        }
        let memory = words(&world.host);
        for number in 0..50 {
            world.data(Client, number * 100, 0, 100);
            world.data(Server, number * 1_000, number * 100, 1_000);
            world.bare(Client, ACK);
        }
        assert!(words(&world.host) == memory, "{name}");
    }

    // The first response: one write for the request, one for the response.
    let world = World::established(FIRST_RESPONSE);
    let mut memory = words(&world.host);
    for (side, writes) in [
        (Client, true),
        (Client, false),
        (Server, true),
        (Server, false),
        (Client, false),
    ] {
        world.data(side, 0, 0, 100);
        let now = words(&world.host);
        assert_eq!(now != memory, writes, "{side:?}");
        memory = now;
    }

    // Two seconds: one write, then silence again.
    let mut world = World::established(SYN_TO_FIN);
    let memory = words(&world.host);
    world.at.tick += 8;
    world.bare(Client, ACK);
    let ticked = words(&world.host);
    assert_eq!(
        ticked.iter().zip(&memory).filter(|(a, b)| a != b).count(),
        1
    );
    world.bare(Server, ACK);
    assert!(words(&world.host) == ticked);
}

#[test]
fn a_hop_is_noted_once_and_kept() {
    let world = World::established(SYN_TO_FIN);
    let found = || find(&world.host, world.flow, Server, BACKEND).unwrap();
    let before = found();
    note_hop(&world.host, &before, 77);
    assert_eq!(meta::hop(found().meta), 77);
    // The flow changed since it was found: this time nothing is noted.
    note_hop(&world.host, &before, 78);
    assert_eq!(meta::hop(found().meta), 77);
    world.bare(Client, FIN | ACK);
    world.bare(Server, FIN | ACK);
    assert_eq!(meta::hop(found().meta), 77);
    // The next owner of the tuple begins without.
    assert!(matches!(world.syn(), Outcome::Opened { .. }));
    assert_eq!(meta::hop(found().meta), 0);
}

/// `request-to-response`: every turn from client to server and back is one
/// measurement, however many requests a connection carries; what either side
/// sends in several segments is one turn, and waiting between them is none.
#[test]
fn every_turn_is_measured() {
    // Microseconds since the SYN, side, offset of the data, ACK of the other's;
    // the time that is reported.
    type Step = (u64, Side, u32, u32, Option<u64>);
    let nat: &[Step] = &[
        (1_000, Client, 0, 0, None),
        (1_500, Client, 100, 0, None),
        (5_000, Server, 0, 200, Some(4_000)),
        (6_000, Server, 100, 200, None),
        // The client thinks for a minute.
        (60_000_000, Client, 200, 200, None),
        (60_007_000, Server, 200, 300, Some(7_000)),
        // Longer than 32 bits of microseconds after the SYN.
        (5_000_000_000, Client, 300, 300, None),
        (5_000_000_250, Server, 300, 400, Some(250)),
    ];
    let mut world = World::of(TCP, REQUEST_TO_RESPONSE);
    let start = world.at.micros;
    world.bare(Server, SYN | ACK);
    world.bare(Client, ACK);
    for &(at, side, offset, other, expected) in nat {
        world.at.micros = start + at;
        let tracked = world.data(side, offset, other, 100);
        let found = tracked.turn.map(|turn| turn.sample_us.expect("a time"));
        assert_eq!(found, expected, "at {at}");
        assert_eq!(tracked.ended, None);
    }
    let ended = end(&world, &bare(Server, FIN | ACK));
    assert_eq!((ended.sample_us, ended.failed), (None, false));
}
