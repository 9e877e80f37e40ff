//! Reading and writing packet bytes: the only file with packet pointers.
//!
//! Everything is copied into plain values before it is looked at, so that no
//! decision depends on a byte that could be read twice.

use aya_ebpf::{helpers::generated::bpf_xdp_get_buff_len, programs::XdpContext};
use core::mem::offset_of;
use lb_common::{checksum::Delta, reason::Reason};
use network_types::{
    eth::EthHdr,
    ip::Ipv4Hdr,
    tcp::{TCP_HDR_LEN, TcpHdr},
    udp::UdpHdr,
};

/// Protocol numbers of IP (IANA).
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
const ETHERTYPE_IPV4: u16 = 0x0800;
/// More fragments, or a fragment offset (RFC 791, section 3.1).
const FRAGMENT_BITS: u16 = 0x3fff;

/// The IPv4 header of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Ipv4 {
    pub source: u32,
    pub destination: u32,
    pub protocol: u8,
    pub ttl: u8,
    pub tos: u8,
    pub checksum: u16,
    /// With options, bytes: 20 to 60.
    pub header_length: u32,
    /// Header and payload, bytes.
    pub total_length: u16,
    pub is_fragment: bool,
}

/// The TCP or UDP header of a frame. What UDP lacks is zero.
#[derive(Clone, Copy)]
pub(crate) struct Transport {
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub checksum: u16,
    /// Bytes after the header.
    pub payload: u32,
    pub is_udp: bool,
}

#[inline(always)]
fn bounds(ctx: &XdpContext) -> (usize, usize) {
    // SAFETY: the context is valid for the whole run. Volatile, so that the
    // compiler does not hoist the loads out of where the verifier knows that
    // they are packet pointers.
    unsafe {
        (
            (&raw const (*ctx.ctx).data).read_volatile() as usize,
            (&raw const (*ctx.ctx).data_end).read_volatile() as usize,
        )
    }
}

/// A pointer to a `T` at an offset, if all of it lies in the frame's linear
/// part.
#[inline(always)]
fn at<T>(ctx: &XdpContext, offset: usize) -> Option<*mut T> {
    let (start, end) = bounds(ctx);
    let place = start + offset;
    if place + size_of::<T>() > end {
        return None;
    }
    Some(place as *mut T)
}

/// Loads a network-order field. BPF loads need no alignment on the machines
/// that Steerline runs on (`CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`).
macro_rules! field {
    ($header:expr, $type:ident . $field:ident as u16) => {
        // SAFETY: `at` proved that the header lies in the frame.
        u16::from_be(unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<u16>()
                .read_volatile()
        })
    };
    ($header:expr, $type:ident . $field:ident as u32) => {
        // SAFETY: as above.
        u32::from_be(unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<u32>()
                .read_volatile()
        })
    };
    ($header:expr, $type:ident . $field:ident as u8) => {
        // SAFETY: as above.
        unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .read_volatile()
        }
    };
}

/// Stores a network-order field.
macro_rules! put {
    ($header:expr, $type:ident . $field:ident as $int:ident, $value:expr) => {
        // SAFETY: `at` proved that the header lies in the frame.
        unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<$int>()
                .write_volatile(<$int>::to_be($value))
        }
    };
}

/// Reads the Ethernet and IPv4 headers.
///
/// # Errors
/// The reason to pass the frame to the kernel: it is not IPv4, or too short or
/// broken for its addresses to mean anything.
#[inline(always)]
pub(crate) fn ipv4(ctx: &XdpContext) -> Result<Ipv4, Reason> {
    let Some(ethernet) = at::<EthHdr>(ctx, 0) else {
        return Err(Reason::PassedMalformed);
    };
    if field!(ethernet, EthHdr.ether_type as u16) != ETHERTYPE_IPV4 {
        return Err(Reason::PassedNotIpv4);
    }
    let Some(ip) = at::<Ipv4Hdr>(ctx, EthHdr::LEN) else {
        return Err(Reason::PassedMalformed);
    };
    let version_and_length = field!(ip, Ipv4Hdr.vihl as u8);
    let header_length = (version_and_length as u32 & 0xf) * 4;
    if version_and_length >> 4 != 4 || header_length < Ipv4Hdr::LEN as u32 {
        return Err(Reason::PassedMalformed);
    }
    Ok(Ipv4 {
        source: field!(ip, Ipv4Hdr.src_addr as u32),
        destination: field!(ip, Ipv4Hdr.dst_addr as u32),
        protocol: field!(ip, Ipv4Hdr.proto as u8),
        ttl: field!(ip, Ipv4Hdr.ttl as u8),
        tos: field!(ip, Ipv4Hdr.tos as u8),
        checksum: field!(ip, Ipv4Hdr.check as u16),
        header_length,
        total_length: field!(ip, Ipv4Hdr.tot_len as u16),
        is_fragment: field!(ip, Ipv4Hdr.frags as u16) & FRAGMENT_BITS != 0,
    })
}

