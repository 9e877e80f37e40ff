//! What is not ours passes, and not a byte of it changes.

use etherparse::{EtherType, Ethernet2Header, IpNumber, Ipv4Header, PacketBuilder};
use lb_common::reason::Reason;
use std::net::IpAddr;
use steerline_tests::packets::{
    Group, Port, Row, Step, Talk,
    flag::{ACK, PSH, RST, SYN},
    scene::{A, B, BACK, CLIENT, FRONT, ROUTER_MAC, WEB},
    v4,
};

const TALK: Talk = Talk::web(CLIENT.1, A);
/// An address of the same network as the services that none of them has.
const STRANGER: IpAddr = v4([10, 200, 1, 77]);

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let header = Ethernet2Header {
        destination: FRONT.1,
        source: ROUTER_MAC,
        ether_type: EtherType(ether_type),
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn octets(address: IpAddr) -> [u8; 4] {
    match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => panic!("{address} is not IPv4"),
    }
}

fn ipv4(protocol: u8, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut ip = Ipv4Header::new(
        u16::try_from(payload.len()).expect("a short packet"),
        64,
        IpNumber(protocol),
        octets(CLIENT.0),
        octets(destination),
    )
    .expect("a short packet");
    ip.header_checksum = ip.calc_header_checksum();
    let mut packet = ip.to_bytes().to_vec();
    packet.extend_from_slice(payload);
    ethernet(0x0800, &packet)
}

fn built<H>(
    step: etherparse::PacketBuilderStep<H>,
    write: impl FnOnce(etherparse::PacketBuilderStep<H>, &mut Vec<u8>),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(step, &mut bytes);
    bytes
}

fn udp(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let step = PacketBuilder::ethernet2(ROUTER_MAC, FRONT.1)
        .ipv4(octets(source), octets(destination), 64)
        .udp(CLIENT.1, 80);
    built(step, |step, bytes| {
        step.write(bytes, b"query").expect("a short packet")
    })
}

fn echo(destination: IpAddr) -> Vec<u8> {
    let step = PacketBuilder::ethernet2(ROUTER_MAC, FRONT.1)
        .ipv4(octets(CLIENT.0), octets(destination), 64)
        .icmpv4_echo_request(1, 1);
    built(step, |step, bytes| {
        step.write(bytes, b"ping").expect("a short packet")
    })
}

fn ipv6_syn() -> Vec<u8> {
    let mut client = [0; 16];
    client[..4].copy_from_slice(&[0xfc, 0, 0, 2]);
    let mut vip = [0; 16];
    vip[..4].copy_from_slice(&[0xfc, 0, 0, 9]);
    let step = PacketBuilder::ethernet2(ROUTER_MAC, FRONT.1)
        .ipv6(client, vip, 64)
        .tcp(CLIENT.1, 80, 1_000, 65_535)
        .syn();
    built(step, |step, bytes| {
        step.write(bytes, &[]).expect("a short packet")
    })
}

fn passed(name: &'static str, bytes: Vec<u8>, reason: Reason) -> Row {
    Row::new(name).send(Step::raw_passed(bytes, Port::Front, reason))
}

fn from_server(step: Step) -> Step {
    step.at(Port::Back).passed(Reason::PassedNoService)
}

