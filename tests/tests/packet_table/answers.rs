//! What the balancer answers by itself, in both modes and families.

use lb_common::{flow::meta, reason::Reason, tcp::State};
use steerline_tests::packets::{
    Counter, FAMILIES, Family, Group, Lab, Reply, Row, Step, Tag, Talk,
    flag::{ACK, ECE, FIN, PSH, RST, SYN, URG},
    moves::{goes, opens},
    now,
    scene::{A, B, CLIENT, DIRECT, DIRECT_A, DIRECT_B, WEB},
};

/// A mode and a family: the flow, and the one that another SYN would make.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) talk: Talk,
    other: Talk,
}

pub(crate) fn columns() -> Vec<Column> {
    let mut columns = Vec::new();
    for family in FAMILIES {
        for (names, vip, [first, second]) in [
            (["nat ipv4", "nat ipv6"], WEB, [A, B]),
            (["dsr ipv4", "dsr ipv6"], DIRECT, [DIRECT_A, DIRECT_B]),
        ] {
            let talk = Talk::new(CLIENT.1, vip.in_family(*family), first.in_family(*family));
            columns.push(Column {
                name: names[usize::from(*family == Family::V6)],
                talk,
                other: talk.at(second.in_family(*family)),
            });
        }
    }
    columns
}

/// What the sweep does to a flow at its backend's deadline (`drain_reset`).
fn refuse(lab: &mut Lab, talk: &Talk) {
    let found = lab.edit(talk.client, |way, _| {
        way.meta = meta::refused(way.meta, now());
    });
    assert_eq!(found, 1, "one flow of {:?} in the table", talk.client);
    // As the sweep books it.
    lab.live(talk.server, |live| live.closed += 1);
}

fn refused(column: Column, name: &str) -> Row {
    Row::new(format!("{name} ({})", column.name))
        .from("cilium#27730: the client never gets a valid reset")
        .sends(column.talk.begun())
        .change(move |lab| refuse(lab, &column.talk))
}

/// The client's frame, and the server's where it is seen, answered with resets.
fn both(talk: Talk, row: Row, flags: u8, change: impl Fn(Step) -> Step) -> Row {
    let row = row.send(change(talk.client(flags)).replied(Reply::Reset));
    if talk.is_direct {
        row
    } else {
        row.send(change(talk.server(flags)).replied(Reply::Reset))
    }
}

/// Connections that were ended with resets.
pub(crate) fn resets() -> Group {
    let mut rows = Vec::new();
    for column in columns() {
        let Column { talk, other, .. } = column;
        let row = refused(column, "each side's next packet");
        rows.push(both(talk, row, ACK | PSH, |step| step.payload(10)));
        let row = refused(column, "as often as they ask");
        rows.push((0..3).fold(row, |row, _| both(talk, row, ACK, |step| step)));
        let row = refused(column, "data of every small length, odd and even");
        rows.push((0..9).fold(row, |row, length| {
            both(talk, row, ACK, |step| step.payload(length))
        }));
        let row = refused(column, "the largest segment");
        rows.push(both(talk, row, ACK, |step| step.payload(1_400)));
        let row = refused(
            column,
            "without an acknowledgement: the end is acknowledged",
        );
        let row = both(talk, row, PSH, |step| step.payload(100));
        let row = both(talk, row, FIN, |step| step.payload(7));
        rows.push(both(talk, row, 0, |step| step));
        let row = refused(column, "numbers around the end of the sequence space");
        let row = both(talk, row, PSH, |step| {
            step.payload(100).with(|f| f.sequence = u32::MAX - 50)
        });
        rows.push(both(talk, row, ACK, |step| {
            step.with(|f| (f.sequence, f.acknowledgement) = (u32::MAX, u32::MAX))
        }));
        let row = refused(column, "FIN, SYN-ACK, urgent and congested ones");
        let row = both(talk, row, FIN | ACK, |step| step);
        let row = both(talk, row, SYN | ACK, |step| step);
        rows.push(both(talk, row, ACK | URG | ECE, |step| step.payload(3)));
        let row = refused(column, "options, tags and type of service");
        let row = both(talk, row, ACK, |step| {
            step.payload(33).with(|f| {
                f.tcp_options = vec![1; 24];
                f.ip_options = vec![1; 12];
                f.tos = 0xbb;
                f.ttl = 1;
            })
        });
        let row = both(talk, row, ACK, |step| {
            step.with(|f| f.tags = vec![Tag::customer(42)])
        });
        rows.push(both(talk, row, ACK, |step| {
            step.payload(12)
                .with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)])
        }));
        let row = refused(column, "padding is left out");
        rows.push(both(talk, row, ACK, |step| {
            step.with(|f| *f = f.clone().padded())
        }));
        let row = refused(
            column,
            "a reset goes to the other side, which is done then too",
        )
        .send(talk.client(RST | ACK))
        .send(talk.client(RST));
        rows.push(row.send(talk.server(RST | ACK)));
        rows.push(
            refused(column, "a frame to a group of stations is not answered").send(
                talk.client(ACK)
                    .with(|f| f.macs.0 = [0xff; 6])
                    .dropped(Reason::Malformed),
            ),
        );
        rows.push(
            refused(column, "the client's SYN begins another connection")
                .send(
                    other
                        .client(SYN)
                        .also(opens(other.server.index))
                        .also([(Counter::flows(State::Reset), -1)]),
                )
                .sends(other.begun().into_iter().skip(1))
                .send(other.request(5)),
        );
    }
    rows.push(
        Row::new("one that ended by itself is not answered")
            .sends(Talk::web(CLIENT.1, A).handshake())
            .send(
                Talk::web(CLIENT.1, A)
                    .client(RST)
                    .also(goes(State::Established, State::Reset))
                    .also([(Counter::Closed(A.index), 1)])
                    .also(steerline_tests::packets::moves::reports(
                        A.index,
                        steerline_tests::packets::Class::Short,
                    )),
            )
            .send(Talk::web(CLIENT.1, A).server(ACK)),
    );
    Group::new("resets", rows)
}
