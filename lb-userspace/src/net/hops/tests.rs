//! Scripts: what goes in, and after the arrow the commands that come out.
//! Next hops are single letters (interface 1: A, B; interface 2: C, D), MAC
//! addresses small letters, backend n has the address 192.0.2.n.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use lb_common::abi::{Hop, HopKey, MAX_HOPS, hop_flags};

use super::{
    ADMISSIONS_PER_SECOND, HopCommand, HopSet, HopTable, MAX_CLIENT_HOPS, MAX_PENDING, Near, key,
};
use crate::net::{Mac, links::OwnLink, routes::Route};

mod model;

const MTU: u32 = 1_500;

fn letter_near(name: &str) -> Near {
    let letter = name.as_bytes()[0];
    let ifindex = if letter < b'C' { 1 } else { 2 };
    Near {
        ifindex,
        address: IpAddr::from([10, 0, 0, letter]),
    }
}

fn letter_mac(name: &str) -> Option<Mac> {
    (name != "-").then(|| [2, 0, 0, 0, 0, name.as_bytes()[0]])
}

fn own(name: &str) -> Option<OwnLink> {
    letter_mac(name).map(|mac| OwnLink { mac, mtu: MTU })
}

fn hop(near: &str, mac: &str, link: &str) -> Hop {
    Hop {
        flags: hop_flags::VALID,
        ifindex: letter_near(near).ifindex,
        destination: letter_mac(mac).unwrap(),
        source: letter_mac(link).unwrap(),
        mtu: MTU,
        padding: 0,
    }
}

fn backend_address(backend: u32) -> IpAddr {
    IpAddr::from([192, 0, 2, backend as u8])
}

fn show(command: HopCommand) -> String {
    let name = |near: Near| match near.address {
        IpAddr::V4(v4) => char::from(v4.octets()[3]).to_string(),
        IpAddr::V6(v6) => v6.to_string(),
    };
    let of_key = |key: HopKey| char::from(key.address[3]).to_string();
    let mac = |mac: Mac| char::from(mac[5]);
    match command {
        HopCommand::WriteHop { index, hop } if hop == Hop::default() => format!("clear {index}"),
        HopCommand::WriteHop { index, hop } if hop.flags == 0 => {
            assert_eq!(
                hop,
                Hop {
                    ifindex: hop.ifindex,
                    ..Hop::default()
                }
            );
            format!("void {index}")
        }
        HopCommand::WriteHop { index, hop } => {
            assert_eq!(hop.mtu, MTU);
            format!(
                "write {index} {}{}{}",
                hop.ifindex,
                mac(hop.destination),
                mac(hop.source)
            )
        }
        HopCommand::InsertIndex { key, index } => format!("insert {} {index}", of_key(key)),
        HopCommand::RemoveIndex { key } => format!("remove {}", of_key(key)),
        HopCommand::SetBackendHop { backend, index } => format!("backend {backend} {index}"),
        HopCommand::Manage(near) => format!("manage {}", name(near)),
        HopCommand::Release(near) => format!("release {}", name(near)),
        HopCommand::ResolveRoute { backend, address } => {
            assert_eq!(address, backend_address(backend));
            format!("ask {backend}")
        }
    }
}

fn step(table: &mut HopTable, line: &str, now: &mut Instant) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.parse::<u32>().unwrap();
    match *words {
        ["link", ifindex, mac] => table.link_changed(number(ifindex), own(mac)),
        ["want", near] => table.want(key(letter_near(near)), *now),
        ["mac", near, mac] => table.neighbour_changed(letter_near(near), letter_mac(mac), *now),
        ["reread", near, mac] => {
            table.neighbours_reread([(letter_near(near), letter_mac(mac))], *now);
        }
        ["backend", backend] => {
            table.want_backend(number(backend), backend_address(number(backend)), *now);
        }
        ["forget", backend] => table.forget_backend(number(backend)),
        ["route", backend, "-"] => {
            table.route_resolved(
                number(backend),
                backend_address(number(backend)),
                None,
                *now,
            );
        }
        ["route", backend, near] => {
            let Near { ifindex, address } = letter_near(near);
            let route = Route {
                ifindex,
                gateway: Some(address),
                source: None,
            };
            let backend = number(backend);
            table.route_resolved(backend, backend_address(backend), Some(route), *now);
        }
        ["routes"] => table.routes_changed(*now),
        ["sweep", ref held @ ..] => {
            let mut set = HopSet::default();
            held.iter().for_each(|index| set.insert(number(index)));
            table.in_use(&set);
        }
        ["wait", milliseconds] => {
            *now += Duration::from_millis(number(milliseconds).into());
            table.handle_timeout(*now);
        }
        ["adopt", near, index, mac, link] => {
            let hop = hop(near, mac, link);
            table.adopt(number(index), key(letter_near(near)), hop, *now);
        }
        ["adopt-backend", backend, index, near, mac, link] => {
            table.adopt_backend(number(backend), number(index), hop(near, mac, link));
        }
        ["adopt-retired", index] => {
            table.adopt_retired(
                number(index),
                Hop {
                    ifindex: 1,
                    ..Hop::default()
                },
            );
        }
        _ => panic!("no such step: {line}"),
    }
}

