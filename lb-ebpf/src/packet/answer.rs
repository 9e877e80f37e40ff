//! Packets of our own: a frame is turned into the answer to itself, which goes
//! back out of the interface that it came in by, to the MAC address that it came
//! from. VLAN tags stay; IP options and extension headers do not.
//!
//! Unlike everything that is forwarded, answers are summed in full.

use super::{GROUP_BIT, Ip, Macs, TCP, Transport, address, at, mac_bytes, macs};
use crate::family::Family;
use aya_ebpf::{
    helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_get_buff_len},
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
            place.write_unaligned(word.to_be());
            place = place.add(1);
        }
    }
    Ok(())
}
