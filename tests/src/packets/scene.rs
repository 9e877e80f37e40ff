//! The services, servers and network that every row starts with.
//!
//! ```text
//! client ── router ──────── front   back ──────── servers
//! 192.168.1.1  172.16.0.254  .1   10.0.0.254      10.0.0.1, .2, .3, .4
//! ```
//!
//! Each service exists a second time, in IPv6: [`Vip::in_family`] and
//! [`Server::in_family`] give the counterparts.
//!
//! Addresses of clients and virtual services, and the router's MAC address,
//! are those of katran's fixtures (katran/lib/testing), so that rows can be
//! compared with them. Servers of the services that are answered directly listen
//! at the service's own port, at endpoints that other services have too.

use super::{
    Endpoint, Family, Mac, Tunnel,
    family::{map_address, v4},
};
use lb_common::abi::{FIRST_POOL_PORT, ServiceKey, forwarding};
use std::net::IpAddr;

mod write;

pub(super) use write::{POOLS, commands, settings, write};

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
    const fn nat(index: u32, (address, port): ([u8; 4], u16)) -> Self {
        Self {
            index,
            endpoint: (v4(address), port),
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

    const fn full(self) -> Self {
        Self {
            forwarding: forwarding::FULL_NAT,
            ..self
        }
    }

    /// This service, or its counterpart.
    pub const fn in_family(self, family: Family) -> Self {
        match family {
            Family::V4 => self,
            Family::V6 => Self {
                index: self.index + VIPS.len() as u32,
                endpoint: (family.counterpart(self.endpoint.0), self.endpoint.1),
                ..self
            },
        }
    }

    /// Key of the service map by which its address answers ping.
    pub fn ping_key(self) -> ServiceKey {
        let family = Family::of(self.endpoint.0);
        ServiceKey {
            address: map_address(self.endpoint.0),
            port: 0,
            protocol: match family {
                Family::V4 => ICMP,
                Family::V6 => ICMP6,
            },
            family: family.number(),
        }
    }
}

/// Protocol numbers of IP (IANA).
pub const ICMP: u8 = 1;
/// See [`ICMP`].
pub const ICMP6: u8 = 58;
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
    /// What packets to it are put into.
    pub tunnel: Option<Tunnel>,
}

impl Server {
    const fn at(index: u16, service: u32, (address, port): ([u8; 4], u16)) -> Self {
        Self {
            index,
            service,
            endpoint: (v4(address), port),
            tunnel: None,
        }
    }

    /// This server, or its counterpart: another host.
    pub const fn in_family(self, family: Family) -> Self {
        match family {
            Family::V4 => self,
            Family::V6 => Self {
                index: self.index + SERVERS.len() as u16,
                service: self.service + VIPS.len() as u32,
                endpoint: (family.counterpart(self.endpoint.0), self.endpoint.1),
                ..self
            },
        }
    }

    /// This backend behind a tunnel: of its host the address in the tunnel's
    /// family. [`Lab::tunnel`](super::Lab::tunnel) makes it so.
    pub const fn behind(self, tunnel: Tunnel) -> Self {
        let address = tunnel.family.address([10, 0, 0, self.host()]);
        Self {
            endpoint: (address, self.endpoint.1),
            tunnel: Some(tunnel),
            ..self
        }
    }

    /// The last byte of its address.
    const fn host(self) -> u8 {
        match self.endpoint.0 {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(address) => address.octets()[15],
        }
    }

    /// Index of its next hop.
    pub const fn hop(self) -> u32 {
        match Family::of(self.endpoint.0) {
            Family::V4 => self.host() as u32,
            Family::V6 => 20 + self.host() as u32,
        }
    }

