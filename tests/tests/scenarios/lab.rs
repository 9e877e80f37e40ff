//! A world with web servers and a running balancer, and questions to its
//! `status`.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use steerline::Family;
use steerline_tests::world::{
    Balancer, BalancerConfig, NginxOptions, Server, Topology, World, topology, wait_until,
};

pub(crate) use steerline_tests::world::{PATIENCE, Status, number, web};

/// The name of the usual service.
pub(crate) const WEB: &str = "web";

/// Where clients find the usual service.
pub(crate) fn vip() -> SocketAddr {
    SocketAddr::new(topology::VIP.into(), 80)
}

/// A `[[service]]` section in the making.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    name: String,
    address: IpAddr,
    port: u16,
    algorithm: &'static str,
    announce: &'static str,
    aca: String,
    backends: Vec<(String, SocketAddr, u32)>,
}

impl Service {
    /// The usual service, without backends yet.
    pub(crate) fn new(algorithm: &'static str) -> Self {
        Self {
            name: WEB.to_owned(),
            address: topology::VIP.into(),
            port: 80,
            algorithm,
            announce: "none",
            aca: String::new(),
            backends: Vec::new(),
        }
    }

    /// By weighted round robin over web servers 1, 2, …
    pub(crate) fn round_robin(weights: &[u32]) -> Self {
        let mut service = Self::new("weighted-round-robin");
        for (number, weight) in (1..).zip(weights) {
            service = service.backend(number, 80, *weight);
        }
        service
    }

    /// By `aca` over web servers 1 to `servers`, with these lines in
    /// `[service.aca]`.
    pub(crate) fn aca(servers: u8, lines: &str) -> Self {
        let mut service = Self::new("aca");
        service.aca = lines.to_owned();
        (1..=servers).fold(service, |service, number| service.backend(number, 80, 8))
    }

    /// The same as another service.
    pub(crate) fn named(mut self, name: &str, port: u16) -> Self {
        self.name = name.to_owned();
        self.port = port;
        self
    }

    /// The same at an address that the balancer announces itself.
    pub(crate) fn announced(mut self, address: Ipv4Addr) -> Self {
        self.address = address.into();
        self.announce = "address";
        self
    }

    /// The same in a family; before its backends are named.
    pub(crate) fn in_family(mut self, family: Family) -> Self {
        self.address = topology::vip(family);
        self
    }

    /// The same with one backend more, `web-NUMBER`.
    pub(crate) fn backend(mut self, number: u8, port: u16, weight: u32) -> Self {
        let address = World::server_ip(number, Family::of(self.address));
        let address = SocketAddr::new(address, port);
        self.backends.push((web(number), address, weight));
        self
    }

    /// The same without `web-NUMBER`.
    pub(crate) fn without(mut self, number: u8) -> Self {
        self.backends.retain(|(name, ..)| *name != web(number));
        self
    }

    /// The lines of the configuration file.
    pub(crate) fn text(&self) -> String {
        let Self {
            name,
            address,
            port,
            algorithm,
            announce,
            aca,
            backends,
        } = self;
        let mut text = format!(
            "\n[[service]]\nname = {name:?}\naddress = \"{address}\"\nport = {port}\n\
             algorithm = {algorithm:?}\nannounce = {announce:?}\n[service.aca]\n{aca}\n{QUIET}"
        );
        for (name, address, weight) in backends {
            let (ip, port) = (address.ip(), address.port());
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[[service.backend]]\nname = {name:?}\naddress = \"{ip}\"\nport = {port}\n\
                 weight = {weight}\n"
            );
        }
        text
    }
}

/// What would change who gets connections while a test counts them.
const QUIET: &str =
    "[service.slow_start]\nramp = \"off\"\n[service.fail_detect]\nconnections = 0\n";

/// The configuration of the usual balancer for these services.
pub(crate) fn config(services: &[Service]) -> BalancerConfig {
    let text: String = services.iter().map(Service::text).collect();
    BalancerConfig::new(&text)
}

/// An nginx on server `number` that can change to each of `delays` and begins
/// with the first.
pub(crate) fn nginx(world: &World, number: u8, delays: &[Duration]) -> Result<Server> {
    let options = NginxOptions::new(&web(number), World::server_address(number));
    let options = match delays {
        [] => options,
        [first, others @ ..] => others.iter().fold(options.delay(*first), |options, delay| {
            options.may_delay(*delay)
        }),
    };
    Server::nginx(world.server(number)?, options)
}

/// A world of web servers with a balancer in front. What is dropped first is
/// declared first.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) balancer: Balancer,
    pub(crate) servers: Vec<Server>,
    pub(crate) world: World,
}

impl Lab {
    /// `servers` prompt web servers and a balancer with these services.
    pub(crate) fn new(servers: u8, services: &[Service]) -> Result<Self> {
        let delays = vec![Duration::ZERO; usize::from(servers)];
        Self::with_delays(&delays, services)
    }

    /// A web server for each of `delays`.
    pub(crate) fn with_delays(delays: &[Duration], services: &[Service]) -> Result<Self> {
        let world = World::new(&Topology::two_armed(u8::try_from(delays.len())?))?;
        let servers = (1..)
            .zip(delays)
            .map(|(number, delay)| nginx(&world, number, &[*delay]))
            .collect::<Result<_>>()?;
        Self::in_front_of(world, servers, &config(services))
    }

    /// A balancer in front of what is there.
    pub(crate) fn in_front_of(
        world: World,
        servers: Vec<Server>,
        config: &BalancerConfig,
    ) -> Result<Self> {
        let balancer = Balancer::start(world.balancer(), config)?;
        Ok(Self {
            balancer,
            servers,
            world,
        })
    }

    /// What `status` says of the present: a snapshot made after this call.
    pub(crate) fn status(&self) -> Result<Status> {
        Status::now(&self.balancer)
    }

    /// What `status` says, which may be a tenth of a second old.
    pub(crate) fn glance(&self) -> Result<Status> {
        Status::glance(&self.balancer)
    }

    /// What `stats` says, with or without a daemon.
    pub(crate) fn stats(&self) -> Result<Status> {
        Ok(Status(self.balancer.json(&["stats"])?))
    }

    /// Lets so many snapshots pass: a tenth of a second each, by the daemon's
    /// clock. The sweep goes over the flow table once in ten.
    pub(crate) fn pass(&self, snapshots: u64) -> Result<Status> {
        let goal = self.glance()?.sequence()? + snapshots;
        wait_until("snapshots have passed", PATIENCE, || {
            let status = self.glance()?;
            Ok((status.sequence()? >= goal).then_some(status))
        })
    }

    /// Waits until no flow is active or half-open anywhere.
    pub(crate) fn wait_for_quiet(&self) -> Result<Status> {
        Status::quiet(&self.balancer)
    }
}

/// What `after` has more than `before`, place by place.
pub(crate) fn growth(before: &[u64], after: &[u64]) -> Result<Vec<u64>> {
    ensure!(
        before.len() == after.len(),
        "{before:?} and {after:?} are of different things"
    );
    before
        .iter()
        .zip(after)
        .map(|(before, after)| {
            after
                .checked_sub(*before)
                .with_context(|| format!("a counter went back: {before:?} → {after:?}"))
        })
        .collect()
}
