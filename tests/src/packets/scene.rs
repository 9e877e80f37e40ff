//! The services, servers and network that every row starts with.
//!
//! ```text
//! client ── router ──────── front   back ──────── servers
//! 192.168.1.1  172.16.0.254  .1   10.0.0.254      10.0.0.1, .2, .3, .4
//! ```
//!
//! Addresses of clients and virtual services, and the router's MAC address,
//! are those of katran's fixtures (katran/lib/testing), so that rows can be
//! compared with them. Servers of the services that are answered directly listen
//! at the service's own port, at endpoints that other services have too.

use super::{Endpoint, Mac, lab::Lab};
use lb_common::{
    abi::{
        Backend, Hop, HopKey, LAYOUT_VERSION, Live, STATES, Service, ServiceKey, Settings,
        address4, algorithm, backend_flags, forwarding, hop_flags, measure, ticks_from_ms,
    },
    hash::filter_bit,
    tcp::State,
};
use steerline::dataplane::Publisher;

/// A service: its index and where it listens.
#[derive(Clone, Copy, Debug)]
pub struct Vip {
    /// Index into the service maps.
    pub index: u32,
    /// Address and port; port 0 is every port.
    pub endpoint: Endpoint,
    /// IP protocol number.
    pub protocol: u8,
    /// One of [`forwarding`].
    pub forwarding: u8,
}

impl Vip {
    /// A TCP service in `nat`.
    const fn nat(index: u32, endpoint: Endpoint) -> Self {
        Self {
            index,
            endpoint,
            protocol: TCP,
            forwarding: forwarding::NAT,
        }
    }

    const fn udp(self) -> Self {
        Self {
            protocol: UDP,
            ..self
        }
    }

    const fn direct(self) -> Self {
        Self {
            forwarding: forwarding::DSR,
            ..self
        }
    }
}

/// Protocol numbers of IP (IANA).
pub const ICMP: u8 = 1;
/// See [`ICMP`].
pub const TCP: u8 = 6;
/// See [`ICMP`].
pub const UDP: u8 = 17;

/// A backend: its index, its service and where it listens.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Index into the backend maps.
    pub index: u16,
    /// Index of the service.
    pub service: u32,
    /// Address and port.
    pub endpoint: Endpoint,
}

impl Server {
    const fn at(index: u16, service: u32, endpoint: Endpoint) -> Self {
        Self {
            index,
            service,
            endpoint,
        }
    }

    /// Index of its next hop, and the last byte of its MAC address.
    pub const fn hop(self) -> u32 {
        self.endpoint.0[3] as u32
    }

    /// Its MAC address.
    pub const fn mac(self) -> Mac {
        [2, 0, 0, 0, 0x0b, self.endpoint.0[3]]
    }
}

/// `web`: A, B and C, one flow each in turn.
pub const WEB: Vip = Vip::nat(0, ([10, 200, 1, 1], 80));
/// `any`: every port of its address, but [`EXACT`]'s.
pub const ANY: Vip = Vip::nat(1, ([10, 200, 1, 2], 0));
/// `exact`: one port of the same address.
pub const EXACT: Vip = Vip::nat(2, ([10, 200, 1, 2], 443));
/// `shared`: has a backend at the same endpoint as [`A`].
pub const SHARED: Vip = Vip::nat(3, ([10, 200, 1, 3], 80));
/// `empty`: no backends.
pub const EMPTY: Vip = Vip::nat(4, ([10, 200, 1, 4], 80));
/// `dns`: UDP.
pub const DNS: Vip = Vip::nat(5, ([10, 200, 1, 5], 53)).udp();
/// `direct`: its servers answer clients directly.
pub const DIRECT: Vip = Vip::nat(6, ([10, 200, 1, 6], 8_080)).direct();
/// `direct-dns`: the same of UDP.
pub const DIRECT_DNS: Vip = Vip::nat(7, ([10, 200, 1, 7], 53)).udp().direct();

