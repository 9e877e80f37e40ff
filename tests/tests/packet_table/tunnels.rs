//! Servers behind tunnels: what the matrix does not say of the packets around
//! those of clients.

use lb_common::{abi::hop_flags, reason::Reason};
use std::{collections::BTreeSet, net::IpAddr};
use steerline_tests::{
    packets::{
        Entropy, FAMILIES, Family, Group, Lab, Port, Reply, Row, Step, Talk, Tunnel,
        flag::{ACK, SYN},
        moves::because,
        scene::{BACK, CLIENT, DIRECT, DIRECT_A, FRONT},
        v4, verdict,
    },
    world::skip_unless_root,
};

use crate::REASON;

/// Every tunnel, in every family of clients.
fn every() -> Vec<(Family, Tunnel)> {
    let mut all = Vec::new();
    for inner in FAMILIES {
        for outer in FAMILIES {
            all.extend([false, true].map(|is_gue| (*inner, Tunnel::new(is_gue, *outer))));
        }
    }
    all
}

/// A client's conversation with a server behind a tunnel.
fn talk(inner: Family, tunnel: Tunnel) -> Talk {
    let server = DIRECT_A.in_family(inner).behind(tunnel);
    Talk::new(CLIENT.1, DIRECT.in_family(inner), server)
}

/// Puts the server of a conversation where it says.
fn dig(talk: Talk) -> impl Fn(&mut Lab) {
    move |lab| lab.tunnel(DIRECT.in_family(talk.family()), &[talk.server])
}

/// A row in a tunnel.
fn row(name: &str, inner: Family, tunnel: Tunnel) -> Row {
    let form = if tunnel.is_gue { "gue" } else { "ipip" };
    let (inside, outside) = (inner.name(), tunnel.family.name());
    Row::new(format!("{name} ({inside} in {outside}, {form})")).change(dig(talk(inner, tunnel)))
}

/// Our ends, so many low bits of which tell flows apart.
fn spread(tunnel: Tunnel, bits: u32) -> Tunnel {
    let [a, b, c, d] = [10, 0, 0x40, 0];
    let source = match tunnel.family {
        Family::V4 => v4([a, b, c, d]),
        Family::V6 => "fc00:5::4:0".parse().expect("an address"),
    };
    Tunnel {
        source,
        spread: bits,
        ..tunnel
    }
}

/// What a client is told of a way of that MTU: less what the tunnel adds.
fn too_big(tunnel: Tunnel, talk: Talk, mtu: usize) -> Reply {
    let left = u16::try_from(mtu - tunnel.overhead()).expect("an MTU");
    Reply::TooBig(talk.vip.0, left)
}

/// Headers of a segment without options.
const fn headers(family: Family) -> usize {
    family.header() + 20
}

/// RFC 6040, section 4.1: in normal mode the outer field is the inner one, in
/// all four codepoints; RFC 2983, section 3.1: so is the DSCP.
fn codepoints(inner: Family, tunnel: Tunnel) -> Row {
    let row = row("every DSCP with every ECN codepoint", inner, tunnel).from("RFC 6040, RFC 2983");
    let talk = talk(inner, tunnel);
    let with = |step: Step, tos: u8| step.with(|frame| frame.tos = tos);
    (0..=255).fold(row.send(with(talk.syn(), 2)), |row, tos| {
        let step = if tos == 0 {
            talk.direct_ack()
        } else {
            talk.request(3)
        };
        row.send(with(step, tos))
    })
}

/// The room that a test run leaves, of which a flow's first frame and a later one
/// take what the tunnel adds and not a byte more. (Metadata comes in words, and
/// all overheads are words.)
fn headroom(inner: Family, tunnel: Tunnel) -> Row {
    // XDP_PACKET_HEADROOM less `struct xdp_frame` (include/net/xdp.h).
    const ROOM: usize = 256 - 40;
    let just = ROOM - tunnel.overhead();
    let talk = talk(inner, tunnel);
    row("the last byte in front of a frame", inner, tunnel)
        .send(talk.syn().metadata(just + 4).dropped(Reason::NoHeadroom))
        .send(
            talk.client(SYN)
                .metadata(just)
                .also(because(Reason::SynRepeated)),
        )
        .send(talk.direct_ack().metadata(just))
        .send(
            talk.request(9)
                .metadata(just + 4)
                .dropped(Reason::NoHeadroom),
        )
        .send(talk.request(9).metadata(ROOM).dropped(Reason::NoHeadroom))
        .send(talk.request(9))
}

