//! The order of the stages, and the one place that turns a reason into a
//! verdict.

use crate::{
    clock,
    family::Family,
    maps,
    packet::{self, Carried, V4, V6},
    stages::{
        answer::{self, Answer},
        classify, emit, find, fragment, lookup, open, relay, rewrite,
    },
};
use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    programs::XdpContext,
};
use lb_common::{
    abi::{Jump, LAYOUT_VERSION, Settings, forwarding},
    reason::Reason,
};

/// Runs a frame through the stages and counts what became of it. IPv6 goes on
/// in [`run_ipv6`], a packet of no known flow in [`new_flow`].
#[inline(always)]
pub(crate) fn run(ctx: &XdpContext) -> u32 {
    conclude::<V4>(ctx, ipv4(ctx))
}

/// The program behind the tail call for IPv6.
#[inline(always)]
pub(crate) fn run_ipv6(ctx: &XdpContext) -> u32 {
    conclude::<V6>(ctx, ipv6(ctx))
}

/// The programs behind the tail calls for new flows: the stages that these need,
/// with a stack of their own.
#[inline(always)]
pub(crate) fn new_flow<F: open::Opens + Sends>(ctx: &XdpContext) -> u32 {
    conclude::<F>(ctx, unknown_flow::<F>(ctx))
}

/// The programs behind the tail calls for answers.
#[inline(always)]
pub(crate) fn answer<F: Family>(ctx: &XdpContext) -> u32 {
    verdict(Err(match answered::<F>(ctx) {
        Ok(reason) | Err(reason) => reason,
    }))
}

/// The programs behind the tail calls for ICMP. Nothing that happens to a message
/// here is answered.
#[inline(always)]
pub(crate) fn icmp<F: Family>(ctx: &XdpContext) -> u32 {
    match message::<F>(ctx) {
        Ok(action) => {
            maps::count(Reason::IcmpRelayed);
            action
        }
        Err(reason) => verdict(Err(reason)),
    }
}

/// The programs behind the tail calls for later fragments, which are never
/// answered (RFC 1122, section 3.2.2).
#[inline(always)]
pub(crate) fn fragment<F: Family>(ctx: &XdpContext) -> u32 {
    verdict(later_fragment::<F>(ctx))
}

/// Leaves a reading of the clocks for the daemon.
#[inline(always)]
pub(crate) fn read_clocks() -> u32 {
    maps::store_reading(clock::reading());
    xdp_action::XDP_PASS
}