/// First backend of [`WEB`].
pub const A: Server = Server::at(1, 0, ([10, 0, 0, 1], 8_080));
/// Second backend of [`WEB`].
pub const B: Server = Server::at(2, 0, ([10, 0, 0, 2], 8_080));
/// Third backend of [`WEB`].
pub const C: Server = Server::at(3, 0, ([10, 0, 0, 3], 8_080));
/// The backend of [`ANY`].
pub const ANY_SERVER: Server = Server::at(4, 1, ([10, 0, 0, 2], 9_000));
/// The backend of [`EXACT`].
pub const EXACT_SERVER: Server = Server::at(5, 2, ([10, 0, 0, 3], 8_443));
/// First backend of [`SHARED`]: the endpoint of [`A`] once more.
pub const SHARED_A: Server = Server::at(6, 3, ([10, 0, 0, 1], 8_080));
/// Second backend of [`SHARED`].
pub const SHARED_D: Server = Server::at(7, 3, ([10, 0, 0, 4], 8_080));
/// First backend of [`DNS`].
pub const DNS_A: Server = Server::at(8, 5, ([10, 0, 0, 1], 53));
/// Second backend of [`DNS`].
pub const DNS_B: Server = Server::at(9, 5, ([10, 0, 0, 2], 53));
/// First backend of [`DIRECT`]: the endpoint of [`A`] once more.
pub const DIRECT_A: Server = Server::at(10, 6, ([10, 0, 0, 1], 8_080));
/// Second backend of [`DIRECT`].
pub const DIRECT_B: Server = Server::at(11, 6, ([10, 0, 0, 2], 8_080));
/// First backend of [`DIRECT_DNS`]: the endpoint of [`DNS_A`] once more.
pub const DIRECT_DNS_A: Server = Server::at(12, 7, ([10, 0, 0, 1], 53));
/// Second backend of [`DIRECT_DNS`].
pub const DIRECT_DNS_B: Server = Server::at(13, 7, ([10, 0, 0, 2], 53));

const VIPS: [(&str, Vip); 8] = [
    ("web", WEB),
    ("any", ANY),
    ("exact", EXACT),
    ("shared", SHARED),
    ("empty", EMPTY),
    ("dns", DNS),
    ("direct", DIRECT),
    ("direct-dns", DIRECT_DNS),
];
const SERVERS: [(&str, Server); 13] = [
    ("web-a", A),
    ("web-b", B),
    ("web-c", C),
    ("any-b", ANY_SERVER),
    ("exact-c", EXACT_SERVER),
    ("shared-a", SHARED_A),
    ("shared-d", SHARED_D),
    ("dns-a", DNS_A),
    ("dns-b", DNS_B),
    ("direct-a", DIRECT_A),
    ("direct-b", DIRECT_B),
    ("direct-dns-a", DIRECT_DNS_A),
    ("direct-dns-b", DIRECT_DNS_B),
];

/// Services whose counters a snapshot reads: those above and some that must
/// never move.
pub const SERVICES_READ: u32 = 10;
/// The same for backends, index 0 (none) included.
pub const BACKENDS_READ: u16 = 16;

/// The usual client.
pub const CLIENT: Endpoint = ([192, 168, 1, 1], 31_337);
/// A client's next hop.
pub const ROUTER: [u8; 4] = [172, 16, 0, 254];
/// Its MAC address.
pub const ROUTER_MAC: Mac = [0x00, 0x00, 0xde, 0xad, 0xbe, 0xaf];
/// Index of its next hop.
pub const ROUTER_HOP: u32 = 100;
/// Address and MAC address of the interface towards clients.
pub const FRONT: ([u8; 4], Mac) = ([172, 16, 0, 1], [2, 0, 0, 0, 0, 1]);
/// The same towards servers.
pub const BACK: ([u8; 4], Mac) = ([10, 0, 0, 254], [2, 0, 0, 0, 0, 2]);
/// A client whose router has no MAC address.
pub const UNRESOLVED_CLIENT: Endpoint = ([192, 168, 2, 1], 31_337);
/// That router.
pub const UNRESOLVED_ROUTER: [u8; 4] = [172, 16, 0, 253];
/// A client to whom there is no route.
pub const UNROUTED_CLIENT: Endpoint = ([100, 64, 0, 1], 31_337);
/// A client in the network of the interface itself.
pub const NEAR_CLIENT: Endpoint = ([172, 16, 0, 7], 31_337);
/// Its MAC address.
pub const NEAR_CLIENT_MAC: Mac = [2, 0, 0, 0, 0x0c, 7];
/// A client behind a route of [`NARROW_MTU`].
pub const NARROW_CLIENT: Endpoint = ([192, 168, 3, 1], 31_337);
/// See [`NARROW_CLIENT`].
pub const NARROW_MTU: u16 = 1_000;

