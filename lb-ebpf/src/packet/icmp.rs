//! ICMP messages: answering pings, and errors about packets of flows.

use super::{
    End, GROUP_BIT, Ip, LENGTH_MASK, Macs, TCP, Translation, UDP, address, at, is_whole, mac_bytes,
    macs,
};
use crate::family::Family;
use aya_ebpf::programs::XdpContext;
use core::mem::offset_of;
use lb_common::{checksum::Delta, reason::Reason};
use network_types::{tcp::TcpHdr, udp::UdpHdr};

/// The first four bytes of an ICMP header (RFC 792, RFC 4443).
#[repr(C)]
struct Header {
    kind: u8,
    code: u8,
    checksum: [u8; 2],
}

/// Bytes of the header of an echo: identifier and sequence number follow.
const ECHO_HEADER: u32 = 8;
/// Time to live of what we send ourselves (RFC 1700).
const FRESH_TTL: u8 = 64;

/// Turns an ICMP echo request into its reply, in place. False if the packet is
/// another one, or cut short, or was sent to a group of stations.
#[inline(always)]
pub(crate) fn echo<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> bool {
    let (source, destination) = macs(ctx);
    if ip.total_length < ip.header_length + ECHO_HEADER
        || !is_whole(ctx, ip)
        || destination & GROUP_BIT != 0
    {
        return false;
    }
    let Some(icmp) = at::<Header>(ctx, ip.transport_offset()) else {
        return false;
    };
    let kind = field!(icmp, Header.kind as u8);
    if kind != F::ECHO_REQUEST || field!(icmp, Header.code as u8) != 0 {
        return false;
    }
    let checksum = field!(icmp, Header.checksum as u16);
    let word = |kind: u8| (kind as u16) << 8;
    let changed = Delta::new().word(word(F::ECHO_REQUEST), word(F::ECHO_REPLY));
    put!(icmp, Header.kind as u8, F::ECHO_REPLY);
    put!(icmp, Header.checksum as u16, changed.apply(checksum));
    // Exchanging the addresses leaves their sum as it is.
    if F::answer(ctx, ip, FRESH_TTL).is_err() {
        return false;
    }
    let macs = Macs {
        destination: mac_bytes(source),
        source: mac_bytes(destination),
    };
    address(ctx, &macs).is_ok()
}

/// Type and code of a message, if it tells of an error.
#[inline(always)]
pub(crate) fn is_error<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> Option<(u8, u8)> {
    let icmp = at::<Header>(ctx, ip.transport_offset())?;
    let kind = field!(icmp, Header.kind as u8);
    F::is_error(kind).then_some((kind, field!(icmp, Header.code as u8)))
}

/// The packet that an error is about, as far as it is quoted.
#[derive(Clone, Copy)]
pub(crate) struct Quoted<F: Family> {
    /// Its IP header; `offset` is in the frame of the error.
    pub ip: Ip<F>,
    pub source_port: u16,
    pub destination_port: u16,
    /// Zero in UDP.
    pub sequence: u32,
    /// Of its transport header, if that much is quoted.
    checksum: u16,
    has_checksum: bool,
    /// Of the error.
    icmp_checksum: u16,
}

/// Bytes of a transport header that every error quotes (RFC 792).
const LEAST_QUOTE: u32 = 8;
/// Bytes of a TCP header up to the end of its checksum.
const TO_CHECKSUM: u32 = 18;

/// What an error quotes: a packet of TCP or UDP with its ports.
///
/// # Errors
/// [`Reason::PassedIcmp`]: anything else, or less.
#[inline(always)]
pub(crate) fn quoted<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> Result<Quoted<F>, Reason> {
    let none = Reason::PassedIcmp;
    let start = ip.header_length + ECHO_HEADER;
    if ip.total_length < start || !is_whole(ctx, ip) {
        return Err(none);
    }
    let Some(icmp) = at::<Header>(ctx, ip.transport_offset()) else {
        return Err(none);
    };
    let icmp_checksum = field!(icmp, Header.checksum as u16);
    let offset = ip.transport_offset() as u32 + ECHO_HEADER;
    let Ok(inner) = F::parse(ctx, offset) else {
        return Err(none);
    };
    let Some(length) = (ip.total_length - start).checked_sub(inner.header_length) else {
        return Err(none);
    };
    if length < LEAST_QUOTE || !inner.is_first() {
        return Err(none);
    }
    let transport = inner_transport(&inner);
    if inner.protocol == UDP {
        let Some(udp) = at::<UdpHdr>(ctx, transport) else {
            return Err(none);
        };
        return Ok(Quoted {
            ip: inner,
            source_port: field!(udp, UdpHdr.src as u16),
            destination_port: field!(udp, UdpHdr.dst as u16),
            sequence: 0,
            checksum: field!(udp, UdpHdr.check as u16),
            has_checksum: true,
            icmp_checksum,
        });
    }
    if inner.protocol != TCP {
        return Err(none);
    }
    let Some(tcp) = at::<[u8; LEAST_QUOTE as usize]>(ctx, transport) else {
        return Err(none);
    };
    let mut quoted = Quoted {
        ip: inner,
        source_port: field!(tcp, TcpHdr.source as u16),
        destination_port: field!(tcp, TcpHdr.dest as u16),
        sequence: field!(tcp, TcpHdr.seq as u32),
        checksum: 0,
        has_checksum: false,
        icmp_checksum,
    };
    if length >= TO_CHECKSUM {
        let Some(tcp) = at::<[u8; TO_CHECKSUM as usize]>(ctx, transport) else {
            return Err(none);
        };
        quoted.checksum = field!(tcp, TcpHdr.check as u16);
        quoted.has_checksum = true;
    }
    Ok(quoted)
}

