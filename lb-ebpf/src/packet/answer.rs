//! Packets of our own: a frame is turned into the answer to itself, which goes
//! back out of the interface that it came in by, to the MAC address that it came
//! from. VLAN tags stay; IP options and extension headers do not.
//!
//! Unlike everything that is forwarded, answers are summed in full.

use super::{GROUP_BIT, Ip, Macs, TCP, Transport, address, at, bounds, mac_bytes, macs};
use crate::{family::Family, maps};
use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len},
    programs::XdpContext,
};
use lb_common::{checksum::Sum, reason::Reason, tcp::flags};
use network_types::tcp::TcpHdr;

/// Time to live of what we send ourselves (RFC 1700).
const FRESH_TTL: u8 = 64;
/// A TCP header without options, in words of four bytes and in bytes.
const TCP_WORDS: u32 = 5;
const TCP_HEADER: u32 = 20;
/// The bits of the type of service that are no congestion notification: what is
/// no data is not ECN-capable (RFC 3168, section 6.1.1).
const NO_ECN: u8 = 0xfc;

/// An IP header that we make: no options, not to be fragmented.
#[derive(Clone, Copy)]
pub(crate) struct Fresh<F: Family> {
    pub source: F::Address,
    pub destination: F::Address,
    pub protocol: u8,
    pub tos: u8,
    pub ttl: u8,
    /// Bytes behind the header.
    pub payload: u32,
}

impl<F: Family> Fresh<F> {
    /// The header of an answer to a packet.
    #[inline(always)]
    fn to(ip: &Ip<F>, source: F::Address, protocol: u8, payload: u32) -> Self {
        Self {
            source,
            destination: ip.source,
            protocol,
            tos: ip.tos & NO_ECN,
            ttl: FRESH_TTL,
            payload,
        }
    }

    /// The sum of the pseudo header (RFC 9293, section 3.1; RFC 8200, section
    /// 8.1: the words are other ones, their sum is the same).
    #[inline(always)]
    fn pseudo(&self) -> Sum {
        let sum = F::add(F::add(Sum::new(), self.source), self.destination);
        sum.word(self.protocol as u16).double(self.payload)
    }
}

/// The MAC addresses of an answer; none to what was sent to a group of stations.
///
/// # Errors
/// [`Reason::Malformed`]
#[inline(always)]
fn back(ctx: &XdpContext) -> Result<Macs, Reason> {
    let (source, destination) = macs(ctx);
    if (source | destination) & GROUP_BIT != 0 {
        return Err(Reason::Malformed);
    }
    Ok(Macs {
        destination: mac_bytes(source),
        source: mac_bytes(destination),
    })
}

/// Makes the frame `length` bytes long, which is no more than it has.
#[inline(always)]
fn shorten(ctx: &XdpContext, length: u32) -> Result<(), Reason> {
    // SAFETY: the context is valid.
    let has = unsafe { bpf_xdp_get_buff_len(ctx.ctx) } as u32;
    let by = length.wrapping_sub(has) as i32;
    // SAFETY: the same; no pointer into the packet is kept across the call.
    if by > 0 || by < 0 && unsafe { bpf_xdp_adjust_tail(ctx.ctx, by) } != 0 {
        return Err(Reason::Internal);
    }
    Ok(())
}

