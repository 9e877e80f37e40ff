//! ICMP errors about packets of flows: to the end that sent the packet, as if it
//! had been spoken of in that end's own words (RFC 5508, section 4.2).
//!
//! An error travels as an answer to the packet that it quotes would: the quoted
//! packet, turned round, finds the flow and the direction. An error never changes
//! the state of a flow: whoever can see or guess a tuple can forge one (RFC 5927).

use crate::{
    family::Family,
    maps,
    packet::{self, End, Inner, Ip, Quoted, Translation, Transport},
};
use aya_ebpf::programs::XdpContext;
use lb_common::{
    abi::{Backend, Hop, Settings},
    flow::{self, Found, meta},
    reason::Reason,
    tcp::State,
};

/// The headers of the packet that would answer the quoted one.
#[inline(always)]
pub(crate) fn turned<F: Family>(ip: &Ip<F>, quoted: &Quoted<F>) -> (Ip<F>, Transport) {
    let answer = Ip {
        source: quoted.ip.destination,
        destination: quoted.ip.source,
        protocol: quoted.ip.protocol,
        ..*ip
    };
    let transport = Transport {
        source_port: quoted.destination_port,
        destination_port: quoted.source_port,
        sequence: 0,
        acknowledgement: 0,
        flags: 0,
        checksum: 0,
        payload: 0,
        is_udp: quoted.ip.protocol == packet::UDP,
    };
    (answer, transport)
}

/// Whether an error goes to whoever sent the packet that it quotes; all others
/// are nobody's errors (RFC 1122, section 3.2.2).
#[inline(always)]
pub(crate) fn is_addressed<F: Family>(ip: &Ip<F>, quoted: &Quoted<F>) -> bool {
    F::is_same(ip.destination, quoted.ip.source)
}

/// Whether the server of a translated flow can have sent what is quoted: it must
/// have been heard before.
#[inline(always)]
pub(crate) fn server_has_spoken(found: &Found) -> bool {
    let state = meta::number(found.meta);
    found.meta & meta::ONE_SIDED != 0 || !state.is(State::HalfOpen) && !state.is(State::Datagram)
}

/// Whether the client of a flow can have sent what is quoted. Of a handshake that
/// nobody has answered the sequence number is known, and there an error is
/// believed the most: the number keeps those out who do not see the packets (RFC
/// 5927, section 4.1).
#[inline(always)]
pub(crate) fn client_has_sent<F: Family>(
    settings: &'static Settings,
    found: &Found,
    quoted: &Quoted<F>,
) -> bool {
    if !meta::number(found.meta).is(State::HalfOpen) {
        return true;
    }
    let table = F::flows(settings);
    match flow::at(&table, found.slot, found.client) {
        Some((_, cold)) => cold.client_start.load() == quoted.sequence.wrapping_add(1),
        None => false,
    }
}

/// What becomes of a quoted packet from the virtual address to the client: it was
/// the server's own.
#[inline(always)]
pub(crate) fn as_sent_by_server<F: Family>(
    found: &Found,
    backend: &Backend,
    quoted: &Quoted<F>,
) -> Result<Inner<F>, Reason> {
    let (endpoint, pool) = (found.backend_endpoint(), found.pool());
    let mut inner = Inner {
        end: End::Source,
        address: F::server_address(backend, endpoint),
        port: endpoint as u16,
        both: pool != 0,
        other_address: quoted.ip.destination,
        other_port: quoted.destination_port,
    };
    if pool != 0 {
        let stands = maps::pool(pool as u32).ok_or(Reason::Internal)?;
        inner.address = F::address(backend.address);
        inner.port = backend.port;
        inner.other_address = F::address(stands.address);
        inner.other_port = endpoint as u16;
    }
    Ok(inner)
}

/// What becomes of a quoted packet to the server: it was the client's own, to the
/// virtual address.
#[inline(always)]
pub(crate) fn as_sent_by_client<F: Family>(found: &Found) -> Inner<F> {
    Inner {
        end: End::Destination,
        address: F::virtual_address(found),
        port: found.virtual_endpoint() as u16,
        both: found.pool() != 0,
        other_address: F::client_address(found),
        other_port: found.client_endpoint() as u16,
    }
}

/// What a packet from there is to a route look-up.
#[inline(always)]
pub(crate) fn as_from<F: Family>(inner: &Inner<F>) -> Translation<F> {
    Translation {
        end: End::Source,
        address: inner.address,
        port: inner.port,
        both: inner.both,
        other_address: inner.other_address,
        other_port: inner.other_port,
        ttl: 0,
        ip_checksum: 0,
        checksum: 0,
        is_udp: false,
    }
}

/// Takes note of an error that was said about a packet to the server of a flow,
/// from the side where the server is: the place for health that looks at what
/// passes by. `kind` is type and code.
#[inline(always)]
pub(crate) fn note_error_about_server<F: Family>(
    ctx: &XdpContext,
    found: &Found,
    (kind, code): (u8, u8),
) {
    let Some(backend) = maps::backend(found.backend()) else {
        return;
    };
    let Some(hop) = maps::hop(backend.hop) else {
        return;
    };
    let hop: &Hop = hop;
    // From elsewhere anybody could say so.
    if hop.ifindex == ctx.ingress_ifindex() as u32 && F::is_unreachable(kind, code) {
        maps::count(Reason::ServerUnreachable);
    }
}