/// The verdict, unless the packet has an answer.
#[inline(always)]
fn conclude<F: Family>(ctx: &XdpContext, result: Result<u32, Reason>) -> u32 {
    if let Err(reason) = result
        && let Some(answer) = Answer::to(reason)
    {
        answer::ask::<F>(ctx, answer);
    }
    verdict(result)
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
            if reason.answers() {
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
fn ready() -> Result<&'static Settings, Reason> {
    let settings = maps::settings().ok_or(Reason::PassedNotReady)?;
    if settings.layout != LAYOUT_VERSION {
        return Err(Reason::PassedNotReady);
    }
    Ok(settings)
}

#[inline(always)]
fn ipv4(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = ready()?;
    let frame = packet::frame(ctx)?;
    if matches!(frame.carried, Carried::Ipv6) {
        maps::jump(ctx, Jump::Ipv6);
        return Err(Reason::Internal);
    }
    known_flow::<V4>(ctx, settings, frame.offset)
}

#[inline(always)]
fn ipv6(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = ready()?;
    let frame = packet::frame(ctx)?;
    known_flow::<V6>(ctx, settings, frame.offset)
}

#[inline(always)]
fn known_flow<F: open::Opens + rewrite::Tracks + Sends>(
    ctx: &XdpContext,
    settings: &'static Settings,
    offset: u32,
) -> Result<u32, Reason> {
    let ip = F::parse(ctx, offset)?;
    if ip.protocol == F::ICMP {
        maps::jump(ctx, F::CONTROL);
        return Err(Reason::Internal);
    }
    let ours = classify::run(&ip)?;
    if ip.is_fragment() {
        if !ip.is_first() {
            maps::jump(ctx, F::FRAGMENT);
            return Err(Reason::Internal);
        }
        outcome(F::remember(ctx.ctx))?;
    }
    let transport = packet::transport(ctx, &ip)?;
    let tick = clock::tick(settings);
    match find::run(settings, ours, &ip, &transport) {
        find::Flow::ToServer(found) | find::Flow::ToClient(found)
            if answer::is_refused(&found, &transport) =>
        {
            answer::ask::<F>(ctx, Answer::Reset);
            Err(Reason::Internal)
        }
        find::Flow::ToServer(found) if !open::must_pick_again::<F>(&found, &transport) => {
            if rewrite::is_direct(&found) {
                rewrite::direct::<F>(&found, &transport, tick);
                return emit::direct(ctx, settings, found.backend(), found.client, &ip);
            }
            let translation = rewrite::to_server(&found, &ip, &transport, tick)?;
            emit::to_server(ctx, found.backend(), &ip, &translation)
        }
        find::Flow::ToClient(found) => {
            let translation = rewrite::to_client(&found, &ip, &transport, tick)?;
            emit::to_client(ctx, settings, &found, &ip, &transport, &translation)
        }
        find::Flow::ToServer(_) | find::Flow::None => {
            if !ours.destination {
                return Err(Reason::PassedNoService);
            }
            maps::jump(ctx, F::NEW_FLOW);
            Err(Reason::Internal)
        }
    }
}

/// Answers the frame, which is as it came in. Errors come from the virtual
/// address, also those to servers: it is ours, both ends know it, and both know
/// the way to it, which can be said of no other address that we have.
#[inline(always)]
fn answered<F: Family>(ctx: &XdpContext) -> Result<Reason, Reason> {
    let asked = answer::asked();
    let settings = ready()?;
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    let transport = packet::transport(ctx, &ip)?;
    if asked == Answer::Reset as u32 {
        return Ok(answer::reset(ctx, &ip, &transport));
    }
    let ours = classify::run(&ip)?;
    let source = match find::run(settings, ours, &ip, &transport) {
        find::Flow::ToClient(found) => F::virtual_address(&found),
        find::Flow::ToServer(_) | find::Flow::None => ip.destination,
    };
    let tick = clock::tick(settings);
    Ok(answer::error(ctx, &ip, asked, source, tick))
}

/// Remembers the first fragment of a packet.
#[inline(always)]
fn remember<F: Family>(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::Internal)?;
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    let transport = packet::transport(ctx, &ip)?;
    fragment::remember(ctx, settings, &ip, &transport)?;
    Ok(0)
}

/// A later fragment goes where its first one went. Of its headers only the
/// addresses are there to be translated. Nothing of it concerns the flow's state:
/// the first one has told.
#[inline(always)]
fn later_fragment<F: Family>(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = ready()?;
    let frame = packet::frame(ctx)?;
    let ip = &mut F::parse(ctx, frame.offset)?;
    let ours = classify::run(ip)?;
    let Ok(transport) = fragment::recall(ctx, settings, ip) else {
        // Of a server's packets not all are a service's, and the filter knows
        // strangers: these are the kernel's.
        let is_early = ours.destination && lookup::is_vip::<F>(ip.destination);
        return Err(if is_early {
            Reason::FragmentEarly
        } else {
            Reason::PassedFragment
        });
    };
    packet::later(ctx, ip)?;
    let (backend, exit, translation) = match find::run(settings, ours, ip, &transport) {
        find::Flow::ToServer(found) => {
            if rewrite::is_direct(&found) {
                let sent = emit::direct(ctx, settings, found.backend(), found.client, ip)?;
                maps::count(Reason::FragmentFollowed);
                return Ok(sent);
            }
            rewrite::live_on(ip)?;
            let backend = maps::backend(found.backend()).ok_or(Reason::Internal)?;
            let exit = emit::way_to_server(backend, ip)?;
            (backend, exit, rewrite::for_server(&found, ip, &transport)?)
        }
        find::Flow::ToClient(found) => {
            rewrite::live_on(ip)?;
            let backend = maps::backend(found.backend()).ok_or(Reason::Internal)?;
            let new = rewrite::for_client(&found, ip, &transport);
            let exit = emit::way_to_client(ctx, settings, &found, ip, &transport, &new)?;
            (backend, exit, new)
        }
        find::Flow::None => {
            if !ours.destination {
                return Err(Reason::PassedNoService);
            }
            lookup::run(ip, &transport)?;
            return Err(Reason::NoFlow);
        }
    };
    packet::translate_addresses(ctx, ip, &translation)?;
    let sent = emit::send(ctx, backend, ip, &exit)?;
    maps::count(Reason::FragmentFollowed);
    Ok(sent)
}

