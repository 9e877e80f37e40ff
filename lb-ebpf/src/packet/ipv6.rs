//! The IPv6 header and its extension headers.

use super::{End, Fresh, Ip, Translation, at};
use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use core::mem::offset_of;
use lb_common::reason::Reason;

/// IPv6, see [`crate::family::Family`].
#[derive(Clone, Copy)]
pub(crate) struct V6;

/// RFC 8200, section 3. Addresses are two halves each.
#[repr(C)]
struct Header {
    version_class_flow: [u8; 4],
    payload_length: [u8; 2],
    next: u8,
    hop_limit: u8,
    source: [[u8; 8]; 2],
    destination: [[u8; 8]; 2],
}

const HEADER: u32 = 40;

/// Extension headers (RFC 8200, section 4; RFC 4302).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// Most extension headers that are walked. RFC 8200, section 4.1, names seven
/// with the upper layer; a packet with more is malformed.
const MOST_EXTENSIONS: u32 = 6;
/// Fragment offset and "more fragments" (RFC 8200, section 4.5).
const FRAGMENT_BITS: u16 = 0xfff9;

/// Loads half an address as a number.
#[inline(always)]
fn half(header: *const Header, offset: usize) -> u64 {
    // SAFETY: `at` proved that the header lies in the frame.
    u64::from_be(unsafe {
        header
            .cast::<u8>()
            .add(offset)
            .cast::<u64>()
            .read_volatile()
    })
}

/// Stores half an address.
#[inline(always)]
fn put_half(header: *mut Header, offset: usize, value: u64) {
    // SAFETY: as in `half`.
    unsafe {
        header
            .cast::<u8>()
            .add(offset)
            .cast::<u64>()
            .write_volatile(value.to_be());
    }
}

/// Reads the header at an offset of the frame, and finds the transport header
/// behind its extension headers.
///
/// # Errors
/// [`Reason::PassedMalformed`]: too short or broken for its addresses to mean
/// anything.
#[inline(always)]
pub(crate) fn parse(ctx: &XdpContext, offset: u32) -> Result<Ip<V6>, Reason> {
    let Some(ip) = at::<Header>(ctx, offset as usize) else {
        return Err(Reason::PassedMalformed);
    };
    let word = field!(ip, Header.version_class_flow as u32);
    if word >> 28 != 6 {
        return Err(Reason::PassedMalformed);
    }
    const SOURCE: usize = offset_of!(Header, source);
    const DESTINATION: usize = offset_of!(Header, destination);
    let mut parsed = Ip {
        source: [half(ip, SOURCE), half(ip, SOURCE + 8)],
        destination: [half(ip, DESTINATION), half(ip, DESTINATION + 8)],
        protocol: field!(ip, Header.next as u8),
        ttl: field!(ip, Header.hop_limit as u8),
        tos: (word >> 20) as u8,
        checksum: 0,
        offset,
        header_length: HEADER,
        total_length: HEADER + field!(ip, Header.payload_length as u16) as u32,
        fragment: 0,
    };
    if is_extension(parsed.protocol) {
        let walked = steerline_extensions(ctx.ctx, offset, parsed.protocol as u32);
        if walked == 0 {
            return Err(Reason::PassedMalformed);
        }
        parsed.protocol = walked as u8;
        parsed.header_length = (walked >> 8) as u32 & super::LENGTH_MASK;
        parsed.fragment = (walked >> FRAGMENT_SHIFT) as u16;
    }
    Ok(parsed)
}

#[inline(always)]
pub(crate) const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS
    )
}

const FRAGMENT_SHIFT: u32 = 32;

/// Walks the extension headers: the upper protocol, the length of all headers
/// (from bit 8) and [`Ip::fragment`] (from bit 32); 0: malformed. Of a later
/// fragment the headers end with that of the fragment. A global function: the
/// verifier judges its loop once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_extensions(ctx: *mut xdp_md, offset: u32, first: u32) -> u64 {
    let ctx = &XdpContext::new(ctx);
    // That of a packet in an error lies behind another packet's headers.
    let offset = (offset & (2 * super::LENGTH_MASK + 1)) as usize;
    let mut next = first as u8;
    let mut length = HEADER;
    let mut fragment = 0;
    let mut later = false;
    for _ in 0..MOST_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let Some(header) = at::<[u8; 8]>(ctx, offset + (length & super::LENGTH_MASK) as usize)
        else {
            return 0;
        };
        // SAFETY: `at` proved that these bytes lie in the frame.
        let byte = |index: usize| unsafe { header.cast::<u8>().add(index).read_volatile() };
        let bytes = match next {
            FRAGMENT => {
                let bits = u16::from_be_bytes([byte(2), byte(3)]) & FRAGMENT_BITS;
                // A packet in one fragment is whole (RFC 6946).
                fragment = bits >> 3 | bits << 13;
                later = bits >> 3 != 0;
                8
            }
            // In words of four bytes, less two.
            AUTHENTICATION => (byte(1) as u32 + 2) * 4,
            // In words of eight bytes, less one.
            _ => (byte(1) as u32 + 1) * 8,
        };
        next = byte(0);
        length += bytes;
        if length > super::LENGTH_MASK - 64 {
            return 0;
        }
        if later {
            break;
        }
    }
    if is_extension(next) && !later {
        return 0;
    }
    (fragment as u64) << FRAGMENT_SHIFT | (length as u64) << 8 | next as u64
}

