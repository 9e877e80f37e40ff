//! Computes the translated headers of a packet.

use crate::{
    family::Family,
    maps,
    packet::{End, Ip, Translation, Transport, V4, V6},
};
use lb_common::{
    abi::{Failure, failure_kind},
    checksum::Delta,
    flow::{self, Arrival, Ended, Found, Measures, Twin, meta},
    reason::Reason,
    tcp::Side,
};

/// The global function by which the flows of a family take note of a packet.
pub(crate) trait Tracks: Family {
    fn track() -> u32;
}

/// Whether the flow's server answers its client directly. Nothing but MAC
/// addresses changes then, the time to live included: the balancer is no router
/// there.
#[inline(always)]
pub(crate) fn is_direct(found: &Found) -> bool {
    found.meta & meta::ONE_SIDED != 0
}

/// Lets a flow of direct return take note of its client's packet.
#[inline(always)]
pub(crate) fn direct<F: Tracks>(found: &Found, transport: &Transport, tick: u32) {
    note::<F>(found, Side::ClientAlone, transport, tick);
}

/// The headers of a client's packet on a known flow, once the flow has taken
/// note of it.
#[inline(always)]
pub(crate) fn to_server<F: Tracks>(
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
    tick: u32,
) -> Result<Translation<F>, Reason> {
    live_on(ip)?;
    note::<F>(found, Side::Client, transport, tick);
    for_server(found, ip, transport)
}

/// The headers of a client's packet on a known flow.
#[inline(always)]
pub(crate) fn for_server<F: Family>(
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
) -> Result<Translation<F>, Reason> {
    to_backend(
        found.backend(),
        found.backend_endpoint(),
        found.pool(),
        ip,
        transport,
    )
}

/// The headers of a server's packet, once its flow has taken note of it.
#[inline(always)]
pub(crate) fn to_client<F: Tracks>(
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
    tick: u32,
) -> Result<Translation<F>, Reason> {
    live_on(ip)?;
    note::<F>(found, Side::Server, transport, tick);
    Ok(for_client(found, ip, transport))
}

/// The headers of a server's packet on a known flow.
#[inline(always)]
pub(crate) fn for_client<F: Family>(
    found: &Found,
    ip: &Ip<F>,
    transport: &Transport,
) -> Translation<F> {
    let port = found.virtual_endpoint() as u16;
    let vip = (F::virtual_address(found), port);
    let client = (F::client_address(found), found.client_endpoint() as u16);
    let both = found.pool() != 0;
    translation(End::Source, vip, both, client, ip, transport)
}

/// The headers of the packet that opened a flow.
#[inline(always)]
pub(crate) fn opened<F: Family>(
    twin: &Twin,
    ip: &Ip<F>,
    transport: &Transport,
) -> Result<Translation<F>, Reason> {
    to_backend(
        twin.backend,
        twin.backend_endpoint,
        twin.pool,
        ip,
        transport,
    )
}

/// The headers of a client's packet. `endpoint`: of the backend, or, with `pool`,
/// of the address that stands for the client.
#[inline(always)]
fn to_backend<F: Family>(
    backend: u16,
    endpoint: u64,
    pool: u16,
    ip: &Ip<F>,
    transport: &Transport,
) -> Result<Translation<F>, Reason> {
    let backend = maps::backend(backend).ok_or(Reason::Internal)?;
    let mut server = (F::server_address(backend, endpoint), endpoint as u16);
    let mut client = (ip.source, transport.source_port);
    if pool != 0 {
        let stands = maps::pool(pool as u32).ok_or(Reason::Internal)?;
        server = (F::address(backend.address), backend.port);
        client = (F::address(stands.address), endpoint as u16);
    }
    let both = pool != 0;
    Ok(translation(
        End::Destination,
        server,
        both,
        client,
        ip,
        transport,
    ))
}

/// An address and a port.
type Endpoint<F> = (<F as Family>::Address, u16);