#[inline(always)]
fn message<F: Family>(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = ready()?;
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    if !ip.is_fragment()
        && let Some(kind) = packet::is_error(ctx, &ip)
    {
        return error(ctx, settings, &ip, kind);
    }
    let ours = classify::run(&ip)?;
    if ip.is_fragment() {
        return Err(Reason::PassedFragment);
    }
    Err(ping(ctx, ours, &ip))
}

/// An ICMP error goes to the end of a flow that sent the packet which it quotes.
/// To a client it comes from the virtual address, whoever sent it: hosts behind
/// the balancer have addresses that mean nothing to a client (RFC 5508, section
/// 4.2, REQ-5).
#[inline(always)]
fn error<F: Family>(
    ctx: &XdpContext,
    settings: &'static Settings,
    ip: &packet::Ip<F>,
    kind: (u8, u8),
) -> Result<u32, Reason> {
    let quoted = match packet::quoted(ctx, ip) {
        Ok(quoted) => quoted,
        Err(reason) => {
            classify::run(ip)?;
            return Err(reason);
        }
    };
    let (answer, transport) = relay::turned(ip, &quoted);
    let ours = classify::run(&answer)?;
    match find::run(settings, ours, &answer, &transport) {
        find::Flow::ToServer(found) => {
            if !relay::is_addressed(ip, &quoted) || !relay::server_has_spoken(&found) {
                return Err(Reason::IcmpForged);
            }
            if rewrite::is_direct(&found) {
                return emit::direct(ctx, settings, found.backend(), found.client, ip);
            }
            rewrite::live_on(ip)?;
            let backend = maps::backend(found.backend()).ok_or(Reason::Internal)?;
            let exit = emit::way_to_server(backend, ip)?;
            let inner = relay::as_sent_by_server(&found, backend, &quoted)?;
            packet::relay(ctx, ip, &quoted, &inner)?;
            emit::send(ctx, backend, ip, &exit)
        }
        find::Flow::ToClient(found) => {
            if !relay::is_addressed(ip, &quoted)
                || !relay::client_has_sent(settings, &found, &quoted)
            {
                return Err(Reason::IcmpForged);
            }
            rewrite::live_on(ip)?;
            let backend = maps::backend(found.backend()).ok_or(Reason::Internal)?;
            let inner = relay::as_sent_by_client(&found);
            let from = relay::as_from(&inner);
            let exit = emit::way_to_client(ctx, settings, &found, ip, &transport, &from)?;
            relay::note_error_about_server::<F>(ctx, &found, kind);
            packet::relay(ctx, ip, &quoted, &inner)?;
            emit::send(ctx, backend, ip, &exit)
        }
        find::Flow::None => Err(Reason::PassedIcmp),
    }
}

