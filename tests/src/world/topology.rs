//! The script that makes the network: the only one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use steerline::Family;

use super::namespace::{self, Namespace, Offload};
use super::scratch;

/// The balancer's address towards the clients.
pub const FRONT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The client host's own address on that link; it is the next hop to
/// [`CLIENTS`].
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The balancer's address towards the servers, and their gateway.
pub const BACK: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// A virtual address that the clients route to the balancer and that nobody
/// has: announcing it is the balancer's task.
pub const VIP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
/// Clients may use every address of this network, of 16 bits, as their own.
pub const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
/// [`FRONT`] in a world of both families, and so on.
pub const FRONT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 1);
/// See [`CLIENT`].
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 2);
/// See [`BACK`].
pub const BACK6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 1);
/// See [`VIP`].
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0x10);
/// See [`CLIENTS`]: 16 bits as well.
pub const CLIENTS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 0);
/// The client host's interface.
pub const CLIENT_DEVICE: &str = "eth0";
/// The balancer's interface towards the clients.
pub const FRONT_DEVICE: &str = "front";
/// The balancer's interface towards the servers.
pub const BACK_DEVICE: &str = "back";
/// The switch's port towards the balancer.
pub const UPLINK_DEVICE: &str = "uplink";
/// Every server's interface.
pub const SERVER_DEVICE: &str = "eth0";

/// [`VIP`] in a family.
pub const fn vip(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(VIP),
        Family::V6 => IpAddr::V6(VIP6),
    }
}

/// [`FRONT`] in a family.
pub const fn front(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(FRONT),
        Family::V6 => IpAddr::V6(FRONT6),
    }
}

/// Most servers of one world: their addresses and MACs end in one byte.
const MOST_SERVERS: u8 = 200;

/// What to build.
#[derive(Clone, Debug)]
pub struct Topology {
    /// How many server hosts stand behind the balancer.
    pub servers: u8,
    /// Whether every host has IPv6 addresses too. Neighbour discovery and
    /// reports of multicast groups are on the wire then.
    pub dual_stack: bool,
}

impl Topology {
    /// The usual one: a client, a balancer with two interfaces, `servers`
    /// hosts behind it.
    pub fn two_armed(servers: u8) -> Self {
        Self {
            servers,
            dual_stack: false,
        }
    }

    /// The same with IPv6 beside IPv4.
    pub fn dual_stack(self) -> Self {
        Self {
            dual_stack: true,
            ..self
        }
    }
}

/// The network. Dropping it ends everything in it.
#[derive(Debug)]
pub struct World {
    client: Namespace,
    balancer: Namespace,
    switch: Namespace,
    servers: Vec<Namespace>,
    fresh_client: AtomicU16,
}

impl World {
    /// Builds it. What fails is undone.
    pub fn new(topology: &Topology) -> Result<Self> {
        remove_orphans();
        anyhow::ensure!(
            topology.servers <= MOST_SERVERS,
            "at most {MOST_SERVERS} servers"
        );
        let world = Self {
            client: Namespace::new("client")?,
            balancer: Namespace::new("balancer")?,
            switch: Namespace::new("switch")?,
            servers: (1..=topology.servers)
                .map(|number| Namespace::new(&format!("server{number}")))
                .collect::<Result<_>>()?,
            fresh_client: AtomicU16::new(0),
        };
        world.build_front().context("cannot build the front")?;
        world.build_back().context("cannot build the back")?;
        if topology.dual_stack {
            world.build_ipv6().context("cannot add IPv6")?;
        }
        Ok(world)
    }

    fn build_front(&self) -> Result<()> {
        let (client, balancer) = (&self.client, &self.balancer);
        link(
            (balancer, FRONT_DEVICE, "02:00:00:00:01:01"),
            (client, CLIENT_DEVICE, "02:00:00:00:01:02"),
        )?;
        balancer.ip(&format!("address add {FRONT}/24 dev {FRONT_DEVICE}"))?;
        balancer.ip(&format!("link set {FRONT_DEVICE} up"))?;
        balancer.ip(&format!("route add {CLIENTS}/16 via {CLIENT}"))?;

        client.ip(&format!("address add {CLIENT}/24 dev {CLIENT_DEVICE}"))?;
        client.ip(&format!("link set {CLIENT_DEVICE} up"))?;
        client.ip(&format!("route add default via {FRONT}"))?;
        // The whole network is the host's own, without 65,536 addresses.
        client.ip(&format!("route add local {CLIENTS}/16 dev lo"))?;
        // It stands for the router in front of its clients, so it asks for
        // neighbours under its own address.
        client.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
        edge(client, CLIENT_DEVICE)
    }