/// `new`: what comes in place of the end; `other`: in place of the other one, if
/// `both` change.
#[inline(always)]
fn translation<F: Family>(
    end: End,
    new: Endpoint<F>,
    both: bool,
    other: Endpoint<F>,
    ip: &Ip<F>,
    transport: &Transport,
) -> Translation<F> {
    let source = (ip.source, transport.source_port);
    let destination = (ip.destination, transport.destination_port);
    let (old, old_other) = match end {
        End::Source => (source, destination),
        End::Destination => (destination, source),
    };
    let ttl = ip.ttl.wrapping_sub(1);
    let word = |ttl: u8| (ttl as u16) << 8 | ip.protocol as u16;
    let mut moved = F::moved(Delta::new(), old.0, new.0);
    let mut ports = Delta::new().word(old.1, new.1);
    if both {
        moved = F::moved(moved, old_other.0, other.0);
        ports = ports.word(old_other.1, other.1);
    }
    let shown = moved.and(ports);
    Translation {
        end,
        address: new.0,
        port: new.1,
        both,
        other_address: other.0,
        other_port: other.1,
        ttl,
        ip_checksum: if F::HEADER_CHECKSUM {
            moved.word(word(ip.ttl), word(ttl)).apply(ip.checksum)
        } else {
            0
        },
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
pub(crate) fn live_on<F: Family>(ip: &Ip<F>) -> Result<(), Reason> {
    if ip.ttl <= 1 {
        Err(Reason::TtlExceeded)
    } else {
        Ok(())
    }
}

/// Lets the flow take note of the packet. Nearly every packet changes nothing
/// and returns at once.
#[inline(always)]
fn note<F: Tracks>(found: &Found, side: Side, transport: &Transport, tick: u32) {
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
        let told = F::track();
        if told != 0 {
            steerline_tell(told);
        }
    }
}

/// What others are to be told of a packet: the flow failed.
const FAILED: u32 = 1;
/// The server answered the SYN.
const ANSWERED: u32 = 2;
/// It answered a request.
const TURNED: u32 = 4;
/// Of a flow that is long.
const LONG: u32 = 8;

/// Tells of the flow in the scratch space. Called after the packet was tracked and
/// not from there: their stacks would not fit together.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_tell(what: u32) -> u32 {
    let Some(scratch) = maps::scratch() else {
        return 0;
    };
    let micros = crate::clock::micros();
    let backend = scratch.found.backend();
    if what & TURNED != 0 {
        maps::report(&Ended {
            backend,
            long: what & LONG != 0,
            failed: false,
            sample_us: Some(scratch.turn_us.get()),
        });
    }
    if what & FAILED != 0 {
        maps::tell(&Failure {
            client: scratch.found.client,
            at_us: micros,
            backend,
            // Not known here; a test waits for a second reset then.
            repeats: 0,
            kind: failure_kind::RESET,
            padding: [0; 3],
        });
    }
    if what & ANSWERED != 0
        && let Some(backend) = maps::backend(backend)
        && let Some((limit, guarded)) = maps::syn_guard(backend.service as u32)
    {
        guarded.answered(&limit, micros);
    }
    1
}

/// Defines the global function that tracks the packet in the scratch space. A
/// global function: the verifier judges it once, by itself, and not again on
/// every path that leads to it.
macro_rules! tracks {
    ($family:ident, $name:ident) => {
        impl Tracks for $family {
            #[inline(always)]
            fn track() -> u32 {
                $name()
            }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name() -> u32 {
            track::<$family>()
        }
    };
}

tracks!(V4, steerline_track4);
tracks!(V6, steerline_track6);

#[inline(always)]
fn track<F: Family>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return 0;
    };
    let table = F::flows(settings);
    let measures = |service: u32| {
        maps::service(service).map(|service| Measures {
            measure: service.measure,
            short_flow_bytes: service.short_flow_bytes,
        })
    };
    let tracked = flow::note(
        &table,
        &scratch.found,
        &scratch.arrival,
        scratch.tick,
        measures,
        crate::clock::micros,
    );
    let mut told = 0;
    if let Some(ended) = tracked.ended {
        maps::report(&ended);
        if ended.failed {
            told |= FAILED;
        }
    }
    if let Some(turn) = tracked.turn {
        scratch.turn_us.set(turn.sample_us.unwrap_or(0));
        told |= if turn.long { TURNED | LONG } else { TURNED };
    }
    if tracked.answered {
        told |= ANSWERED;
    }
    if tracked.repeated_syn {
        maps::count(Reason::SynRepeated);
    }
    if tracked.restored {
        maps::count(Reason::Restored);
    }
    told
}
