//! Addresses of our own in the place of clients: what the matrix does not say.

use lb_common::{
    abi::{PoolAddress, forwarding, pool_cell},
    flow::meta,
    ports::{PORTS_PER_ADDRESS, PROBES},
    reason::Reason,
    tcp::State,
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};
use steerline_tests::{
    packets::{
        Class::Short,
        Counter, Endpoint, FAMILIES, Family, Group, Lab, Port, Row, Step, Talk,
        flag::{ACK, FIN, SYN},
        map_address,
        moves::{ends, goes, opens, reports},
        scene::{
            A, B, CLIENT, DNS, DNS_A, FULL, FULL_A, FULL_B, FULL_DNS, FULL_DNS_A, FULL_DNS_B, POOL,
            Server, Vip, WEB,
        },
        v4, verdict,
    },
    world::skip_unless_root,
};

use crate::REASON;

const TALK: Talk = Talk::new(CLIENT.1, FULL, FULL_A);
/// The flow that is opened next.
const SECOND: Talk = Talk::new(CLIENT.1 + 1, FULL, FULL_B).after(1);

/// Changes the next port of the address in a family.
fn turn(family: Family, turn: u64) -> impl Fn(&mut Lab) {
    move |lab| {
        let index = match family {
            Family::V4 => 1,
            Family::V6 => 2,
        };
        let pool = lab.maps.pools.read(index);
        lab.maps.pools.write(index, PoolAddress { turn, ..pool });
    }
}

/// What a server sees of a flow that got the port at this distance from the first.
fn with_port(talk: Talk, place: u64) -> Talk {
    talk.after(u16::try_from(place).expect("a port"))
}

/// Packets of servers that no flow waits for.
fn strangers() -> Vec<Row> {
    let stray = |name: &str, change: fn(&mut Endpoint, &mut Endpoint)| {
        let step = TALK
            .response(9)
            .with(|frame| change(&mut frame.source, &mut frame.destination));
        Row::new(name)
            .sends(TALK.handshake())
            .send(step.passed(Reason::PassedNoService))
            .send(TALK.response(9))
    };
    vec![
        stray("a server's packet to a port that nobody has", |_, to| {
            to.1 += 1;
        }),
        stray("to a port that is never given", |_, to| to.1 = 1_023),
        stray("another server's packet to a client's port", |from, _| {
            *from = FULL_B.endpoint;
        }),
        stray(
            "the server's packet from another of its ports",
            |from, _| {
                from.1 += 1;
            },
        ),
    ]
}

/// One client endpoint and one server, by `nat` and by `full-nat` at once.
fn beside_nat() -> Vec<Row> {
    let pairs = [
        ("TCP", Talk::new(CLIENT.1, WEB, A), TALK),
        (
            "UDP",
            Talk::new(CLIENT.1, DNS, DNS_A),
            Talk::new(CLIENT.1, FULL_DNS, FULL_DNS_A),
        ),
    ];
    let rows = pairs.into_iter().flat_map(|(name, nat, full)| {
        [("nat first", nat, full), ("full-nat first", full, nat)].map(|(order, first, second)| {
            Row::new(format!(
                "one client endpoint and one server: {name}, {order}"
            ))
            .from("kubernetes#81775: two services, one backend, one four-tuple")
            .sends(first.begun())
            .sends(second.begun())
            .sends([nat, full].map(|talk| talk.request(5)))
            .sends([full, nat].map(|talk| talk.response(5)))
        })
    });
    rows.collect()
}

/// Makes the service and the backend of a `nat` flow those of another mode.
fn turned_into(mode: u8, vip: Vip, servers: &'static [Server]) -> impl Fn(&mut Lab) {
    move |lab| {
        lab.service(vip, |service| service.forwarding = mode);
        for server in servers {
            lab.backend(*server, |backend| backend.forwarding = mode);
        }
    }
}

