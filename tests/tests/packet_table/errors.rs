//! ICMP errors about packets of flows, relayed to the end that sent the packet.
//!
//! No row lists a movement of a flow: whatever an error says, none changes.

use lb_common::reason::Reason;
use std::net::IpAddr;
use steerline_tests::packets::{
    Carried, Extension, FAMILIES, Family, Frame, Group, Mac, Port, Row, Step, Tag, Talk,
    flag::{ACK, PSH, SYN},
    moves::because,
    scene::{
        A, BACK, CLIENT, DIRECT, DIRECT_A, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A, FRONT, ROUTER,
        ROUTER_MAC, Server, UNRESOLVED_ROUTER, Vip, WEB,
    },
    v4,
};

/// Offsets in a frame without tags.
const IP: usize = 14;

#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    talk: Talk,
}

impl Column {
    fn row(&self, what: &str) -> Row {
        let family = self.talk.family().name();
        Row::new(format!("{what} ({} {family})", self.name)).settled(self.talk)
    }

    /// An address of the scene in this family.
    fn address(&self, address: IpAddr) -> IpAddr {
        self.talk.family().counterpart(address)
    }

    /// Bytes of the transport header.
    const fn transport(&self) -> usize {
        if self.talk.is_udp { 8 } else { 20 }
    }

    const fn headers(&self) -> usize {
        self.talk.family().header() + self.transport()
    }

    /// Type and code of "cannot be reached": nobody listens.
    const fn unreachable(&self) -> (u8, u8) {
        match self.talk.family() {
            Family::V4 => (3, 3),
            Family::V6 => (1, 4),
        }
    }

    /// A packet of the server as it is on the client's side.
    fn sent_to_client(&self) -> Frame {
        self.talk.server_frame(ACK | PSH).payload(600).with(|f| {
            f.macs = (ROUTER_MAC, FRONT.1);
            f.source = self.talk.vip;
            f.ttl = 61;
        })
    }

    /// An error about it from `from`, to the server.
    fn error(&self, from: IpAddr, kind: (u8, u8), rest: [u8; 4]) -> Step {
        let macs: (Mac, Mac) = (FRONT.1, ROUTER_MAC);
        let frame = Frame::error(macs, from, kind, rest, self.sent_to_client());
        if self.talk.is_direct {
            Step::direct(frame, self.talk.server)
        } else {
            Step::error_to_server(frame, self.talk.server)
        }
    }

    /// The usual one.
    fn usual(&self) -> Step {
        self.error(self.address(ROUTER), self.unreachable(), [0; 4])
    }

    /// A packet of the client as it is on the server's side.
    fn sent_to_server(&self) -> Frame {
        self.talk.client_frame(ACK | PSH).payload(600).with(|f| {
            f.macs = (self.talk.server.mac(), BACK.1);
            f.destination = self.talk.server.endpoint;
            f.ttl = 63;
        })
    }

    /// An error about it from `from`, to the client.
    fn error_back(&self, from: IpAddr, kind: (u8, u8), rest: [u8; 4]) -> Step {
        let macs = (BACK.1, self.talk.server.mac());
        let frame = Frame::error(macs, from, kind, rest, self.sent_to_server());
        Step::error_to_client(frame, self.talk.vip, self.talk.server.service)
    }

    /// The usual one: of the server itself.
    fn usual_back(&self) -> Step {
        let step = self.error_back(self.talk.server.endpoint.0, self.unreachable(), [0; 4]);
        step.also(because(Reason::ServerUnreachable))
    }

    /// Every type and code that is relayed, with the rest of the header.
    fn kinds(&self) -> Vec<((u8, u8), [u8; 4])> {
        let rest = [0, 0, 0x05, 0x78];
        match self.talk.family() {
            Family::V4 => (0..16)
                .map(|code| (3, code))
                .chain([(11, 0), (11, 1), (12, 0), (12, 1), (12, 2)])
                .map(|kind| (kind, rest))
                .collect(),
            Family::V6 => (0..8)
                .map(|code| (1, code))
                .chain([(2, 0), (3, 0), (3, 1), (4, 0), (4, 1), (4, 2)])
                .map(|kind| (kind, rest))
                .collect(),
        }
    }
}

fn columns() -> Vec<Column> {
    let all: [(_, Vip, Server); 4] = [
        ("nat tcp", WEB, A),
        ("nat udp", DNS, DNS_A),
        ("dsr tcp", DIRECT, DIRECT_A),
        ("dsr udp", DIRECT_DNS, DIRECT_DNS_A),
    ];
    let in_family = |family: Family| {
        all.map(|(name, vip, server)| Column {
            name,
            talk: Talk::new(CLIENT.1, vip.in_family(family), server.in_family(family)),
        })
    };
    FAMILIES.iter().flat_map(|f| in_family(*f)).collect()
}

