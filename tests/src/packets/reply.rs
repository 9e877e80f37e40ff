//! What the balancer answers by itself, made of the frame that it answers.

use super::{Carried, Family, Frame, Quote, flag, icmp, icmp6};
use lb_common::reason::Reason;
use std::net::IpAddr;

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
    /// That its time to live ended here, as from this address.
    TimeExceeded(IpAddr),
    /// That it is larger than this MTU, as from this address.
    TooBig(IpAddr, u16),
}

impl Reply {
    /// What it is counted as.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Echo => Reason::EchoAnswered,
            Self::Reset => Reason::ResetAnswered,
            Self::TimeExceeded(_) => Reason::TtlAnswered,
            Self::TooBig(..) => Reason::TooBigAnswered,
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
            Self::TimeExceeded(from) => {
                let kind = match frame.family() {
                    Family::V4 => (icmp::TIME_EXCEEDED, 0),
                    Family::V6 => (icmp6::TIME_EXCEEDED, 0),
                };
                error(frame, from, kind, 0)
            }
            Self::TooBig(from, mtu) => {
                let kind = match frame.family() {
                    Family::V4 => (icmp::UNREACHABLE, icmp::TOO_BIG),
                    Family::V6 => (icmp6::TOO_BIG, 0),
                };
                error(frame, from, kind, mtu)
            }
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

/// An error about `frame`. It quotes what fits a datagram of 576 bytes (RFC 1812,
/// section 4.3.2.3), or one of the least MTU (RFC 4443, section 2.4).
fn error(frame: &Frame, from: IpAddr, (kind, code): (u8, u8), mtu: u16) -> Frame {
    let most = match frame.family() {
        Family::V4 => 576 - 20 - 8,
        Family::V6 => 1_280 - 40 - 8,
    };
    let [high, low] = mtu.to_be_bytes();
    Frame {
        carried: Carried::Icmp(kind, code, [0, 0, high, low]),
        source: (from, 0),
        destination: (frame.source.0, 0),
        quote: Some(Box::new(Quote {
            packet: frame.clone(),
            most,
        })),
        ..fresh(frame)
    }
}
