//! What the balancer answers by itself, in both modes and families.

use lb_common::{flow::meta, reason::Reason, tcp::State};
use std::net::{IpAddr, Ipv6Addr};
use steerline_tests::packets::{
    Counter, Extension, FAMILIES, Family, Group, Lab, Port, Reply, Row, Step, Tag, Talk,
    early_in_a_tick,
    flag::{ACK, ECE, FIN, PSH, RST, SYN, URG},
    moves::{goes, opens},
    now,
    scene::{A, B, CLIENT, DIRECT, DIRECT_A, DIRECT_B, WEB, router_hop},
    v4, verdict,
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

/// Errors that a CPU sends in a tick.
const MOST_A_TICK: usize = 64;

/// An answer to what expires in `nat`.
fn expires(talk: Talk, step: Step) -> Step {
    step.with(|f| f.ttl = 1)
        .replied(Reply::TimeExceeded(talk.vip.0))
}

/// Errors about packets that cannot be forwarded.
pub(crate) fn errors() -> Group {
    let mut rows = Vec::new();
    for column in columns() {
        let Column { name, talk, .. } = column;
        rows.extend(too_big(name, talk));
        if !talk.is_direct {
            rows.extend(time_exceeded(name, talk));
        }
    }
    let in_a_tick_of_its_own = |row: Row| row.first(|_| next_tick());
    let rows = rows.into_iter().map(in_a_tick_of_its_own).collect();
    Group::new("errors of our own", rows)
}

/// Waits for the next tick: a CPU sends so many errors in each and no more.
fn next_tick() {
    let tick = now();
    while now() == tick {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn time_exceeded(name: &str, talk: Talk) -> Vec<Row> {
    let family = talk.family();
    let row = |what: &str| Row::new(format!("{what} ({name})")).sends(talk.begun());
    let both = |row: Row, change: &dyn Fn(Step) -> Step| {
        row.send(change(expires(talk, talk.client(ACK | PSH))))
            .send(change(expires(talk, talk.server(ACK | PSH))))
    };
    let quoted = match family {
        Family::V4 => 576 - 20 - 8,
        Family::V6 => 1_280 - 40 - 8,
    };
    let most = quoted - family.header() - 20;
    let mut rows = vec![
        Row::new(format!("a traceroute's SYN opens nothing ({name})"))
            .from("RFC 1812 section 5.3.1, RFC 4443 section 3.3")
            .send(expires(talk, talk.client(SYN)))
            .send(talk.syn()),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].into_iter().fold(
            row("payloads of every small length are quoted whole"),
            |row, length| both(row, &|step| step.payload(length)),
        ),
        [most - 1, most, most + 1, most + 2, 1_380]
            .into_iter()
            .fold(row("as much as fits is quoted"), |row, length| {
                both(row, &|step| step.payload(length))
            }),
        both(row("tags stay, padding goes"), &|step| {
            step.with(|f| {
                f.tags = vec![Tag::customer(42)];
                *f = f.clone().padded();
            })
        }),
        both(row("two tags stay"), &|step| {
            step.payload(600)
                .with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)])
        }),
        both(row("type of service stays, but for congestion"), &|step| {
            step.with(|f| f.tos = 0xbb)
        }),
        both(row("a wrong checksum is quoted as it is"), &|step| {
            step.payload(5).with(|f| f.tcp_error = 0x0102)
        }),
        both(row("options and extension headers are quoted"), &|step| {
            step.payload(21).with(|f| {
                f.tcp_options = vec![1; 20];
                f.ip_options = vec![1; 16];
                f.extensions = vec![
                    Extension::padding(Extension::HOP_BY_HOP, 1),
                    Extension::routing(),
                ];
            })
        }),
        row("frames to groups are not answered").send(
            expires(talk, talk.client(ACK))
                .with(|f| f.macs.0 = [0x33, 0x33, 0, 0, 0, 1])
                .dropped(Reason::TtlExceeded),
        ),
    ];
    let nobody = match family {
        Family::V4 => [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]].map(v4),
        Family::V6 => ["::", "::1", "ff02::1", "ff0e::2"]
            .map(|text| IpAddr::V6(text.parse::<Ipv6Addr>().expect("an address"))),
    };
    rows.push(
        nobody
            .into_iter()
            .fold(row("nor are sources that are no host"), |row, source| {
                row.send(
                    talk.client(SYN)
                        .with(|f| {
                            f.source.0 = source;
                            f.ttl = 1;
                        })
                        .dropped(Reason::TtlExceeded),
                )
            }),
    );
    rows
}

