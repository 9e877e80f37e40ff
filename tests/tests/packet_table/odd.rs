//! Conversations that are rare and right: both ends speak first, data on a SYN,
//! segments that only ask whether anybody is there, clients that are servers.

use lb_common::{flow::meta, reason::Reason, tcp::State};
use std::net::IpAddr;
use steerline_tests::packets::{
    Class::Short,
    Extension, FAMILIES, Frame, Group, Lab, Port, Row, Step, Tag, Talk,
    flag::{ACK, FIN, RST, SYN},
    moves::{becomes_active, ends, establishes, fails, goes, opens, reports},
    now,
    scene::{
        A, B, BACK, C, CLIENT, DIRECT, DIRECT_A, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A, DNS_B,
        FRONT, ROUTER_MAC, WEB,
    },
};

/// The flow of a client endpoint was noted in this tick.
fn is_fresh(lab: &mut Lab, talk: Talk) -> Result<(), String> {
    let mut ticks = Vec::new();
    lab.edit(talk.client, |way, _| ticks.push(meta::tick(way.meta)));
    let age = |tick: &u32| lb_common::abi::ticks_between(*tick, now());
    if ticks.iter().all(|tick| age(tick) < 4) {
        Ok(())
    } else {
        Err(format!("last noted at {ticks:?}, now is {}", now()))
    }
}

/// Everything that is rare and right.
pub(crate) fn group() -> Group {
    let mut rows = Vec::new();
    for family in FAMILIES {
        let nat = Talk::new(CLIENT.1, WEB.in_family(*family), A.in_family(*family));
        let direct = Talk::new(
            CLIENT.1,
            DIRECT.in_family(*family),
            DIRECT_A.in_family(*family),
        );
        let named = |row: Row| row.in_family(*family);
        rows.extend(both_first(nat).into_iter().map(named));
        rows.extend(fast_open(nat, direct).into_iter().map(named));
        rows.extend(probes(nat, direct).into_iter().map(named));
        rows.extend(hairpins(nat).into_iter().map(named));
        rows.extend(segments(direct).into_iter().map(named));
        let datagrams = [
            Talk::new(CLIENT.1, DNS.in_family(*family), DNS_A.in_family(*family)),
            Talk::new(
                CLIENT.1,
                DIRECT_DNS.in_family(*family),
                DIRECT_DNS_A.in_family(*family),
            ),
        ];
        rows.extend(
            moved(datagrams[0], DNS_B.in_family(*family))
                .into_iter()
                .map(named),
        );
        rows.extend(pings(nat).into_iter().map(named));
        rows.extend(datagrams.into_iter().map(|talk| named(long_lived(talk))));
    }
    Group::new("odd", rows)
}

/// RFC 9293, section 3.5: a simultaneous open.
fn both_first(talk: Talk) -> Vec<Row> {
    vec![
        Row::new("both ends send a SYN")
            .from("RFC 9293 section 3.5, figure 8")
            .send(talk.syn())
            .send(talk.server(SYN))
            .send(talk.client(SYN | ACK))
            .send(
                talk.server(SYN | ACK)
                    .also(goes(State::HalfOpen, State::Answered)),
            )
            .send(
                talk.client(ACK)
                    .payload(5)
                    .also(establishes(talk.server.index)),
            )
            .send(talk.server(ACK).payload(5)),
    ]
}

