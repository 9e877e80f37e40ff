//! The IPv4 header.

use super::{End, Fresh, Ip, Translation, at};
use aya_ebpf::programs::XdpContext;
use core::mem::offset_of;
use lb_common::{
    checksum::{Delta, Sum},
    reason::Reason,
};
use network_types::ip::Ipv4Hdr;

/// IPv4, see [`crate::family::Family`].
#[derive(Clone, Copy)]
pub(crate) struct V4;

/// More fragments, or a fragment offset (RFC 791, section 3.1).
const FRAGMENT_BITS: u16 = 0x3fff;

/// Reads the header at an offset of the frame.
///
/// # Errors
/// [`Reason::PassedMalformed`]: too short or broken for its addresses to mean
/// anything.
#[inline(always)]
pub(crate) fn parse(ctx: &XdpContext, offset: u32) -> Result<Ip<V4>, Reason> {
    let Some(ip) = at::<Ipv4Hdr>(ctx, offset as usize) else {
        return Err(Reason::PassedMalformed);
    };
    let version_and_length = field!(ip, Ipv4Hdr.vihl as u8);
    let header_length = (version_and_length as u32 & 0xf) * 4;
    if version_and_length >> 4 != 4 || header_length < Ipv4Hdr::LEN as u32 {
        return Err(Reason::PassedMalformed);
    }
    Ok(Ip {
        source: field!(ip, Ipv4Hdr.src_addr as u32),
        destination: field!(ip, Ipv4Hdr.dst_addr as u32),
        protocol: field!(ip, Ipv4Hdr.proto as u8),
        ttl: field!(ip, Ipv4Hdr.ttl as u8),
        tos: field!(ip, Ipv4Hdr.tos as u8),
        checksum: field!(ip, Ipv4Hdr.check as u16),
        offset,
        header_length,
        total_length: field!(ip, Ipv4Hdr.tot_len as u16) as u32,
        fragment: field!(ip, Ipv4Hdr.frags as u16) & FRAGMENT_BITS,
    })
}

/// The checksum of a header of ten words whose checksum is zero (RFC 791).
#[inline(always)]
pub(super) fn header_checksum(words: &[u16; 10]) -> u16 {
    let mut sum = 0u32;
    for word in words {
        sum += *word as u32;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Writes the fields of a translation.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn write(
    ctx: &XdpContext,
    ip: &Ip<V4>,
    translation: &Translation<V4>,
) -> Result<(), Reason> {
    let Some(header) = at::<Ipv4Hdr>(ctx, ip.offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    match translation.end {
        End::Source => put!(header, Ipv4Hdr.src_addr as u32, translation.address),
        End::Destination => put!(header, Ipv4Hdr.dst_addr as u32, translation.address),
    }
    if translation.both {
        let other = translation.other_address;
        match translation.end {
            End::Source => put!(header, Ipv4Hdr.dst_addr as u32, other),
            End::Destination => put!(header, Ipv4Hdr.src_addr as u32, other),
        }
    }
    put!(header, Ipv4Hdr.ttl as u8, translation.ttl);
    put!(header, Ipv4Hdr.check as u16, translation.ip_checksum);
    Ok(())
}

/// Exchanges the addresses of a packet that is answered, and gives it a fresh
/// time to live.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn answer(ctx: &XdpContext, ip: &Ip<V4>, ttl: u8) -> Result<(), Reason> {
    let Some(header) = at::<Ipv4Hdr>(ctx, ip.offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    put!(header, Ipv4Hdr.src_addr as u32, ip.destination);
    put!(header, Ipv4Hdr.dst_addr as u32, ip.source);
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let lived = Delta::new().word(word(ip.ttl), word(ttl));
    put!(header, Ipv4Hdr.ttl as u8, ttl);
    put!(header, Ipv4Hdr.check as u16, lived.apply(ip.checksum));
    Ok(())
}

/// Version 4, five words; the bit that forbids fragments.
const PLAIN: u16 = 0x4500;
const DONT_FRAGMENT: u16 = 0x4000;

/// Writes a header of our own. Its identification is 0: what is not fragmented
/// needs none (RFC 6864, section 4.1).
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn compose(ctx: &XdpContext, offset: u32, fresh: &Fresh<V4>) -> Result<(), Reason> {
    let Some(header) = at::<Ipv4Hdr>(ctx, offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    let length = Ipv4Hdr::LEN as u16 + fresh.payload as u16;
    let checksum = Sum::new()
        .word(PLAIN | fresh.tos as u16)
        .word(length)
        .word(DONT_FRAGMENT)
        .word((fresh.ttl as u16) << 8 | fresh.protocol as u16)
        .double(fresh.source)
        .double(fresh.destination)
        .checksum();
    put!(header, Ipv4Hdr.vihl as u8, (PLAIN >> 8) as u8);
    put!(header, Ipv4Hdr.tos as u8, fresh.tos);
    put!(header, Ipv4Hdr.tot_len as u16, length);
    put!(header, Ipv4Hdr.id as u16, 0);
    put!(header, Ipv4Hdr.frags as u16, DONT_FRAGMENT);
    put!(header, Ipv4Hdr.ttl as u8, fresh.ttl);
    put!(header, Ipv4Hdr.proto as u8, fresh.protocol);
    put!(header, Ipv4Hdr.check as u16, checksum);
    put!(header, Ipv4Hdr.src_addr as u32, fresh.source);
    put!(header, Ipv4Hdr.dst_addr as u32, fresh.destination);
    Ok(())
}

/// Writes an address at a place of the frame.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn put_address(ctx: &XdpContext, place: usize, address: u32) -> Result<(), Reason> {
    let Some(field) = at::<u32>(ctx, place) else {
        return Err(Reason::Internal);
    };
    // SAFETY: `at` proved that the address lies in the frame.
    unsafe { field.write_volatile(address.to_be()) };
    Ok(())
}

/// The identification of a fragment.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn identification(ctx: &XdpContext, ip: &Ip<V4>) -> Result<u32, Reason> {
    let Some(header) = at::<Ipv4Hdr>(ctx, ip.offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    Ok(field!(header, Ipv4Hdr.id as u16) as u32)
}
