//! A frame as it is on the wire. The checksums are those of etherparse: the
//! code under test has its own.

use super::{Carried, Extension, Family, Frame, flag};
use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpDscp, IpEcn, IpFragOffset, IpNumber,
    Ipv4Header, TcpHeader, UdpHeader,
};
use std::net::IpAddr;

const FITS: &str = "what is carried fits an IP packet";

/// Ones' complement addition.
fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Source and destination.
enum Addresses {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

impl Frame {
    fn addresses(&self) -> Addresses {
        match (self.source.0, self.destination.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Addresses::V4(source.octets(), destination.octets())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Addresses::V6(source.octets(), destination.octets())
            }
            (source, destination) => panic!("no packet goes from {source} to {destination}"),
        }
    }

    fn tcp_header(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(
            self.source.1,
            self.destination.1,
            self.sequence,
            self.window,
        );
        tcp.acknowledgment_number = self.acknowledgement;
        let has = |bit| self.flags & bit != 0;
        tcp.fin = has(flag::FIN);
        tcp.syn = has(flag::SYN);
        tcp.rst = has(flag::RST);
        tcp.psh = has(flag::PSH);
        tcp.ack = has(flag::ACK);
        tcp.urg = has(flag::URG);
        tcp.ece = has(flag::ECE);
        tcp.cwr = has(flag::CWR);
        tcp.set_options_raw(&self.tcp_options)
            .expect("TCP options fit");
        tcp
    }

    fn udp_header(&self) -> UdpHeader {
        UdpHeader {
            source_port: self.source.1,
            destination_port: self.destination.1,
            length: u16::try_from(UdpHeader::LEN + self.body().len()).expect("a datagram"),
            checksum: 0,
        }
    }

    /// What the header behind the IP header is in front of.
    fn body(&self) -> Vec<u8> {
        match &self.quote {
            Some(quote) => quote.bytes(),
            None => self.payload.clone(),
        }
    }

    /// The header behind the IP header, and its right checksum.
    fn carried(&self) -> (Vec<u8>, u16) {
        let body = self.body();
        match self.carried {
            Carried::Tcp => {
                let mut tcp = self.tcp_header();
                let sum = match self.addresses() {
                    Addresses::V4(from, to) => tcp.calc_checksum_ipv4_raw(from, to, &body),
                    Addresses::V6(from, to) => tcp.calc_checksum_ipv6_raw(from, to, &body),
                };
                let sum = sum.expect(FITS);
                tcp.checksum = add(sum, self.tcp_error);
                (tcp.to_bytes().to_vec(), sum)
            }
            Carried::Udp { summed } => {
                let mut udp = self.udp_header();
                let sum = match self.addresses() {
                    Addresses::V4(from, to) => udp.calc_checksum_ipv4_raw(from, to, &body),
                    Addresses::V6(from, to) => udp.calc_checksum_ipv6_raw(from, to, &body),
                };
                let sum = if summed { sum.expect(FITS) } else { 0 };
                udp.checksum = add(sum, self.tcp_error);
                (udp.to_bytes().to_vec(), sum)
            }
            Carried::Icmp(type_u8, code_u8, bytes5to8) => match self.addresses() {
                Addresses::V4(..) => {
                    let kind = Icmpv4Type::Unknown {
                        type_u8,
                        code_u8,
                        bytes5to8,
                    };
                    let sum = kind.calc_checksum(&body);
                    let icmp = Icmpv4Header {
                        icmp_type: kind,
                        checksum: add(sum, self.tcp_error),
                    };
                    (icmp.to_bytes().to_vec(), sum)
                }
                Addresses::V6(from, to) => {
                    let kind = Icmpv6Type::Unknown {
                        type_u8,
                        code_u8,
                        bytes5to8,
                    };
                    let sum = kind.calc_checksum(from, to, &body).expect(FITS);
                    let icmp = Icmpv6Header {
                        icmp_type: kind,
                        checksum: add(sum, self.tcp_error),
                    };
                    (icmp.to_bytes().to_vec(), sum)
                }
            },
        }
    }

    /// The whole IP payload, of which a fragment has a piece: without IPv6
    /// extension headers.
    pub(super) fn datagram(&self) -> Vec<u8> {
        [
            self.carried().0.as_slice(),
            self.body().as_slice(),
            &self.trailer,
        ]
        .concat()
    }

    /// What this frame has of the IP payload.
    fn piece(&self) -> Vec<u8> {
        let datagram = self.datagram();
        match self.piece {
            Some((start, end)) => datagram[start..end].to_vec(),
            None => datagram,
        }
    }

