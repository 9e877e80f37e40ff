//! Fragments: the later ones go where the first one went.
//!
//! What is remembered of first ones outlives a row, so rows about fragments that
//! nobody announced have identifications of their own.

use lb_common::reason::Reason;
use steerline_tests::packets::{
    Carried, Extension, FAMILIES, Family, Frame, Group, Lab, Port, Reply, Row, Step, Tag, Talk,
    early_in_a_tick,
    flag::{ACK, PSH, SYN},
    moves::opens,
    scene::{A, CLIENT, DIRECT, DIRECT_A, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A, Server, Vip, WEB},
};

/// Bytes of an IP payload in each fragment.
const SIZE: usize = 560;

#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    number: u16,
    talk: Talk,
}

impl Column {
    fn named(&self, what: &str) -> String {
        format!("{what} ({} {})", self.name, self.talk.family().name())
    }

    fn row(&self, what: &str) -> Row {
        Row::new(self.named(what)).settled(self.talk)
    }

    const fn transport(&self) -> usize {
        if self.talk.is_udp { 8 } else { 20 }
    }

    /// A step whose identification no other row has.
    fn own(&self, row: u16, step: Step) -> Step {
        step.with(|f| f.identification = 0x4000 + row * 16 + self.number)
    }

    /// The packets of both directions.
    fn both(&self, length: usize) -> [Step; 2] {
        [self.talk.request(length), self.talk.response(length)]
    }
}

fn columns() -> Vec<Column> {
    let all: [(_, Vip, Server); 4] = [
        ("nat tcp", WEB, A),
        ("nat udp", DNS, DNS_A),
        ("dsr tcp", DIRECT, DIRECT_A),
        ("dsr udp", DIRECT_DNS, DIRECT_DNS_A),
    ];
    let mut columns = Vec::new();
    for family in FAMILIES {
        for (name, vip, server) in all {
            columns.push(Column {
                name,
                number: columns.len() as u16,
                talk: Talk::new(CLIENT.1, vip.in_family(*family), server.in_family(*family)),
            });
        }
    }
    columns
}

fn first(steps: Vec<Step>) -> Step {
    steps.into_iter().next().expect("a fragment")
}

fn later(step: Step) -> Vec<Step> {
    step.fragments(SIZE).into_iter().skip(1).collect()
}

/// So many seconds pass, or come back.
fn pass(lab: &Lab, seconds: i64) {
    let nanoseconds = (seconds * 1_000_000_000).cast_unsigned();
    lab.settings(|s| s.jiffies_offset = s.jiffies_offset.wrapping_add(nanoseconds));
}

/// Everything about fragments.
pub(crate) fn group() -> Group {
    let mut rows = Vec::new();
    for c in columns() {
        rows.extend(whole(c));
        rows.extend(unannounced(c));
        rows.extend(malformed(c));
        rows.extend(ends(c));
    }
    for family in FAMILIES {
        let c = columns()
            .into_iter()
            .find(|c| c.talk.family() == *family)
            .expect("a column");
        let ping = Frame::ping(c.talk.client_frame(ACK).macs, c.talk.client.0, c.talk.vip.0);
        rows.push(
            Row::new(format!(
                "of a ping they are the kernel's ({})",
                family.name()
            ))
            .sends(
                Step::answered(ping.payload(1_200))
                    .passed(Reason::PassedFragment)
                    .fragments(SIZE),
            ),
        );
    }
    Group::new("fragments", rows)
}