    fn build_back(&self) -> Result<()> {
        let (balancer, switch) = (&self.balancer, &self.switch);
        switch.ip("link add br0 type bridge")?;
        switch.ip("link set br0 up")?;
        link(
            (balancer, BACK_DEVICE, "02:00:00:00:02:01"),
            (switch, UPLINK_DEVICE, "02:00:00:00:02:02"),
        )?;
        balancer.ip(&format!("address add {BACK}/16 dev {BACK_DEVICE}"))?;
        balancer.ip(&format!("link set {BACK_DEVICE} up"))?;
        switch.ip(&format!("link set {UPLINK_DEVICE} master br0"))?;
        switch.ip(&format!("link set {UPLINK_DEVICE} up"))?;
        edge(switch, UPLINK_DEVICE)?;

        for (number, server) in (1..).zip(&self.servers) {
            let port = format!("s{number}");
            link(
                (switch, &port, &format!("02:00:00:00:03:{number:02x}")),
                (
                    server,
                    SERVER_DEVICE,
                    &format!("02:00:00:00:04:{number:02x}"),
                ),
            )?;
            switch.ip(&format!("link set {port} master br0"))?;
            switch.ip(&format!("link set {port} up"))?;
            let address = Self::server_address(number);
            server.ip(&format!("address add {address}/16 dev {SERVER_DEVICE}"))?;
            server.ip(&format!("link set {SERVER_DEVICE} up"))?;
            server.ip(&format!("route add default via {BACK}"))?;
            edge(switch, &port)?;
            edge(server, SERVER_DEVICE)?;
        }
        Ok(())
    }