/// A VIP answers ping, whoever has its address; other ICMP is the kernel's.
#[inline(always)]
fn ping<F: Family>(ctx: &XdpContext, ours: classify::Ours, ip: &packet::Ip<F>) -> Reason {
    if !ours.destination || !lookup::is_vip::<F>(ip.destination) || !packet::echo(ctx, ip) {
        return Reason::PassedProtocol;
    }
    Reason::EchoAnswered
}

#[inline(always)]
fn unknown_flow<F: open::Opens + Sends>(ctx: &XdpContext) -> Result<u32, Reason> {
    outcome(F::describe(ctx.ctx))?;
    open::run::<F>()?;
    outcome(F::send_opened(ctx.ctx))
}

/// What a global function answers is a number: a verdict, or [`REASONS`] more than
/// a reason's.
#[inline(always)]
fn outcome(number: u32) -> Result<u32, Reason> {
    match number {
        action @ ..REASONS => Ok(action),
        reason => Err(Reason::from_number(reason - REASONS)),
    }
}

/// The reverse.
#[inline(always)]
fn number(result: Result<u32, Reason>) -> u32 {
    match result {
        Ok(action) => action,
        Err(reason) => REASONS + reason as u32,
    }
}

/// Reads the packet of no known flow and describes the one that it opens.
#[inline(always)]
fn describe<F: open::Opens>(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::PassedNotReady)?;
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    let transport = packet::transport(ctx, &ip)?;
    let tick = clock::tick(settings);
    let known = lookup::run(&ip, &transport)?;
    if !forwarding::is_one_sided(known.service.forwarding) {
        // Before anything is opened: no server would hear of a packet whose time
        // to live ends here, and its silence would be charged to the server.
        rewrite::live_on(&ip)?;
    }
    open::describe(ctx, settings, known, &ip, &transport, tick)?;
    Ok(0)
}

/// Sends the packet that opened the flow in the scratch space.
#[inline(always)]
fn send_opened<F: rewrite::Tracks>(ctx: &XdpContext) -> Result<u32, Reason> {
    let settings = maps::settings().ok_or(Reason::Internal)?;
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    let twin = open::opened().ok_or(Reason::Internal)?;
    if open::is_one_sided() {
        return emit::direct(ctx, settings, twin.backend, open::client(), &ip);
    }
    let transport = packet::transport(ctx, &ip)?;
    let translation = rewrite::opened(&twin, &ip, &transport)?;
    emit::to_server(ctx, twin.backend, &ip, &translation)
}

/// More than any verdict.
const REASONS: u32 = 1 << 16;

/// A family's global functions [`describe`] and [`send_opened`], with stack frames
/// that do not live at the same time as those that open the flow, and [`remember`],
/// which few packets need.
pub(crate) trait Sends: Family {
    fn remember(ctx: *mut xdp_md) -> u32;
    fn describe(ctx: *mut xdp_md) -> u32;
    fn send_opened(ctx: *mut xdp_md) -> u32;
}

macro_rules! sends {
    ($family:ident, $remember:ident, $describe:ident, $send:ident) => {
        impl Sends for $family {
            #[inline(always)]
            fn remember(ctx: *mut xdp_md) -> u32 {
                $remember(ctx)
            }
            #[inline(always)]
            fn describe(ctx: *mut xdp_md) -> u32 {
                $describe(ctx)
            }
            #[inline(always)]
            fn send_opened(ctx: *mut xdp_md) -> u32 {
                $send(ctx)
            }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $remember(ctx: *mut xdp_md) -> u32 {
            number(remember::<$family>(&XdpContext::new(ctx)))
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $describe(ctx: *mut xdp_md) -> u32 {
            number(describe::<$family>(&XdpContext::new(ctx)))
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $send(ctx: *mut xdp_md) -> u32 {
            number(send_opened::<$family>(&XdpContext::new(ctx)))
        }
    };
}

sends!(
    V4,
    steerline_remember4,
    steerline_describe4,
    steerline_send_opened4
);
sends!(
    V6,
    steerline_remember6,
    steerline_describe6,
    steerline_send_opened6
);