    /// Its MAC address.
    pub const fn mac(self) -> Mac {
        let family = match Family::of(self.endpoint.0) {
            Family::V4 => 0x0b,
            Family::V6 => 0x6b,
        };
        [2, 0, 0, 0, family, self.host()]
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
/// `full`: its servers see [`POOL`] in place of clients.
pub const FULL: Vip = Vip::nat(8, ([10, 200, 1, 8], 80)).full();
/// `full-dns`: the same of UDP.
pub const FULL_DNS: Vip = Vip::nat(9, ([10, 200, 1, 9], 53)).udp().full();

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
/// First backend of [`FULL`]: the endpoint of [`A`] once more.
pub const FULL_A: Server = Server::at(14, 8, ([10, 0, 0, 1], 8_080));
/// Second backend of [`FULL`].
pub const FULL_B: Server = Server::at(15, 8, ([10, 0, 0, 2], 8_080));
/// First backend of [`FULL_DNS`]: the endpoint of [`DNS_A`] once more.
pub const FULL_DNS_A: Server = Server::at(16, 9, ([10, 0, 0, 1], 53));
/// Second backend of [`FULL_DNS`].
pub const FULL_DNS_B: Server = Server::at(17, 9, ([10, 0, 0, 2], 53));

const VIPS: [(&str, Vip); 10] = [
    ("web", WEB),
    ("any", ANY),
    ("exact", EXACT),
    ("shared", SHARED),
    ("empty", EMPTY),
    ("dns", DNS),
    ("direct", DIRECT),
    ("direct-dns", DIRECT_DNS),
    ("full", FULL),
    ("full-dns", FULL_DNS),
];
const SERVERS: [(&str, Server); 17] = [
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
    ("full-a", FULL_A),
    ("full-b", FULL_B),
    ("full-dns-a", FULL_DNS_A),
    ("full-dns-b", FULL_DNS_B),
];

/// Services whose counters a snapshot reads: those above in both families, and
/// some that must never move.
pub const SERVICES_READ: u32 = 2 * VIPS.len() as u32 + 2;
/// The same for backends, index 0 (none) included.
pub const BACKENDS_READ: u16 = 2 * SERVERS.len() as u16 + 3;

/// The usual client.
pub const CLIENT: Endpoint = (v4([192, 168, 1, 1]), 31_337);
/// A client's next hop.
pub const ROUTER: IpAddr = v4([172, 16, 0, 254]);
/// Its MAC address.
pub const ROUTER_MAC: Mac = [0x00, 0x00, 0xde, 0xad, 0xbe, 0xaf];
/// Index of its next hop; see [`router_hop`] for that of IPv6.
pub const ROUTER_HOP: u32 = 100;
/// Address and MAC address of the interface towards clients.
pub const FRONT: (IpAddr, Mac) = (v4([172, 16, 0, 1]), [2, 0, 0, 0, 0, 1]);
/// The same towards servers.
pub const BACK: (IpAddr, Mac) = (v4([10, 0, 0, 254]), [2, 0, 0, 0, 0, 2]);
/// What stands for clients in `full-nat`: the only address, in each family. Its
/// first ports are the first to be given.
pub const POOL: Endpoint = (v4([10, 0, 0, 100]), FIRST_POOL_PORT);
/// A client whose router has no MAC address.
pub const UNRESOLVED_CLIENT: Endpoint = (v4([192, 168, 2, 1]), 31_337);
/// That router.
pub const UNRESOLVED_ROUTER: IpAddr = v4([172, 16, 0, 253]);
/// A client to whom there is no route.
pub const UNROUTED_CLIENT: Endpoint = (v4([100, 64, 0, 1]), 31_337);
/// A client in the network of the interface itself.
pub const NEAR_CLIENT: Endpoint = (v4([172, 16, 0, 7]), 31_337);
/// Its MAC address.
pub const NEAR_CLIENT_MAC: Mac = [2, 0, 0, 0, 0x0c, 7];
/// A client behind a route of [`NARROW_MTU`].
pub const NARROW_CLIENT: Endpoint = (v4([192, 168, 3, 1]), 31_337);
/// See [`NARROW_CLIENT`].
pub const NARROW_MTU: u16 = 1_000;

/// Index of the router's next hop in a family.
pub const fn router_hop(family: Family) -> u32 {
    match family {
        Family::V4 => ROUTER_HOP,
        Family::V6 => ROUTER_HOP + 1,
    }
}