/// Every cell from the first port on is somebody's, as far as one flow looks, and
/// nobody is known to be gone: their bucket says that more is in the spill.
fn all_held(lab: &mut Lab) {
    lab.settings(|settings| settings.bucket_mask4 = 0);
    let mut bucket = lab.maps.flows4.read(0);
    bucket.ways[0].meta |= meta::SPILLED;
    lab.maps.flows4.write(0, bucket);
    for probe in 0..u16::try_from(PROBES).expect("a few") {
        let cell = pool_cell(1, false, POOL.1 + probe);
        lab.maps.pool_ports.write(cell, u64::from(probe) << 16 | 1);
    }
}

/// Both FINs.
fn over(talk: Talk) -> [Step; 2] {
    let index = talk.server.index;
    [
        talk.client(FIN | ACK)
            .also(goes(State::Established, State::ClientFin)),
        talk.server(FIN | ACK)
            .also(ends(index, State::ClientFin, State::Closed))
            .also(reports(index, Short)),
    ]
}

/// Everything about the pool.
pub(crate) fn group() -> Group {
    let last = PORTS_PER_ADDRESS - 1;
    let mut rows = strangers();
    rows.extend(beside_nat());
    for family in FAMILIES {
        let (first, second) = (TALK.in_family(*family), SECOND.in_family(*family));
        let named = |name: &str| Row::new(format!("{name} ({})", family.name()));
        let dns = Talk::new(CLIENT.1, FULL_DNS, FULL_DNS_A).in_family(*family);
        rows.extend([
            named("ports are given in a row, over both protocols")
                .sends(first.begun())
                .sends(dns.after(1).begun())
                .sends(with_port(second, 2).begun())
                .sends([first.request(3), second.after(2).request(3)])
                .sends([second.after(2).response(3), first.response(3)])
                .send(dns.after(1).response(3)),
            named("after the last port comes the first")
                .change(turn(*family, last))
                .sends(with_port(first, last).begun())
                .sends(second.after(0).begun())
                .send(with_port(first, last).response(8)),
            named("a port that is held is left out")
                .sends(first.begun())
                .change(turn(*family, PORTS_PER_ADDRESS))
                .sends(second.begun())
                .sends([first.response(3), second.response(3)]),
            named("a port of a connection that lingers is left out")
                .sends(first.begun())
                .sends(over(first))
                .change(turn(*family, PORTS_PER_ADDRESS))
                .sends(second.begun()),
            named("a port is taken over from a connection that is over")
                .sends(first.begun())
                .sends(over(first))
                .change(move |lab| lab.age(first.client, 99))
                .change(turn(*family, PORTS_PER_ADDRESS))
                .sends(second.after(0).begun())
                .send(second.after(0).response(3)),
            named("no address stands for clients")
                .change(|lab| lab.settings(|settings| settings.pools = 0))
                .send(first.client(SYN).dropped(Reason::PoolExhausted)),
        ]);
    }
    rows.extend([
        Row::new("as many ports as are looked at are held: the next one gets the next")
            .change(all_held)
            .send(TALK.client(SYN).dropped(Reason::PoolExhausted))
            // The turn of its server was the first packet's.
            .sends(with_port(TALK.at(FULL_B), PROBES.into()).begun()),
        Row::new("a service becomes full-nat: open connections go on by nat")
            .sends(Talk::web(40_000, A).handshake())
            .change(turned_into(forwarding::FULL_NAT, WEB, &[A, B]))
            .sends([
                Talk::web(40_000, A).request(5),
                Talk::web(40_000, A).response(5),
            ])
            .send({
                let talk = Talk {
                    stands: TALK.stands,
                    ..Talk::web(40_001, B)
                };
                talk.client(SYN).also(opens(B.index))
            }),
        Row::new("a service becomes nat: open connections go on by full-nat")
            .sends(TALK.handshake())
            .change(turned_into(forwarding::NAT, FULL, &[FULL_A, FULL_B]))
            .sends([TALK.request(5), TALK.response(5)])
            .sends(
                Talk {
                    stands: None,
                    ..SECOND
                }
                .begun(),
            ),
        Row::new("an answer whose client's address is ours too: it is not a pool's")
            .sends(TALK.begun())
            .send(
                TALK.response(4)
                    .with(|frame| frame.destination.0 = WEB.endpoint.0)
                    .passed(Reason::PassedNoService),
            ),
        Row::new("datagrams without a checksum")
            .from("RFC 768")
            .sends(
                Talk::new(CLIENT.1, FULL_DNS, FULL_DNS_B)
                    .at(FULL_DNS_A)
                    .begun()
                    .into_iter()
                    .map(|step| {
                        step.with(|frame| {
                            frame.carried =
                                steerline_tests::packets::Carried::Udp { summed: false };
                        })
                    }),
            ),
    ]);
    Group::new("full-nat", rows)
}

