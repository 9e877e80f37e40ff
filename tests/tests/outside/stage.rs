//! Web servers, a balancer that asks others, and questions to it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use steerline_tests::world::{
    Balancer, BalancerConfig, Capture, Load, NginxOptions, Server, Topology, World, topology,
    wait_until,
};

/// When a wait gives up. No scenario passes because of this number.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where clients find the service.
fn vip() -> SocketAddr {
    SocketAddr::new(topology::VIP.into(), 80)
}

/// The balancer's configuration: servers of these weights by weighted round
/// robin, and these lines for the service. Nothing else decides: no ramp, no
/// failure detection.
pub(crate) fn config(weights: &[u32], sections: &str) -> BalancerConfig {
    let mut text = format!(
        "\n[[service]]\nname = \"web\"\naddress = \"{}\"\nport = 80\n\
         algorithm = \"weighted-round-robin\"\nannounce = \"none\"\n\
         [service.slow_start]\nramp = \"off\"\n[service.fail_detect]\nconnections = 0\n\
         {sections}\n",
        topology::VIP
    );
    for (number, weight) in (1..).zip(weights) {
        let address = World::server_address(number);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[[service.backend]]\nname = \"web-{number}\"\naddress = \"{address}\"\n\
             weight = {weight}\n"
        );
    }
    BalancerConfig::new(&text)
}

/// A world in which everything runs. What is dropped first is declared first.
pub(crate) struct Stage {
    pub(crate) balancer: Balancer,
    pub(crate) servers: Vec<Server>,
    pub(crate) world: World,
}

impl Stage {
    /// A world with web servers, before there is a balancer.
    pub(crate) fn world(servers: u8) -> Result<(World, Vec<Server>)> {
        let world = World::new(&Topology::two_armed(servers))?;
        let servers = (1..=servers)
            .map(|number| nginx(&world, number))
            .collect::<Result<_>>()?;
        Ok((world, servers))
    }

    /// A balancer in front of them.
    pub(crate) fn open(
        (world, servers): (World, Vec<Server>),
        config: &BalancerConfig,
    ) -> Result<Self> {
        let balancer = Balancer::start(world.balancer(), config)?;
        Ok(Self {
            balancer,
            servers,
            world,
        })
    }

    /// What `status` says of a backend.
    pub(crate) fn backend(&self, number: u8) -> Result<Value> {
        self.balancer.backend("web", &format!("web-{number}"))
    }

    /// Waits until a backend's `key` is this.
    pub(crate) fn wait_for(&self, number: u8, key: &str, wanted: impl Into<Value>) -> Result<()> {
        let wanted = wanted.into();
        let what = format!("{key} of web-{number} is {wanted}");
        let mut last = Value::Null;
        wait_until(&what, PATIENCE, || {
            last = self.backend(number)?;
            Ok((last[key] == wanted).then_some(()))
        })
        .with_context(|| format!("at last {last}\nlog:\n{}", self.balancer.log()))
    }

    /// Requests one after the other; none may fail. Returns how many SYNs each
    /// server got, as the wire in front of them showed it.
    pub(crate) fn ask(&self, count: u64) -> Result<Vec<usize>> {
        // The balancer's own connections are probes, whose checksums its device
        // is left to compute.
        let filter = format!("tcp port 80 and not host {}", topology::BACK);
        let capture = Capture::start(self.world.switch(), topology::UPLINK_DEVICE, &filter)?;
        let report = Load::sequential(vip(), count).run(self.world.client())?;
        report.expect_success()?;
        let pcap = capture.stop()?;
        let bad = pcap.bad_checksums()?;
        ensure!(bad.is_empty(), "bad checksums: {bad:?}");
        let got = pcap.syn_destinations()?;
        let numbers = 1..=u8::try_from(self.world.servers().len())?;
        Ok(numbers
            .map(|number| {
                let server = SocketAddr::new(World::server_address(number).into(), 80);
                got.iter().filter(|syn| **syn == server).count()
            })
            .collect())
    }

    /// How many lines of the log hold this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = self.balancer.log();
        log.lines().filter(|line| line.contains(text)).count()
    }
}

/// An nginx on server `number`.
pub(crate) fn nginx(world: &World, number: u8) -> Result<Server> {
    let name = format!("web-{number}");
    let options = NginxOptions::new(&name, World::server_address(number));
    Server::nginx(world.server(number)?, options)
}
