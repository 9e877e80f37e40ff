//! Computes the translated headers of a packet.

use crate::{
    maps::{self, Flows4},
    packet::{End, Ipv4, Tcp, Translation},
};
use lb_common::{
    checksum::Delta,
    flow::{self, Arrival, Found, Measures, Twin},
    reason::Reason,
    tcp::Side,
};

/// Where a packet goes.
pub enum Direction {
    /// To the backend of a known flow.
    ToServer(Found),
    /// To the client of a known flow.
    ToClient(Found),
    /// To the backend of a flow that this packet opened.
    Opened(Twin),
}

impl Direction {
    /// Index of the flow's backend.
    #[inline(always)]
    pub fn backend(&self) -> u16 {
        match self {
            Self::ToServer(found) | Self::ToClient(found) => found.backend(),
            Self::Opened(opened) => opened.backend,
        }
    }
}

/// The translation, once the flow has taken note of the packet.
#[inline(always)]
pub fn run(direction: &Direction, ip: &Ipv4, tcp: &Tcp, tick: u32) -> Result<Translation, Reason> {
    if ip.ttl <= 1 {
        return Err(Reason::TtlExceeded);
    }
    let (end, target) = match direction {
        Direction::ToServer(found) => {
            note(found, Side::Client, tcp, tick);
            (End::Destination, found.backend_endpoint())
        }
        Direction::ToClient(found) => {
            note(found, Side::Server, tcp, tick);
            (End::Source, found.virtual_endpoint())
        }
        Direction::Opened(opened) => (End::Destination, opened.backend_endpoint),
    };
    let address = (target >> 16) as u32;
    let port = target as u16;
    let (old_address, old_port) = match end {
        End::Source => (ip.source, tcp.source_port),
        End::Destination => (ip.destination, tcp.destination_port),
    };
    let ttl = ip.ttl - 1;
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let moved = Delta::new().double(old_address, address);
    Ok(Translation {
        end,
        address,
        port,
        ttl,
        ip_checksum: moved.word(word(ip.ttl), word(ttl)).apply(ip.checksum),
        tcp_checksum: moved.word(old_port, port).apply(tcp.checksum),
    })
}

/// Lets the flow take note of the packet. Nearly every packet changes nothing
/// and returns at once.
#[inline(always)]
fn note(found: &Found, side: Side, tcp: &Tcp, tick: u32) {
    let arrival = Arrival {
        side,
        flags: tcp.flags,
        sequence: tcp.sequence,
        acknowledgement: tcp.acknowledgement,
        payload: tcp.payload,
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
