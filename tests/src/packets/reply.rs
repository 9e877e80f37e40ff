//! What the balancer answers by itself, made of the frame that it answers.

use super::{Carried, Frame, flag, icmp};
use lb_common::reason::Reason;

/// Time to live of what the balancer sends itself.
const TTL: u8 = 64;
/// The bits of the type of service that are no congestion notification.
const NO_ECN: u8 = 0xfc;

/// An answer.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// To a ping: itself, with the addresses exchanged.
    Echo,
    /// To a segment: a reset.
    Reset,
}

impl Reply {
    /// What it is counted as.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Echo => Reason::EchoAnswered,
            Self::Reset => Reason::ResetAnswered,
        }
    }

    /// The answer to `frame`.
    ///
    /// # Panics
    /// If nobody could answer such a frame so.
    pub fn to(self, frame: &Frame) -> Frame {
        match self {
            Self::Echo => echo(frame),
            Self::Reset => reset(frame),
        }
    }
}

fn echo(frame: &Frame) -> Frame {
    let Carried::Icmp(_, code, rest) = frame.carried else {
        panic!("only a ping can be answered so")
    };
    Frame {
        carried: Carried::Icmp(icmp::echo_reply(frame.family()), code, rest),
        macs: (frame.macs.1, frame.macs.0),
        source: frame.destination,
        destination: frame.source,
        ttl: TTL,
        ..frame.clone()
    }
}

/// A frame of the balancer's own in answer to `frame`: none of its options.
fn fresh(frame: &Frame) -> Frame {
    let macs = (frame.macs.1, frame.macs.0);
    Frame::tcp(macs, frame.destination, frame.source, 0).with(|fresh| {
        fresh.tags.clone_from(&frame.tags);
        fresh.ttl = TTL;
        fresh.tos = frame.tos & NO_ECN;
        fresh.flow_label = 0;
        fresh.identification = 0;
    })
}

/// RFC 9293, section 3.10.7.1.
fn reset(frame: &Frame) -> Frame {
    assert_eq!(frame.carried, Carried::Tcp, "only segments are reset");
    let has = |bit| frame.flags & bit != 0;
    let counted = u32::from(has(flag::SYN)) + u32::from(has(flag::FIN));
    fresh(frame).with(|reset| {
        reset.window = 0;
        if has(flag::ACK) {
            reset.flags = flag::RST;
            reset.sequence = frame.acknowledgement;
        } else {
            reset.flags = flag::RST | flag::ACK;
            reset.acknowledgement = frame
                .sequence
                .wrapping_add(frame.payload.len() as u32)
                .wrapping_add(counted);
        }
    })
}