fn too_big(name: &str, talk: Talk) -> Vec<Row> {
    let family = talk.family();
    let headers = family.header() + 20;
    let server = talk.server.hop();
    let row = |what: &str| Row::new(format!("{what} ({name})")).sends(talk.begun());
    let told = |step: Step, mtu| step.replied(Reply::TooBig(talk.vip.0, mtu));
    let mtu = |at: u32, mtu: u32| move |lab: &mut Lab| lab.hop(at, |hop| hop.mtu = mtu);
    let mut rows = vec![
        row("larger than the way to the server")
            .from("RFC 1191 section 4, RFC 4443 section 3.2; katran#82")
            .change(mtu(server, 1_400))
            .send(talk.client(ACK).payload(1_400 - headers))
            .send(told(talk.client(ACK).payload(1_401 - headers), 1_400))
            .send(told(talk.client(ACK).payload(1_460 - headers), 1_400)),
        row("without the bit that forbids fragments, too")
            .from("katran#206")
            .change(mtu(server, 1_300))
            .send(told(
                talk.client(ACK)
                    .payload(1_400)
                    .with(|f| f.dont_fragment = false),
                1_300,
            )),
        row("tags do not count towards the MTU and stay")
            .from("cilium#39690")
            .change(mtu(server, 1_400))
            .send(
                talk.client(ACK)
                    .payload(1_400 - headers)
                    .with(|f| f.tags = vec![Tag::customer(42)]),
            )
            .send(told(
                talk.client(ACK)
                    .payload(1_401 - headers)
                    .with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)]),
                1_400,
            )),
        row("no less than every link takes is told")
            .from("RFC 8200 section 5: 1,280; RFC 791: 68")
            .change(mtu(server, 48))
            .send(told(
                talk.client(ACK).payload(500),
                match family {
                    Family::V4 => 68,
                    Family::V6 => 1_280,
                },
            )),
        Row::new(format!("the packet that opens a flow ({name})"))
            .change(mtu(server, 1_300))
            .send(told(talk.client(SYN).payload(1_400), 1_300).also(opens(talk.server.index)))
            .send(
                talk.client(SYN)
                    .also(steerline_tests::packets::moves::because(
                        Reason::SynRepeated,
                    )),
            ),
    ];
    if !talk.is_direct {
        rows.push(
            row("larger than the way to the client")
                .send(talk.server(ACK).payload(1))
                .send(talk.server(ACK).payload(1))
                .change(mtu(router_hop(family), 1_350))
                .send(talk.server(ACK).payload(1_350 - headers))
                .send(told(talk.server(ACK).payload(1_351 - headers), 1_350)),
        );
    }
    rows
}

/// So many a tick, and then none until the next.
pub(crate) fn budget(lab: &mut Lab) {
    // Each CPU has its own.
    if let Some([cpu, _]) = crate::cpus::two_cpus() {
        crate::cpus::pin(cpu);
    }
    lab.reset();
    let talk = Talk::web(CLIENT.1, A);
    let frame = talk.client_frame(SYN).with(|f| f.ttl = 1).bytes();
    for _ in 0..2 {
        early_in_a_tick();
        let tick = now();
        let before = lab.snapshot();
        let verdicts: Vec<u32> = (0..2 * MOST_A_TICK)
            .map(|_| lab.run(&frame, Port::Front).0)
            .collect();
        assert_eq!(now(), tick, "all of them in one tick");
        let (told, silent) = verdicts.split_at(MOST_A_TICK);
        assert!(told.iter().all(|is| *is == verdict::TX), "{verdicts:?}");
        assert!(silent.iter().all(|is| *is == verdict::DROP), "{verdicts:?}");
        let moved = before.moved(&lab.snapshot());
        for reason in [Reason::TtlAnswered, Reason::TtlExceeded] {
            assert_eq!(moved.of(Counter::Reason(reason)), MOST_A_TICK as i64);
        }
        // `early_in_a_tick` returns at once while this one is young.
        while now() == tick {
            std::thread::yield_now();
        }
    }
}
