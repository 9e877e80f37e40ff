//! Packets that are answered instead of forwarded.
//!
//! Answers are made by a program of their own: what asks for one says which
//! ([`ask`]) and jumps, and [`run`] is behind the jump. The frame must be as it
//! came in.

use crate::{
    family::Family,
    maps,
    packet::{self, Ip, Transport},
};
use aya_ebpf::programs::XdpContext;
use lb_common::{
    flow::{Found, meta},
    reason::Reason,
    tcp::flags,
};

/// What to answer.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// A reset of the connection.
    Reset = 1,
    /// That the time to live ended here.
    TimeExceeded = 2,
    /// That the packet is too large for the way out.
    TooBig = 3,
}

impl Answer {
    /// What a packet that was dropped for a reason is answered.
    #[inline(always)]
    pub(crate) fn to(reason: Reason) -> Option<Self> {
        match reason {
            Reason::TtlExceeded => Some(Self::TimeExceeded),
            Reason::TooBig => Some(Self::TooBig),
            _ => None,
        }
    }
}

/// Goes on in the program that answers; comes back only if there is none.
#[inline(always)]
pub(crate) fn ask<F: Family>(ctx: &XdpContext, answer: Answer) {
    if let Some(scratch) = maps::scratch() {
        scratch.answer.set(answer as u32);
        maps::jump(ctx, F::ANSWER);
    }
}

/// Whether a segment belongs to a connection that the controller has ended. A
/// reset is forwarded all the same: the other side is done, too, then. A client's
/// SYN begins another connection.
#[inline(always)]
pub(crate) fn is_refused(found: &Found, transport: &Transport) -> bool {
    found.meta & meta::REFUSED != 0
        && transport.flags & flags::RST == 0
        && transport.flags & (flags::SYN | flags::ACK) != flags::SYN
}

/// What was asked for, once.
#[inline(always)]
pub(crate) fn asked() -> u32 {
    match maps::scratch() {
        Some(scratch) => scratch.answer.replace(0),
        None => 0,
    }
}

/// Errors that a CPU sends in a tick of 0.268 s, so that nobody can make us a
/// source of floods: 239 a second (the kernel sends 1,000 a second in all:
/// `net.ipv4.icmp_msgs_per_sec`). Resets have no such limit: each is shorter than
/// what it answers, and needs a connection that was there.
const MOST_A_TICK: u32 = 64;

/// Takes one of this tick's errors, if there is one left.
#[inline(always)]
fn may_tell(tick: u32) -> bool {
    let Some(scratch) = maps::scratch() else {
        return false;
    };
    if scratch.told_tick.replace(tick) != tick {
        scratch.told.set(0);
    }
    let told = scratch.told.get();
    scratch.told.set(told.wrapping_add(1));
    if told >= MOST_A_TICK {
        scratch.told.set(MOST_A_TICK);
        return false;
    }
    true
}

/// Turns a segment into a reset: the reason to count.
#[inline(always)]
pub(crate) fn reset<F: Family>(ctx: &XdpContext, ip: &Ip<F>, transport: &Transport) -> Reason {
    match packet::reset(ctx, ip, transport) {
        Ok(()) => Reason::ResetAnswered,
        Err(reason) => reason,
    }
}

/// Turns a packet into the error about it that was asked for, as from `source`.
#[inline(always)]
pub(crate) fn error<F: Family>(
    ctx: &XdpContext,
    ip: &Ip<F>,
    asked: u32,
    source: F::Address,
    tick: u32,
) -> Reason {
    let is_size = asked == Answer::TooBig as u32;
    let (answered, silent) = if is_size {
        (Reason::TooBigAnswered, Reason::TooBig)
    } else {
        (Reason::TtlAnswered, Reason::TtlExceeded)
    };
    if !may_tell(tick) {
        return silent;
    }
    let told = if is_size {
        packet::too_big(ctx, ip, source, maps::noted_mtu())
    } else {
        packet::time_exceeded(ctx, ip, source)
    };
    match told {
        Ok(()) => answered,
        Err(_) => silent,
    }
}
