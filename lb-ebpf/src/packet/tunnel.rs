//! Putting a packet into another one, to a server that takes it out again.

use super::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Family, Ip, Macs, UDP, VLAN_TAG, at, ipv4::header_checksum,
};
use aya_ebpf::{bindings::xdp_md, helpers::generated::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    abi::{Backend, forwarding, halves6},
    reason::Reason,
};
use network_types::eth::EthHdr;

/// Protocol numbers of what an IP packet carries: IPv4 (RFC 2003), IPv6 (RFC
/// 2473, RFC 4213).
const CARRIES_IPV4: u8 = 4;
const CARRIES_IPV6: u8 = 41;

const IPV4_HEADER: u32 = 20;
const IPV6_HEADER: u32 = 40;
/// UDP and the four bytes of GUE: variant, control bit and header length, all
/// zero; the protocol; no flags.
const GUE_HEADER: u32 = 12;

/// What a packet is put into. Kept in the scratch space, all fields written.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Outer {
    source: [u64; 2],
    destination: [u64; 2],
    macs: Macs,
    /// 4 or 6.
    family: u8,
    /// 4 or 6, of the packet inside.
    inner_family: u8,
    /// Copied outwards: DSCP and ECN alike (RFC 6040, section 4.1, normal mode;
    /// RFC 2983's uniform model).
    tos: u8,
    is_gue: u8,
    /// Of the outer UDP header.
    source_port: u16,
    port: u16,
    /// Where the packet begins in the frame.
    offset: u32,
    /// Bytes of the packet.
    length: u32,
    /// The IPv6 flow label: 20 bits (RFC 6438).
    label: u32,
}

/// Bytes that a backend's tunnel adds to a packet.
#[inline(always)]
pub(crate) fn overhead(backend: &Backend) -> u32 {
    let ip = if backend.family == 6 {
        IPV6_HEADER
    } else {
        IPV4_HEADER
    };
    match backend.forwarding {
        forwarding::IPIP => ip,
        forwarding::GUE => ip + GUE_HEADER,
        _ => 0,
    }
}

/// GUE's source port says which flow it is and nothing else: one of the upper
/// quarter (the dynamic ports of RFC 6335).
const FLOW_PORTS: u16 = 0xc000;

/// The packet around one of a flow. `hash`: the flow's, any bits.
#[inline(always)]
pub(crate) fn outer<F: Family>(
    outer: &mut Outer,
    backend: &Backend,
    ip: &Ip<F>,
    hash: u64,
    macs: &Macs,
) {
    // `Backend::tunnel_spread` is at most 16; the mask is for the compiler.
    let low = hash & ((1u64 << (backend.tunnel_spread & 31)) - 1);
    let source = halves6(backend.tunnel_source);
    outer.source = if backend.family == 6 {
        [source[0], source[1] | low]
    } else {
        [source[0] | low << 32, 0]
    };
    outer.destination = halves6(backend.address);
    outer.macs = *macs;
    outer.family = backend.family;
    outer.inner_family = F::NUMBER;
    outer.tos = ip.tos;
    outer.is_gue = (backend.forwarding == forwarding::GUE) as u8;
    outer.source_port = FLOW_PORTS | (hash >> 16) as u16;
    outer.port = backend.tunnel_port;
    outer.offset = ip.offset;
    outer.length = ip.total_length;
    outer.label = (hash >> 32) as u32 & 0xf_ffff;
}

/// Done, or the number of a reason.
const DONE: u32 = u32::MAX;

/// Puts a frame's packet into the one described, tags kept.
///
/// # Errors
/// [`Reason::NoHeadroom`]; [`Reason::TooBig`] past 65,535 bytes.
#[inline(always)]
pub(crate) fn encapsulate(ctx: &XdpContext) -> Result<(), Reason> {
    match steerline_encapsulate(ctx.ctx) {
        DONE => Ok(()),
        NO_HEADROOM => Err(Reason::NoHeadroom),
        TOO_BIG => Err(Reason::TooBig),
        _ => Err(Reason::Internal),
    }
}

const NO_HEADROOM: u32 = Reason::NoHeadroom as u32;
const TOO_BIG: u32 = Reason::TooBig as u32;
const INTERNAL: u32 = Reason::Internal as u32;

