//! Frames, built field by field and summed in full.
//!
//! One struct for both families: a field that the family or the protocol does
//! not have means nothing. What makes bytes of it is in [`bytes`]; shapes that
//! take several steps to say (pieces of a fragmented packet, errors that quote
//! one) are in [`shapes`].

use super::family::Family;
use std::net::IpAddr;

mod bytes;
mod shapes;
#[cfg(test)]
mod tests;

pub use shapes::{Extension, Quote, Tag};

/// A MAC address.
pub type Mac = [u8; 6];

/// Address and port.
pub type Endpoint = (IpAddr, u16);

/// TCP flag bits (RFC 9293, section 3.1; RFC 3168 for the last two).
pub mod flag {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// First of a connection.
    pub const SYN: u8 = 0x02;
    /// Abort.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer counts.
    pub const URG: u8 = 0x20;
    /// Congestion was met.
    pub const ECE: u8 = 0x40;
    /// The window was reduced.
    pub const CWR: u8 = 0x80;
}

/// What is behind the IP header. Fields of a [`Frame`] that it does not have
/// mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// A segment.
    Tcp,
    /// A datagram.
    Udp {
        /// Whether it has a checksum (RFC 768: zero is none).
        summed: bool,
    },
    /// A message of ICMP, or of ICMPv6 over IPv6: type, code, and the four
    /// bytes after the checksum.
    Icmp(u8, u8, [u8; 4]),
}

/// ICMP types and codes (RFC 792; RFC 1191 for the last code).
pub mod icmp {
    use super::Family;

    /// The answer to a ping.
    pub const ECHO_REPLY: u8 = 0;
    /// What was sent did not get there.
    pub const UNREACHABLE: u8 = 3;
    /// A ping.
    pub const ECHO_REQUEST: u8 = 8;
    /// The time to live was over.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Code of [`UNREACHABLE`]: nobody listens there.
    pub const PORT: u8 = 3;
    /// Code of [`UNREACHABLE`]: too large, and not to be fragmented.
    pub const TOO_BIG: u8 = 4;

    /// Type of a ping, in ICMP or ICMPv6.
    pub const fn echo_request(family: Family) -> u8 {
        match family {
            Family::V4 => ECHO_REQUEST,
            Family::V6 => super::icmp6::ECHO_REQUEST,
        }
    }

    /// Type of its answer.
    pub const fn echo_reply(family: Family) -> u8 {
        match family {
            Family::V4 => ECHO_REPLY,
            Family::V6 => super::icmp6::ECHO_REPLY,
        }
    }
}

/// ICMPv6 types and codes (RFC 4443; RFC 4861 for neighbour discovery).
pub mod icmp6 {
    /// What was sent did not get there.
    pub const UNREACHABLE: u8 = 1;
    /// It was too large.
    pub const TOO_BIG: u8 = 2;
    /// The hop limit was reached.
    pub const TIME_EXCEEDED: u8 = 3;
    /// A ping.
    pub const ECHO_REQUEST: u8 = 128;
    /// The answer to a ping.
    pub const ECHO_REPLY: u8 = 129;
    /// Who has this address?
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// I have it.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Code of [`UNREACHABLE`]: nobody listens there.
    pub const PORT: u8 = 4;
}

/// A TCP segment, a datagram or an ICMP message over IP over Ethernet.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What is behind the IP header.
    pub carried: Carried,
    /// Destination, then source.
    pub macs: (Mac, Mac),
    /// VLAN tags, the outer one first.
    pub tags: Vec<Tag>,
    /// IP source and source port.
    pub source: Endpoint,
    /// IP destination and destination port, of the same family.
    pub destination: Endpoint,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// The whole type-of-service byte, or traffic class: DSCP and ECN.
    pub tos: u8,
    /// IPv6: the flow label, 20 bits.
    pub flow_label: u32,
    /// IP identification; in IPv6 that of the fragment header.
    pub identification: u16,
    /// IPv4: the don't-fragment bit.
    pub dont_fragment: bool,
    /// The more-fragments bit. In IPv6 it brings a fragment header, as does an
    /// offset.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes.
    pub fragment_offset: u16,
    /// Which bytes of the IP payload this fragment has: from, up to. They say
    /// what `more_fragments` and `fragment_offset` are. None: all.
    pub piece: Option<(usize, usize)>,
    /// IPv4 options; a multiple of four bytes, at most 40.
    pub ip_options: Vec<u8>,
    /// IPv6 extension headers, in their order.
    pub extensions: Vec<Extension>,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// TCP: the window.
    pub window: u16,
    /// TCP options; a multiple of four bytes, at most 40.
    pub tcp_options: Vec<u8>,
    /// What is sent.
    pub payload: Vec<u8>,
    /// What is sent instead of `payload` in an error: the packet that it is
    /// about.
    pub quote: Option<Box<Quote>>,
    /// Bytes of the IP packet after the datagram.
    pub trailer: Vec<u8>,
    /// Bytes after the IP packet that fill the frame up.
    pub padding: Vec<u8>,
    /// Added, in ones' complement, to the right checksum of an IPv4 header.
    pub ip_error: u16,
    /// Added, in ones' complement, to the right checksum behind it.
    pub tcp_error: u16,
}