/// Turns a TCP segment into the reset that its sender believes: the numbers are
/// those of RFC 9293, section 3.10.7.1, made of the segment's own.
///
/// # Errors
/// [`Reason::Malformed`] for what is not answered: resets, frames to groups. The
/// frame is untouched then.
#[inline(always)]
pub(crate) fn reset<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    transport: &Transport,
) -> Result<(), Reason> {
    let macs = back(ctx)?;
    if transport.is_udp || transport.flags & flags::RST != 0 {
        return Err(Reason::Malformed);
    }
    shorten(ctx, (ip.offset & 0x1f) + F::HEADER + TCP_HEADER)?;
    address(ctx, &macs)?;
    let fresh = Fresh::to(ip, ip.destination, TCP, TCP_HEADER);
    F::compose(ctx, ip.offset, &fresh)?;

    let counted =
        (transport.flags & flags::SYN != 0) as u32 + (transport.flags & flags::FIN) as u32;
    let end = transport
        .sequence
        .wrapping_add(transport.payload)
        .wrapping_add(counted);
    let (sequence, acknowledgement, flags) = if transport.flags & flags::ACK != 0 {
        (transport.acknowledgement, 0, flags::RST)
    } else {
        (0, end, flags::RST | flags::ACK)
    };
    let ports = (transport.destination_port as u32) << 16 | transport.source_port as u32;
    // Data offset, flags, and a window of nothing.
    let rest = TCP_WORDS << 28 | (flags as u32) << 16;
    let checksum = fresh
        .pseudo()
        .double(ports)
        .double(sequence)
        .double(acknowledgement)
        .double(rest)
        .checksum();
    let offset = (ip.offset & 0x1f) as usize + F::HEADER as usize;
    let Some(tcp) = at::<TcpHdr>(ctx, offset) else {
        return Err(Reason::Internal);
    };
    let words = [
        ports,
        sequence,
        acknowledgement,
        rest,
        (checksum as u32) << 16,
    ];
    let mut place = tcp.cast::<u32>();
    for word in words {
        // SAFETY: `at` proved that the five words of the header lie in the frame.
        unsafe {
            place.write_volatile(word.to_be());
            place = place.add(1);
        }
    }
    Ok(())
}

/// An error about a packet.
#[derive(Clone, Copy)]
pub(crate) struct Fault<F: Family> {
    /// Who says so: an address of ours.
    pub source: F::Address,
    /// Type and code.
    pub kind: (u8, u8),
    /// The four bytes after the checksum.
    pub rest: u32,
}

/// The time to live ended here (RFC 792; RFC 4443, section 3.3).
#[inline(always)]
pub(crate) fn time_exceeded<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    source: F::Address,
) -> Result<(), Reason> {
    let fault = Fault {
        source,
        kind: F::TIME_EXCEEDED,
        rest: 0,
    };
    error(ctx, ip, &fault)
}

/// The packet is larger than `mtu` (RFC 1191, section 4; RFC 4443, section 3.2).
/// In IPv4 both words of the rest fit in one: the first is zero.
#[inline(always)]
pub(crate) fn too_big<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    source: F::Address,
    mtu: u32,
) -> Result<(), Reason> {
    let fault = Fault {
        source,
        kind: F::TOO_BIG,
        rest: if mtu < F::LEAST_MTU {
            F::LEAST_MTU
        } else {
            mtu
        },
    };
    error(ctx, ip, &fault)
}

/// Bytes of an ICMP header.
const ICMP_HEADER: u32 = 8;
/// Bytes of the transport header that an error must quote to be of use to a
/// host: ports and sequence number (RFC 792).
const LEAST_QUOTE: u32 = 8;

