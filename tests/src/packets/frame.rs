//! Frames, built field by field and summed in full.

use etherparse::{
    EtherType, Ethernet2Header, Icmpv4Header, Icmpv4Type, IpDscp, IpEcn, IpFragOffset, IpNumber,
    Ipv4Header, TcpHeader, UdpHeader,
};

/// A MAC address.
pub type Mac = [u8; 6];

/// An IPv4 endpoint.
pub type Endpoint = ([u8; 4], u16);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A segment.
    Tcp,
    /// A datagram.
    Udp {
        /// Whether it has a checksum (RFC 768: zero is none).
        summed: bool,
    },
    /// An ICMP message: type, code, and the four bytes after the checksum.
    Icmp(u8, u8, [u8; 4]),
}

/// ICMP types (RFC 792).
pub mod icmp {
    /// The answer to a ping.
    pub const ECHO_REPLY: u8 = 0;
    /// A ping.
    pub const ECHO_REQUEST: u8 = 8;
}

/// A TCP segment, a datagram or an ICMP message over IPv4 over Ethernet.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What is behind the IP header.
    pub carried: Carried,
    /// Destination, then source.
    pub macs: (Mac, Mac),
    /// IP source and source port.
    pub source: Endpoint,
    /// IP destination and destination port.
    pub destination: Endpoint,
    /// Time to live.
    pub ttl: u8,
    /// The whole type-of-service byte: DSCP and ECN.
    pub tos: u8,
    /// IP identification.
    pub identification: u16,
    /// The don't-fragment bit.
    pub dont_fragment: bool,
    /// The more-fragments bit.
    pub more_fragments: bool,
    /// Fragment offset in units of eight bytes.
    pub fragment_offset: u16,
    /// IP options; a multiple of four bytes, at most 40.
    pub ip_options: Vec<u8>,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// TCP options; a multiple of four bytes, at most 40.
    pub tcp_options: Vec<u8>,
    /// What is sent.
    pub payload: Vec<u8>,
    /// Bytes of the IP packet after the datagram.
    pub trailer: Vec<u8>,
    /// Bytes after the IP packet that fill the frame up.
    pub padding: Vec<u8>,
    /// Added, in ones' complement, to the right IP checksum.
    pub ip_error: u16,
    /// Added, in ones' complement, to the right checksum behind it.
    pub tcp_error: u16,
}

/// Ones' complement addition.
fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

impl Frame {
    /// A segment without payload or options. The IP identification and the
    /// window are arbitrary but not zero.
    pub fn tcp(macs: (Mac, Mac), source: Endpoint, destination: Endpoint, flags: u8) -> Self {
        Self {
            carried: Carried::Tcp,
            macs,
            source,
            destination,
            ttl: 64,
            tos: 0,
            identification: 0x1d3c,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ip_options: Vec::new(),
            flags,
            sequence: 0,
            acknowledgement: 0,
            tcp_options: Vec::new(),
            payload: Vec::new(),
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
    pub fn ping(macs: (Mac, Mac), source: [u8; 4], destination: [u8; 4]) -> Self {
        Self {
            carried: Carried::Icmp(icmp::ECHO_REQUEST, 0, [0x12, 0x34, 0, 1]),
            ..Self::tcp(macs, (source, 0), (destination, 0), 0)
        }
    }

    fn tcp_header(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(self.source.1, self.destination.1, self.sequence, 0xfaf0);
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
            length: u16::try_from(UdpHeader::LEN + self.payload.len()).expect("a datagram"),
            checksum: 0,
        }
    }

    /// The header behind the IP header, and its right checksum.
    fn carried(&self) -> (Vec<u8>, u16) {
        const FITS: &str = "what is carried fits an IP packet";
        let (source, destination) = (self.source.0, self.destination.0);
        match self.carried {
            Carried::Tcp => {
                let mut tcp = self.tcp_header();
                let sum = tcp
                    .calc_checksum_ipv4_raw(source, destination, &self.payload)
                    .expect(FITS);
                tcp.checksum = add(sum, self.tcp_error);
                (tcp.to_bytes().to_vec(), sum)
            }
            Carried::Udp { summed } => {
                let mut udp = self.udp_header();
                let sum = udp
                    .calc_checksum_ipv4_raw(source, destination, &self.payload)
                    .expect(FITS);
                let sum = if summed { sum } else { 0 };
                udp.checksum = add(sum, self.tcp_error);
                (udp.to_bytes().to_vec(), sum)
            }
            Carried::Icmp(type_u8, code_u8, bytes5to8) => {
                let kind = Icmpv4Type::Unknown {
                    type_u8,
                    code_u8,
                    bytes5to8,
                };
                let sum = kind.calc_checksum(&self.payload);
                let icmp = Icmpv4Header {
                    icmp_type: kind,
                    checksum: add(sum, self.tcp_error),
                };
                (icmp.to_bytes().to_vec(), sum)
            }
        }
    }

    /// The IP header without its checksum.
    fn ip(&self) -> Ipv4Header {
        let protocol = match self.carried {
            Carried::Tcp => IpNumber::TCP,
            Carried::Udp { .. } => IpNumber::UDP,
            Carried::Icmp(..) => IpNumber::ICMP,
        };
        let length = self.carried().0.len() + self.payload.len() + self.trailer.len();
        let length = u16::try_from(length).expect("the segment fits an IP packet");
        let mut ip = Ipv4Header::new(
            length,
            self.ttl,
            protocol,
            self.source.0,
            self.destination.0,
        )
        .expect("the segment fits an IP packet");
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
        ip.more_fragments = self.more_fragments;
        ip.fragment_offset = IpFragOffset::try_new(self.fragment_offset).expect("13 bits");
        ip
    }

    /// IP header and everything behind it, bytes.
    pub fn total_length(&self) -> u16 {
        self.ip().total_len
    }

    /// The right checksums, of the IP header and behind it.
    pub fn checksums(&self) -> (u16, u16) {
        (self.ip().calc_header_checksum(), self.carried().1)
    }

    /// The frame as it is on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut ip = self.ip();
        ip.header_checksum = add(ip.calc_header_checksum(), self.ip_error);
        let ethernet = Ethernet2Header {
            destination: self.macs.0,
            source: self.macs.1,
            ether_type: EtherType::IPV4,
        };
        let mut bytes = ethernet.to_bytes().to_vec();
        bytes.extend_from_slice(&ip.to_bytes());
        bytes.extend_from_slice(&self.carried().0);
        bytes.extend_from_slice(&self.payload);
        bytes.extend_from_slice(&self.trailer);
        bytes.extend_from_slice(&self.padding);
        bytes
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
        let length = 14 + usize::from(self.total_length());
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