/// Whether the frame has all bytes of its IP packet.
#[inline(always)]
fn is_whole(ctx: &XdpContext, ip: &Ipv4) -> bool {
    let (start, end) = bounds(ctx);
    let mut frame = (end - start) as u64;
    if frame < EthHdr::LEN as u64 + ip.total_length as u64 {
        // Jumbo frames have more than their linear part.
        // SAFETY: the context is valid.
        frame = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    }
    frame >= EthHdr::LEN as u64 + ip.total_length as u64
}

/// Reads the transport header behind an IPv4 header that is not a fragment's.
///
/// # Errors
/// [`Reason::Malformed`]: the lengths contradict each other or the frame.
#[inline(always)]
pub(crate) fn transport(ctx: &XdpContext, ip: &Ipv4) -> Result<Transport, Reason> {
    if (ip.total_length as u32) < ip.header_length || !is_whole(ctx, ip) {
        return Err(Reason::Malformed);
    }
    let segment = ip.total_length as u32 - ip.header_length;
    let offset = EthHdr::LEN + (ip.header_length as usize & 0x3c);
    if ip.protocol == UDP {
        udp(ctx, offset, segment)
    } else {
        tcp(ctx, offset, segment)
    }
}

#[inline(always)]
fn tcp(ctx: &XdpContext, offset: usize, segment: u32) -> Result<Transport, Reason> {
    let Some(tcp) = at::<TcpHdr>(ctx, offset) else {
        return Err(Reason::Malformed);
    };
    // SAFETY: bytes 12 and 13 of the header that `at` proved.
    let (length, flags) = unsafe {
        let bytes = tcp.cast::<u8>();
        (
            (bytes.add(12).read_volatile() as u32 >> 4) * 4,
            bytes.add(13).read_volatile(),
        )
    };
    if length < TCP_HDR_LEN as u32 || segment < length {
        return Err(Reason::Malformed);
    }
    Ok(Transport {
        source_port: field!(tcp, TcpHdr.source as u16),
        destination_port: field!(tcp, TcpHdr.dest as u16),
        sequence: field!(tcp, TcpHdr.seq as u32),
        acknowledgement: field!(tcp, TcpHdr.ack_seq as u32),
        flags,
        checksum: field!(tcp, TcpHdr.check as u16),
        payload: segment - length,
        is_udp: false,
    })
}

#[inline(always)]
fn udp(ctx: &XdpContext, offset: usize, segment: u32) -> Result<Transport, Reason> {
    let Some(udp) = at::<UdpHdr>(ctx, offset) else {
        return Err(Reason::Malformed);
    };
    let length = field!(udp, UdpHdr.len as u16) as u32;
    if length < UdpHdr::LEN as u32 || segment < length {
        return Err(Reason::Malformed);
    }
    Ok(Transport {
        source_port: field!(udp, UdpHdr.src as u16),
        destination_port: field!(udp, UdpHdr.dst as u16),
        sequence: 0,
        acknowledgement: 0,
        flags: 0,
        checksum: field!(udp, UdpHdr.check as u16),
        payload: length - UdpHdr::LEN as u32,
        is_udp: true,
    })
}

/// Set in MAC addresses of groups, as a number.
pub(crate) const GROUP_BIT: u64 = 1 << 40;

/// The frame's source and destination MAC addresses, as numbers.
#[inline(always)]
pub(crate) fn macs(ctx: &XdpContext) -> (u64, u64) {
    let Some(ethernet) = at::<EthHdr>(ctx, 0) else {
        return (0, 0);
    };
    // SAFETY: `at` proved that the header lies in the frame.
    let (destination, source) = unsafe {
        (
            (&raw const (*ethernet).dst_addr).read(),
            (&raw const (*ethernet).src_addr).read(),
        )
    };
    (mac_number(source), mac_number(destination))
}

#[inline(always)]
fn mac_number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The MAC address of a number.
#[inline(always)]
pub(crate) fn mac_bytes(number: u64) -> [u8; 6] {
    let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
    [a, b, c, d, e, f]
}

/// Which end of a packet is rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// New header fields, computed by the rewrite stage.
#[derive(Clone, Copy)]
pub(crate) struct Translation {
    pub end: End,
    pub address: u32,
    pub port: u16,
    pub ttl: u8,
    pub ip_checksum: u16,
    /// Of the transport header.
    pub checksum: u16,
    pub is_udp: bool,
}

/// MAC addresses of the frame's next hop.
#[derive(Clone, Copy)]
pub(crate) struct Macs {
    pub destination: [u8; 6],
    pub source: [u8; 6],
}

