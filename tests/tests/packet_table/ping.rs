//! Virtual addresses answer ping; every other message is the kernel's.

use lb_common::reason::Reason::{
    PassedFragment, PassedIcmp, PassedMalformed, PassedNotOurs, PassedNotReady, PassedProtocol,
};
use std::net::IpAddr;
use steerline_tests::packets::{
    Carried, Extension, FAMILIES, Family, Frame, Group, Port, Row, Step, icmp,
    scene::{self, A, ANY, CLIENT, DIRECT, DNS, FRONT, ROUTER_MAC, WEB},
};

const MACS: ([u8; 6], [u8; 6]) = (FRONT.1, ROUTER_MAC);
const TOTAL_LENGTH: usize = 16;
const PAYLOAD_LENGTH: usize = 18;

fn frame(to: IpAddr) -> Frame {
    Frame::ping(MACS, Family::of(to).counterpart(CLIENT.0), to)
}

/// Everything about ICMP and ICMPv6.
pub(crate) fn group() -> Group {
    let rows = FAMILIES.iter().flat_map(|family| {
        let named = |row: Row| row.in_family(*family);
        rows(*family).into_iter().map(named)
    });
    Group::new("ping", rows.collect())
}

fn rows(family: Family) -> Vec<Row> {
    let web = WEB.in_family(family);
    let a = A.in_family(family);
    let ping = || Step::answered(frame(web.endpoint.0).payload(56));
    let message = |kind: u8, code: u8| {
        ping()
            .with(|f| f.carried = Carried::Icmp(kind, code, [0, 0, 0, 1]))
            .passed(match (family, kind) {
                // Errors, but about nothing that is a packet.
                (Family::V4, 3 | 11 | 12) | (Family::V6, 1..=4) => PassedIcmp,
                _ => PassedProtocol,
            })
    };
    let (request, reply) = (icmp::echo_request(family), icmp::echo_reply(family));
    let headers = family.header() + 8;
    let mut rows = vec![
        Row::new("a service's address answers")
            .from("katran Base: ICMP echo to a VIP is answered")
            .send(ping()),
        Row::new("services of every kind answer").sends([ANY, DNS, DIRECT].map(|vip| {
            let vip = vip.in_family(family);
            Step::answered(frame(vip.endpoint.0).payload(56))
        })),
        Row::new("another address of the network is the kernel's")
            .send(Step::answered(frame(family.address([10, 200, 1, 77]))).passed(PassedNotOurs)),
        Row::new("a server's address is the kernel's")
            .send(Step::answered(frame(a.endpoint.0)).passed(PassedProtocol)),
        Row::new("an address without a key of ICMP is the kernel's")
            .change(move |lab| {
                lab.maps
                    .services
                    .remove(&web.ping_key())
                    .expect("it was there");
            })
            .send(ping().passed(PassedProtocol)),
        Row::new("payloads of every small length, odd and even")
            .sends((0..18).map(|length| ping().payload(length))),
        Row::new("the largest frame").send(ping().payload(1_500 - headers)),
        Row::new("every time to live becomes 64")
            .sends([0, 1, 2, 63, 64, 65, 255].map(|ttl| ping().with(|f| f.ttl = ttl))),
        Row::new("padding stays").send(ping().payload(0).with(|f| *f = f.clone().padded())),
        Row::new("type of service, identification and numbers stay").send(ping().with(|f| {
            f.tos = 0x8c;
            f.identification = 0;
            f.carried = Carried::Icmp(request, 0, [0xff; 4]);
        })),
        Row::new("a checksum of zero, coming in and going out")
            .from("RFC 1624 section 4")
            .send(ping().with(|f| *f = f.clone().seek_payload(|f| f.checksums().1 == 0)))
            .send(ping().with(|f| {
                *f = f.clone().seek_payload(|f| {
                    let reply = Carried::Icmp(reply, 0, [0x12, 0x34, 0, 1]);
                    f.clone().with(|f| f.carried = reply).checksums().1 == 0
                });
            })),
        Row::new("wrong checksums stay as wrong")
            .send(ping().with(|f| f.tcp_error = 0x1234))
            .send(ping().with(|f| f.ip_error = 0x1234)),
        Row::new("every other type").sends(
            (0..=u8::MAX)
                .filter(|kind| *kind != request)
                .step_by(5)
                .chain([reply, 1, 2, 3, 4, 5, 11, 12, 13])
                // Neighbour discovery.
                .chain(133..=137)
                .map(|kind| message(kind, 0)),
        ),
        Row::new("an echo request of another code")
            .sends([1, 8, 255].map(|code| message(request, code))),
        Row::new("fragments").sends([(true, 0), (true, 185), (false, 370)].map(
            |(more, offset)| {
                ping().passed(PassedFragment).with(|f| {
                    f.dont_fragment = false;
                    f.more_fragments = more;
                    f.fragment_offset = offset;
                })
            },
        )),
        Row::new("a frame to a group of stations")
            .send(ping().with(|f| f.macs.0 = [0xff; 6]).passed(PassedProtocol))
            .send(
                ping()
                    .with(|f| f.macs.0 = [1, 0, 0x5e, 0, 0, 1])
                    .passed(PassedProtocol),
            ),
        Row::new("from the servers' side").send(
            ping()
                .with(|f| f.macs = (scene::BACK.1, a.mac()))
                .at(Port::Back),
        ),
        Row::new("no configuration")
            .change(|lab| lab.settings(|s| s.layout = 0))
            .send(ping().passed(PassedNotReady)),
    ];
    rows.push(match family {
        Family::V4 => Row::new("IP options of every length stay")
            .sends((1..=10).map(|words| ping().with(|f| f.ip_options = vec![1; words * 4]))),
        Family::V6 => Row::new("extension headers stay").sends((1..=4).map(|units| {
            let extension = Extension::padding(Extension::DESTINATION, units);
            ping().with(|f| f.extensions = vec![extension])
        })),
    });
    let lies: (usize, [u16; 6]) = match family {
        Family::V4 => (TOTAL_LENGTH, [0, 19, 20, 27, 85, 65_535]),
        Family::V6 => (PAYLOAD_LENGTH, [0, 1, 2, 7, 65, 65_535]),
    };
    rows.push(
        Row::new("total lengths that lie").sends(lies.1.map(|length| {
            ping()
                .patch(lies.0, &length.to_be_bytes())
                .passed(PassedProtocol)
        })),
    );
    rows.push(
        Row::new("cut at every length").sends((14..ping().length()).map(|length| {
            ping().cut(length).passed(if length < 14 + family.header() {
                PassedMalformed
            } else {
                PassedProtocol
            })
        })),
    );
    rows
}
