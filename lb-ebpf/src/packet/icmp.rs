//! Answering pings.

use super::{GROUP_BIT, Ip, Macs, address, at, is_whole, mac_bytes, macs};
use crate::family::Family;
use aya_ebpf::programs::XdpContext;
use core::mem::offset_of;
use lb_common::checksum::Delta;

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
