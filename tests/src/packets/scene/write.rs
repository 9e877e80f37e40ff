//! What puts the scene into a laboratory: the commands that make its network,
//! and what the controller would write.

use super::{
    BACK, FRONT, NARROW_MTU, NEAR_CLIENT, NEAR_CLIENT_MAC, POOL, ROUTER, ROUTER_MAC, SERVERS,
    Server, UNRESOLVED_ROUTER, VIPS, Vip, router_hop,
};
use crate::packets::{
    Family, Mac,
    family::{map_address, v4},
    lab::Lab,
};
use lb_common::{
    abi::{
        Backend, Hop, HopKey, LAYOUT_VERSION, Live, POOL_CELLS, PoolAddress, STATES, Service,
        ServiceKey, Settings, algorithm, backend_flags, hop_flags, measure, pool_cell,
        ticks_from_ms,
    },
    hash::filter_bit,
    tcp::State,
};
use std::net::IpAddr;
use steerline::dataplane::Publisher;

/// The `ip` commands that make the network.
pub(in crate::packets) fn commands() -> Vec<String> {
    let mac = |mac: Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut commands = Vec::new();
    for (name, address) in [("front", FRONT.1), ("back", BACK.1)] {
        commands.extend([
            format!(
                "link add {name} address {} type veth peer name {name}-peer",
                mac(address)
            ),
            format!("link set {name} up"),
            format!("link set {name}-peer up"),
        ]);
    }
    for family in Family::ALL {
        let ip = |address: IpAddr| family.counterpart(address);
        // The subnet of an interface, and the network of the clients of that
        // number, which the router is in front of.
        let (subnet, nodad) = match family {
            Family::V4 => ("24", ""),
            Family::V6 => ("64", " nodad"),
        };
        let clients = |number: u8| format!("{}/{subnet}", ip(v4([192, 168, number, 0])));
        for (name, (address, _)) in [("front", FRONT), ("back", BACK)] {
            commands.push(format!(
                "address add {}/{subnet} dev {name}{nodad}",
                ip(address)
            ));
        }
        for (address, its) in [(ROUTER, ROUTER_MAC), (NEAR_CLIENT.0, NEAR_CLIENT_MAC)] {
            commands.push(format!(
                "neighbour add {} lladdr {} dev front nud permanent",
                ip(address),
                mac(its)
            ));
        }
        commands.extend([
            format!("route add {} via {}", clients(1), ip(ROUTER)),
            format!("route add {} via {}", clients(2), ip(UNRESOLVED_ROUTER)),
            format!(
                "route add {} via {} mtu lock {NARROW_MTU}",
                clients(3),
                ip(ROUTER)
            ),
        ]);
    }
    commands
}

/// Secret of the flow hash: any, but always the same.
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// Idle and linger times of the daemon (lb-userspace, `daemon::prepare`).
fn timeouts() -> [u32; STATES] {
    let mut timeouts = [0; STATES];
    for (state, seconds) in [
        (State::HalfOpen, 5),
        (State::Answered, 31),
        (State::Established, 3_600),
        (State::ClientFin, 120),
        (State::ServerFin, 120),
        (State::Closed, 10),
        (State::Reset, 10),
        (State::Datagram, 30),
        (State::Conversing, 120),
    ] {
        timeouts[state as usize] = ticks_from_ms(seconds * 1_000);
    }
    timeouts
}

pub(in crate::packets) fn settings(before: &Settings, buckets: u32, heartbeat: u32) -> Settings {
    Settings {
        hash_secret: SECRET,
        bucket_mask4: buckets - 1,
        bucket_mask6: buckets - 1,
        layout: LAYOUT_VERSION,
        heartbeat,
        heartbeat_expiry: ticks_from_ms(10_000),
        instance: 1,
        flow_capacity4: buckets * 2,
        flow_capacity6: buckets * 2,
        trials: 0,
        // One of each family.
        pools: 1 << 16 | 1,
        timeouts: timeouts(),
        ..*before
    }
}

/// Every service of both families, with its name.
fn vips() -> impl Iterator<Item = (String, Vip)> {
    Family::ALL.into_iter().flat_map(|family| {
        VIPS.into_iter()
            .map(move |(name, vip)| (named(name, family), vip.in_family(family)))
    })
}

/// Every server of both families, with its name.
fn servers() -> impl Iterator<Item = (String, Server)> {
    Family::ALL.into_iter().flat_map(|family| {
        SERVERS
            .into_iter()
            .map(move |(name, server)| (named(name, family), server.in_family(family)))
    })
}