/// Frames that are more than one page.
fn jumbo(inner: Family, tunnel: Tunnel) -> Row {
    let talk = talk(inner, tunnel);
    let fits = 9_000 - tunnel.overhead() - headers(inner);
    row("a jumbo frame", inner, tunnel)
        .from("xdp-tutorial#225")
        .change(move |lab| {
            lab.hop(talk.server.hop(), |hop| hop.mtu = 9_000);
        })
        .sends(talk.begun())
        .send(talk.request(fits))
        .send(talk.request(fits + 1).replied(too_big(tunnel, talk, 9_000)))
        .send(talk.request(5_000))
}

/// Everything about one tunnel.
fn of(inner: Family, tunnel: Tunnel) -> Vec<Row> {
    let talk = talk(inner, tunnel);
    let server = talk.server;
    let row = |name: &str| row(name, inner, tunnel);
    let elsewhere = Tunnel {
        source: tunnel.family.address([172, 16, 0, 1]),
        ..tunnel
    };
    let at_elsewhere = self::talk(inner, elsewhere);
    let mut rows = vec![
        codepoints(inner, tunnel),
        headroom(inner, tunnel),
        jumbo(inner, tunnel),
        row("our end is not known yet")
            .change(move |lab| lab.backend(server, |b| b.tunnel_source = [0; 16]))
            .send(talk.syn().dropped(Reason::NeighbourUnresolved))
            .change(dig(talk))
            .sends(talk.begun().into_iter().skip(1))
            .change(move |lab| lab.backend(server, |b| b.tunnel_source = [0; 16]))
            .send(talk.request(5).dropped(Reason::NeighbourUnresolved)),
        row("our end changes under a flow")
            .sends(talk.begun())
            .change(dig(at_elsewhere))
            .send(at_elsewhere.request(5))
            .change(dig(talk))
            .send(talk.request(6)),
        row("the way has no limit that is known")
            .change(move |lab| lab.hop(server.hop(), |hop| hop.mtu = 0))
            .sends(talk.begun())
            .send(talk.request(1_500 - headers(inner))),
        row("a smaller MTU towards the server: exactly, and one more")
            .change(move |lab| lab.hop(server.hop(), |hop| hop.mtu = 1_400))
            .sends(talk.begun())
            .send(talk.request(1_400 - tunnel.overhead() - headers(inner)))
            .send(
                talk.request(1_401 - tunnel.overhead() - headers(inner))
                    .replied(too_big(tunnel, talk, 1_400)),
            ),
        row("padding does not count towards the MTU, and stays")
            .change(move |lab| lab.hop(server.hop(), |hop| hop.mtu = 1_400))
            .sends(talk.begun())
            .send(
                talk.request(1_400 - tunnel.overhead() - headers(inner))
                    .with(|frame| frame.padding = vec![0xee; 60]),
            ),
        row("one arm: out of the interface it came in by")
            .change(move |lab| {
                let front = lab.front;
                lab.hop(server.hop(), |hop| {
                    (hop.ifindex, hop.source) = (front, FRONT.1)
                });
            })
            .sends(
                talk.begun()
                    .into_iter()
                    .map(|step| step.leaving(Port::Front, (server.mac(), FRONT.1))),
            ),
        row("the next hop goes and comes back")
            .sends(talk.begun())
            .change(move |lab| lab.hop(server.hop(), |hop| hop.flags = 0))
            .send(talk.request(5).dropped(Reason::NeighbourUnresolved))
            .change(move |lab| lab.hop(server.hop(), |hop| hop.flags = hop_flags::VALID))
            .send(talk.request(5)),
        row("no next hop")
            .sends(talk.begun())
            .change(move |lab| lab.backend(server, |backend| backend.hop = 0))
            .send(talk.request(5).dropped(Reason::NeighbourUnresolved)),
    ];
    for bits in [1, 4, 15, 16] {
        let at = self::talk(inner, spread(tunnel, bits));
        rows.push(
            self::row(
                &format!("{bits} low bits of our end tell flows apart"),
                inner,
                spread(tunnel, bits),
            )
            .sends(at.begun())
            .sends([at.request(1), at.request(700), at.request(2)]),
        );
    }
    if inner == Family::V6 {
        let step = talk.request(1_281 - tunnel.overhead() - headers(inner));
        rows.push(
            row("the tunnel leaves less than 1,280 bytes: nobody is told less")
                .from("RFC 8200 section 5")
                .change(move |lab| lab.hop(server.hop(), |hop| hop.mtu = 1_280))
                .sends(talk.begun())
                .send(step.replied(Reply::TooBig(talk.vip.0, 1_280))),
        );
    }
    if tunnel.is_gue {
        let other = Tunnel {
            port: 6_081,
            ..tunnel
        };
        let at = self::talk(inner, other);
        rows.push(self::row("another port of GUE", inner, other).sends(at.begun()));
    }
    rows
}