/// Packets all of whose fragments come in order.
fn whole(c: Column) -> Vec<Row> {
    let talk = c.talk;
    let each = |what: &str, length: usize, change: &dyn Fn(Step) -> Step| {
        c.both(length).into_iter().fold(c.row(what), |row, step| {
            row.sends(change(step).fragments(SIZE))
        })
    };
    let mut rows = vec![
        (0..10).fold(c.row("of every length around two"), |row, more| {
            c.both(SIZE - c.transport() + more)
                .into_iter()
                .fold(row, |row, step| row.sends(step.fragments(SIZE)))
        }),
        (1..=8).fold(c.row("of every small size"), |row, units| {
            let size = c.transport().next_multiple_of(8) + 8 * units;
            row.sends(talk.request(200).fragments(size))
        }),
        each("again and again", 2_000, &|step| step),
        each("with tags", 1_500, &|step| {
            step.with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)])
        }),
        each("wrong checksums stay as wrong", 1_200, &|step| {
            step.with(|f| (f.tcp_error, f.ip_error) = (0x0102, 0x0201))
        }),
        each("any type of service", 1_200, &|step| {
            step.with(|f| f.tos = 0xff)
        }),
        each("the last is padded", SIZE + 3, &|step| {
            step.with(|f| *f = f.clone().padded())
        }),
        Row::new(c.named("of the packet that opens the flow"))
            .change(|_| early_in_a_tick())
            .sends(opening(c).fragments(SIZE))
            .sends(talk.begun().into_iter().skip(1))
            .send(talk.request(5)),
        c.row("two packets at a time").sends({
            let one = talk.request(1_600).fragments(SIZE);
            let other = talk
                .request(1_500)
                .with(|f| f.identification = 7)
                .fragments(SIZE);
            one.into_iter().zip(other).flat_map(|(a, b)| [a, b])
        }),
        c.row("repeated ones, in any order after the first").sends({
            let mut steps = talk.request(2_000).fragments(SIZE);
            let again = steps.clone();
            steps.extend(again.into_iter().rev());
            steps
        }),
    ];
    match talk.family() {
        Family::V4 => rows.push(each("with options", 1_200, &|step| {
            step.with(|f| f.ip_options = vec![1; 12])
        })),
        Family::V6 => {
            rows.push(each("behind other headers", 1_200, &|step| {
                step.with(|f| {
                    f.extensions = vec![
                        Extension::padding(Extension::HOP_BY_HOP, 1),
                        Extension::routing(),
                        Extension::fragment(),
                    ];
                })
            }));
            rows.push(each("in front of other headers", 1_200, &|step| {
                step.with(|f| {
                    f.extensions = vec![
                        Extension::fragment(),
                        Extension::padding(Extension::DESTINATION, 1),
                    ];
                })
            }));
        }
    }
    if talk.is_udp {
        rows.push(
            each("no checksum stays none", 1_200, &|step| {
                step.with(|f| f.carried = Carried::Udp { summed: false })
            })
            .from("RFC 768"),
        );
    }
    rows
}

/// The large packet that opens the flow of a column.
fn opening(c: Column) -> Step {
    if c.talk.is_udp {
        c.talk.first().payload(1_400)
    } else {
        // Data on the SYN (RFC 7413).
        c.talk
            .client(SYN)
            .payload(1_400)
            .also(opens(c.talk.server.index))
    }
}

/// Later fragments whose first one was not seen.
fn unannounced(c: Column) -> Vec<Row> {
    let talk = c.talk;
    let request = |row: u16| c.own(row, talk.request(1_500));
    let early = |steps: Vec<Step>| {
        steps
            .into_iter()
            .map(|step| step.without_moves().dropped(Reason::FragmentEarly))
    };
    let seconds = match talk.family() {
        Family::V4 => 30,
        Family::V6 => 60,
    };
    let mut rows = vec![
        c.row("one that comes before its first is dropped, not those after it")
            .sends(early(later(request(0))))
            .sends(request(0).fragments(SIZE)),
        c.row("of another packet")
            .send(first(request(1).fragments(SIZE)))
            .sends(early(later(request(2)))),
        c.row("from another client")
            .send(first(request(3).fragments(SIZE)))
            .sends(early(later(request(3).with(|f| {
                f.source.0 = talk
                    .family()
                    .counterpart(steerline_tests::packets::scene::NEAR_CLIENT.0);
            })))),
        c.row("forgotten after the time of reassembly")
            .send(first(request(4).fragments(SIZE)))
            .change(move |lab| pass(lab, seconds + 1))
            .sends(early(later(request(4))))
            .change(move |lab| pass(lab, -seconds - 1)),
        c.row("remembered until then")
            .send(first(request(5).fragments(SIZE)))
            .change(move |lab| pass(lab, seconds - 2))
            .sends(later(request(5)))
            .change(move |lab| pass(lab, 2 - seconds)),
    ];
    // Of a server's fragments nobody knows whether they are a service's.
    let response = c.own(6, talk.response(1_500));
    rows.push(
        c.row("of a server's packet they are the kernel's").sends(
            later(response)
                .into_iter()
                .map(|step| step.without_moves().passed(Reason::PassedFragment)),
        ),
    );
    rows
}

