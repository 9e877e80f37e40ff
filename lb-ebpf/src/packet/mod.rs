//! Reading and writing packet bytes: the only files with packet pointers.
//!
//! Everything is copied into plain values before it is looked at, so that no
//! decision depends on a byte that could be read twice.

#[macro_use]
mod fields;
mod answer;
mod icmp;
mod ipv4;
mod ipv6;
mod tunnel;

pub(crate) use answer::{Fresh, reset, time_exceeded, too_big};
pub(crate) use icmp::{Inner, Quoted, echo, is_error, quoted, relay};
pub(crate) use ipv4::{
    V4, answer as answer4, compose as compose4, identification as identification4, parse as parse4,
    put_address as put_address4, write as write4,
};
pub(crate) use ipv6::{
    V6, answer as answer6, compose as compose6, identification as identification6, is_extension,
    parse as parse6, put_address as put_address6, write as write6,
};
pub(crate) use tunnel::{Outer, encapsulate, outer, overhead};

use crate::family::Family;
use aya_ebpf::{helpers::generated::bpf_xdp_get_buff_len, programs::XdpContext};
use core::mem::offset_of;
use lb_common::reason::Reason;
use network_types::{
    eth::EthHdr,
    tcp::{TCP_HDR_LEN, TcpHdr},
    udp::UdpHdr,
};

/// Protocol numbers of IP (IANA).
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tags of 802.1Q and 802.1ad: two bytes of tag, then the next type.
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
const VLAN_TAG: usize = 4;

/// What a frame carries.
#[derive(Clone, Copy)]
pub(crate) enum Carried {
    Ipv4,
    Ipv6,
}

/// What a frame carries, and where it begins: behind none, one or two VLAN tags.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub carried: Carried,
    pub offset: u32,
}

/// The IP header of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Ip<F: Family> {
    pub source: F::Address,
    pub destination: F::Address,
    /// Of the transport header.
    pub protocol: u8,
    /// Time to live, hop limit.
    pub ttl: u8,
    /// Type of service, traffic class.
    pub tos: u8,
    /// Zero in IPv6.
    pub checksum: u16,
    /// Where the header begins in the frame.
    pub offset: u32,
    /// With options or extension headers, bytes: 20 to 60, 40 to 2,048.
    pub header_length: u32,
    /// Header and payload, bytes.
    pub total_length: u32,
    /// Of a fragment: its offset in units of eight bytes, and [`MORE_FRAGMENTS`].
    /// Zero: the packet is whole.
    pub fragment: u16,
}

/// More fragments follow (RFC 791, section 3.1). The bits below are the offset.
pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;

impl<F: Family> Ip<F> {
    #[inline(always)]
    pub(crate) fn is_fragment(&self) -> bool {
        self.fragment != 0
    }

    /// Whether it is whole, or the fragment that has the transport header.
    #[inline(always)]
    pub(crate) fn is_first(&self) -> bool {
        self.fragment & (MORE_FRAGMENTS - 1) == 0
    }

    /// Where the transport header begins in the frame.
    #[inline(always)]
    fn transport_offset(&self) -> usize {
        // The masks are for the verifier.
        (self.offset & 0x1f) as usize + (self.header_length & LENGTH_MASK) as usize
    }
}

/// Longest headers of IP that are read, bytes less one.
const LENGTH_MASK: u32 = 0x7ff;

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

/// Reads the Ethernet header and up to two VLAN tags, which stay in the frame.
///
/// # Errors
/// The reason to pass the frame to the kernel: no IP, or too short.
#[inline(always)]
pub(crate) fn frame(ctx: &XdpContext) -> Result<Frame, Reason> {
    let Some(ethernet) = at::<EthHdr>(ctx, 0) else {
        return Err(Reason::PassedMalformed);
    };
    let mut kind = field!(ethernet, EthHdr.ether_type as u16);
    let mut offset = EthHdr::LEN;
    for _ in 0..2 {
        if kind != ETHERTYPE_VLAN && kind != ETHERTYPE_QINQ {
            break;
        }
        let Some(tag) = at::<[u16; 2]>(ctx, offset) else {
            return Err(Reason::PassedMalformed);
        };
        // SAFETY: `at` proved that the tag lies in the frame.
        kind = u16::from_be(unsafe { tag.cast::<u16>().add(1).read_volatile() });
        offset += VLAN_TAG;
    }
    let carried = match kind {
        ETHERTYPE_IPV4 => Carried::Ipv4,
        ETHERTYPE_IPV6 => Carried::Ipv6,
        _ => return Err(Reason::PassedNotIp),
    };
    Ok(Frame {
        carried,
        offset: offset as u32,
    })
}

