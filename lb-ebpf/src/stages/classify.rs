//! Is this packet ours at all? Everything else leaves here, untouched.

use crate::{
    family::Family,
    maps,
    packet::{self, Ip},
};
use lb_common::reason::Reason;

/// Which ends of a packet may be ours: a VIP as destination, a server as
/// source. The filter has false positives, never false negatives.
#[derive(Clone, Copy)]
pub(crate) struct Ours {
    pub source: bool,
    pub destination: bool,
}

#[inline(always)]
pub(crate) fn run<F: Family>(ip: &Ip<F>) -> Result<Ours, Reason> {
    let ours = Ours {
        source: maps::filter_has(F::filter_bit(ip.source)),
        destination: maps::filter_has(F::filter_bit(ip.destination)),
    };
    if !ours.source && !ours.destination {
        return Err(Reason::PassedNotOurs);
    }
    if ip.protocol != packet::TCP && ip.protocol != packet::UDP && ip.protocol != F::ICMP {
        return Err(Reason::PassedProtocol);
    }
    if ip.is_fragment {
        return Err(Reason::PassedFragment);
    }
    Ok(ours)
}
