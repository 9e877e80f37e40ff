//! `mode = "generic"` and `"auto"`: the program behind the driver, where any
//! interface can have it.
//!
//! Slower, and correct too: real payload by both ways of forwarding, in both
//! families, judged on the wire. A bridge stands for hardware whose driver has
//! no native XDP: `auto` takes the other hook then, everywhere, because a frame
//! that a native program redirects is lost in a driver without (`ndo_xdp_xmit`).

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{
    Balancer, BalancerConfig, Capture, Client, Load, NginxOptions, PAYLOAD_SIZES, Server, Topology,
    World, payload_digest, topology,
};

use crate::site::{self, Service, Status, number, web};
use crate::turn;

/// A device without native XDP around the balancer's interface to its servers.
const BRIDGE: &str = "br-back";

/// What the file says, the balancer's interface to its servers, and the mode
/// that `status` names for it and for the other.
struct Row {
    mode: &'static str,
    back: &'static str,
    taken: &'static str,
}

const ROWS: [Row; 3] = [
    Row {
        mode: "generic",
        back: topology::BACK_DEVICE,
        taken: "generic",
    },
    Row {
        mode: "auto",
        back: topology::BACK_DEVICE,
        taken: "native",
    },
    Row {
        mode: "auto",
        back: BRIDGE,
        taken: "generic",
    },
];

#[test]
fn payloads_arrive_whichever_hook_is_taken() -> Result<()> {
    for row in &ROWS {
        let Some(_turn) = turn::take() else {
            return Ok(());
        };
        let what = || format!("mode = {:?}, {}", row.mode, row.back);
        payloads_arrive(row).with_context(what)?;
    }
    Ok(())
}

/// Moves what the balancer's interface has to a bridge around it.
fn build_bridge(world: &World) -> Result<()> {
    let (host, device) = (world.balancer(), topology::BACK_DEVICE);
    let (four, six) = (topology::BACK, topology::BACK6);
    for command in [
        format!("link add {BRIDGE} address 02:00:00:00:02:01 type bridge"),
        format!("address flush dev {device}"),
        format!("link set {device} master {BRIDGE}"),
        format!("link set {BRIDGE} up"),
        format!("address add {four}/16 dev {BRIDGE}"),
        format!("address add {six}/64 dev {BRIDGE} nodad"),
        format!("address add fe80::201/64 dev {BRIDGE} nodad"),
    ] {
        host.ip(&command)?;
    }
    Ok(())
}

fn payloads_arrive(row: &Row) -> Result<()> {
    let world = World::new(&Topology::two_armed(2).dual_stack())?;
    if row.back == BRIDGE {
        build_bridge(&world)?;
    }
    site::unmerged(world.balancer())?;
    // Answers of direct return are routed by the kernel.
    world
        .balancer()
        .sysctl("net/ipv6/conf/all/forwarding", "1")?;
    let mut servers = Vec::new();
    let mut services = Vec::new();
    for (family, nat, dsr) in [(Family::V4, "nat", "dsr"), (Family::V6, "nat-6", "dsr-6")] {
        for number in [1, 2] {
            let host = world.server(number)?;
            if family == Family::V4 {
                site::hold(host)?;
            }
            for address in [World::server_ip(number, family), site::direct(family)] {
                let options = NginxOptions::new(&web(number), address);
                servers.push(Server::nginx(host, options)?);
            }
        }
        services.extend([
            Service::nat(nat, 80).in_family(family),
            Service::dsr(dsr, 80).in_family(family),
        ]);
    }
    let services: Vec<Service> = services
        .into_iter()
        .map(|service| service.round_robin().over(&[1, 1]))
        .collect();
    let listed: Vec<&Service> = services.iter().collect();
    let config = BalancerConfig {
        interfaces: vec![topology::FRONT_DEVICE.to_owned(), row.back.to_owned()],
        data_plane: format!(
            "mode = {:?}\nflow_table = {{ ipv4 = 16_384, ipv6 = 16_384 }}\n",
            row.mode
        ),
        ..site::config(&listed)
    };
    let balancer = Balancer::start(world.balancer(), &config)?;
    for interface in [topology::FRONT_DEVICE, row.back] {
        let status = Status::glance(&balancer)?;
        let taken = interface_mode(&status, interface)?;
        assert_eq!(taken, row.taken, "{interface}: {}", status.0["interfaces"]);
    }

    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp")?;
    let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp")?;
    let client = Client::new(world.client());
    let mut requests = 0;
    for service in &services {
        let family = Family::of(service.target().ip());
        let source = world.fresh_clients_in(family, 1)?[0];
        // The largest is for the native scenarios: it would be most of the wire.
        for size in PAYLOAD_SIZES.into_iter().filter(|size| *size <= 1_000_000) {
            let path = format!("/bytes/{size}");
            let response = client
                .get(Some(source), service.target(), &path)?
                .with_context(|| format!("{path} of {}", service.target()))?;
            assert_eq!(
                (response.status, response.length, response.digest),
                (200, size, payload_digest(size)),
                "{path} of {}",
                service.target()
            );
            requests += 1;
        }
        let load = Load {
            workers: 4,
            sources: world.fresh_clients_in(family, 16)?,
            path: "/bytes/15361".to_owned(),
            ..Load::sequential(service.target(), 100)
        };
        let report = load.run(world.client())?;
        report.expect_success()?;
        requests += 100;
    }
    for pcap in [at_client.stop()?, at_servers.stop()?] {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    }
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("new_flow")?, requests);
    assert_eq!(status.counter("too_big")?, 0, "something was merged");
    status.expect_no_drops()
}

/// The mode of an interface in `status`.
fn interface_mode<'a>(status: &'a Status, interface: &str) -> Result<&'a str> {
    let listed = site::named(&status.0["interfaces"], interface)?;
    assert!(number(listed, "/program_id")? > 0, "{listed}");
    listed["mode"].as_str().context("no mode")
}
