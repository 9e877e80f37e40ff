//! The frames of the bench, built field by field and summed in full.

use super::case::{Mode, Protocol, Site};
use crate::packets::{
    Family, Mac,
    scene::{BACK, FRONT, ROUTER_MAC},
};
use etherparse::PacketBuilder;
use lb_common::bench::{FRAME_BYTES, FRAME4, FRAME6};

/// Sequence numbers of the two SYNs.
const CLIENT_ISN: u32 = 1_000;
const SERVER_ISN: u32 = 50_000;
/// Time to live of frames that come in.
const TTL: u8 = 64;
/// Receive window, any.
const WINDOW: u16 = 0xfaf0;

/// What a frame is of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A SYN, or a datagram of the client.
    First,
    /// A SYN-ACK, or a datagram of the server.
    Answer,
    /// The client's data.
    Request,
    /// The server's data.
    Response,
    /// Data from the client to somebody else.
    Stranger,
    /// A SYN or datagram to another port of the VIP.
    OtherPort,
}

/// Who a frame is about.
#[derive(Clone, Copy, Debug)]
pub struct Parties {
    /// Last four bytes of the client's address, and its port.
    pub client: ([u8; 4], u16),
    /// Last byte of the server's address.
    pub server: u8,
}

impl Parties {
    /// Nobody: what the restoring program fills in is zero.
    pub const BLANK: Self = Self {
        client: ([0; 4], 0),
        server: 0,
    };
}

type End = ([u8; 16], u16);

/// Port of the service.
pub(super) fn service_port(protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Tcp => 80,
        Protocol::Udp => 53,
    }
}

/// Port of the servers; in direct return the service's.
pub(super) fn server_port(site: Site) -> u16 {
    match site.mode {
        Mode::Nat => 8_080,
        Mode::Dsr => service_port(site.protocol),
    }
}

/// An address of 16 bytes: IPv4 in the first four (192.0.2.0/24 and so on), or
/// IPv6 (2001:2::/48, RFC 5180, for clients).
fn address(family: Family, v4: [u8; 4], v6: [u8; 16]) -> [u8; 16] {
    match family {
        Family::V4 => lb_common::abi::address4(v4),
        Family::V6 => v6,
    }
}

/// The address of the service.
pub(super) fn vip(family: Family) -> [u8; 16] {
    let mut v6 = [0; 16];
    v6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    v6[15] = 0x10;
    address(family, [192, 0, 2, 10], v6)
}

/// The address of a server.
pub(super) fn server(family: Family, last: u8) -> [u8; 16] {
    let mut v6 = [0; 16];
    v6[..6].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 1]);
    v6[15] = last;
    address(family, [10, 1, 0, last], v6)
}

/// Its MAC address.
pub(super) fn server_mac(last: u8) -> Mac {
    [2, 0, 0, 0, 0x0c, last]
}

fn client(family: Family, last: [u8; 4]) -> [u8; 16] {
    let mut v6 = [0; 16];
    v6[..4].copy_from_slice(&[0x20, 0x01, 0x00, 0x02]);
    v6[12..].copy_from_slice(&last);
    address(family, last, v6)
}

fn stranger(family: Family) -> [u8; 16] {
    let mut v6 = [0; 16];
    v6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    v6[15] = 0x77;
    address(family, [203, 0, 113, 77], v6)
}

impl Frame {
    /// Whether it comes from the server.
    pub fn is_servers(self) -> bool {
        matches!(self, Self::Answer | Self::Response)
    }

    /// The frame as it comes in.
    pub fn arriving(self, site: Site, parties: Parties) -> Vec<u8> {
        let client = (client(site.family, parties.client.0), parties.client.1);
        let port = service_port(site.protocol);
        let vip = (vip(site.family), port);
        let server = (server(site.family, parties.server), server_port(site));
        match self {
            // From one MAC address, which no program looks at.
            Self::Answer | Self::Response => {
                self.build(site, (server_mac(0), BACK.1), (server, client), TTL)
            }
            Self::First | Self::Request => {
                self.build(site, (ROUTER_MAC, FRONT.1), (client, vip), TTL)
            }
            Self::Stranger => {
                let ends = (client, (stranger(site.family), port));
                self.build(site, (ROUTER_MAC, FRONT.1), ends, TTL)
            }
            Self::OtherPort => {
                let ends = (client, (vip.0, port + 1));
                self.build(site, (ROUTER_MAC, FRONT.1), ends, TTL)
            }
        }
    }

