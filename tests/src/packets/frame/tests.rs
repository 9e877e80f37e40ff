//! The frames that tests are made of, as tshark reads them: a builder that is
//! wrong would make the tests wrong.

use super::{Carried, Endpoint, Extension, Frame, Tag, flag, icmp, icmp6};
use crate::{
    packets::{Family, v4},
    world::Pcap,
};

const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
const CLIENT: Endpoint = (v4([192, 168, 1, 1]), 31_337);
const SERVER: Endpoint = (v4([10, 0, 0, 1]), 8_080);

fn ends(family: Family) -> (Endpoint, Endpoint) {
    let of = |end: Endpoint| (family.counterpart(end.0), end.1);
    (of(CLIENT), of(SERVER))
}

fn tcp(family: Family) -> Frame {
    let (client, server) = ends(family);
    Frame::tcp(MACS, client, server, flag::ACK | flag::PSH).payload(33)
}

fn udp(family: Family) -> Frame {
    let (client, server) = ends(family);
    Frame::udp(MACS, client, server).payload(33)
}

fn ping(family: Family) -> Frame {
    let (client, server) = ends(family);
    Frame::ping(MACS, client.0, server.0).payload(56)
}

fn error(family: Family, packet: Frame) -> Frame {
    let kind = match family {
        Family::V4 => (icmp::UNREACHABLE, icmp::PORT),
        Family::V6 => (icmp6::UNREACHABLE, icmp6::PORT),
    };
    let router = family.address([172, 16, 0, 254]);
    Frame::error(MACS, router, kind, [0; 4], packet)
}

fn extended(kind: u8, units: usize) -> Frame {
    tcp(Family::V6).with(|f| f.extensions = vec![Extension::padding(kind, units)])
}

/// Frames and the protocols that tshark is to find in each, before what it
/// makes of the payload.
fn rows() -> Vec<(Frame, &'static str)> {
    let outer = |f: &mut Frame| f.tags = vec![Tag::provider(7), Tag::customer(42)];
    vec![
        (tcp(Family::V4), "eth:ethertype:ip:tcp"),
        (tcp(Family::V6), "eth:ethertype:ipv6:tcp"),
        (udp(Family::V4), "eth:ethertype:ip:udp"),
        (udp(Family::V6), "eth:ethertype:ipv6:udp"),
        (ping(Family::V4), "eth:ethertype:ip:icmp"),
        (ping(Family::V6), "eth:ethertype:ipv6:icmpv6"),
        (
            tcp(Family::V4).with(|f| f.ip_options = vec![1; 40]),
            "eth:ethertype:ip:tcp",
        ),
        (
            tcp(Family::V6).with(|f| f.tags = vec![Tag::customer(42)]),
            "eth:ethertype:vlan:ethertype:ipv6:tcp",
        ),
        (
            udp(Family::V4).with(outer),
            "eth:ethertype:ieee8021ad:ethertype:vlan:ethertype:ip:udp",
        ),
        (
            extended(Extension::HOP_BY_HOP, 1),
            "eth:ethertype:ipv6:ipv6.hopopts:tcp",
        ),
        (
            extended(Extension::DESTINATION, 256),
            "eth:ethertype:ipv6:ipv6.dstopts:tcp",
        ),
        (
            tcp(Family::V6).with(|f| {
                f.extensions = vec![Extension::routing(), Extension::authentication()];
            }),
            "eth:ethertype:ipv6:ipv6.routing:ah:tcp",
        ),
        (
            udp(Family::V6).with(|f| f.extensions = vec![Extension::fragment()]),
            "eth:ethertype:ipv6:ipv6.fraghdr:udp",
        ),
        (
            error(Family::V4, udp(Family::V4)),
            "eth:ethertype:ip:icmp:ip:udp",
        ),
        (
            error(Family::V6, tcp(Family::V6)),
            "eth:ethertype:ipv6:icmpv6:ipv6:tcp",
        ),
    ]
}