    /// IPv6 on every link. Namespaces make no link-local addresses by themselves,
    /// and hosts need them to ask for neighbours.
    fn build_ipv6(&self) -> Result<()> {
        let (client, balancer) = (&self.client, &self.balancer);
        let add = |host: &Namespace, device: &str, address: Ipv6Addr, local: u16| {
            let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, local);
            for address in [address, link_local] {
                host.ip(&format!("address add {address}/64 dev {device} nodad"))?;
            }
            Ok::<_, anyhow::Error>(())
        };
        add(balancer, FRONT_DEVICE, FRONT6, 0x101)?;
        add(client, CLIENT_DEVICE, CLIENT6, 0x102)?;
        add(balancer, BACK_DEVICE, BACK6, 0x201)?;
        // By a link-local address, as routers advertise themselves.
        balancer.ip(&format!(
            "route add {CLIENTS6}/112 via fe80::102 dev {FRONT_DEVICE}"
        ))?;
        client.ip(&format!("-6 route add default via {FRONT6}"))?;
        client.ip(&format!("route add local {CLIENTS6}/112 dev lo"))?;
        // In IPv6 an address that is only routed here cannot be bound to.
        client.sysctl("net/ipv6/ip_nonlocal_bind", "1")?;
        for (number, server) in (1..).zip(&self.servers) {
            let address = Self::server_address6(number);
            add(server, SERVER_DEVICE, address, 0x400 + u16::from(number))?;
            server.ip(&format!("-6 route add default via {BACK6}"))?;
        }
        Ok(())
    }

    /// The IPv6 address of server `number`, counted from 1.
    const fn server_address6(number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0xb, 0, 0, 0, 0, 0x10 + number as u16)
    }

    /// The address of server `number` in a family, counted from 1.
    pub const fn server_ip(number: u8, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(Self::server_address(number)),
            Family::V6 => IpAddr::V6(Self::server_address6(number)),
        }
    }

    /// The address of server `number`, counted from 1.
    pub const fn server_address(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 2, 0, 10 + number)
    }

    /// The clients' host.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The host between clients and servers.
    pub fn balancer(&self) -> &Namespace {
        &self.balancer
    }

    /// The switch between balancer and servers.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Server `number`, counted from 1.
    pub fn server(&self, number: u8) -> Result<&Namespace> {
        usize::from(number)
            .checked_sub(1)
            .and_then(|index| self.servers.get(index))
            .with_context(|| format!("there is no server {number}"))
    }

    /// All servers in order.
    pub fn servers(&self) -> &[Namespace] {
        &self.servers
    }

    /// A client behind another router, which is the client host; the link between
    /// the two takes `mtu` bytes towards the client, while the client believes
    /// in 1,500. The address is the client's.
    pub fn far_client(&self, mtu: u16) -> Result<(Namespace, IpAddr)> {
        const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
        const FAR: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
        let far = Namespace::new("far")?;
        link(
            (&self.client, "far", "02:00:00:00:05:01"),
            (&far, CLIENT_DEVICE, "02:00:00:00:05:02"),
        )?;
        self.client
            .ip(&format!("address add {ROUTER}/24 dev far"))?;
        self.client.ip(&format!("link set far mtu {mtu} up"))?;
        self.client.sysctl("net/ipv4/ip_forward", "1")?;
        far.ip(&format!("address add {FAR}/24 dev {CLIENT_DEVICE}"))?;
        far.ip(&format!("link set {CLIENT_DEVICE} up"))?;
        far.ip(&format!("route add default via {ROUTER}"))?;
        self.balancer
            .ip(&format!("route add {FAR}/32 via {CLIENT}"))?;
        edge(&self.client, "far")?;
        edge(&far, CLIENT_DEVICE)?;
        Ok((far, FAR.into()))
    }

    /// The next `count` client addresses of this world that nothing has used,
    /// so that one part of a test does not meet the flows of another.
    pub fn fresh_clients(&self, count: u16) -> Result<Vec<IpAddr>> {
        self.fresh_clients_in(Family::V4, count)
    }

    /// The same in a family.
    pub fn fresh_clients_in(&self, family: Family, count: u16) -> Result<Vec<IpAddr>> {
        let used = self.fresh_client.fetch_add(count, Ordering::Relaxed);
        anyhow::ensure!(
            used.checked_add(count).is_some(),
            "a world has 65,535 client addresses, and they are used up"
        );
        let address = |offset: u32| match family {
            Family::V4 => IpAddr::from(Ipv4Addr::from(u32::from(CLIENTS) + offset)),
            Family::V6 => IpAddr::from(Ipv6Addr::from(u128::from(CLIENTS6) + u128::from(offset))),
        };
        Ok((1..=u32::from(count))
            .map(|offset| address(u32::from(used) + offset))
            .collect())
    }
}

/// Joins two namespaces by a veth pair.
fn link(one: (&Namespace, &str, &str), other: (&Namespace, &str, &str)) -> Result<()> {
    let (namespace, device, mac) = one;
    let (peer_namespace, peer, peer_mac) = other;
    namespace.ip(&format!(
        "link add {device} address {mac} type veth \
         peer name {peer} address {peer_mac} netns {}",
        peer_namespace.name()
    ))
}

/// Makes an end of a veth behave like a network card at the edge, see the
/// module docs of [`super`].
fn edge(namespace: &Namespace, device: &str) -> Result<()> {
    namespace.offloads(
        device,
        &[
            (Offload::TransmitChecksum, false),
            (Offload::TcpSegmentation, false),
            (Offload::GenericSegmentation, false),
            (Offload::GenericReceive, true),
        ],
    )?;
    // Nothing is ever shorter than one byte, so nothing is ever merged.
    namespace.ip(&format!("link set dev {device} gro_max_size 1"))
}

/// Removes what processes left that were killed before they could clean up.
pub(crate) fn remove_orphans() {
    namespace::delete_orphans();
    for directory in [std::env::temp_dir().as_path(), Path::new("/sys/fs/bpf")] {
        for name in scratch::orphans(directory) {
            // Another process may be at the same: who comes second fails.
            let _ = std::fs::remove_dir_all(directory.join(name));
        }
    }
}
