//! Fragments follow the first one of their packet, which alone has the ports.
//!
//! The first is forwarded as any packet is, and its ports are remembered by what
//! all fragments have in common; with these the later ones find the flow by
//! themselves. One that overtakes the first is dropped, if it is for a service:
//! holding it back would need a buffer, and guessing a server would split packets.

use crate::{
    clock,
    family::Family,
    maps::{self, FragmentKey, FragmentPorts},
    packet::{Ip, Transport, UDP},
};
use aya_ebpf::programs::XdpContext;
use lb_common::{
    abi::{Settings, ticks_between, ticks_from_ms},
    reason::Reason,
};

#[inline(always)]
fn key<F: Family>(ctx: &XdpContext, ip: &Ip<F>) -> Result<FragmentKey, Reason> {
    Ok(FragmentKey {
        source: F::key(ip.source),
        destination: F::key(ip.destination),
        identification: F::identification(ctx, ip)?,
        protocol: if F::TELLS_PROTOCOL { ip.protocol } else { 0 },
        family: F::NUMBER,
        padding: 0,
    })
}

/// Remembers a first fragment.
#[inline(always)]
pub(crate) fn remember<F: Family>(
    ctx: &XdpContext,
    settings: &Settings,
    ip: &Ip<F>,
    transport: &Transport,
) -> Result<(), Reason> {
    let ports = FragmentPorts {
        source: transport.source_port,
        destination: transport.destination_port,
        protocol: ip.protocol as u32,
        tick: clock::tick(settings),
    };
    maps::remember_fragment(&key(ctx, ip)?, &ports);
    Ok(())
}

/// The packet of a later fragment, as its first one told: `ip` gets the protocol.
///
/// # Errors
/// [`Reason::FragmentEarly`]: nobody has told, or too long ago.
#[inline(always)]
pub(crate) fn recall<F: Family>(
    ctx: &XdpContext,
    settings: &Settings,
    ip: &mut Ip<F>,
) -> Result<Transport, Reason> {
    let Some(ports) = maps::remembered_fragment(&key(ctx, ip)?) else {
        return Err(Reason::FragmentEarly);
    };
    let age = ticks_between(ports.tick, clock::tick(settings));
    if age > ticks_from_ms(F::REASSEMBLY * 1_000) {
        return Err(Reason::FragmentEarly);
    }
    ip.protocol = ports.protocol as u8;
    Ok(Transport {
        source_port: ports.source,
        destination_port: ports.destination,
        sequence: 0,
        acknowledgement: 0,
        flags: 0,
        checksum: 0,
        payload: 0,
        is_udp: ip.protocol == UDP,
    })
}