#[test]
fn tshark_finds_what_was_built() {
    let rows = rows();
    let pcap = Pcap::of_frames(rows.iter().map(|(frame, _)| frame.bytes())).expect("a file");
    let found = pcap.fields("", &["frame.protocols"]).expect("tshark");
    for ((frame, expected), found) in rows.iter().zip(&found) {
        let as_expected = found[0].starts_with(expected);
        assert!(as_expected, "{found:?}, not {expected}: {frame:?}");
    }
    assert_eq!(found.len(), rows.len());
    assert_eq!(pcap.bad_checksums().expect("tshark"), [""; 0]);
    assert_eq!(pcap.count("_ws.malformed").expect("tshark"), 0);
}

#[test]
fn fields_of_the_ipv6_header() {
    let frame = tcp(Family::V6).with(|f| {
        (f.ttl, f.tos, f.flow_label) = (63, 0x8c, 0xa_bcde);
    });
    let pcap = Pcap::of_frames([frame.bytes()]).expect("a file");
    let fields = ["ipv6.hlim", "ipv6.tclass", "ipv6.flow", "ipv6.plen"];
    let found = pcap.fields("", &fields).expect("tshark");
    assert_eq!(found, [["63", "0x0000008c", "0x0abcde", "53"]]);
    assert_eq!(frame.total_length(), 40 + 53);
}

/// Reassembled by tshark, whose judgement of the checksum is of the whole.
#[test]
fn fragments_make_the_packet_again() {
    for family in Family::ALL {
        let whole = udp(family).payload(3_000);
        let fragments = whole.fragments(1_208);
        let pcap = Pcap::of_frames(fragments.iter().map(Frame::bytes)).expect("a file");
        let found = pcap.fields("udp", &["udp.length"]).expect("tshark");
        assert_eq!(found, [["3008"]], "{family:?}");
        assert_eq!(pcap.count("udp.checksum.status == 1").expect("tshark"), 1);
        // Where a piece starts and whether more follows is what the fields say.
        let places: Vec<_> = fragments.iter().map(Frame::bytes).collect();
        let place = |bytes: &[u8]| match family {
            Family::V4 => u16::from_be_bytes([bytes[20], bytes[21]]),
            Family::V6 => u16::from_be_bytes([bytes[56], bytes[57]]),
        };
        let expected = match family {
            Family::V4 => [0x2000, 0x2000 | 151, 302],
            Family::V6 => [1, 1_208 | 1, 2_416],
        };
        let found: Vec<_> = places.iter().map(|bytes| place(bytes)).collect();
        assert_eq!(found, expected, "{family:?}");
    }
}

/// An end that is rewritten changes the checksum of the whole packet, which is
/// in the first fragment.
#[test]
fn fragments_are_rewritten_as_one() {
    for family in Family::ALL {
        let rewritten = |frame: Frame| frame.with(|f| f.source.1 += 1);
        let (whole, parts) = (udp(family).payload(64), udp(family).payload(64));
        let of_whole: Vec<_> = rewritten(whole).fragments(32);
        let of_parts: Vec<_> = parts.fragments(32).into_iter().map(rewritten).collect();
        for (one, other) in of_whole.iter().zip(&of_parts) {
            assert_eq!(one.bytes(), other.bytes(), "{family:?}");
        }
    }
}

#[test]
fn errors_are_seen() {
    let rows = [
        tcp(Family::V6).with(|f| f.tcp_error = 1),
        udp(Family::V6).with(|f| f.tcp_error = 1),
        ping(Family::V6).with(|f| f.tcp_error = 1),
        tcp(Family::V4).with(|f| f.ip_error = 1),
        // RFC 8200, section 8.1: not without a checksum.
        udp(Family::V6).with(|f| f.carried = Carried::Udp { summed: false }),
    ];
    let pcap = Pcap::of_frames(rows.iter().map(Frame::bytes)).expect("a file");
    assert_eq!(pcap.bad_checksums().expect("tshark").len(), rows.len());
}