/// The `ip` commands that make the network.
pub(super) fn commands() -> Vec<String> {
    let mac = |mac: Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
    let ip = |address: [u8; 4]| std::net::Ipv4Addr::from(address);
    let (front, back) = (ip(FRONT.0), ip(BACK.0));
    vec![
        format!(
            "link add front address {} type veth peer name front-peer",
            mac(FRONT.1)
        ),
        format!(
            "link add back address {} type veth peer name back-peer",
            mac(BACK.1)
        ),
        "link set front up".into(),
        "link set front-peer up".into(),
        "link set back up".into(),
        "link set back-peer up".into(),
        format!("address add {front}/24 dev front"),
        format!("address add {back}/24 dev back"),
        format!(
            "neighbour add {} lladdr {} dev front nud permanent",
            ip(ROUTER),
            mac(ROUTER_MAC)
        ),
        format!(
            "neighbour add {} lladdr {} dev front nud permanent",
            ip(NEAR_CLIENT.0),
            mac(NEAR_CLIENT_MAC)
        ),
        format!("route add 192.168.1.0/24 via {}", ip(ROUTER)),
        format!("route add 192.168.2.0/24 via {}", ip(UNRESOLVED_ROUTER)),
        format!(
            "route add 192.168.3.0/24 via {} mtu lock {NARROW_MTU}",
            ip(ROUTER)
        ),
    ]
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

/// `before` knows the kernel's clock.
pub(super) fn settings(before: &Settings, buckets: u32, heartbeat: u32) -> Settings {
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
        timeouts: timeouts(),
        ..*before
    }
}

/// Writes the services, servers and next hops, and publishes member lists of
/// weight 1.
pub(super) fn write(lab: &mut Lab) {
    let mut bits = vec![0u64; lb_common::abi::FILTER_WORDS as usize];
    let addresses = VIPS.iter().map(|(_, vip)| vip.endpoint.0);
    for address in addresses.chain(SERVERS.iter().map(|(_, server)| server.endpoint.0)) {
        let bit = filter_bit(&address4(address), 4);
        bits[(bit >> 6) as usize] |= 1 << (bit & 63);
    }
    for (place, word) in (0..).zip(bits) {
        lab.maps.filter.write(place, word);
    }
    for (name, vip) in VIPS {
        let key = ServiceKey {
            address: address4(vip.endpoint.0),
            port: vip.endpoint.1,
            protocol: vip.protocol,
            family: 4,
        };
        lab.assign_service(name, &key, vip.index);
        let ping = ServiceKey {
            port: 0,
            protocol: ICMP,
            ..key
        };
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
            padding: 0,
            short_flow_bytes: 15_360,
            padding1: 0,
            padding2: [0; 2],
        };
        lab.maps.service_table.write(vip.index, service);
    }
    for (name, server) in SERVERS {
        let (address, port) = (address4(server.endpoint.0), server.endpoint.1);
        lab.assign_backend(name, server.service, &address, port, server.index.into());
        let backend = Backend {
            flags: backend_flags::PRESENT | backend_flags::UP,
            weight: 1,
            relative: lb_common::abi::RELATIVE_ONE,
            hop: server.hop(),
            address,
            port,
            service: server.service as u16,
            padding0: 0,
            padding1: [0; 3],
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
    let router = Hop {
        flags: hop_flags::VALID,
        ifindex: lab.front,
        destination: ROUTER_MAC,
        source: FRONT.1,
        mtu: 1_500,
        padding: 0,
    };
    lab.maps.hops.write(ROUTER_HOP, router);
    let key = HopKey {
        address: address4(ROUTER),
        ifindex: lab.front,
        family: 4,
    };
    lab.maps
        .hop_index
        .insert(key, ROUTER_HOP, 0)
        .expect("naming a next hop");

    lab.publisher = Publisher::new(&lab.maps);
    for (_, vip) in VIPS {
        let members: Vec<_> = SERVERS
            .iter()
            .filter(|(_, server)| server.service == vip.index)
            .map(|(_, server)| (server.index, 1))
            .collect();
        if !members.is_empty() {
            lab.publish(vip, &members);
        }
    }
}
