//! Is this packet ours at all? Everything else leaves here, untouched.

use crate::{
    maps,
    packet::{self, Ipv4},
};
use lb_common::{hash::filter_bit4, reason::Reason};

/// Which ends of a packet may be ours: a VIP as destination, a server as
/// source. The filter has false positives, never false negatives.
#[derive(Clone, Copy)]
pub(crate) struct Ours {
    pub source: bool,
    pub destination: bool,
}

#[inline(always)]
pub(crate) fn run(ip: &Ipv4) -> Result<Ours, Reason> {
    let ours = Ours {
        source: maps::filter_has(filter_bit4(ip.source)),
        destination: maps::filter_has(filter_bit4(ip.destination)),
    };
    if !ours.source && !ours.destination {
        return Err(Reason::PassedNotOurs);
    }
    if ip.protocol != packet::TCP && ip.protocol != packet::UDP && ip.protocol != packet::ICMP {
        return Err(Reason::PassedProtocol);
    }
    if ip.is_fragment {
        return Err(Reason::PassedFragment);
    }
    Ok(ours)
}
