//! Cases of bytes: sizes, lengths, checksums, the time to live.

use super::{Case, Cell, Column};
use lb_common::reason::Reason;
use steerline_tests::packets::{
    Carried, Extension, Frame, Lab, Reply, Row, Step, Tag,
    flag::{ACK, PSH},
};

/// Behind the IP header.
const UDP_LENGTH: usize = 4;
/// The same.
const DATA_OFFSET: usize = 12;
const TOTAL_LENGTH: usize = 16;
const PAYLOAD_LENGTH: usize = 18;
const NO_LENGTH: &str = "TCP has no length";

pub(super) const CASES: &[Case] = &[
    ("cut at every length, the first packet", |c, row| {
        Ok(cuts(row, c, &c.talk.request_to_open()))
    }),
    ("cut at every length, data", |c, row| {
        Ok(cuts(row.sends(c.talk.begun()), c, &c.talk.request(11)))
    }),
    ("cut at every length, the server's data", |c, row| {
        Ok(cuts(row.sends(c.talk.begun()), c, &c.talk.response(11)))
    }),
    ("total lengths that lie", |c, row| {
        let row = row.sends(c.talk.begun());
        // Inside the header behind it, and one beyond the frame.
        let headers = c.headers() as u16;
        let (short, long) = (headers - 1, headers + 8 + 1);
        Ok(if c.is_ipv6() {
            // Without the IP header, so that it cannot end inside of that one;
            // 0 is a jumbogram's (RFC 2675), or nothing (RFC 8200).
            [0, 1, short - 40, long - 40, 65_535]
                .into_iter()
                .fold(row, |row, length: u16| {
                    refused(row, c, PAYLOAD_LENGTH, &length.to_be_bytes())
                })
        } else {
            [0, 19, 20, short, long, 65_535]
                .into_iter()
                .fold(row, |row, total: u16| {
                    refused(row, c, TOTAL_LENGTH, &total.to_be_bytes())
                })
        })
    }),
    ("a header length that lies", |c, row| {
        let row = row.sends(c.talk.begun());
        Ok(if c.is_udp() {
            [0, 7, 17, 65_535]
                .into_iter()
                .fold(row, |row, length: u16| {
                    refused(row, c, c.behind_ip() + UDP_LENGTH, &length.to_be_bytes())
                })
        } else {
            [0x00, 0x40, 0x80, 0xf0]
                .into_iter()
                .fold(row, |row, words: u8| {
                    refused(row, c, c.behind_ip() + DATA_OFFSET, &[words])
                })
        })
    }),
    ("bytes after the datagram are kept", |c, row| {
        if !c.is_udp() {
            return Err(NO_LENGTH);
        }
        let trail = |step: Step| step.with(|f| f.trailer = vec![0xa5; 5]);
        Ok(row
            .send(trail(c.talk.first()))
            .send(trail(c.talk.answer()))
            .send(trail(c.talk.request(0))))
    }),
    ("no checksum stays none", |c, row| {
        if !c.is_udp() {
            return Err("TCP has one always");
        }
        let bare = |step: Step| step.with(|f| f.carried = Carried::Udp { summed: false });
        Ok(row
            .from("RFC 768")
            .send(bare(c.talk.first()))
            .send(bare(c.talk.answer()))
            .send(bare(c.talk.request(33))))
    }),
    ("a checksum that comes to zero, in and out", zero_sums),
    ("a wrong checksum stays as wrong", |c, row| {
        Ok([0x0001, 0x8000, 0xfffe_u16].into_iter().fold(
            row.sends(c.talk.begun()),
            |row, error| {
                row.send(c.talk.request(12).with(|f| f.tcp_error = error))
                    .send(c.talk.response(12).with(|f| f.tcp_error = error))
                    .send(c.talk.request(12).with(|f| f.ip_error = error))
            },
        ))
    }),
    ("odd and even lengths, and none", |c, row| {
        Ok((0..10).fold(row.sends(c.talk.begun()), |row, length| {
            row.send(c.talk.request(length))
                .send(c.talk.response(length))
        }))
    }),
    ("no payload from the beginning", |c, row| {
        Ok(row
            .send(c.talk.first().payload(0))
            .send(c.talk.answer().payload(0)))
    }),
    ("padded to the shortest frame", |c, row| {
        let padded = |step: Step| step.with(|f| *f = f.clone().padded());
        Ok(row
            .send(padded(c.talk.first().payload(0)))
            .sends(c.talk.begun().into_iter().skip(1))
            .send(padded(c.talk.response(1)))
            .send(padded(c.talk.request(2))))
    }),
    ("exactly the MTU, and one more", |c, row| {
        let headers = c.headers();
        let vip = c.talk.vip.0;
        let there = headers + c.overhead();
        let fits = u16::try_from(1_500 - c.overhead()).expect("an MTU");
        let too_big = |step: Step| {
            if c.is_direct() {
                step
            } else {
                step.replied(Reply::TooBig(vip, 1_400))
            }
        };
        Ok(row
            .from("cilium#32601")
            .sends(c.talk.begun())
            .send(c.talk.request(1_500 - there))
            .send(
                c.talk
                    .request(1_501 - there)
                    .replied(Reply::TooBig(vip, fits)),
            )
            .change(move |lab| lab.hop(c.router_hop(), |hop| hop.mtu = 1_400))
            // The first note of the client's next hop: two frames, see `hops`.
            .send(c.talk.response(1_400 - headers))
            .send(c.talk.response(1_400 - headers))
            .send(too_big(c.talk.response(1_401 - headers))))
    }),
    ("IP options of every length", |c, row| {
        if c.is_ipv6() {
            return Err("IPv6 has extension headers instead");
        }
        let row = row.sends(c.talk.begun());
        Ok((6..=15).fold(row, |row, words: usize| {
            let options = |step: Step| step.with(|f| f.ip_options = vec![1; (words - 5) * 4]);
            row.send(options(c.talk.request(13)))
                .send(options(c.talk.response(13)))
        }))
    }),
    ("extension headers, one and several", |c, row| {
        if !c.is_ipv6() {
            return Err("IPv4 has options instead");
        }
        let row = row.from("RFC 8200 section 4; RFC 6946 for a packet in one fragment");
        Ok(headers()
            .into_iter()
            .fold(row.sends(c.talk.begun()), |row, headers| {
                let extended = |step: Step| step.with(|f| f.extensions = headers.clone());
                row.send(extended(c.talk.request(13)))
                    .send(extended(c.talk.response(13)))
            }))
    }),
    ("an extension header on the first packet", |c, row| {
        if !c.is_ipv6() {
            return Err("IPv4 has options instead");
        }
        let extended = |step: Step| {
            step.with(|f| f.extensions = vec![Extension::padding(Extension::DESTINATION, 3)])
        };
        Ok(row.sends(c.talk.begun().into_iter().map(extended)))
    }),
    ("one VLAN tag, and two", |c, row| {
        let tags = [
            vec![Tag::customer(42)],
            vec![Tag::provider(7), Tag::customer(42)],
            vec![Tag::customer(7), Tag::customer(42)],
        ];
        let tagged = |step: Step, tags: &[Tag]| step.with(|f| f.tags = tags.to_vec());
        Ok(tags.iter().fold(row, |row, tags| {
            let steps = [c.talk.request(13), c.talk.response(13)];
            let again = move |lab: &mut Lab| {
                lab.reset();
                c.prepare(lab);
            };
            row.change(again)
                .sends(c.talk.begun().into_iter().map(|step| tagged(step, tags)))
                .sends(steps.map(|step| tagged(step, tags)))
        }))
    }),
    ("a tagged packet of an untagged flow", |c, row| {
        let tagged = |step: Step| step.with(|f| f.tags = vec![Tag::customer(42)]);
        Ok(row
            .sends(c.talk.begun())
            .send(tagged(c.talk.request(13)))
            .send(tagged(c.talk.response(13)))
            .send(c.talk.request(13)))
    }),
    ("a time to live of 1", |c, row| {
        let last = |step: Step| step.with(|f| f.ttl = 1);
        let ends = |step: Step| {
            if c.is_direct() {
                step
            } else {
                step.replied(Reply::TimeExceeded(c.talk.vip.0))
            }
        };
        let row = if c.is_direct() {
            row.send(last(c.talk.first()))
                .sends(c.talk.begun().into_iter().skip(1))
        } else {
            row.send(ends(last(c.talk.request_to_open())))
                .sends(c.talk.begun())
        };
        Ok(row
            .send(ends(last(c.talk.request(8))))
            .send(ends(last(c.talk.response(8)))))
    }),
    ("any other time to live, any type of service", |c, row| {
        let row = row.sends(c.talk.begun());
        Ok([(2, 0x03), (64, 0x8c), (128, 0xb8), (255, 0xff)]
            .into_iter()
            .fold(row, |row, (ttl, tos)| {
                let set = |step: Step| step.with(|f| (f.ttl, f.tos) = (ttl, tos));
                row.send(set(c.talk.request(8)))
                    .send(set(c.talk.response(8)))
            }))
    }),
    ("in three fragments", |c, row| {
        Ok(row
            .from("cilium#11180: fragments follow their first one")
            .sends(c.talk.begun())
            .sends(c.talk.request(1_300).fragments(560))
            .sends(c.talk.response(1_301).fragments(560))
            .send(c.talk.request(7)))
    }),
    ("the server's MAC address is not known", |c, row| {
        let hop = c.talk.server.hop();
        Ok(row
            .change(move |lab| lab.hop(hop, |hop| hop.flags = 0))
            .send(c.talk.first().dropped(Reason::NeighbourUnresolved)))
    }),
];