fn check(name: &str, script: &str) {
    let mut table = HopTable::new();
    let mut now = Instant::now();
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let (input, expected) = line.split_once("->").unwrap_or((line, ""));
        step(&mut table, input, &mut now);
        let expected: Vec<String> = expected
            .split(',')
            .map(|c| c.trim().to_owned())
            .filter(|c| !c.is_empty())
            .collect();
        let actual: Vec<String> = std::iter::from_fn(|| table.next_command())
            .map(show)
            .collect();
        assert_eq!(actual, expected, "{name}: {input}");
    }
}

#[test]
fn scripts() {
    let rows = [
        (
            "a client's hop gets an index when its neighbour answers",
            "link 1 x
             want A -> manage A
             want A
             mac A a -> write 1 1ax, insert A 1
             want A
             mac A a",
        ),
        (
            "not without the own address",
            "want A -> manage A
             mac A a
             link 1 x -> write 1 1ax, insert A 1",
        ),
        (
            "a changed address is rewritten in place, a failed one is not valid",
            "link 1 x
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1
             mac A b -> write 1 1bx
             mac A - -> void 1, manage A
             mac A -
             mac A c -> write 1 1cx
             link 1 y -> write 1 1cy
             link 1 - -> void 1
             link 1 y -> write 1 1cy
             reread B b -> void 1, manage A",
        ),
        (
            "a client's silent neighbour is asked for again, then given up",
            "link 1 x
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1
             mac A - -> void 1, manage A
             wait 4000
             wait 1000 -> manage A
             wait 54000 -> manage A
             wait 1000 -> remove A, release A",
        ),
        (
            "one that never answered uses no index up",
            "link 1 x
             want A -> manage A
             wait 5000 -> release A
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1",
        ),
        (
            "an unused index is retired after three sweeps, free after two more",
            "link 1 x
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1
             sweep
             sweep
             sweep 1
             sweep
             sweep
             sweep -> remove A, void 1, release A
             sweep
             sweep -> clear 1",
        ),
        (
            "a retired index waits for the last flow",
            "link 1 x
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1
             routes -> remove A, void 1, release A
             sweep
             sweep 1
             want A -> manage A
             mac A a -> write 2 1ax, insert A 2
             sweep 1 2
             sweep 2 -> clear 1",
        ),
        (
            "route changes come at a pace",
            "link 1 x
             want A -> manage A
             mac A a -> write 1 1ax, insert A 1
             routes -> remove A, void 1, release A
             want A -> manage A
             mac A a -> write 2 1ax, insert A 2
             wait 100
             routes
             wait 300
             wait 100 -> remove A, void 2, release A
             wait 1000",
        ),
        (
            "a backend points to its hop once that is valid, and back to none without a route",
            "link 1 x
             backend 7 -> ask 7
             backend 7
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             mac A - -> void 1, manage A
             mac A b -> write 1 1bx
             route 7 A
             route 7 - -> backend 7 0, void 1, release A
             wait 5000 -> ask 7",
        ),
        (
            "a changed route: the old way until the new one resolved",
            "link 1 x
             link 2 z
             backend 7 -> ask 7
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             routes -> ask 7
             route 7 C -> manage C, void 2
             mac C c -> write 2 2cz, backend 7 2, void 1, release A",
        ),
        (
            "but not an old way that died, nor for ever",
            "link 1 x
             link 2 z
             backend 7 -> ask 7
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             route 7 C -> manage C, void 2
             mac A - -> void 1, backend 7 0, manage A
             mac A a -> write 1 1ax, backend 7 1
             wait 5000 -> manage A, manage C, backend 7 0, void 1, release A",
        ),
        (
            "there and back again",
            "link 1 x
             backend 7 -> ask 7
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             route 7 B -> manage B, void 2
             route 7 A -> release B
             forget 7 -> backend 7 0, void 1, release A",
        ),
        (
            "backends share a hop, but not with clients",
            "link 1 x
             backend 7 -> ask 7
             backend 8 -> ask 8
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             route 8 A -> backend 8 1
             want A -> write 2 1ax, insert A 2
             routes -> remove A, void 2, ask 7, ask 8
             forget 7 -> backend 7 0
             forget 8 -> backend 8 0, void 1, release A",
        ),
        (
            "an answer for a forgotten backend changes nothing",
            "backend 7 -> ask 7
             forget 7
             route 7 A",
        ),
        (
            "after a restart: clients keep their indices, backends theirs until resolved",
            "adopt A 5 a x -> manage A
             adopt B 5 b x -> remove B
             adopt-backend 7 6 A a x
             adopt-backend 8 6 A a x
             adopt-retired 1
             link 1 x
             backend 7 -> ask 7
             route 7 A -> write 2 1ax, backend 7 2
             backend 8 -> ask 8
             route 8 - -> backend 8 0, void 6
             mac A b -> write 5 1bx, write 2 1bx
             sweep 1 5
             sweep 5 -> clear 1, clear 6",
        ),
        (
            "after a restart: an adopted hop of a backend does not last without an answer",
            "adopt-backend 7 6 A a x
             link 1 y
             backend 7 -> ask 7
             route 7 B -> manage B, void 1
             wait 4000
             wait 1000 -> manage B, backend 7 0, void 6",
        ),
        (
            "known neighbours and routes are asked for again",
            "link 1 x
             backend 7 -> ask 7
             route 7 A -> manage A, void 1
             mac A a -> write 1 1ax, backend 7 1
             wait 5000 -> manage A
             wait 25000 -> ask 7
             wait 5000 -> manage A, ask 7",
        ),
    ];
    for (name, script) in rows {
        check(name, script);
    }
}

