//! Computes the translated headers of a packet.

use crate::{
    maps::{self, Flows4},
    packet::{End, Ipv4, Translation, Transport},
};
use lb_common::{
    checksum::Delta,
    flow::{self, Arrival, Found, Measures, Twin, meta},
    reason::Reason,
    tcp::Side,
};

/// Whether the flow's server answers its client directly. Nothing but MAC
/// addresses changes then, the time to live included: the balancer is no router
/// there.
#[inline(always)]
pub(crate) fn is_direct(found: &Found) -> bool {
    found.meta & meta::ONE_SIDED != 0
}

/// Lets a flow of direct return take note of its client's packet.
#[inline(always)]
pub(crate) fn direct(found: &Found, transport: &Transport, tick: u32) {
    note(found, Side::ClientAlone, transport, tick);
}

/// The headers of a client's packet on a known flow, once the flow has taken
/// note of it.
#[inline(always)]
pub(crate) fn to_server(
    found: &Found,
    ip: &Ipv4,
    transport: &Transport,
    tick: u32,
) -> Result<Translation, Reason> {
    live_on(ip)?;
    note(found, Side::Client, transport, tick);
    Ok(translation(
        End::Destination,
        found.backend_endpoint(),
        ip,
        transport,
    ))
}

/// The headers of a server's packet, once its flow has taken note of it.
#[inline(always)]
pub(crate) fn to_client(
    found: &Found,
    ip: &Ipv4,
    transport: &Transport,
    tick: u32,
) -> Result<Translation, Reason> {
    live_on(ip)?;
    note(found, Side::Server, transport, tick);
    Ok(translation(
        End::Source,
        found.virtual_endpoint(),
        ip,
        transport,
    ))
}

/// The headers of the packet that opened a flow.
#[inline(always)]
pub(crate) fn opened(twin: &Twin, ip: &Ipv4, transport: &Transport) -> Translation {
    translation(End::Destination, twin.backend_endpoint, ip, transport)
}

#[inline(always)]
fn translation(end: End, target: u64, ip: &Ipv4, transport: &Transport) -> Translation {
    let address = (target >> 16) as u32;
    let port = target as u16;
    let (old_address, old_port) = match end {
        End::Source => (ip.source, transport.source_port),
        End::Destination => (ip.destination, transport.destination_port),
    };
    let ttl = ip.ttl.wrapping_sub(1);
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let moved = Delta::new().double(old_address, address);
    let shown = moved.word(old_port, port);
    Translation {
        end,
        address,
        port,
        ttl,
        ip_checksum: moved.word(word(ip.ttl), word(ttl)).apply(ip.checksum),
        checksum: if transport.is_udp {
            shown.apply_udp(transport.checksum)
        } else {
            shown.apply(transport.checksum)
        },
        is_udp: transport.is_udp,
    }
}

/// Whether a packet that we route may be forwarded once more.
#[inline(always)]
pub(crate) fn live_on(ip: &Ipv4) -> Result<(), Reason> {
    if ip.ttl <= 1 {
        Err(Reason::TtlExceeded)
    } else {
        Ok(())
    }
}

/// Lets the flow take note of the packet. Nearly every packet changes nothing
/// and returns at once.
#[inline(always)]
fn note(found: &Found, side: Side, transport: &Transport, tick: u32) {
    let arrival = Arrival {
        side,
        flags: transport.flags,
        sequence: transport.sequence,
        acknowledgement: transport.acknowledgement,
        payload: transport.payload,
    };
    if flow::is_quiet(found.meta, &arrival, tick) {
        return;
    }
    if let Some(scratch) = maps::scratch() {
        scratch.found = *found;
        scratch.arrival = arrival;
        scratch.tick = tick;
        steerline_track();
    }
}

/// Tracks the packet in the scratch space. A global function: the verifier
/// judges it once, by itself, and not again on every path that leads to it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_track() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return 0;
    };
    let table = Flows4::new(settings);
    let measures = |service: u32| {
        maps::service(service).map(|service| Measures {
            measure: service.measure,
            short_flow_bytes: service.short_flow_bytes,
        })
    };
    let tracked = flow::track(
        &table,
        &scratch.found,
        &scratch.arrival,
        scratch.tick,
        measures,
        crate::clock::micros,
    );
    if let Some(ended) = tracked.ended {
        maps::report(&ended);
    }
    if tracked.repeated_syn {
        maps::count(Reason::SynRepeated);
    }
    if tracked.restored {
        maps::count(Reason::Restored);
    }
    1
}
