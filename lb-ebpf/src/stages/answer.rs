//! Packets that are answered instead of forwarded.
//!
//! Answers are made by a program of their own: what asks for one says which
//! ([`ask`]) and jumps, and [`run`] is behind the jump. The frame must be as it
//! came in.

use crate::{
    family::Family,
    maps,
    packet::{self, Transport},
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
}

/// Goes on in the program that answers; comes back only if there is none.
#[inline(always)]
pub(crate) fn ask<F: Family>(ctx: &XdpContext, answer: Answer) -> Reason {
    if let Some(scratch) = maps::scratch() {
        scratch.answer.set(answer as u32);
        maps::jump(ctx, F::ANSWER);
    }
    Reason::Internal
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

/// Turns the frame into the answer that was asked for: the reason to count.
#[inline(always)]
pub(crate) fn run<F: Family>(ctx: &XdpContext) -> Result<Reason, Reason> {
    let scratch = maps::scratch().ok_or(Reason::Internal)?;
    let asked = scratch.answer.replace(0);
    let frame = packet::frame(ctx)?;
    let ip = F::parse(ctx, frame.offset)?;
    let transport = packet::transport(ctx, &ip)?;
    if asked == Answer::Reset as u32 {
        packet::reset(ctx, &ip, &transport)?;
        return Ok(Reason::ResetAnswered);
    }
    Err(Reason::Internal)
}
