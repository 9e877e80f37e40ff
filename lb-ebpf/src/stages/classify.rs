//! Is this packet ours at all? Everything else leaves here, untouched.

use crate::{
    family::Family,
    maps,
    packet::{self, Ip},
};
use lb_common::reason::Reason;

/// Whether a packet's destination may be ours. If it is not, its source may be: a
/// server's. (If it is, the source is asked about only where that matters: 4 ns.)
/// The filter has false positives, never false negatives.
#[derive(Clone, Copy)]
pub(crate) struct Ours {
    pub destination: bool,
}

#[inline(always)]
pub(crate) fn run<F: Family>(ip: &Ip<F>) -> Result<Ours, Reason> {
    let ours = Ours {
        destination: maps::filter_has(F::filter_bit(ip.destination)),
    };
    if !ours.destination && !maps::filter_has(F::filter_bit(ip.source)) {
        return Err(Reason::PassedNotOurs);
    }
    if ip.protocol != packet::TCP && ip.protocol != packet::UDP && ip.protocol != F::ICMP {
        // Of a later fragment not even that may be known.
        if ip.is_first() || !F::hides(ip.protocol) {
            return Err(Reason::PassedProtocol);
        }
    }
    Ok(ours)
}