impl Frame {
    /// A segment without payload or options. The IP identification and the
    /// window are arbitrary but not zero.
    pub fn tcp(macs: (Mac, Mac), source: Endpoint, destination: Endpoint, flags: u8) -> Self {
        Self {
            carried: Carried::Tcp,
            macs,
            tags: Vec::new(),
            source,
            destination,
            ttl: 64,
            tos: 0,
            flow_label: 0x5_a17e,
            identification: 0x1d3c,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            piece: None,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            flags,
            sequence: 0,
            acknowledgement: 0,
            window: 0xfaf0,
            tcp_options: Vec::new(),
            payload: Vec::new(),
            quote: None,
            trailer: Vec::new(),
            padding: Vec::new(),
            ip_error: 0,
            tcp_error: 0,
        }
    }

    /// A datagram without payload.
    pub fn udp(macs: (Mac, Mac), source: Endpoint, destination: Endpoint) -> Self {
        Self {
            carried: Carried::Udp { summed: true },
            ..Self::tcp(macs, source, destination, 0)
        }
    }

    /// A ping without payload.
    pub fn ping(macs: (Mac, Mac), source: IpAddr, destination: IpAddr) -> Self {
        let kind = icmp::echo_request(Family::of(source));
        Self {
            carried: Carried::Icmp(kind, 0, [0x12, 0x34, 0, 1]),
            ..Self::tcp(macs, (source, 0), (destination, 0), 0)
        }
    }

    /// The family of its addresses.
    pub const fn family(&self) -> Family {
        Family::of(self.source.0)
    }

    /// This frame with a payload of `length` bytes, none of them alike in a
    /// row.
    pub fn payload(mut self, length: usize) -> Self {
        self.payload = (0..length).map(|place| (place * 7 + 3) as u8).collect();
        self
    }

    /// This frame filled up to the shortest length of Ethernet without its
    /// checksum, with bytes that are not zero: some drivers leave rubbish.
    pub fn padded(mut self) -> Self {
        let length = 14 + 4 * self.tags.len() + usize::from(self.total_length());
        self.padding = vec![0x5a; 60_usize.saturating_sub(length)];
        self
    }

    /// This frame changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// This frame with the first `identification` for which `wanted` holds;
    /// for the edges of the IP checksum.
    pub fn seek_identification(mut self, wanted: impl Fn(&Self) -> bool) -> Self {
        for number in 0..=u16::MAX {
            self.identification = number;
            if wanted(&self) {
                return self;
            }
        }
        panic!("no identification gives the checksum that was asked for");
    }

    /// This frame with the first last two bytes of its payload for which `wanted`
    /// holds; for the edges of checksums of datagrams and pings.
    pub fn seek_payload(mut self, wanted: impl Fn(&Self) -> bool) -> Self {
        let start = self.payload.len() - 2;
        for number in 0..=u16::MAX {
            self.payload[start..].copy_from_slice(&number.to_be_bytes());
            if wanted(&self) {
                return self;
            }
        }
        panic!("no payload gives the checksum that was asked for");
    }

    /// This frame with the first `sequence` for which `wanted` holds; for the
    /// edges of the TCP checksum.
    pub fn seek_sequence(mut self, wanted: impl Fn(&Self) -> bool) -> Self {
        let start = self.sequence;
        for number in 0..=u32::from(u16::MAX) + 1 {
            self.sequence = start.wrapping_add(number);
            if wanted(&self) {
                return self;
            }
        }
        panic!("no sequence number gives the checksum that was asked for");
    }
}