fn named(name: &str, family: Family) -> String {
    match family {
        Family::V4 => name.to_owned(),
        Family::V6 => format!("{name}-6"),
    }
}

/// Writes the services, servers and next hops, and publishes member lists of
/// weight 1.
pub(in crate::packets) fn write(lab: &mut Lab) {
    let mut bits = vec![0u64; lb_common::abi::FILTER_WORDS as usize];
    let addresses = vips().map(|(_, vip)| vip.endpoint.0);
    for address in addresses.chain(servers().map(|(_, server)| server.endpoint.0)) {
        let bit = filter_bit(&map_address(address), Family::of(address).number());
        bits[(bit >> 6) as usize] |= 1 << (bit & 63);
    }
    for (place, word) in (0..).zip(bits) {
        lab.maps.filter.write(place, word);
    }
    for (index, family) in (1..).zip(Family::ALL) {
        write_pool(lab, index, family.counterpart(POOL.0));
    }
    for (name, vip) in vips() {
        write_service(lab, &name, vip);
    }
    for (name, server) in servers() {
        write_server(lab, &name, server);
    }
    for family in Family::ALL {
        let router = Hop {
            flags: hop_flags::VALID,
            ifindex: lab.front,
            destination: ROUTER_MAC,
            source: FRONT.1,
            mtu: 1_500,
            padding: 0,
        };
        lab.maps.hops.write(router_hop(family), router);
        let key = HopKey {
            address: map_address(family.counterpart(ROUTER)),
            ifindex: lab.front,
            family: family.number().into(),
        };
        lab.maps
            .hop_index
            .insert(key, router_hop(family), 0)
            .expect("naming a next hop");
    }

    lab.publisher = Publisher::new(&lab.maps);
    for (_, vip) in vips() {
        let members: Vec<_> = servers()
            .filter(|(_, server)| server.service == vip.index)
            .map(|(_, server)| (server.index, 1))
            .collect();
        if !members.is_empty() {
            lab.publish(vip, &members);
        }
    }
}

/// How many addresses stand for clients.
pub(in crate::packets) const POOLS: u32 = Family::ALL.len() as u32;

/// An address whose ports are all free.
fn write_pool(lab: &mut Lab, index: u32, address: IpAddr) {
    let entry = PoolAddress {
        address: map_address(address),
        turn: 0,
        padding: [0; 5],
    };
    lab.maps.pools.write(index, entry);
    lab.name_pool(address, index);
    let first = pool_cell(index, false, 0);
    for cell in first..first + POOL_CELLS {
        lab.maps.pool_ports.write(cell, 0);
    }
}

fn write_service(lab: &mut Lab, name: &str, vip: Vip) {
    let ping = vip.ping_key();
    let key = ServiceKey {
        port: vip.endpoint.1,
        protocol: vip.protocol,
        ..ping
    };
    lab.assign_service(name, &key, vip.index);
    lab.maps
        .services
        .insert(ping, vip.index, 0)
        .expect("naming an address that answers ping");
    let service = Service {
        members: 0,
        ring: 0,
        address: key.address,
        port: key.port,
        protocol: key.protocol,
        family: key.family,
        algorithm: algorithm::WEIGHTED_ROUND_ROBIN,
        measure: measure::SYN_TO_FIN,
        forwarding: vip.forwarding,
        reassign: 0,
        short_flow_bytes: 15_360,
        padding1: 0,
        padding2: [0; 2],
    };
    lab.maps.service_table.write(vip.index, service);
}

fn write_server(lab: &mut Lab, name: &str, server: Server) {
    let (address, port) = (map_address(server.endpoint.0), server.endpoint.1);
    lab.assign_backend(name, server.service, &address, port, server.index.into());
    let is_its = |(_, vip): &(String, Vip)| vip.index == server.service;
    let (_, vip) = vips().find(is_its).expect("a backend of a service");
    let backend = Backend {
        forwarding: vip.forwarding,
        family: Family::of(server.endpoint.0).number(),
        flags: backend_flags::PRESENT | backend_flags::UP,
        weight: 1,
        relative: lb_common::abi::RELATIVE_ONE,
        hop: server.hop(),
        address,
        port,
        service: server.service as u16,
        ..bytemuck::Zeroable::zeroed()
    };
    lab.maps.backends.write(server.index.into(), backend);
    lab.maps.live.write(server.index.into(), Live::default());
    let hop = Hop {
        flags: hop_flags::VALID,
        ifindex: lab.back,
        destination: server.mac(),
        source: BACK.1,
        mtu: 1_500,
        padding: 0,
    };
    lab.maps.hops.write(server.hop(), hop);
}
