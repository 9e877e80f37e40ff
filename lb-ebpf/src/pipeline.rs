//! The order of the stages, and the one place that turns a reason into a
//! verdict.

use crate::{
    clock,
    maps::{self, Flows4},
    packet,
    stages::{classify, emit, find, lookup, open, rewrite},
};
use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use lb_common::{
    abi::{LAYOUT_VERSION, forwarding},
    reason::Reason,
};

/// Runs a frame through the stages and counts what became of it. A packet of
/// no known flow goes on in [`new_flow`].
#[inline(always)]
pub(crate) fn run(ctx: &XdpContext) -> u32 {
    verdict(known_flow(ctx))
}

/// The program behind the tail call: the stages that a new flow needs, with a
/// stack of their own.
#[inline(always)]
pub(crate) fn new_flow(ctx: &XdpContext) -> u32 {
    verdict(unknown_flow(ctx))
}

#[inline(always)]
fn verdict(result: Result<u32, Reason>) -> u32 {
    match result {
        Ok(action) => {
            maps::count(Reason::Forwarded);
            action
        }
        Err(reason) => {
            maps::count(reason);
            if matches!(reason, Reason::EchoAnswered) {
                xdp_action::XDP_TX
            } else if reason.drops() {
                xdp_action::XDP_DROP
            } else {
                xdp_action::XDP_PASS
            }
        }
    }
}

#[inline(always)]
fn known_flow(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::PassedNotReady)?;
    if settings.layout != LAYOUT_VERSION {
        return Err(Reason::PassedNotReady);
    }
    let ip = packet::ipv4(ctx)?;
    let ours = classify::run(&ip)?;
    if ip.protocol == packet::ICMP {
        return Err(ping(ctx, ours, &ip));
    }
    let transport = packet::transport(ctx, &ip)?;
    let tick = clock::tick();
    let table = Flows4::new(settings);

    match find::run(settings, &table, ours, &ip, &transport) {
        find::Flow::ToServer(found) if !open::must_pick_again(&found, &transport) => {
            if rewrite::is_direct(&found) {
                rewrite::direct(&found, &transport, tick);
                return emit::direct(ctx, found.backend(), &ip);
            }
            let translation = rewrite::to_server(&found, &ip, &transport, tick)?;
            emit::to_server(ctx, found.backend(), &ip, &translation)
        }
        find::Flow::ToClient(found) => {
            let translation = rewrite::to_client(&found, &ip, &transport, tick)?;
            emit::to_client(ctx, &table, &found, &ip, &transport, &translation)
        }
        find::Flow::ToServer(_) | find::Flow::None => {
            if !ours.destination {
                return Err(Reason::PassedNoService);
            }
            maps::jump_to_new_flow(ctx);
            Err(Reason::Internal)
        }
    }
}

/// A VIP answers ping, whoever has its address; other ICMP is the kernel's.
#[inline(always)]
fn ping(ctx: &XdpContext, ours: classify::Ours, ip: &packet::Ipv4) -> Reason {
    if !ours.destination || !lookup::is_vip(ip.destination) || !packet::echo(ctx, ip) {
        return Reason::PassedProtocol;
    }
    Reason::EchoAnswered
}

#[inline(always)]
fn unknown_flow(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::PassedNotReady)?;
    let ip = packet::ipv4(ctx)?;
    let transport = packet::transport(ctx, &ip)?;
    let tick = clock::tick();
    let known = lookup::run(&ip, &transport)?;
    let one_sided = known.service.forwarding == forwarding::DSR;
    if !one_sided {
        // Before anything is opened: no server would hear of a packet whose time
        // to live ends here, and its silence would be charged to the server.
        rewrite::live_on(&ip)?;
    }
    open::run(ctx, settings, known, &ip, &transport, tick)?;
    let twin = open::opened().ok_or(Reason::Internal)?;
    if one_sided {
        return emit::direct(ctx, twin.backend, &ip);
    }
    let translation = rewrite::opened(&twin, &ip, &transport);
    emit::to_server(ctx, twin.backend, &ip, &translation)
}