/// A global function: the verifier judges it once. `Outer` is in the scratch
/// space.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_encapsulate(ctx: *mut xdp_md) -> u32 {
    let ctx = &XdpContext::new(ctx);
    let Some(scratch) = crate::maps::scratch() else {
        return INTERNAL;
    };
    let outer = &scratch.outer;
    // Tags are between the addresses and the type: up to two words.
    let tags = (outer.offset - EthHdr::LEN as u32) / VLAN_TAG as u32;
    let (mut first, mut second) = (0, 0);
    if tags >= 1 {
        let Some(tag) = at::<u32>(ctx, TYPE) else {
            return INTERNAL;
        };
        // SAFETY: `at` proved that the tag lies in the frame.
        first = unsafe { tag.read_volatile() };
    }
    if tags >= 2 {
        let Some(tag) = at::<u32>(ctx, TYPE + VLAN_TAG) else {
            return INTERNAL;
        };
        // SAFETY: as above.
        second = unsafe { tag.read_volatile() };
    }
    let ip_header = if outer.family == 6 {
        IPV6_HEADER
    } else {
        IPV4_HEADER
    };
    let gue = if outer.is_gue != 0 { GUE_HEADER } else { 0 };
    let total = outer.length + ip_header + gue;
    if total > 0xffff {
        return TOO_BIG;
    }
    // SAFETY: the context is valid; no packet pointer is used afterwards.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, -((ip_header + gue) as i32)) } != 0 {
        return NO_HEADROOM;
    }
    if !link(ctx, outer, tags, first, second) {
        return INTERNAL;
    }
    let offset = outer.offset as usize & 0x1f;
    let carried = if outer.inner_family == 6 {
        CARRIES_IPV6
    } else {
        CARRIES_IPV4
    };
    let protocol = if gue != 0 { UDP } else { carried };
    let written = if outer.family == 6 {
        ipv6(ctx, outer, offset, total - IPV6_HEADER, protocol)
    } else {
        ipv4(ctx, outer, offset, total, protocol)
    };
    if !written {
        return INTERNAL;
    }
    if gue != 0 {
        let offset = offset + ip_header as usize;
        let Some(header) = at::<[u16; 6]>(ctx, offset) else {
            return INTERNAL;
        };
        let length = (outer.length + GUE_HEADER) as u16;
        // No checksum: the packet inside has its own (RFC 6935, RFC 6936).
        let words = [outer.source_port, outer.port, length, 0, carried as u16, 0];
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: `at` proved that the header lies in the frame.
            unsafe { header.cast::<u16>().add(index).write_volatile(word.to_be()) };
        }
    }
    DONE
}

/// Where the type, or the first tag, of a frame is.
const TYPE: usize = 12;

#[inline(always)]
fn link(ctx: &XdpContext, outer: &Outer, tags: u32, first: u32, second: u32) -> bool {
    if super::address(ctx, &outer.macs).is_err() {
        return false;
    }
    let mut place = TYPE;
    if tags >= 1 {
        let Some(tag) = at::<u32>(ctx, TYPE) else {
            return false;
        };
        // SAFETY: `at` proved that these bytes lie in the frame.
        unsafe { tag.write_volatile(first) };
        place += VLAN_TAG;
    }
    if tags >= 2 {
        let Some(tag) = at::<u32>(ctx, TYPE + VLAN_TAG) else {
            return false;
        };
        // SAFETY: as above.
        unsafe { tag.write_volatile(second) };
        place += VLAN_TAG;
    }
    let Some(kind) = at::<u16>(ctx, place) else {
        return false;
    };
    let number = if outer.family == 6 {
        ETHERTYPE_IPV6
    } else {
        ETHERTYPE_IPV4
    };
    // SAFETY: as above.
    unsafe { kind.write_volatile(number.to_be()) };
    true
}

/// Time to live of the outer packet (RFC 1700).
const TTL: u8 = 64;
/// Version 4, five words.
const VERSION_AND_LENGTH: u16 = 0x4500;
/// The outer packet is not fragmented: one that is too large is answered here.
const DO_NOT_FRAGMENT: u16 = 0x4000;

#[inline(always)]
fn ipv4(ctx: &XdpContext, outer: &Outer, offset: usize, total: u32, protocol: u8) -> bool {
    let Some(header) = at::<[u16; 10]>(ctx, offset) else {
        return false;
    };
    let (source, destination) = (outer.source[0], outer.destination[0]);
    let mut words = [
        VERSION_AND_LENGTH | outer.tos as u16,
        total as u16,
        0,
        DO_NOT_FRAGMENT,
        (TTL as u16) << 8 | protocol as u16,
        0,
        (source >> 48) as u16,
        (source >> 32) as u16,
        (destination >> 48) as u16,
        (destination >> 32) as u16,
    ];
    words[5] = header_checksum(&words);
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: `at` proved that the header lies in the frame.
        unsafe { header.cast::<u16>().add(index).write_volatile(word.to_be()) };
    }
    true
}

#[inline(always)]
fn ipv6(ctx: &XdpContext, outer: &Outer, offset: usize, payload: u32, next: u8) -> bool {
    let Some(header) = at::<[u64; 5]>(ctx, offset) else {
        return false;
    };
    let word = 6 << 28 | (outer.tos as u32) << 20 | outer.label;
    let rest = payload << 16 | (next as u32) << 8 | TTL as u32;
    let words = [
        (word as u64) << 32 | rest as u64,
        outer.source[0],
        outer.source[1],
        outer.destination[0],
        outer.destination[1],
    ];
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: as in `ipv4`.
        unsafe { header.cast::<u64>().add(index).write_volatile(word.to_be()) };
    }
    true
}