/// A live flow is sent as its backend's service is now.
fn changes() -> Row {
    let row = Row::new("dsr, then each tunnel, then dsr, under one flow");
    let direct = Talk::new(CLIENT.1, DIRECT, DIRECT_A);
    let row = row.sends(direct.begun());
    let row = every()
        .into_iter()
        .filter(|(inner, _)| *inner == Family::V4)
        .fold(row, |row, (inner, tunnel)| {
            let talk = talk(inner, tunnel);
            row.change(dig(talk))
                .send(talk.request(4))
                .send(talk.client(ACK))
        });
    row.change(|lab| {
        let before = lab.maps.backends.read(DIRECT_A.index.into());
        lab.maps.backends.write(
            DIRECT_A.index.into(),
            lb_common::abi::Backend {
                forwarding: lb_common::abi::forwarding::DSR,
                hop: DIRECT_A.hop(),
                ..before
            },
        );
    })
    .send(direct.request(4))
}

/// Everything about tunnels.
pub(crate) fn group() -> Group {
    let mut rows: Vec<Row> = every()
        .into_iter()
        .flat_map(|(inner, tunnel)| of(inner, tunnel))
        .collect();
    rows.push(changes());
    Group::new("tunnels", rows)
}

/// Flows of one test.
const FLOWS: u16 = 2_048;

/// Whether counts over places that are equally likely look it: a chi-squared
/// test. Its mean is `places - 1` and its variance twice that (Pearson 1900);
/// six deviations above are passed by one table in a hundred millions. The secret
/// of the hash is constant, so the test is too.
fn is_even(counts: &[u32]) -> bool {
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / counts.len() as f64;
    let squares = counts.iter().map(|n| (f64::from(*n) - expected).powi(2));
    let freedom = counts.len() as f64 - 1.0;
    squares.sum::<f64>() / expected < freedom + 6.0 * (2.0 * freedom).sqrt()
}

/// The last two bytes of an address.
fn low(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => u32::from(address) & 0xffff,
        IpAddr::V6(address) => u128::from(address) as u32 & 0xffff,
    }
}

/// katran#172, facebookincubator/katran's `ENCAP` prefixes: receivers hash the
/// outer header alone, so that it must tell flows apart by all that it has.
#[test]
fn outer_headers_tell_flows_apart_evenly() {
    if skip_unless_root(REASON) {
        return;
    }
    for (inner, tunnel) in every() {
        let tunnel = spread(tunnel, 4);
        let mut lab = Lab::new(4_096, 64).expect("a laboratory");
        let first = talk(inner, tunnel);
        lab.publish(DIRECT.in_family(inner), &[(first.server.index, 1)]);
        dig(first)(&mut lab);
        let mut seen = Vec::new();
        for number in 0..FLOWS {
            let (address, _) = first.client;
            let frame = first.from((address, 10_000 + number)).client_frame(SYN);
            let (verdict, out) = lab.run(&frame.bytes(), Port::Front);
            assert_eq!(verdict, verdict::REDIRECT, "SYN {number}");
            let entropy = tunnel.entropy(&out);
            let expected = tunnel.around(
                &frame.with(|frame| frame.macs = (first.server.mac(), BACK.1)),
                first.server.endpoint.0,
                entropy,
            );
            assert_eq!(out, expected, "SYN {number}");
            seen.push(entropy);
        }
        let name = format!("{inner:?} in {tunnel:?}");
        let count = |places: u32, place: &dyn Fn(&Entropy) -> u32| {
            let mut counts = vec![0; places as usize];
            for entropy in &seen {
                counts[place(entropy) as usize] += 1;
            }
            counts
        };
        let addresses = count(16, &|e| low(e.source) & 0xf);
        assert!(is_even(&addresses), "{name}: addresses {addresses:?}");
        if tunnel.is_gue {
            let upper = count(64, &|e| (u32::from(e.port) - 49_152) >> 8);
            let lower = count(64, &|e| u32::from(e.port) & 63);
            assert!(is_even(&upper) && is_even(&lower), "{name}: ports");
        }
        if tunnel.family == Family::V6 {
            let upper = count(64, &|e| e.label >> 14);
            let lower = count(64, &|e| e.label & 63);
            assert!(is_even(&upper) && is_even(&lower), "{name}: flow labels");
        }
        let distinct: BTreeSet<_> = seen
            .iter()
            .map(|e| (low(e.source), e.port, e.label))
            .collect();
        let possible = 16
            * if tunnel.is_gue { 16_384 } else { 1 }
            * if tunnel.family == Family::V6 {
                1 << 20
            } else {
                1_u64
            };
        let wanted = (u64::from(FLOWS) * 9 / 10).min(possible);
        assert!(
            distinct.len() as u64 >= wanted,
            "{name}: {}",
            distinct.len()
        );
    }
}
