//! Services as the configuration file has them, a balancer in front of them,
//! and questions to its `status`.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use steerline::dataplane::{Maps, Pins};
use steerline_tests::world::{Balancer, BalancerConfig, Namespace, World, topology, wait_until};

/// When a wait gives up. No scenario passes because of this number.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The virtual address of services by `dsr`.
pub(crate) const DIRECT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 20);

/// A `[[service]]` section in the making.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    name: &'static str,
    address: Ipv4Addr,
    port: u16,
    lines: String,
    backends: Vec<(u8, u16, u32)>,
}

impl Service {
    /// By `nat` at the usual virtual address.
    pub(crate) fn nat(name: &'static str, port: u16) -> Self {
        Self {
            name,
            address: topology::VIP,
            port,
            lines: "forwarding = \"nat\"\n".to_owned(),
            backends: Vec::new(),
        }
    }

    /// By `dsr` at [`DIRECT`].
    pub(crate) fn dsr(name: &'static str, port: u16) -> Self {
        Self {
            address: DIRECT,
            lines: "forwarding = \"dsr\"\n".to_owned(),
            ..Self::nat(name, port)
        }
    }

    /// The same with another line.
    pub(crate) fn line(mut self, key: &str, value: &str) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{key} = \"{value}\"");
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
        SocketAddr::new(self.address.into(), self.port)
    }

    fn text(&self) -> String {
        let Self {
            name,
            address,
            port,
            lines,
            backends,
        } = self;
        let mut text = format!(
            "\n[[service]]\nname = {name:?}\naddress = \"{address}\"\nport = {port}\n\
             announce = \"none\"\n{lines}"
        );
        for (number, port, weight) in backends {
            let address = World::server_address(*number);
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

/// The name of server `number`.
pub(crate) fn web(number: u8) -> String {
    format!("web-{number}")
}

/// Both interfaces, and these services.
pub(crate) fn config(services: &[&Service]) -> BalancerConfig {
    let text: String = services.iter().map(|service| service.text()).collect();
    BalancerConfig::new(&text)
}

/// Makes `server` take packets for [`DIRECT`] as `docs/dsr.md` says: the address
/// is on the loopback, and nobody is told by ARP.
pub(crate) fn hold(server: &Namespace) -> Result<()> {
    server.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    server.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
    server.ip(&format!("address add {DIRECT}/32 dev lo"))
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
        data_plane: "flow_table = { ipv4 = 1_024 }\n".to_owned(),
        control: String::new(),
        services: "[[service]]\nname = \"none\"\naddress = \"203.0.113.250\"\nport = 9\n\
                   announce = \"none\"\n"
            .to_owned(),
    };
    Balancer::start(namespace, &config)
}

/// The pinned maps of a balancer.
pub(crate) fn maps(balancer: &Balancer) -> Result<Maps> {
    Maps::open(&Pins::new(balancer.pin_directory()))
}

/// What `status` said at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Status(pub(crate) Value);

impl Status {
    /// What it says, which may be a tenth of a second old.
    pub(crate) fn glance(balancer: &Balancer) -> Result<Self> {
        Ok(Self(balancer.status()?))
    }

    /// A snapshot made after this call.
    pub(crate) fn now(balancer: &Balancer) -> Result<Self> {
        let before = Self::glance(balancer)?.number("/sequence")?;
        Self::wait(balancer, "there is another snapshot", |status| {
            Ok(status.number("/sequence")? > before)
        })
    }

    /// The first snapshot of which `condition` holds.
    pub(crate) fn wait(
        balancer: &Balancer,
        what: &str,
        condition: impl Fn(&Self) -> Result<bool>,
    ) -> Result<Self> {
        let mut last = None;
        let found = wait_until(what, PATIENCE, || {
            let status = Self::glance(balancer)?;
            let holds = condition(&status)?;
            last = Some(status.clone());
            Ok(holds.then_some(status))
        });
        found.with_context(|| match last {
            Some(Self(value)) => value.to_string(),
            None => String::new(),
        })
    }

    /// Waits until no flow is active or half-open by any book, and the table
    /// says so as well.
    pub(crate) fn quiet(balancer: &Balancer) -> Result<Self> {
        Self::wait(balancer, "no flow is live", |status| {
            let mut live =
                status.number("/flow_table/0/live")? + status.number("/flow_table/0/half_open")?;
            for service in status.0["services"].as_array().context("no services")? {
                live += number(service, "/active_flows")?;
                for backend in service["backends"].as_array().context("no backends")? {
                    live += number(backend, "/active_flows")? + number(backend, "/half_open")?;
                }
            }
            Ok(live == 0)
        })
    }

    /// A number by its JSON pointer (RFC 6901).
    pub(crate) fn number(&self, pointer: &str) -> Result<u64> {
        number(&self.0, pointer)
    }

    /// How many packets were counted for a reason.
    pub(crate) fn counter(&self, reason: &str) -> Result<u64> {
        self.number(&format!("/counters/{reason}"))
    }

    /// A number of each backend of a service, in order of the file.
    pub(crate) fn each(&self, service: &str, pointer: &str) -> Result<Vec<u64>> {
        named(&self.0["services"], service)?["backends"]
            .as_array()
            .context("no list of backends")?
            .iter()
            .map(|backend| number(backend, pointer))
            .collect()
    }

    /// The sum over a service's backends.
    pub(crate) fn sum(&self, service: &str, pointer: &str) -> Result<u64> {
        Ok(self.each(service, pointer)?.iter().sum())
    }

    /// One backend of a service.
    pub(crate) fn backend(&self, service: &str, number: u8) -> Result<&Value> {
        named(
            &named(&self.0["services"], service)?["backends"],
            &web(number),
        )
    }

    /// Fails if a packet was dropped for a reason that no scenario here gives.
    pub(crate) fn expect_no_drops(&self) -> Result<()> {
        for reason in [
            "no_backend",
            "table_full",
            "malformed",
            "no_route",
            "internal",
        ] {
            let count = self.counter(reason)?;
            ensure!(count == 0, "{count} packets were dropped: {reason}");
        }
        let mismatches = self.number("/mismatches")?;
        ensure!(mismatches == 0, "{mismatches} mismatches");
        Ok(())
    }
}

/// A number in JSON by its pointer.
pub(crate) fn number(value: &Value, pointer: &str) -> Result<u64> {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .with_context(|| format!("no number at {pointer} in {value}"))
}

/// The element of a list whose `name` is this.
fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value> {
    list.as_array()
        .and_then(|list| list.iter().find(|item| item["name"] == name))
        .with_context(|| format!("no {name} in {list}"))
}
