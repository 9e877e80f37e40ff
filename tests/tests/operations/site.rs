//! Services as the configuration file has them, and a balancer in front of
//! them.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use steerline::Family;
use steerline::dataplane::{Maps, Pins};
use steerline_tests::world::{Balancer, BalancerConfig, Namespace, World, topology, wait_until};

pub(crate) use steerline_tests::world::{PATIENCE, Status, named, number, web};

/// The virtual address of services by `dsr`.
pub(crate) const DIRECT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 20);

/// The same in IPv6.
const DIRECT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x51, 0, 0, 0, 0, 0x20);

/// [`DIRECT`] in a family.
pub(crate) const fn direct(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(DIRECT),
        Family::V6 => IpAddr::V6(DIRECT6),
    }
}

/// A `[[service]]` section in the making.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    name: &'static str,
    address: IpAddr,
    port: u16,
    lines: String,
    /// The family of servers' addresses, if it is not the service's.
    servers: Option<Family>,
    backends: Vec<(u8, u16, u32)>,
}

impl Service {
    /// By `nat` at the usual virtual address.
    pub(crate) fn nat(name: &'static str, port: u16) -> Self {
        Self {
            name,
            address: topology::VIP.into(),
            port,
            lines: "forwarding = \"nat\"\n".to_owned(),
            servers: None,
            backends: Vec::new(),
        }
    }

    /// By `full-nat` at the usual virtual address.
    pub(crate) fn full_nat(name: &'static str, port: u16) -> Self {
        Self {
            lines: "forwarding = \"full-nat\"\n".to_owned(),
            ..Self::nat(name, port)
        }
    }

    /// By `dsr` at [`DIRECT`].
    pub(crate) fn dsr(name: &'static str, port: u16) -> Self {
        Self {
            address: DIRECT.into(),
            lines: "forwarding = \"dsr\"\n".to_owned(),
            ..Self::nat(name, port)
        }
    }

    /// By `ipip` or `gue` at [`DIRECT`], to servers' addresses of a family.
    pub(crate) fn tunnel(name: &'static str, port: u16, forwarding: &str, outer: Family) -> Self {
        Self {
            address: DIRECT.into(),
            lines: format!("forwarding = {forwarding:?}\n"),
            servers: Some(outer),
            ..Self::nat(name, port)
        }
    }

    /// The same in a family, its servers too unless they are behind a tunnel.
    pub(crate) fn in_family(self, family: Family) -> Self {
        let is_direct = [Family::V4, Family::V6].map(direct).contains(&self.address);
        let address = if is_direct {
            direct(family)
        } else {
            topology::vip(family)
        };
        Self { address, ..self }
    }

    /// The same with another line.
    pub(crate) fn line(mut self, key: &str, value: &str) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{key} = \"{value}\"");
        self
    }

    /// The same with a line as it is.
    pub(crate) fn raw(mut self, line: &str) -> Self {
        self.lines += line;
        self.lines.push('\n');
        self
    }

    /// The same by `weighted-round-robin`.
    pub(crate) fn round_robin(self) -> Self {
        self.line("algorithm", "weighted-round-robin")
    }

    /// The same by `weighted-least-connections`.
    pub(crate) fn least_connections(self) -> Self {
        self.line("algorithm", "weighted-least-connections")
    }

    /// The same over servers 1, 2, … with these weights, on the service's port.
    pub(crate) fn over(self, weights: &[u32]) -> Self {
        (1..).zip(weights).fold(self, |service, (number, weight)| {
            service.backend(number, *weight)
        })
    }

    /// The same with one backend more, `web-NUMBER`.
    pub(crate) fn backend(mut self, number: u8, weight: u32) -> Self {
        self.backends.push((number, self.port, weight));
        self
    }

    /// The same without `web-NUMBER`.
    pub(crate) fn without(mut self, number: u8) -> Self {
        self.backends.retain(|(other, ..)| *other != number);
        self
    }

    /// Where clients find it.
    pub(crate) fn target(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    fn text(&self) -> String {
        let Self {
            name,
            address,
            port,
            lines,
            servers,
            backends,
        } = self;
        let servers = servers.unwrap_or(Family::of(*address));
        let mut text = format!(
            "\n[[service]]\nname = {name:?}\naddress = \"{address}\"\nport = {port}\n\
             announce = \"none\"\n{lines}{QUIET}"
        );
        for (number, port, weight) in backends {
            let address = World::server_ip(*number, servers);
            let _ = write!(
                text,
                "[[service.backend]]\nname = \"{}\"\naddress = \"{address}\"\nport = {port}\n\
                 weight = {weight}\n",
                web(*number)
            );
        }
        text
    }
}

/// What would change who gets connections while a test counts them.
const QUIET: &str =
    "[service.slow_start]\nramp = \"off\"\n[service.fail_detect]\nconnections = 0\n";

/// Both interfaces, and these services.
pub(crate) fn config(services: &[&Service]) -> BalancerConfig {
    let text: String = services.iter().map(|service| service.text()).collect();
    BalancerConfig::new(&text)
}

/// Makes `server` take packets for [`DIRECT`] of both families as `docs/dsr.md`
/// says: the addresses are on the loopback, and nobody is told by ARP.
pub(crate) fn hold(server: &Namespace) -> Result<()> {
    server.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    server.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
    server.ip(&format!("address add {DIRECT}/32 dev lo"))?;
    server.ip(&format!("address add {DIRECT6}/128 dev lo nodad"))
}

/// Keeps the balancer's kernel from merging what it forwards by itself, as the
/// hosts at the edge do: a merged frame no longer is what was on the wire.
pub(crate) fn unmerged(balancer: &Namespace) -> Result<()> {
    for device in [topology::FRONT_DEVICE, topology::BACK_DEVICE] {
        balancer.ip(&format!("link set dev {device} gro_max_size 1"))?;
    }
    Ok(())
}

/// What is sent by `XDP_TX` into a veth is only taken at its other end if a
/// program of the same kind is there, so another Steerline sits on `device`. It
/// has a service that nobody asks for.
pub(crate) fn other_end(namespace: &Namespace, device: &str) -> Result<Balancer> {
    let config = BalancerConfig {
        interfaces: vec![device.to_owned()],
        data_plane: "flow_table = { ipv4 = 1_024, ipv6 = 0 }\n".to_owned(),
        control: String::new(),
        services: "[[service]]\nname = \"none\"\naddress = \"203.0.113.250\"\nport = 9\n\
                   announce = \"none\"\n"
            .to_owned(),
    };
    Balancer::start(namespace, &config)
}

/// Waits until no connection of `host` may send anything more, ended ones in
/// TIME_WAIT left out: under load a last segment is repeated now and then.
pub(crate) fn await_no_connections(host: &Namespace) -> Result<()> {
    // As the kernel numbers them (include/net/tcp_states.h).
    const OVER: [&str; 2] = ["06", "0A"];
    wait_until("no connection is open", PATIENCE, || {
        let text = host.enter(|| {
            // `/proc/net` would be that of the process, not of this thread.
            let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            Ok::<_, anyhow::Error>(read("tcp")? + &read("tcp6")?)
        })??;
        // The state is the fourth word of a line; headers have a name there.
        let states = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3));
        let mut open = states.filter(|state| *state != "st" && !OVER.contains(state));
        Ok(open.next().is_none().then_some(()))
    })
}

/// The pinned maps of a balancer.
pub(crate) fn maps(balancer: &Balancer) -> Result<Maps> {
    Maps::open(&Pins::new(balancer.pin_directory()))
}
