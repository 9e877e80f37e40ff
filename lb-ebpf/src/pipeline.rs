//! The order of the stages, and the one place that turns a reason into a
//! verdict.

use crate::{
    clock,
    maps::{self, Flows4},
    packet,
    stages::{classify, emit, find, lookup, open, rewrite},
};
use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use lb_common::{abi::LAYOUT_VERSION, reason::Reason};

/// Runs a frame through the stages and counts what became of it. A packet of
/// no known flow goes on in [`new_flow`].
#[inline(always)]
pub fn run(ctx: &XdpContext) -> u32 {
    verdict(known_flow(ctx))
}

/// The program behind the tail call: the stages that a new flow needs, with a
/// stack of their own.
#[inline(always)]
pub fn new_flow(ctx: &XdpContext) -> u32 {
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
            if reason.drops() {
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
    let tcp = packet::tcp(ctx, &ip)?;
    let tick = clock::tick();
    let table = Flows4::new(settings);

    let direction = match find::run(settings, &table, ours, &ip, &tcp) {
        find::Flow::ToServer(found) if !open::must_pick_again(&found, &tcp) => {
            rewrite::Direction::ToServer(found)
        }
        find::Flow::ToClient(found) => rewrite::Direction::ToClient(found),
        find::Flow::ToServer(_) | find::Flow::None => {
            if !ours.destination {
                return Err(Reason::PassedNoService);
            }
            maps::jump_to_new_flow(ctx);
            return Err(Reason::Internal);
        }
    };
    let frame = rewrite::run(&direction, &ip, &tcp, tick)?;
    emit::run(ctx, &table, &direction, &ip, &tcp, &frame)
}

#[inline(always)]
fn unknown_flow(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::PassedNotReady)?;
    let ip = packet::ipv4(ctx)?;
    let tcp = packet::tcp(ctx, &ip)?;
    let tick = clock::tick();
    let table = Flows4::new(settings);
    let known = lookup::run(&ip, &tcp)?;
    let opened = open::run(ctx, settings, known, &ip, &tcp, tick)?;
    let direction = rewrite::Direction::Opened(opened);
    let frame = rewrite::run(&direction, &ip, &tcp, tick)?;
    emit::run(ctx, &table, &direction, &ip, &tcp, &frame)
}