/// Where the transport header of a quoted packet begins in the frame.
#[inline(always)]
fn inner_transport<F: Family>(inner: &Ip<F>) -> usize {
    // The masks are for the verifier.
    (inner.offset & (2 * LENGTH_MASK + 1)) as usize + (inner.header_length & LENGTH_MASK) as usize
}

/// What becomes of the ends of a quoted packet that we had translated.
#[derive(Clone, Copy)]
pub(crate) struct Inner<F: Family> {
    /// The end that is the server's or the virtual address.
    pub end: End,
    pub address: F::Address,
    pub port: u16,
    /// Whether the client's end changes too.
    pub both: bool,
    pub other_address: F::Address,
    pub other_port: u16,
}

/// Translates an error and the packet that it quotes: `inner` in there, and in the
/// error's own header alike: it is for whoever sent that packet, or as from whom
/// that packet was for.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn relay<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    quoted: &Quoted<F>,
    inner: &Inner<F>,
) -> Result<(), Reason> {
    let source = (quoted.ip.source, quoted.source_port, F::SOURCE_AT, 0);
    let destination = (
        quoted.ip.destination,
        quoted.destination_port,
        F::DESTINATION_AT,
        2,
    );
    let (old, other) = match inner.end {
        End::Source => (source, destination),
        End::Destination => (destination, source),
    };
    let start = (quoted.ip.offset & (2 * LENGTH_MASK + 1)) as usize;
    let transport = inner_transport(&quoted.ip);
    let mut moved = F::moved(Delta::new(), old.0, inner.address);
    let mut ports = Delta::new().word(old.1, inner.port);
    F::put_address(ctx, start + old.2, inner.address)?;
    put_word(ctx, transport + old.3, inner.port)?;
    if inner.both {
        moved = F::moved(moved, other.0, inner.other_address);
        ports = ports.word(other.1, inner.other_port);
        F::put_address(ctx, start + other.2, inner.other_address)?;
        put_word(ctx, transport + other.3, inner.other_port)?;
    }
    let shown = moved.and(ports);
    let mut icmp = shown;
    if F::HEADER_CHECKSUM {
        const CHECKSUM_AT: usize = 10;
        let checksum = moved.apply(quoted.ip.checksum);
        icmp = icmp.word(quoted.ip.checksum, checksum);
        put_word(ctx, start + CHECKSUM_AT, checksum)?;
    }
    if quoted.has_checksum {
        let (at, checksum) = if quoted.ip.protocol == UDP {
            (6, shown.apply_udp(quoted.checksum))
        } else {
            (16, shown.apply(quoted.checksum))
        };
        icmp = icmp.word(quoted.checksum, checksum);
        put_word(ctx, transport + at, checksum)?;
    }

    let (end, former, former_other) = match inner.end {
        End::Source => (End::Destination, ip.destination, ip.source),
        End::Destination => (End::Source, ip.source, ip.destination),
    };
    // An error to a server says who sent it; one to a client must find the client.
    let both = inner.both && matches!(inner.end, End::Destination);
    let mut outer = F::moved(Delta::new(), former, inner.address);
    if both {
        outer = F::moved(outer, former_other, inner.other_address);
    }
    if F::ICMP_PSEUDO {
        icmp = icmp.and(outer);
    }
    put_word(
        ctx,
        ip.transport_offset() + 2,
        icmp.apply(quoted.icmp_checksum),
    )?;
    let ttl = ip.ttl.wrapping_sub(1);
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let translation = Translation {
        end,
        address: inner.address,
        port: 0,
        both,
        other_address: inner.other_address,
        other_port: 0,
        ttl,
        ip_checksum: if F::HEADER_CHECKSUM {
            outer.word(word(ip.ttl), word(ttl)).apply(ip.checksum)
        } else {
            0
        },
        checksum: 0,
        is_udp: false,
    };
    F::write(ctx, ip, &translation)
}

/// Writes a word at a place of the frame.
#[inline(always)]
fn put_word(ctx: &XdpContext, place: usize, word: u16) -> Result<(), Reason> {
    let Some(field) = at::<u16>(ctx, place) else {
        return Err(Reason::Internal);
    };
    // SAFETY: `at` proved that the word lies in the frame.
    unsafe { field.write_volatile(word.to_be()) };
    Ok(())
}
