//! A balancer on kernel hash maps, as someone would write it for speed.
//!
//! A packet costs one hash look-up by its full tuple, whichever way it goes:
//! the VIP is a constant, so the direction is known without a look-up. A flow's
//! value is four bytes; what is written into frames comes from an array that
//! stays in the first-level cache. Checksums are summed in 32-bit words as they
//! lie in memory (RFC 1071, section 2).

use crate::{
    maps::{self, Flow, Store},
    packet::{Headers, Link, V4, V6},
};
use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    helpers::generated::bpf_redirect,
    programs::XdpContext,
};
use lb_common::bench::Peer;

/// Forwards a packet.
#[inline(always)]
pub(crate) fn run<S>(ctx: &XdpContext) -> u32
where
    S: Store<u32> + Store<[u32; 4]>,
{
    match Link::of(ctx) {
        Some(Link::Ipv4(frame)) => forward::<V4, S>(V4::of(frame)),
        Some(Link::Ipv6(frame)) => forward::<V6, S>(V6::of(ctx, frame)),
        None => XDP_PASS,
    }
}

#[inline(always)]
fn forward<H: Headers, S: Store<H::Address>>(packet: Option<H>) -> u32 {
    let Some(packet) = packet else {
        return XDP_PASS;
    };
    let key = packet.key();
    if H::is_vip(key.destination) {
        let flow = match S::out(&key) {
            Some(flow) => Some(flow),
            None => open::<H, S>(&packet),
        };
        let Some(server) = flow.and_then(|flow| maps::peer(flow.peer)) else {
            return XDP_DROP;
        };
        if server.direct == 0 {
            if !packet.lives_on() {
                return XDP_DROP;
            }
            packet.to_server(server);
        }
        send(&packet, server, server)
    } else {
        let Some(flow) = S::back(&key) else {
            return XDP_PASS;
        };
        let (Some(service), Some(router)) = (maps::peer(flow.peer), maps::peer(flow.via)) else {
            return XDP_DROP;
        };
        if !packet.lives_on() {
            return XDP_DROP;
        }
        packet.to_client(service);
        send(&packet, service, router)
    }
}

#[inline(always)]
fn send<H: Headers>(packet: &H, counted: &Peer, via: &Peer) -> u32 {
    packet.address(via);
    maps::count(counted.service, packet.length());
    // SAFETY: a helper with plain arguments.
    unsafe { bpf_redirect(via.ifindex, 0) as u32 }
}

/// Opens a flow to the next server in turn.
#[inline(always)]
fn open<H: Headers, S: Store<H::Address>>(packet: &H) -> Option<Flow> {
    if !packet.may_open() {
        return None;
    }
    let service = maps::balanced(packet.service()?)?;
    let turn = (maps::turn(service) as u32).checked_rem(service.servers)?;
    let server = (service.first + turn) as u16;
    let flow = Flow {
        peer: server,
        via: server,
    };
    let peer = maps::peer(server)?;
    if !S::put_out(&packet.key(), flow) {
        return None;
    }
    if peer.direct == 0 {
        let back = Flow {
            peer: service.peer as u16,
            via: service.router as u16,
        };
        if !S::put_back(&packet.answer(peer), back) {
            return None;
        }
    }
    maps::count_opened();
    Some(flow)
}

/// Forgets the flow of a client's packet.
#[inline(always)]
pub(crate) fn forget<S>(ctx: &XdpContext) -> u32
where
    S: Store<u32> + Store<[u32; 4]>,
{
    match Link::of(ctx) {
        Some(Link::Ipv4(frame)) => remove::<V4, S>(V4::of(frame)),
        Some(Link::Ipv6(frame)) => remove::<V6, S>(V6::of(ctx, frame)),
        None => XDP_PASS,
    }
}

#[inline(always)]
fn remove<H: Headers, S: Store<H::Address>>(packet: Option<H>) -> u32 {
    let Some(packet) = packet else {
        return XDP_PASS;
    };
    let key = packet.key();
    let Some(server) = S::out(&key).and_then(|flow| maps::peer(flow.peer)) else {
        return XDP_PASS;
    };
    S::remove(&key, &packet.answer(server));
    XDP_DROP
}