/// The frame cut at every length that the kernel lets in. Frames of a server
/// that answers directly are not looked at behind the IP header unless the
/// service's address makes them ours.
fn cuts(row: Row, c: Column, step: &Step) -> Row {
    (14..step.length()).fold(row, |row, length| {
        let step = step.clone().cut(length);
        // Shorter frames have no addresses.
        row.send(if length < c.behind_ip() {
            step.passed(Reason::PassedMalformed)
        } else {
            step.dropped(Reason::Malformed)
        })
    })
}

/// Extension headers of every kind, and as many as are read.
fn headers() -> Vec<Vec<Extension>> {
    let padding = Extension::padding;
    vec![
        vec![padding(Extension::HOP_BY_HOP, 1)],
        vec![padding(Extension::DESTINATION, 1)],
        vec![padding(Extension::DESTINATION, 16)],
        vec![Extension::routing()],
        vec![Extension::fragment()],
        vec![padding(Extension::HOP_BY_HOP, 1), Extension::fragment()],
        vec![padding(Extension::DESTINATION, 1); 6],
    ]
}

/// Eight bytes in both directions with bytes that contradict the frame.
fn refused(row: Row, c: Column, at: usize, bytes: &[u8]) -> Row {
    let refused = |step: Step| step.patch(at, bytes).dropped(Reason::Malformed);
    row.send(refused(c.talk.client(ACK | PSH).payload(8)))
        .send(refused(c.talk.server(ACK | PSH).payload(8)))
}

/// Zero is sent as all ones in UDP (RFC 768), as it is in TCP.
fn zero_sums(c: Column, row: Row) -> Cell {
    let zero = if c.is_udp() { 0xffff } else { 0 };
    let is_zero = move |frame: &Frame| frame.checksums().1 == zero;
    let seek = |step: Step, wanted: &dyn Fn(&Frame) -> bool| {
        step.payload(21)
            .with(|f| *f = f.clone().seek_payload(wanted))
    };
    let at_server = move |frame: &Frame| is_zero(&c.talk.at_server(frame));
    let at_client = move |frame: &Frame| is_zero(&c.talk.at_client(frame));
    Ok(row
        .from("RFC 1624 section 4, RFC 768")
        .sends(c.talk.begun())
        .send(seek(c.talk.request(21), &is_zero))
        .send(seek(c.talk.request(21), &at_server))
        .send(seek(c.talk.response(21), &is_zero))
        .send(seek(c.talk.response(21), &at_client)))
}