fn numbered(number: u32) -> HopKey {
    let [.., c, d] = number.to_be_bytes();
    key(Near {
        ifindex: 1,
        address: IpAddr::from([10, 1, c, d]),
    })
}

fn count(table: &mut HopTable, is: impl Fn(&HopCommand) -> bool) -> usize {
    std::iter::from_fn(|| table.next_command())
        .filter(is)
        .count()
}

#[test]
fn nonsense_from_the_packet_path_is_ignored() {
    let good = key(letter_near("A"));
    let mut tail = good;
    tail.address[5] = 1;
    let rows = [
        HopKey { ifindex: 0, ..good },
        HopKey { family: 2, ..good },
        HopKey {
            address: [0; 16],
            ..good
        },
        HopKey {
            address: lb_common::abi::address4([224, 0, 0, 1]),
            ..good
        },
        tail,
    ];
    let mut table = HopTable::new();
    for row in rows {
        table.want(row, Instant::now());
        assert_eq!(table.next_command(), None, "{row:?}");
    }
}

#[test]
fn invented_neighbours_give_way_to_real_ones() {
    let mut table = HopTable::new();
    let now = Instant::now();
    table.link_changed(1, own("x"));
    let invented = ADMISSIONS_PER_SECOND + 100;
    (0..invented).for_each(|number| table.want(numbered(number), now));
    assert_eq!(table.counts().pending as usize, MAX_PENDING);
    assert_eq!(
        table.counts().refused as usize,
        invented as usize - MAX_PENDING
    );
    let managed = count(&mut table, |command| {
        matches!(command, HopCommand::Manage(_))
    });
    assert_eq!(managed, ADMISSIONS_PER_SECOND as usize);

    let later = now + Duration::from_secs(1);
    table.want(key(letter_near("A")), later);
    table.neighbour_changed(letter_near("A"), letter_mac("a"), later);
    let counts = table.counts();
    assert_eq!(
        (counts.clients, counts.pending as usize),
        (1, MAX_PENDING - 1)
    );
}

#[test]
fn clients_leave_every_backend_an_index() {
    let mut table = HopTable::new();
    let mut now = Instant::now();
    table.link_changed(1, own("x"));
    for number in 0..MAX_CLIENT_HOPS + 10 {
        if number % 256 == 0 {
            now += Duration::from_secs(1);
        }
        table.want(numbered(number), now);
        let near = super::near(&numbered(number)).unwrap();
        table.neighbour_changed(near, letter_mac("a"), now);
    }
    let counts = table.counts();
    assert_eq!((counts.clients, counts.refused), (MAX_CLIENT_HOPS, 10));

    for backend in 1..MAX_HOPS - MAX_CLIENT_HOPS {
        let address = IpAddr::from([10, 2, (backend >> 8) as u8, backend as u8]);
        table.want_backend(backend, address, now);
        let route = Route {
            ifindex: 1,
            gateway: None,
            source: None,
        };
        table.route_resolved(backend, address, Some(route), now);
    }
    let counts = table.counts();
    assert_eq!(
        (counts.backends, counts.refused),
        (MAX_HOPS - MAX_CLIENT_HOPS - 1, 10)
    );
}

#[test]
fn sets_ignore_what_is_no_index() {
    let mut set = HopSet::default();
    for (index, expected) in [(0, true), (1, true), (MAX_HOPS - 1, true), (65_535, false)] {
        set.insert(index);
        assert_eq!(set.contains(index), expected, "{index}");
    }
    set.clear();
    assert_eq!(set, HopSet::default());
}
