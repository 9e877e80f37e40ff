//! Finds the flow of a packet, in whichever direction it goes.

use super::classify::Ours;
use crate::{
    family::Family,
    maps,
    packet::{Ip, Transport},
};
use lb_common::{
    abi::{POOL_PROTOCOL, ServiceKey, Settings, pool_cell},
    flow::{self, Found, Tuple, client_word},
    tcp::Side,
};

/// What was found.
pub(crate) enum Flow {
    ToServer(Found),
    ToClient(Found),
    None,
}

#[inline(always)]
pub(crate) fn run<F: Family>(
    settings: &'static Settings,
    ours: Ours,
    ip: &Ip<F>,
    transport: &Transport,
) -> Flow {
    let source = F::endpoint(ip.source, transport.source_port, settings);
    let destination = F::endpoint(ip.destination, transport.destination_port, settings);
    // A server's packet to an address of the pool. Clients' packets do not come
    // from servers' addresses, so they do not pay for this.
    if ours.destination
        && settings.pools != 0
        && may_be_server(ip)
        && let Some(found) = pooled(settings, ip, transport, destination)
    {
        return Flow::ToClient(found);
    }
    if ours.destination {
        let ends = F::ends(ip.source, ip.destination);
        let client = client_word(source, ip.protocol);
        let tuple = F::tuple(client, destination, ends);
        if let Some(found) = search::<F>(settings, &tuple, Side::Client) {
            return Flow::ToServer(found);
        }
    }
    // Nobody's endpoint is what a flow of direct return has in place of its
    // server's.
    if source != 0 && (!ours.destination || may_be_server(ip)) {
        let ends = F::ends(ip.destination, ip.source);
        let client = client_word(destination, ip.protocol);
        let tuple = F::tuple(client, source, ends);
        if let Some(found) = search::<F>(settings, &tuple, Side::Server)
            && is_server::<F>(found.backend(), ip.source)
        {
            return Flow::ToClient(found);
        }
    }
    Flow::None
}

#[inline(always)]
fn may_be_server<F: Family>(ip: &Ip<F>) -> bool {
    maps::filter_has(F::filter_bit(ip.source))
}

#[inline(always)]
fn search<F: Family>(settings: &'static Settings, tuple: &Tuple, side: Side) -> Option<Found> {
    let home = F::home(tuple.client, settings);
    flow::find(&F::flows(settings), home, tuple, side)
}

/// The flow that has the port of a pool address, if that is where a packet goes
/// and its server sent it.
#[inline(always)]
fn pooled<F: Family>(
    settings: &'static Settings,
    ip: &Ip<F>,
    transport: &Transport,
    destination: u64,
) -> Option<Found> {
    let pool = maps::service_index(&ServiceKey {
        address: F::key(ip.destination),
        port: 0,
        protocol: POOL_PROTOCOL,
        family: F::NUMBER,
    })?;
    let cell = pool_cell(pool, transport.is_udp, transport.destination_port);
    let client = maps::pool_holder(cell);
    if client == 0 {
        return None;
    }
    let home = F::home(client, settings);
    let backend_end = destination << 16 | pool as u64;
    let found = flow::find_pooled(&F::flows(settings), home, client, backend_end)?;
    let backend = maps::backend(found.backend())?;
    let server = F::endpoint(F::address(backend.address), backend.port, settings);
    let is_its = server == F::endpoint(ip.source, transport.source_port, settings)
        && F::is_address_of(backend, ip.source);
    is_its.then_some(found)
}

/// Whether a backend has this address, of which its flow may have only a tag.
#[inline(always)]
fn is_server<F: Family>(backend: u16, address: F::Address) -> bool {
    match maps::backend(backend) {
        Some(backend) => F::is_address_of(backend, address),
        None => false,
    }
}