/// RFC 7413: data on a SYN.
fn fast_open(nat: Talk, direct: Talk) -> Vec<Row> {
    let cookie = vec![34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
    let syn = |talk: Talk| {
        let cookie = cookie.clone();
        talk.syn()
            .payload(300)
            .with(|frame| frame.tcp_options = cookie)
    };
    let answer = |step: Step| step.with(|frame| frame.acknowledgement += 300);
    vec![
        Row::new("data on the SYN, and on its answer")
            .from("RFC 7413")
            .send(syn(nat))
            .send(
                answer(nat.server(SYN | ACK).payload(500))
                    .also(goes(State::HalfOpen, State::Answered)),
            )
            .send(
                nat.client(ACK)
                    .with(|frame| frame.acknowledgement += 500)
                    .also(establishes(nat.server.index)),
            )
            .send(nat.server(ACK).payload(20)),
        Row::new("data on the SYN, in direct return")
            .from("RFC 7413")
            .send(syn(direct))
            .send(direct.client(ACK).payload(7).also(becomes_active(
                direct.server.index,
                State::HalfOpen,
                State::Established,
            ))),
    ]
}

/// Segments that only ask whether the other end is there (RFC 9293, sections
/// 3.8.4 and 3.8.6.1).
fn probes(nat: Talk, direct: Talk) -> Vec<Row> {
    let keep_alive = |step: Step| step.with(|f| f.sequence = f.sequence.wrapping_sub(1));
    let zero_window = |step: Step| step.with(|f| f.window = 0);
    let aged = |row: Row, talk: Talk| row.change(move |lab| lab.age(talk.client, 1_000));
    let fresh = |row: Row, talk: Talk| row.check(move |lab| is_fresh(lab, talk));
    let mut rows = Vec::new();
    for (mode, talk) in [("nat", nat), ("dsr", direct)] {
        let mut row = Row::new(format!("they keep a flow alive, {mode}")).sends(talk.begun());
        for step in [
            keep_alive(talk.client(ACK)),
            keep_alive(talk.client(ACK)).payload(1),
            zero_window(talk.client(ACK)),
            zero_window(talk.client(ACK)).payload(1),
        ] {
            row = fresh(aged(row, talk).send(step), talk);
        }
        rows.push(if talk.is_direct {
            row
        } else {
            let row = fresh(aged(row, talk).send(keep_alive(talk.server(ACK))), talk);
            fresh(aged(row, talk).send(zero_window(talk.server(ACK))), talk)
        });
    }
    let index = nat.server.index;
    rows.push(
        Row::new("they bring nothing back that both ends closed")
            .sends(nat.begun())
            .send(
                nat.client(FIN | ACK)
                    .also(goes(State::Established, State::ClientFin)),
            )
            .send(
                nat.server(FIN | ACK)
                    .also(ends(index, State::ClientFin, State::Closed))
                    .also(reports(index, Short)),
            )
            .send(keep_alive(nat.client(ACK)))
            .send(keep_alive(nat.server(ACK)).payload(1))
            .send(zero_window(nat.client(ACK))),
    );
    rows.push(
        Row::new("nor does the client's what its server reset")
            .sends(nat.begun())
            .send(
                nat.server(RST | ACK)
                    .also(ends(index, State::Established, State::Reset))
                    .also(fails(index, Short)),
            )
            .send(keep_alive(nat.client(ACK)).payload(1))
            .send(zero_window(nat.client(ACK))),
    );
    let index = direct.server.index;
    rows.push(
        Row::new("nor what the client closed, in direct return")
            .sends(direct.begun())
            .send(
                direct
                    .client(FIN | ACK)
                    .also(ends(index, State::Established, State::Closed))
                    .also(reports(index, Short)),
            )
            .send(keep_alive(direct.client(ACK)))
            .send(keep_alive(direct.client(ACK)).payload(1))
            .send(zero_window(direct.client(ACK))),
    );
    rows
}

/// A server that is a client of its own service.
fn hairpins(nat: Talk) -> Vec<Row> {
    let family = nat.family();
    let [a, b, c] = [A, B, C].map(|server| server.in_family(family));
    let macs = (BACK.1, a.mac());
    let own = nat.from((a.endpoint.0, 1_234));
    let from_server = move |talk: Talk| {
        talk.client(SYN)
            .with(|frame| frame.macs = macs)
            .at(Port::Back)
    };
    vec![
        Row::new("a server's own connection goes to another one")
            .from("dpservice#815; RFC 4787 REQ-9")
            // The turn of A is B's, then comes B's own.
            .send(from_server(own.at(b)).also(opens(b.index)))
            .send(from_server(own.at(b).from((a.endpoint.0, 1_235))).also(opens(b.index)))
            .send(from_server(own.at(c).from((a.endpoint.0, 1_236))).also(opens(c.index))),
        Row::new("and nowhere, if it is the only one")
            .change(move |lab| lab.down(&[b, c]))
            .send(from_server(own).dropped(Reason::Hairpin))
            .send(nat.syn()),
    ]
}

/// Client and server on one segment, in direct return: MAC addresses alone.
fn segments(direct: Talk) -> Vec<Row> {
    let address = |octets| direct.family().address(octets);
    let near: IpAddr = address([10, 0, 0, 9]);
    let talk = direct.from((near, 4_321));
    let step = |step: Step| {
        step.with(|frame| frame.macs = (BACK.1, [2, 0, 0, 0, 0x0c, 9]))
            .at(Port::Back)
    };
    vec![
        Row::new("client and server on one segment")
            .send(step(talk.syn()))
            .send(step(talk.direct_ack()))
            .send(step(talk.request(700))),
    ]
}

/// A client of datagrams with another address or port is another client, whatever
/// its datagrams say: QUIC's connection numbers are not read.
fn moved(talk: Talk, other: steerline_tests::packets::scene::Server) -> Vec<Row> {
    let elsewhere = talk.at(other).from((talk.client.0, talk.client.1 + 1));
    vec![
        Row::new("a client that moves is another one")
            .from("katran#186; RFC 9000 section 9")
            .sends(talk.begun())
            .send(elsewhere.first())
            .send(elsewhere.answer())
            .send(talk.request(50))
            .send(talk.response(50)),
    ]
}

/// Datagrams for hours keep one server.
fn long_lived(talk: Talk) -> Row {
    let mode = if talk.is_direct { "dsr" } else { "nat" };
    let row = Row::new(format!("datagrams for hours, {mode}")).settled(talk);
    (0..8).fold(row, |row, _| {
        row.change(move |lab| lab.age(talk.client, 400))
            .send(talk.request(1_200))
            .check(move |lab| is_fresh(lab, talk))
    })
}

/// Pings keep what they came with.
fn pings(nat: Talk) -> Vec<Row> {
    let ping = || {
        let frame = Frame::ping((FRONT.1, ROUTER_MAC), nat.client.0, nat.vip.0);
        Step::answered(frame.payload(21))
    };
    vec![
        Row::new("a ping's tags, options and headers come back")
            .send(ping().with(|f| f.tags = vec![Tag::customer(42)]))
            .send(ping().with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)]))
            .send(ping().with(|f| {
                f.ip_options = vec![1; 40];
                f.extensions = vec![Extension::padding(Extension::HOP_BY_HOP, 2)];
            })),
    ]
}

/// Frames with extension headers, cut at every length.
pub(crate) fn cuts() -> Group {
    let headers = [
        ("hop-by-hop", Extension::padding(Extension::HOP_BY_HOP, 2)),
        ("destination", Extension::padding(Extension::DESTINATION, 1)),
        ("routing", Extension::routing()),
        ("fragment", Extension::fragment()),
        ("authentication", Extension::authentication()),
    ];
    let family = steerline_tests::packets::Family::V6;
    let rows = headers.into_iter().map(|(name, header)| {
        let talk = Talk::new(CLIENT.1, WEB.in_family(family), A.in_family(family));
        let length = header.body.len() + 2;
        let step = || {
            let header = header.clone();
            talk.request(9).with(|f| f.extensions = vec![header])
        };
        let row =
            Row::new(format!("cut at every length, behind a header: {name}")).sends(talk.begun());
        let row = (14..step().length()).fold(row, |row, cut| {
            let step = step().cut(cut);
            // Without all of the header nobody knows what is behind it.
            row.send(if cut < 14 + 40 + length.min(8) {
                step.passed(Reason::PassedMalformed)
            } else {
                step.dropped(Reason::Malformed)
            })
        });
        row.send(step())
    });
    Group::new("odd", rows.collect())
}