    /// The frame as it is to leave.
    ///
    /// # Panics
    /// For frames that are not forwarded.
    pub fn leaving(self, site: Site, parties: Parties) -> Vec<u8> {
        let client = (client(site.family, parties.client.0), parties.client.1);
        let vip = (vip(site.family), service_port(site.protocol));
        let server = (server(site.family, parties.server), server_port(site));
        let to_server = (BACK.1, server_mac(parties.server));
        match (self, site.mode) {
            (Self::First | Self::Request, Mode::Nat) => {
                self.build(site, to_server, (client, server), TTL - 1)
            }
            (Self::First | Self::Request, Mode::Dsr) => {
                self.build(site, to_server, (client, vip), TTL)
            }
            (Self::Answer | Self::Response, Mode::Nat) => {
                self.build(site, (FRONT.1, ROUTER_MAC), (vip, client), TTL - 1)
            }
            _ => panic!("{self:?} is not forwarded in {site}"),
        }
    }

    /// The frame with everything zero that differs between flows, as the
    /// restoring program takes it.
    pub fn plan(self, site: Site) -> [u8; FRAME_BYTES] {
        let frame = self.arriving(site, Parties::BLANK);
        let mut plan = [0; FRAME_BYTES];
        plan[..frame.len()].copy_from_slice(&frame);
        plan
    }

    /// The frame with zero for checksums: a restored frame has those of the
    /// plan, which differ from right ones by what programs do not look at.
    pub fn without_checksums(site: Site, frame: &[u8]) -> Vec<u8> {
        let (network, transport) = match site.family {
            Family::V4 => (Some(24), 34),
            Family::V6 => (None, 54),
        };
        let transport = transport
            + match site.protocol {
                Protocol::Tcp => 16,
                Protocol::Udp => 6,
            };
        let mut frame = frame.to_vec();
        for place in network.into_iter().chain([transport]) {
            frame[place..place + 2].fill(0);
        }
        frame
    }

    fn build(self, site: Site, macs: (Mac, Mac), ends: (End, End), ttl: u8) -> Vec<u8> {
        let (source, destination) = ends;
        let length = match site.family {
            Family::V4 => FRAME4,
            Family::V6 => FRAME6,
        };
        let link = PacketBuilder::ethernet2(macs.0, macs.1);
        let network = match site.family {
            Family::V4 => {
                let four = |end: End| [end.0[0], end.0[1], end.0[2], end.0[3]];
                link.ipv4(four(source), four(destination), ttl)
            }
            Family::V6 => link.ipv6(source.0, destination.0, ttl),
        };
        let mut bytes = Vec::with_capacity(length);
        let (source, destination) = (source.1, destination.1);
        match site.protocol {
            Protocol::Udp => {
                let step = network.udp(source, destination);
                let payload = vec![0x5a; length - step.size(0)];
                step.write(&mut bytes, &payload).expect("a short datagram");
            }
            Protocol::Tcp => {
                let opens = matches!(self, Self::First | Self::OtherPort);
                let (sequence, acknowledged) = match self {
                    Self::First | Self::OtherPort => (CLIENT_ISN, 0),
                    Self::Answer => (SERVER_ISN, CLIENT_ISN + 1),
                    Self::Request | Self::Stranger => (CLIENT_ISN + 1, SERVER_ISN + 1),
                    Self::Response => (SERVER_ISN + 1, CLIENT_ISN + 1),
                };
                let mut step = network.tcp(source, destination, sequence, WINDOW);
                if opens || self == Self::Answer {
                    step = step.syn();
                }
                if !opens {
                    step = step.ack(acknowledged);
                }
                let has_data = !opens && self != Self::Answer;
                let room = if has_data { length - step.size(0) } else { 0 };
                step.write(&mut bytes, &vec![0x5a; room])
                    .expect("a short segment");
            }
        }
        bytes.resize(length, 0);
        bytes
    }
}