/// Whether the frame has all bytes of its IP packet.
#[inline(always)]
fn is_whole<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> bool {
    let (start, end) = bounds(ctx);
    let mut frame = (end - start) as u64;
    let needed = ip.offset as u64 + ip.total_length as u64;
    if frame < needed {
        // Jumbo frames have more than their linear part.
        // SAFETY: the context is valid.
        frame = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    }
    frame >= needed
}

/// Reads the transport header behind an IP header that is not a later fragment's.
/// All of it must be in a first fragment: one that is shorter hides from filters
/// what it is (RFC 1858, section 3.2; RFC 7112).
///
/// # Errors
/// [`Reason::Malformed`]: the lengths contradict each other or the frame.
#[inline(always)]
pub(crate) fn transport<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> Result<Transport, Reason> {
    if ip.total_length < ip.header_length || !is_whole(ctx, ip) {
        return Err(Reason::Malformed);
    }
    let segment = ip.total_length - ip.header_length;
    let offset = ip.transport_offset();
    if ip.protocol == UDP {
        udp(ctx, offset, segment, ip.is_fragment())
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
fn udp(
    ctx: &XdpContext,
    offset: usize,
    segment: u32,
    is_fragment: bool,
) -> Result<Transport, Reason> {
    let Some(udp) = at::<UdpHdr>(ctx, offset) else {
        return Err(Reason::Malformed);
    };
    let length = field!(udp, UdpHdr.len as u16) as u32;
    if length < UdpHdr::LEN as u32 {
        return Err(Reason::Malformed);
    }
    if segment < length && (!is_fragment || segment < UdpHdr::LEN as u32) {
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

/// Largest payload of a packet (RFC 791, section 3.1).
const LARGEST: u32 = 0xffff;

/// Judges a later fragment.
///
/// # Errors
/// [`Reason::Malformed`]: its lengths contradict each other, the frame or what a
/// packet can be; or it begins inside the header of a segment, which only who
/// wants to overwrite it sends (RFC 1858, section 4).
#[inline(always)]
pub(crate) fn later<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> Result<(), Reason> {
    if ip.total_length <= ip.header_length || !is_whole(ctx, ip) {
        return Err(Reason::Malformed);
    }
    let offset = ip.fragment as u32 & (MORE_FRAGMENTS as u32 - 1);
    if offset * 8 + (ip.total_length - ip.header_length) > LARGEST
        || offset == 1 && ip.protocol == TCP
    {
        return Err(Reason::Malformed);
    }
    Ok(())
}

/// Writes what a translation changes in the IP header: all that a later fragment
/// has.
///
/// # Errors
/// As [`translate`].
#[inline(always)]
pub(crate) fn translate_addresses<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    translation: &Translation<F>,
) -> Result<(), Reason> {
    F::write(ctx, ip, translation)
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
pub(crate) struct Translation<F: Family> {
    pub end: End,
    pub address: F::Address,
    pub port: u16,
    /// The other end is rewritten too.
    pub both: bool,
    pub other_address: F::Address,
    pub other_port: u16,
    pub ttl: u8,
    /// Zero in IPv6.
    pub ip_checksum: u16,
    /// Of the transport header.
    pub checksum: u16,
    pub is_udp: bool,
}

/// MAC addresses of the frame's next hop, in the frame's order. Three words: bytes
/// one by one cost 9 ns (`cargo xtask bench packet`).
#[repr(C, align(4))]
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
pub(crate) fn translate<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    translation: &Translation<F>,
) -> Result<(), Reason> {
    let offset = ip.transport_offset();
    if translation.is_udp {
        let Some(udp) = at::<UdpHdr>(ctx, offset) else {
            return Err(Reason::Internal);
        };
        match translation.end {
            End::Source => put!(udp, UdpHdr.src as u16, translation.port),
            End::Destination => put!(udp, UdpHdr.dst as u16, translation.port),
        }
        if translation.both {
            match translation.end {
                End::Source => put!(udp, UdpHdr.dst as u16, translation.other_port),
                End::Destination => put!(udp, UdpHdr.src as u16, translation.other_port),
            }
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
        if translation.both {
            match translation.end {
                End::Source => put!(tcp, TcpHdr.dest as u16, translation.other_port),
                End::Destination => put!(tcp, TcpHdr.source as u16, translation.other_port),
            }
        }
        put!(tcp, TcpHdr.check as u16, translation.checksum);
    }
    F::write(ctx, ip, translation)
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
    // SAFETY: `at` proved that the header lies in the frame; `Macs` is three
    // words, and BPF stores need no alignment there.
    unsafe {
        let from = core::ptr::from_ref(macs).cast::<u32>();
        let to = ethernet.cast::<u32>();
        to.write_volatile(from.read());
        to.add(1).write_volatile(from.add(1).read());
        to.add(2).write_volatile(from.add(2).read());
    }
    Ok(())
}