fn most(step: Step, most: usize) -> Step {
    step.with(|f| {
        if let Some(quote) = &mut f.quote {
            quote.most = most;
        }
    })
}

/// Rows that are alike in both directions, of `usual` errors about a packet
/// whose sender they reach.
fn alike(c: Column, side: &str, usual: &dyn Fn() -> Step) -> Vec<Row> {
    let row = |what: &str| c.row(&format!("{what}, {side}"));
    let (headers, transport) = (c.headers(), c.transport());
    let passed = |step: Step| step.without_moves().passed(Reason::PassedIcmp);
    let mut rows = vec![
        row("the flow goes on")
            .from("RFC 5927: an error says nothing of a connection")
            .send(usual())
            .send(usual())
            .send(c.talk.request(5))
            .send(c.talk.response(5)),
        // Of half a checksum, at 17, nobody can say what the whole is.
        (8..=transport + 12).filter(|length| *length != 17).fold(
            row("quotes of every length from eight bytes on")
                .from("RFC 792; katran#159: eight bytes of TCP are enough"),
            |row, length| row.send(most(usual(), headers - transport + length)),
        ),
        (0..8).fold(row("shorter quotes name nobody"), |row, length| {
            row.send(passed(most(usual(), headers - transport + length)))
        }),
        [0, 1, 2, 3, 500, 501].into_iter().fold(
            row("whole quotes, odd and even"),
            |row, length| {
                row.send(usual().with(|f| *f.quoted() = f.quoted().clone().payload(length)))
            },
        ),
        row("tags stay")
            .send(usual().with(|f| f.tags = vec![Tag::customer(42)]))
            .send(usual().with(|f| f.tags = vec![Tag::provider(7), Tag::customer(42)])),
        row("options and extension headers of both packets stay").send(usual().with(|f| {
            f.ip_options = vec![1; 8];
            f.extensions = vec![Extension::padding(Extension::DESTINATION, 1)];
            f.quoted().ip_options = vec![1; 24];
            f.quoted().extensions = vec![
                Extension::padding(Extension::HOP_BY_HOP, 1),
                Extension::routing(),
                Extension::padding(Extension::DESTINATION, 2),
            ];
        })),
        row("wrong checksums stay as wrong")
            .send(usual().with(|f| f.tcp_error = 0x1234))
            .send(usual().with(|f| f.quoted().tcp_error = 0x0102))
            .send(usual().with(|f| f.quoted().ip_error = 0x0201)),
        row("a quoted first fragment has its ports").send(usual().with(|f| {
            f.quoted().dont_fragment = false;
            f.quoted().more_fragments = true;
        })),
        row("a quoted later fragment has none").send(passed(usual().with(|f| {
            f.quoted().dont_fragment = false;
            f.quoted().fragment_offset = 185;
        }))),
        row("a quote of another protocol").send(passed(usual().with(|f| {
            f.quoted().carried = Carried::Icmp(8, 0, [0; 4]);
        }))),
        row("a quote of no flow")
            .send(passed(usual().with(other_client)))
            .send(c.talk.request(5)),
        row("an error for somebody else").send(
            usual()
                .with(|f| f.destination.0 = c.address(v4([10, 200, 1, 77])))
                .without_moves()
                .dropped(Reason::IcmpForged),
        ),
    ];
    if !c.talk.is_direct {
        rows.push(
            row("a time to live of 1 ends here, unanswered").send(
                usual()
                    .with(|f| f.ttl = 1)
                    .without_moves()
                    .dropped(Reason::TtlExceeded),
            ),
        );
    }
    let start = IP + c.talk.family().header();
    rows.push(
        (IP..usual().length()).fold(row("cut at every length"), |row, length| {
            let step = usual().without_moves().cut(length);
            row.send(step.passed(if length < start {
                Reason::PassedMalformed
            } else if length < start + 4 {
                Reason::PassedProtocol
            } else {
                Reason::PassedIcmp
            }))
        }),
    );
    rows
}

/// The quoted packet belongs to another port of the client.
fn other_client(frame: &mut Frame) {
    let quoted = frame.quoted();
    if quoted.source.1 == CLIENT.1 {
        quoted.source.1 += 1;
    } else {
        quoted.destination.1 += 1;
    }
}