/// Turns a packet into an ICMP error about itself, which quotes as much of it as
/// the family's rules allow and as lies in the frame's linear part.
///
/// # Errors
/// [`Reason::Malformed`] for what is not answered (RFC 1122, section 3.2.2; RFC
/// 4443, section 2.4): frames to groups, sources that are no host. [`Reason::Internal`]:
/// no room in front of the frame.
#[inline(always)]
fn error<F: Family>(ctx: &XdpContext, ip: &Ip<F>, fault: &Fault<F>) -> Result<(), Reason> {
    let macs = back(ctx)?;
    if !F::is_host(ip.source) {
        return Err(Reason::Malformed);
    }
    let offset = ip.offset & 0x1f;
    let (start, end) = bounds(ctx);
    let linear = ((end - start) as u32).saturating_sub(offset);
    let mut quote = ip.total_length;
    if quote > F::MOST_QUOTED {
        quote = F::MOST_QUOTED;
    }
    if quote > linear {
        quote = linear;
    }
    if quote < ip.header_length + LEAST_QUOTE {
        return Err(Reason::Malformed);
    }
    shorten(ctx, offset + quote)?;
    let grown = F::HEADER + ICMP_HEADER;
    // SAFETY: the context is valid; no pointer into the packet is kept across the
    // call.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, -(grown as i32)) } != 0 {
        return Err(Reason::Internal);
    }
    move_tags(ctx, grown as usize, offset as usize)?;
    address(ctx, &macs)?;
    let fresh = Fresh::to(ip, fault.source, F::ICMP, ICMP_HEADER + quote);
    F::compose(ctx, offset, &fresh)?;

    let sum = if F::ICMP_PSEUDO {
        fresh.pseudo()
    } else {
        Sum::new()
    };
    let icmp = offset + F::HEADER;
    let quoted = steerline_sum(ctx.ctx, icmp + ICMP_HEADER, quote);
    let kind = (fault.kind.0 as u16) << 8 | fault.kind.1 as u16;
    let checksum = Sum::of(sum.words() + quoted)
        .word(kind)
        .double(fault.rest)
        .checksum();
    let Some(header) = at::<[u32; 2]>(ctx, icmp as usize) else {
        return Err(Reason::Internal);
    };
    let first = (kind as u32) << 16 | checksum as u32;
    // SAFETY: `at` proved that both words lie in the frame.
    unsafe {
        header.cast::<u32>().write_volatile(first.to_be());
        header
            .cast::<u32>()
            .add(1)
            .write_volatile(fault.rest.to_be());
    }
    Ok(())
}

/// Moves what is between the MAC addresses and the IP header, tags and type, to
/// the front of a frame that was made longer by `by` bytes there.
#[inline(always)]
fn move_tags(ctx: &XdpContext, by: usize, end: usize) -> Result<(), Reason> {
    // Two MAC addresses, then up to two tags and the type.
    for place in [12, 14, 16, 18, 20] {
        if place >= end {
            break;
        }
        let Some(word) = at::<u16>(ctx, by + place) else {
            return Err(Reason::Internal);
        };
        // SAFETY: `at` proved that the word lies in the frame.
        let word = unsafe { word.read_volatile() };
        let Some(moved) = at::<u16>(ctx, place) else {
            return Err(Reason::Internal);
        };
        // SAFETY: the same.
        unsafe { moved.write_volatile(word) };
    }
    Ok(())
}

/// Most words of eight bytes that are summed: an error quotes fewer.
const MOST_SUMMED: usize = 160;

/// Sums `length` bytes of the frame's linear part, eight or more, for
/// [`Sum::of`]. A global function: the verifier judges its loop once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_sum(ctx: *mut xdp_md, offset: u32, length: u32) -> u64 {
    let ctx = &XdpContext::new(ctx);
    let mut place = (offset & 0xff) as usize;
    let end = place + (length & 0x7ff) as usize;
    let mut sum = Sum::new();
    for _ in 0..MOST_SUMMED {
        if place + 8 > end {
            break;
        }
        let Some(word) = at::<u64>(ctx, place) else {
            break;
        };
        // SAFETY: `at` proved that the word lies in the frame.
        sum = sum.quad(u64::from_be(unsafe { word.read_volatile() }));
        place += 8;
    }
    let rest = (end - place) as u32 & 7;
    if rest != 0
        && end >= 8
        // Hidden, so that the place that is read is the one that was compared.
        && let Some(word) = at::<u64>(ctx, maps::opaque(end as u64 - 8) as usize & 0xfff)
    {
        // SAFETY: the same.
        let word = u64::from_be(unsafe { word.read_volatile() });
        // The last bytes of it, as the first of a word that ends in zeroes: so
        // RFC 1071 fills up an odd length.
        sum = sum.quad(word << (64 - 8 * rest));
    }
    sum.words()
}