/// Flows of one test: more than a bucket holds, and than one address gets.
const FLOWS: u16 = 4_000;
/// A second address in IPv4.
const OTHER: IpAddr = v4([10, 0, 0, 101]);

/// Source or destination of an IPv4 frame, by etherparse.
fn ends_of(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ethernet(frame).expect("a packet");
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
        (&sliced.net, &sliced.transport)
    else {
        panic!("no segment over IPv4");
    };
    let header = ip.header();
    (
        SocketAddr::new(header.source_addr().into(), tcp.source_port()),
        SocketAddr::new(header.destination_addr().into(), tcp.destination_port()),
    )
}

/// xvs and others give a port twice under load: here none is, over two addresses,
/// and every answer finds its client.
#[test]
fn thousands_of_flows_have_endpoints_of_their_own() {
    if skip_unless_root(REASON) {
        return;
    }
    let mut lab = Lab::new(4_096, 64).expect("a laboratory");
    lab.publish(FULL, &[(FULL_A.index, 1)]);
    // Index 2 is that of the other family's otherwise.
    let pool = lab.maps.pools.read(2);
    let address = map_address(OTHER);
    lab.maps.pools.write(2, PoolAddress { address, ..pool });
    lab.settings(|settings| settings.pools = 2);
    lab.name_pool(OTHER, 2);
    let before = lab.snapshot();
    let mut given = BTreeMap::new();
    for number in 0..FLOWS {
        let talk = Talk::new(10_000 + number, FULL, FULL_A);
        let (verdict, out) = lab.run(&talk.client_frame(SYN).bytes(), Port::Front);
        assert_eq!(verdict, verdict::REDIRECT, "SYN {number}");
        let (source, _) = ends_of(&out);
        assert!(given.insert(source, talk).is_none(), "{source} twice");
    }
    let moved = before.moved(&lab.snapshot());
    let opened = moved.of(Counter::Reason(Reason::NewFlow));
    assert_eq!(opened, i64::from(FLOWS));
    let of = |address: IpAddr| given.keys().filter(|end| end.ip() == address).count();
    let (one, other) = (of(POOL.0), of(OTHER));
    println!("{one} and {other}");
    assert_eq!(one + other, usize::from(FLOWS));
    // Six deviations of a fair coin.
    assert!(one.abs_diff(other) < 2 * 190, "{one} and {other}");
    for (source, talk) in given {
        let answer = Talk {
            stands: Some((source.ip(), source.port())),
            ..talk
        };
        let frame = answer.server_frame(SYN | ACK);
        let (verdict, out) = lab.run(&frame.bytes(), Port::Back);
        assert_eq!(verdict, verdict::REDIRECT, "{source}");
        let (from, to) = ends_of(&out);
        assert_eq!((from.ip(), from.port()), talk.vip, "{source}");
        assert_eq!((to.ip(), to.port()), talk.client, "{source}");
    }
}