/// From the client's side, about packets of servers.
pub(crate) fn from_clients() -> Group {
    let mut rows = Vec::new();
    for c in columns() {
        rows.extend(alike(c, "from the client's side", &|| c.usual()));
        rows.push(
            c.kinds().into_iter().fold(
                c.row("every type and code, from a router")
                    .from("cilium#46993: an error aimed at a VIP must reach the server"),
                |row, (kind, rest)| row.send(c.error(c.address(ROUTER), kind, rest)),
            ),
        );
        rows.push(
            c.row("from the client itself")
                .send(c.error(c.talk.client.0, c.unreachable(), [0; 4]))
                .send(c.error(c.address(UNRESOLVED_ROUTER), c.unreachable(), [0; 4])),
        );
        rows.push(
            c.row("larger than the way to the server: dropped, unanswered")
                .change(move |lab| lab.hop(c.talk.server.hop(), |hop| hop.mtu = 500))
                .send(c.usual().dropped(Reason::TooBig)),
        );
        rows.push(
            c.row("the server's MAC address is not known")
                .change(move |lab| lab.hop(c.talk.server.hop(), |hop| hop.flags = 0))
                .send(c.usual().dropped(Reason::NeighbourUnresolved)),
        );
        let family = c.talk.family().name();
        if !c.talk.is_direct {
            rows.push(
                Row::new(format!(
                    "about the packet of a server that said nothing yet ({} {family})",
                    c.name
                ))
                .send(c.talk.first())
                .send(c.usual().dropped(Reason::IcmpForged)),
            );
        }
    }
    for family in FAMILIES {
        let c = Column {
            name: "nat tcp",
            talk: Talk::new(CLIENT.1, WEB.in_family(*family), A.in_family(*family)),
        };
        let ignored: &[u8] = match family {
            // Source quench, redirect.
            Family::V4 => &[4, 5],
            // None of RFC 4443, and a redirect.
            Family::V6 => &[0, 5, 100, 127, 137],
        };
        rows.push(
            ignored.iter().fold(
                c.row("source quench and redirects are not relayed")
                    .from("RFC 6633"),
                |row, kind| {
                    let step = c.error(c.address(ROUTER), (*kind, 0), [0; 4]);
                    row.send(step.passed(Reason::PassedProtocol))
                },
            ),
        );
        rows.push(
            c.row("RFC 4884: a length and what follows the quote are kept")
                .send(
                    c.error(c.address(ROUTER), c.unreachable(), [0, 32, 0, 0])
                        .with(|f| {
                            if let Some(quote) = &mut f.quote {
                                quote.most = 128;
                            }
                            f.trailer = vec![];
                        }),
                ),
        );
    }
    Group::new("errors from clients", rows)
}

/// From the servers' side, about packets of clients: seen in `nat` alone.
pub(crate) fn from_servers() -> Group {
    let mut rows = Vec::new();
    for c in columns() {
        if c.talk.is_direct {
            continue;
        }
        rows.extend(alike(c, "from the servers' side", &|| c.usual_back()));
        let near = c.address(v4([10, 0, 0, 77]));
        for (who, from) in [("the server", c.talk.server.endpoint.0), ("a router", near)] {
            rows.push(
                c.kinds().into_iter().fold(
                    c.row(&format!("every type and code, from {who}")).from(
                        "RFC 5508 REQ-5: the source becomes the address that the client knows",
                    ),
                    |row, (kind, rest)| {
                        let step = c.error_back(from, kind, rest);
                        let unreachable = match c.talk.family() {
                            Family::V4 => kind.0 == 3 && kind.1 != 4,
                            Family::V6 => kind.0 == 1,
                        };
                        row.send(if unreachable {
                            step.also(because(Reason::ServerUnreachable))
                        } else {
                            step
                        })
                    },
                ),
            );
        }
        rows.push(
            c.row("from elsewhere it says nothing of the server").send(
                c.error_back(near, c.unreachable(), [0; 4])
                    .with(|f| f.macs = (FRONT.1, ROUTER_MAC))
                    .at(Port::Front),
            ),
        );
        let first = Row::new(format!(
            "about the first packet ({} {})",
            c.name,
            c.talk.family().name()
        ))
        .send(c.talk.first());
        let about = |sequence: u32| {
            c.usual_back().with(|f| {
                let quoted = f.quoted();
                quoted.flags = SYN;
                quoted.sequence = sequence;
                quoted.payload = Vec::new();
            })
        };
        let sequence = c.talk.client_frame(SYN).sequence;
        rows.push(if c.talk.is_udp {
            first.send(about(0))
        } else {
            first
                .from("RFC 5927 section 4.1: only who saw the SYN knows its number")
                .send(about(sequence))
                .send(
                    about(sequence + 1)
                        .without_moves()
                        .dropped(Reason::IcmpForged),
                )
                .send(about(0).without_moves().dropped(Reason::IcmpForged))
        });
    }
    Group::new("errors from servers", rows)
}