/// Everything that the kernel gets.
pub(crate) fn group() -> Group {
    use Reason::{
        PassedMalformed, PassedNoService, PassedNotIp, PassedNotOurs, PassedNotReady,
        PassedProtocol,
    };
    let arp = || {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
        packet.extend_from_slice(&ROUTER_MAC);
        packet.extend_from_slice(&[172, 16, 0, 254]);
        packet.extend_from_slice(&[0; 6]);
        packet.extend_from_slice(&octets(WEB.endpoint.0));
        packet.resize(46, 0);
        ethernet(0x0806, &packet)
    };
    let tagged = {
        let mut bytes = TALK.client_frame(SYN).bytes();
        bytes.splice(12..12, [0x81, 0x00, 0x00, 0x2a].repeat(3));
        bytes
    };
    let rows = vec![
        Row::new("SYN to an address that is no service's")
            .from("katran Base: non-VIP is passed")
            .send(TALK.to((STRANGER, 80)).client(SYN).passed(PassedNotOurs)),
        passed("ARP for a service's address", arp(), PassedNotIp),
        passed("IPv6 to nobody of ours", ipv6_syn(), PassedNotOurs),
        passed(
            "LLDP",
            ethernet(0x88cc, &[2, 7, 4, 1, 2, 3, 4, 5, 6, 0, 0]),
            PassedNotIp,
        ),
        passed(
            "a length in place of an EtherType",
            ethernet(46, &[0x42; 46]),
            PassedNotIp,
        ),
        passed("three VLAN tags", tagged, PassedNotIp),
        passed("ICMP echo to a stranger", echo(STRANGER), PassedNotOurs),
        passed("ICMP echo to a server", echo(A.endpoint.0), PassedProtocol),
        passed(
            "UDP to a TCP service",
            udp(CLIENT.0, WEB.endpoint.0),
            PassedNoService,
        ),
        passed(
            "UDP of a server",
            udp(A.endpoint.0, CLIENT.0),
            PassedNoService,
        ),
        passed(
            "SCTP to a service's address",
            ipv4(132, WEB.endpoint.0, &[0; 12]),
            PassedProtocol,
        ),
        passed(
            "GRE to a service's address",
            ipv4(47, WEB.endpoint.0, &[0; 12]),
            PassedProtocol,
        ),
        Row::new("IPIP to a stranger")
            .from("katran Base: ipip to non-VIP is passed")
            .send(Step::raw_passed(
                ipv4(4, STRANGER, &[0x45; 40]),
                Port::Front,
                PassedNotOurs,
            )),
        Row::new("ARP without a configuration")
            .change(|lab| lab.settings(|s| s.layout = 0))
            .send(Step::raw_passed(arp(), Port::Front, PassedNotReady)),
        passed(
            "an Ethernet header alone",
            ethernet(0x0800, &[]),
            PassedMalformed,
        ),
        passed(
            "an EtherType of ARP alone",
            ethernet(0x0806, &[]),
            PassedNotIp,
        ),
        Row::new("a server's connection to the world")
            .send(from_server(TALK.server(SYN).with(|f| f.source.1 = 40_000)))
            .send(from_server(
                TALK.server(ACK | PSH)
                    .payload(20)
                    .with(|f| f.source.1 = 40_000),
            )),
        Row::new("a server's answer to nobody we know")
            .send(from_server(TALK.server(SYN | ACK)))
            .send(from_server(TALK.server(RST | ACK))),
        Row::new("a server's packet to another port of a client with a flow")
            .sends(TALK.handshake())
            .send(from_server(TALK.server(ACK).with(|f| f.destination.1 += 1))),
        Row::new("a server's packet from another port than the flow's")
            .sends(TALK.handshake())
            .send(from_server(TALK.server(ACK).with(|f| f.source.1 += 1))),
        Row::new("another server's packet to a client with a flow")
            .sends(TALK.handshake())
            .send(from_server(
                TALK.server(ACK).with(|f| f.source.0 = B.endpoint.0),
            )),
        Row::new("a client that talks to a server directly")
            .send(
                TALK.client(SYN)
                    .with(|f| f.destination = A.endpoint)
                    .passed(PassedNoService),
            )
            .send(
                TALK.client(ACK)
                    .with(|f| f.destination = A.endpoint)
                    .passed(PassedNoService),
            ),
        Row::new("the forwarded client's packet seen again, towards the server")
            .sends(TALK.handshake())
            .send(
                TALK.client(ACK)
                    .with(|f| {
                        f.macs = (A.mac(), BACK.1);
                        f.destination = A.endpoint;
                    })
                    .passed(PassedNoService),
            ),
    ];
    Group::new("passed", rows)
}