/// Fragments that nobody would send.
fn malformed(c: Column) -> Vec<Row> {
    let talk = c.talk;
    let broken = |step: Step| step.without_moves().dropped(Reason::Malformed);
    let header = c.transport();
    let mut rows = vec![
        (8..header.next_multiple_of(8))
            .step_by(8)
            .fold(
                c.row("a first one without all of its header"),
                |row, size| row.send(broken(first(talk.request(100).fragments(size)))),
            )
            .from("RFC 1858 section 3, RFC 7112"),
        c.row("beyond the largest packet")
            .from("ping of death")
            .send(first(talk.request(1_000).fragments(SIZE)))
            .send(broken(talk.request(1_000).with(|f| {
                f.dont_fragment = false;
                f.fragment_offset = 8_191;
            }))),
    ];
    let short = later(c.own(7, talk.request(700)));
    let last = short.into_iter().next_back().expect("a later one");
    let behind = 14 + talk.family().header() + if talk.family() == Family::V6 { 8 } else { 0 };
    let row = c
        .row("a later one cut at every length")
        .send(first(c.own(7, talk.request(700)).fragments(SIZE)));
    rows.push((14..last.length()).fold(row, |row, length| {
        let step = last.clone().without_moves().cut(length);
        row.send(if length < behind {
            step.passed(Reason::PassedMalformed)
        } else {
            step.dropped(Reason::Malformed)
        })
    }));
    if !talk.is_udp {
        rows.push(
            c.row("one that begins inside the header")
                .from("RFC 1858 section 4: it would overwrite the flags")
                .send(first(talk.request(1_000).fragments(SIZE)))
                .send(broken(talk.request(100).with(|f| {
                    f.piece = Some((8, 48));
                    f.dont_fragment = false;
                }))),
        );
    }
    rows
}

/// Fragments that cannot be forwarded.
fn ends(c: Column) -> Vec<Row> {
    let talk = c.talk;
    let server = talk.server.hop();
    let silent = |reason: Reason| move |step: Step| step.without_moves().dropped(reason);
    let mut rows = vec![
        c.row("too large: the first is answered, later ones are not")
            .change(move |lab| lab.hop(server, |hop| hop.mtu = 500))
            .send(
                first(talk.request(1_500).fragments(SIZE)).replied(Reply::TooBig(
                    talk.vip.0,
                    match talk.family() {
                        Family::V4 => 500,
                        Family::V6 => 1_280,
                    },
                )),
            )
            .sends(
                later(talk.request(2 * SIZE - c.transport()))
                    .into_iter()
                    .map(silent(Reason::TooBig)),
            ),
        Row::new(c.named("of a packet to a port that no service has")).sends({
            let elsewhere = talk.to((talk.vip.0, 4_711));
            elsewhere
                .request_to_open()
                .payload(1_200)
                .passed(Reason::PassedNoService)
                .fragments(SIZE)
        }),
        Row::new(c.named("of a packet of no flow, when no server may take it"))
            .change(move |lab| {
                let own = talk.server;
                lab.publish(
                    Vip {
                        index: own.service,
                        ..WEB
                    },
                    &[],
                );
            })
            .send(
                first(
                    c.own(8, talk.request_to_open().payload(1_200))
                        .fragments(SIZE),
                )
                .dropped(Reason::NoBackend),
            )
            .sends(
                later(c.own(8, talk.request_to_open().payload(1_200)))
                    .into_iter()
                    .map(silent(Reason::NoFlow)),
            ),
    ];
    if !talk.is_direct {
        rows.push(c.both(1_200).into_iter().fold(
            c.row("a time to live of 1: the first is answered, later ones are not"),
            |row, step| {
                let step = step.with(|f| f.ttl = 1);
                row.send(
                    first(step.clone().fragments(SIZE)).replied(Reply::TimeExceeded(talk.vip.0)),
                )
                .sends(later(step).into_iter().map(silent(Reason::TtlExceeded)))
            },
        ));
    }
    rows.push(
        c.row("the client's, coming in at the servers' side").sends(
            talk.client(ACK | PSH)
                .payload(1_200)
                .at(Port::Back)
                .fragments(SIZE),
        ),
    );
    rows
}
