//! What is around a packet on its way to a server behind a tunnel.
//!
//! The header that is expected is built by etherparse, as frames are. What it
//! says to tell flows apart is read by etherparse from the flow's first frame:
//! rows demand that it is possible and the same in every other one.

use super::{Family, Frame, scene::BACK};
use etherparse::{
    IpDscp, IpEcn, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, NetSlice, SlicedPacket,
    TransportSlice, UdpHeader,
};
use lb_common::abi::forwarding;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A tunnel from our own end to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnel {
    /// In UDP with the header of Generic UDP Encapsulation.
    pub is_gue: bool,
    /// The family of the packets around those of clients.
    pub family: Family,
    /// UDP port of the servers' end.
    pub port: u16,
    /// Our end.
    pub source: IpAddr,
    /// So many low bits of it tell flows apart.
    pub spread: u32,
}

/// What in the packets around those of a flow tells it from other flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entropy {
    /// The outer source address.
    pub source: IpAddr,
    /// GUE: the UDP source port.
    pub port: u16,
    /// IPv6: the flow label.
    pub label: u32,
}

/// Bytes of GUE's own header: variant 0 without flags and fields
/// (draft-ietf-intarea-gue-09, section 3).
const GUE_HEADER: usize = 4;
/// Dynamic ports begin here (RFC 6335, section 6).
const FIRST_PORT: u16 = 49_152;
/// TTL and hop limit of packets that begin here (RFC 1700).
const HOPS: u8 = 64;

impl Tunnel {
    /// The usual one: from our address towards the servers.
    pub const fn new(is_gue: bool, family: Family) -> Self {
        Self {
            is_gue,
            family,
            // IANA's port of GUE.
            port: 6_080,
            source: family.counterpart(BACK.0),
            spread: 0,
        }
    }

    /// The value of the maps.
    pub const fn forwarding(&self) -> u8 {
        if self.is_gue {
            forwarding::GUE
        } else {
            forwarding::IPIP
        }
    }

    /// Bytes that it adds to a packet.
    pub const fn overhead(&self) -> usize {
        let behind = if self.is_gue {
            UdpHeader::LEN + GUE_HEADER
        } else {
            0
        };
        self.family.header() + behind
    }

    /// What tells the flow of a frame apart; zeros where it cannot be read.
    pub fn entropy(&self, frame: &[u8]) -> Entropy {
        let mut entropy = Entropy {
            source: match self.family {
                Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
            },
            port: 0,
            label: 0,
        };
        let Ok(sliced) = SlicedPacket::from_ethernet(frame) else {
            return entropy;
        };
        match sliced.net {
            Some(NetSlice::Ipv4(ip)) => entropy.source = ip.header().source_addr().into(),
            Some(NetSlice::Ipv6(ip)) => {
                entropy.source = ip.header().source_addr().into();
                entropy.label = ip.header().flow_label().value();
            }
            _ => {}
        }
        if let Some(TransportSlice::Udp(udp)) = sliced.transport {
            entropy.port = udp.source_port();
        }
        entropy
    }

    /// Whether frames may tell a flow apart like this.
    fn allows(&self, entropy: &Entropy) -> bool {
        let upper = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) >> self.spread,
            IpAddr::V6(address) => u128::from(address) >> self.spread,
        };
        upper(entropy.source) == upper(self.source) && (!self.is_gue || entropy.port >= FIRST_PORT)
    }

    /// A frame whose packet is put into one to `server`.
    ///
    /// Where `entropy` is not possible it is our end without anything, so that the
    /// bytes cannot agree.
    pub fn around(&self, frame: &Frame, server: IpAddr, entropy: Entropy) -> Vec<u8> {
        let Entropy {
            source,
            port,
            label,
        } = if self.allows(&entropy) {
            entropy
        } else {
            Entropy {
                source: self.source,
                port: 0,
                label: 0,
            }
        };
        let packet = frame.packet();
        // RFC 2003, section 3.1; RFC 2473, section 3; RFC 4213, section 3.5.
        let carried = match frame.family() {
            Family::V4 => IpNumber::IPV4,
            Family::V6 => IpNumber::IPV6,
        };
        let length = |more: usize| u16::try_from(packet.len() + more).expect("a packet that fits");
        let mut behind = Vec::new();
        if self.is_gue {
            let udp = UdpHeader {
                source_port: port,
                destination_port: self.port,
                length: length(UdpHeader::LEN + GUE_HEADER),
                checksum: 0,
            };
            behind.extend(udp.to_bytes());
            behind.extend([0, carried.0, 0, 0]);
        }
        let protocol = if self.is_gue { IpNumber::UDP } else { carried };
        let header = match (source, server) {
            (IpAddr::V4(source), IpAddr::V4(server)) => {
                let payload = length(behind.len());
                let (source, server) = (source.octets(), server.octets());
                let mut ip =
                    Ipv4Header::new(payload, HOPS, protocol, source, server).expect("it fits");
                ip.dscp = IpDscp::try_new(frame.tos >> 2).expect("six bits");
                ip.ecn = IpEcn::try_new(frame.tos & 3).expect("two bits");
                ip.dont_fragment = true;
                ip.header_checksum = ip.calc_header_checksum();
                ip.to_bytes().to_vec()
            }
            (IpAddr::V6(source), IpAddr::V6(server)) => {
                let ip = Ipv6Header {
                    traffic_class: frame.tos,
                    flow_label: Ipv6FlowLabel::try_new(label).expect("20 bits"),
                    payload_length: length(behind.len()),
                    next_header: protocol,
                    hop_limit: HOPS,
                    source: source.octets(),
                    destination: server.octets(),
                };
                ip.to_bytes().to_vec()
            }
            (source, server) => panic!("no tunnel leads from {source} to {server}"),
        };
        let link = frame.link(self.family);
        [link, header, behind, packet, frame.padding.clone()].concat()
    }
}