    /// Fragment offset in units of eight bytes, and whether more follows.
    fn place(&self) -> (u16, bool) {
        match self.piece {
            Some((start, end)) => (
                u16::try_from(start / 8).expect("a short packet"),
                end < self.datagram().len(),
            ),
            None => (self.fragment_offset, self.more_fragments),
        }
    }

    fn protocol(&self) -> IpNumber {
        match (self.carried, self.addresses()) {
            (Carried::Tcp, _) => IpNumber::TCP,
            (Carried::Udp { .. }, _) => IpNumber::UDP,
            (Carried::Icmp(..), Addresses::V4(..)) => IpNumber::ICMP,
            (Carried::Icmp(..), Addresses::V6(..)) => IpNumber::IPV6_ICMP,
        }
    }

    /// The IPv4 header without its checksum.
    fn ipv4(&self, source: [u8; 4], destination: [u8; 4]) -> Ipv4Header {
        let length = u16::try_from(self.piece().len()).expect(FITS);
        let mut ip =
            Ipv4Header::new(length, self.ttl, self.protocol(), source, destination).expect(FITS);
        ip.options = self
            .ip_options
            .as_slice()
            .try_into()
            .expect("IP options fit");
        ip.total_len = u16::try_from(ip.header_len()).expect("a small number") + length;
        ip.dscp = IpDscp::try_new(self.tos >> 2).expect("six bits");
        ip.ecn = IpEcn::try_new(self.tos & 3).expect("two bits");
        ip.identification = self.identification;
        ip.dont_fragment = self.dont_fragment;
        let (offset, more) = self.place();
        ip.more_fragments = more;
        ip.fragment_offset = IpFragOffset::try_new(offset).expect("13 bits");
        ip
    }

    /// Number of the first extension header, or of what is carried, and the
    /// bytes of all of them.
    fn extensions(&self) -> (u8, Vec<u8>) {
        let (offset, more) = self.place();
        let mut headers = self.extensions.clone();
        let is_fragment = |header: &Extension| header.kind == Extension::FRAGMENT;
        if (offset != 0 || more) && !headers.iter().any(is_fragment) {
            headers.push(Extension::fragment());
        }
        let mut next = self.protocol().0;
        let mut bytes = Vec::new();
        for mut header in headers.into_iter().rev() {
            if is_fragment(&header) {
                // RFC 8200, section 4.5.
                let place = (offset << 3 | u16::from(more)).to_be_bytes();
                let number = u32::from(self.identification).to_be_bytes();
                header.body = [place.as_slice(), &number].concat();
            }
            bytes = [header.bytes(next), bytes].concat();
            next = header.kind;
        }
        (next, bytes)
    }

    /// IP header, extension headers and everything behind them, bytes.
    pub fn total_length(&self) -> u16 {
        u16::try_from(self.packet().len()).expect(FITS)
    }

    /// The right checksums, of the IPv4 header (0 without one) and behind it.
    pub fn checksums(&self) -> (u16, u16) {
        let ip = match self.addresses() {
            Addresses::V4(from, to) => self.ipv4(from, to).calc_header_checksum(),
            Addresses::V6(..) => 0,
        };
        (ip, self.carried().1)
    }

    /// The IP packet.
    pub fn packet(&self) -> Vec<u8> {
        let piece = self.piece();
        match self.addresses() {
            Addresses::V4(from, to) => {
                let mut ip = self.ipv4(from, to);
                ip.header_checksum = add(ip.calc_header_checksum(), self.ip_error);
                [ip.to_bytes().as_slice(), &piece].concat()
            }
            Addresses::V6(from, to) => {
                let (next, extensions) = self.extensions();
                let length = u16::try_from(extensions.len() + piece.len()).expect(FITS);
                let first = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
                [
                    &first.to_be_bytes()[..],
                    &length.to_be_bytes(),
                    &[next, self.ttl],
                    &from,
                    &to,
                    &extensions,
                    &piece,
                ]
                .concat()
            }
        }
    }

    /// The frame as it is on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let link = self.link(self.family());
        [link, self.packet(), self.padding.clone()].concat()
    }

    /// The Ethernet header and the tags of a frame with a packet of `family`.
    pub(in crate::packets) fn link(&self, family: Family) -> Vec<u8> {
        let mut bytes = [self.macs.0, self.macs.1].concat();
        for tag in &self.tags {
            bytes.extend(tag.protocol.to_be_bytes());
            bytes.extend(tag.control.to_be_bytes());
        }
        bytes.extend(match family {
            Family::V4 => [0x08, 0x00],
            Family::V6 => [0x86, 0xdd],
        });
        bytes
    }
}