/// Writes the fields of a translation.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn write(
    ctx: &XdpContext,
    ip: &Ip<V6>,
    translation: &Translation<V6>,
) -> Result<(), Reason> {
    let Some(header) = at::<Header>(ctx, ip.offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    let place = match translation.end {
        End::Source => offset_of!(Header, source),
        End::Destination => offset_of!(Header, destination),
    };
    put_half(header, place, translation.address[0]);
    put_half(header, place + 8, translation.address[1]);
    if translation.both {
        let place = match translation.end {
            End::Source => offset_of!(Header, destination),
            End::Destination => offset_of!(Header, source),
        };
        put_half(header, place, translation.other_address[0]);
        put_half(header, place + 8, translation.other_address[1]);
    }
    put!(header, Header.hop_limit as u8, translation.ttl);
    Ok(())
}

/// Exchanges the addresses of a packet that is answered, and gives it a fresh
/// hop limit.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn answer(ctx: &XdpContext, ip: &Ip<V6>, hop_limit: u8) -> Result<(), Reason> {
    let Some(header) = at::<Header>(ctx, ip.offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    let (source, destination) = (offset_of!(Header, source), offset_of!(Header, destination));
    put_half(header, source, ip.destination[0]);
    put_half(header, source + 8, ip.destination[1]);
    put_half(header, destination, ip.source[0]);
    put_half(header, destination + 8, ip.source[1]);
    put!(header, Header.hop_limit as u8, hop_limit);
    Ok(())
}

/// Writes a header of our own, of flow label 0.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn compose(ctx: &XdpContext, offset: u32, fresh: &Fresh<V6>) -> Result<(), Reason> {
    let Some(header) = at::<Header>(ctx, offset as usize & 0x1f) else {
        return Err(Reason::Internal);
    };
    let (source, destination) = (offset_of!(Header, source), offset_of!(Header, destination));
    put!(
        header,
        Header.version_class_flow as u32,
        6 << 28 | (fresh.tos as u32) << 20
    );
    put!(header, Header.payload_length as u16, fresh.payload as u16);
    put!(header, Header.next as u8, fresh.protocol);
    put!(header, Header.hop_limit as u8, fresh.ttl);
    put_half(header, source, fresh.source[0]);
    put_half(header, source + 8, fresh.source[1]);
    put_half(header, destination, fresh.destination[0]);
    put_half(header, destination + 8, fresh.destination[1]);
    Ok(())
}

/// Writes an address at a place of the frame.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn put_address(ctx: &XdpContext, place: usize, address: [u64; 2]) -> Result<(), Reason> {
    let Some(field) = at::<[u64; 2]>(ctx, place) else {
        return Err(Reason::Internal);
    };
    // SAFETY: `at` proved that both halves lie in the frame.
    unsafe {
        field.cast::<u64>().write_volatile(address[0].to_be());
        field
            .cast::<u64>()
            .add(1)
            .write_volatile(address[1].to_be());
    }
    Ok(())
}

/// The identification of a fragment.
///
/// # Errors
/// As [`super::translate`].
#[inline(always)]
pub(crate) fn identification(ctx: &XdpContext, ip: &Ip<V6>) -> Result<u32, Reason> {
    match steerline_identification(ctx.ctx, ip.offset) {
        0 => Err(Reason::Malformed),
        found => Ok(found as u32),
    }
}

/// Walks to the fragment header: its identification, with bit 32; 0: there is none.
/// A global function: the verifier judges its loop once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_identification(ctx: *mut xdp_md, offset: u32) -> u64 {
    const FOUND: u64 = 1 << 32;
    let ctx = &XdpContext::new(ctx);
    let offset = offset as usize & 0x1f;
    let Some(ip) = at::<Header>(ctx, offset) else {
        return 0;
    };
    let mut next = field!(ip, Header.next as u8);
    let mut length = HEADER;
    for _ in 0..MOST_EXTENSIONS {
        let Some(header) = at::<[u8; 8]>(ctx, offset + (length & super::LENGTH_MASK) as usize)
        else {
            return 0;
        };
        // SAFETY: `at` proved that these bytes lie in the frame.
        let byte = |index: usize| unsafe { header.cast::<u8>().add(index).read_volatile() };
        length += match next {
            FRAGMENT => {
                let number = u32::from_be_bytes([byte(4), byte(5), byte(6), byte(7)]);
                return FOUND | number as u64;
            }
            AUTHENTICATION => (byte(1) as u32 + 2) * 4,
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => (byte(1) as u32 + 1) * 8,
            _ => return 0,
        };
        next = byte(0);
    }
    0
}