/// Writes a translation. `ip` is the header as read from this frame.
///
/// # Errors
/// [`Reason::Internal`] if the headers that were read are not there any more.
#[inline(always)]
pub(crate) fn translate(
    ctx: &XdpContext,
    ip: &Ipv4,
    translation: &Translation,
) -> Result<(), Reason> {
    let offset = EthHdr::LEN + (ip.header_length as usize & 0x3c);
    if translation.is_udp {
        let Some(udp) = at::<UdpHdr>(ctx, offset) else {
            return Err(Reason::Internal);
        };
        match translation.end {
            End::Source => put!(udp, UdpHdr.src as u16, translation.port),
            End::Destination => put!(udp, UdpHdr.dst as u16, translation.port),
        }
        put!(udp, UdpHdr.check as u16, translation.checksum);
    } else {
        let Some(tcp) = at::<TcpHdr>(ctx, offset) else {
            return Err(Reason::Internal);
        };
        match translation.end {
            End::Source => put!(tcp, TcpHdr.source as u16, translation.port),
            End::Destination => put!(tcp, TcpHdr.dest as u16, translation.port),
        }
        put!(tcp, TcpHdr.check as u16, translation.checksum);
    }
    let Some(header) = at::<Ipv4Hdr>(ctx, EthHdr::LEN) else {
        return Err(Reason::Internal);
    };
    match translation.end {
        End::Source => put!(header, Ipv4Hdr.src_addr as u32, translation.address),
        End::Destination => put!(header, Ipv4Hdr.dst_addr as u32, translation.address),
    }
    put!(header, Ipv4Hdr.ttl as u8, translation.ttl);
    put!(header, Ipv4Hdr.check as u16, translation.ip_checksum);
    Ok(())
}

/// Writes the MAC addresses of the next hop.
///
/// # Errors
/// As [`translate`].
#[inline(always)]
pub(crate) fn address(ctx: &XdpContext, macs: &Macs) -> Result<(), Reason> {
    let Some(ethernet) = at::<EthHdr>(ctx, 0) else {
        return Err(Reason::Internal);
    };
    // SAFETY: `at` proved that the header lies in the frame; byte arrays have no
    // alignment.
    unsafe {
        (&raw mut (*ethernet).dst_addr).write(macs.destination);
        (&raw mut (*ethernet).src_addr).write(macs.source);
    }
    Ok(())
}

/// Turns an ICMP echo request into its reply, in place. False if the packet is
/// another one, or cut short, or was sent to a group of stations.
#[inline(always)]
pub(crate) fn echo(ctx: &XdpContext, ip: &Ipv4) -> bool {
    let (source, destination) = macs(ctx);
    if (ip.total_length as u32) < ip.header_length + ECHO_HEADER
        || !is_whole(ctx, ip)
        || destination & GROUP_BIT != 0
    {
        return false;
    }
    let offset = EthHdr::LEN + (ip.header_length as usize & 0x3c);
    let Some(icmp) = at::<IcmpHeader>(ctx, offset) else {
        return false;
    };
    let kind = field!(icmp, IcmpHeader.kind as u8);
    if kind != ECHO_REQUEST || field!(icmp, IcmpHeader.code as u8) != 0 {
        return false;
    }
    let checksum = field!(icmp, IcmpHeader.checksum as u16);
    let word = |kind: u8| (kind as u16) << 8;
    let changed = Delta::new().word(word(ECHO_REQUEST), word(ECHO_REPLY));
    put!(icmp, IcmpHeader.kind as u8, ECHO_REPLY);
    put!(icmp, IcmpHeader.checksum as u16, changed.apply(checksum));
    let Some(header) = at::<Ipv4Hdr>(ctx, EthHdr::LEN) else {
        return false;
    };
    // Exchanging the addresses leaves their sum as it is.
    put!(header, Ipv4Hdr.src_addr as u32, ip.destination);
    put!(header, Ipv4Hdr.dst_addr as u32, ip.source);
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let lived = Delta::new().word(word(ip.ttl), word(FRESH_TTL));
    put!(header, Ipv4Hdr.ttl as u8, FRESH_TTL);
    put!(header, Ipv4Hdr.check as u16, lived.apply(ip.checksum));
    let macs = Macs {
        destination: mac_bytes(source),
        source: mac_bytes(destination),
    };
    address(ctx, &macs).is_ok()
}

/// The first four bytes of an ICMP header (RFC 792).
#[repr(C)]
struct IcmpHeader {
    kind: u8,
    code: u8,
    checksum: [u8; 2],
}

/// Bytes of the header of an echo: identifier and sequence number follow.
const ECHO_HEADER: u32 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// Time to live of what we send ourselves (RFC 1700).
const FRESH_TTL: u8 = 64;
