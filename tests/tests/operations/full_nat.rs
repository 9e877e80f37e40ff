//! `full-nat` to real web servers that have no way back to clients at all: what
//! comes back comes back because of whom they saw.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, Shutdown, SocketAddr};

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{
    Balancer, BalancerConfig, Capture, Client, Load, NginxOptions, PAYLOAD_SIZES, Server, Topology,
    World, payload_digest, topology,
};

use crate::hosts::{self, Host, Manner};
use crate::site::{self, Service, Status, web};
use crate::turn;

const WEB: &str = "web";

/// Two addresses of the servers' network in each family.
fn pool() -> [IpAddr; 4] {
    [
        "10.2.0.200",
        "10.2.0.201",
        "2001:db8:b::200",
        "2001:db8:b::201",
    ]
    .map(|address| address.parse().expect("an address"))
}

fn config(services: &[&Service]) -> BalancerConfig {
    let config = site::config(services);
    BalancerConfig {
        data_plane: format!(
            "{}source_pool = {:?}\n",
            config.data_plane,
            pool().map(|a| a.to_string())
        ),
        ..config
    }
}

/// Servers that reach nobody but their own network.
fn world() -> Result<World> {
    let world = World::new(&Topology::two_armed(2).dual_stack())?;
    for server in world.servers() {
        server.ip("route del default")?;
        server.ip("-6 route del default")?;
    }
    Ok(world)
}

#[test]
fn payloads_of_every_size_come_back_to_addresses_of_ours() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = world()?;
    for family in Family::ALL {
        payloads(&world, family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn payloads(world: &World, family: Family) -> Result<()> {
    let servers: Vec<Server> = (1..=2)
        .map(|number| {
            let options = NginxOptions::new(&web(number), World::server_ip(number, family));
            Server::nginx(world.server(number)?, options)
        })
        .collect::<Result<_>>()?;
    // What asks whether nginx listens is in there too.
    let before: Vec<usize> = servers
        .iter()
        .map(|server| Ok(server.accesses()?.len()))
        .collect::<Result<_>>()?;
    let service = Service::full_nat(WEB, 80).in_family(family);
    let service = service.least_connections().over(&[1, 1]);
    let balancer = Balancer::start(world.balancer(), &config(&[&service]))?;
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp port 80")?;
    let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp port 80")?;

    let source = world.fresh_clients_in(family, 1)?[0];
    for size in PAYLOAD_SIZES {
        let path = format!("/bytes/{size}");
        let response = Client::new(world.client()).get(Some(source), service.target(), &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
    }
    let load = Load {
        workers: 8,
        sources: world.fresh_clients_in(family, 16)?,
        path: "/bytes/15361".to_owned(),
        ..Load::sequential(service.target(), 200)
    };
    let report = load.run(world.client())?;
    report.expect_success()?;
    assert_eq!(report.by_server().len(), 2, "{:?}", report.by_server());
    site::await_no_connections(world.client())?;

    let (at_client, at_servers) = (at_client.stop()?, at_servers.stop()?);
    for pcap in [&at_client, &at_servers] {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    }
    // Servers saw nobody but the pool, by every address of the family.
    let seen: BTreeSet<IpAddr> = servers
        .iter()
        .zip(before)
        .map(|(server, before)| {
            let accesses = server.accesses()?;
            let clients = accesses[before..].iter().map(|access| access.client.ip());
            Ok(clients.collect::<Vec<_>>())
        })
        .collect::<Result<Vec<_>>>()?
        .concat()
        .into_iter()
        .collect();
    let ours = pool()
        .into_iter()
        .filter(|address| Family::of(*address) == family);
    assert_eq!(seen, ours.collect::<BTreeSet<_>>());

    let status = Status::now(&balancer)?;
    let requests = (PAYLOAD_SIZES.len() + report.outcomes.len()) as u64;
    assert_eq!(status.sum(WEB, "/new_flows")?, requests);
    let (came, went) = (at_client.count("")?, at_servers.count("")?);
    assert_eq!(came, went);
    assert_eq!(status.counter("forwarded")?, came as u64);
    for reason in [
        "pool_exhausted",
        "no_flow",
        "passed_no_service",
        "tuple_collision",
    ] {
        assert_eq!(status.counter(reason)?, 0, "{reason}");
    }
    println!("{family}: {came} packets, {:?}", report.by_server());
    status.expect_no_drops()?;
    Status::quiet(&balancer)?;
    Ok(())
}

/// A restart takes the ports over with the connections: nobody gets one twice, and
/// answers find their clients. `flows` says who is who.
#[test]
fn connections_and_their_ports_outlive_the_daemon() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = world()?;
    let _hosts: Vec<Host> = world
        .servers()
        .iter()
        .map(|server| Host::start(server, PORT, Manner::Obedient))
        .collect::<Result<_>>()?;
    let services = Family::ALL.map(|family| {
        let name = if family == Family::V4 { WEB } else { "web-6" };
        let service = Service::full_nat(name, PORT).in_family(family);
        service.least_connections().over(&[1, 1])
    });
    let mut balancer = Balancer::start(world.balancer(), &config(&services.each_ref()))?;
    let open = |count: u16| {
        let mut streams = Vec::new();
        for service in &services {
            let family = Family::of(service.target().ip());
            for source in world.fresh_clients_in(family, count)? {
                let target = service.target();
                let stream = world.client().enter(|| hosts::open(source, target))??;
                streams.push(stream);
            }
        }
        Ok::<_, anyhow::Error>(streams)
    };
    let mut streams = open(10)?;
    balancer.kill()?;
    streams.extend(open(10)?);
    balancer.start_again()?;
    streams.extend(open(10)?);

    let flows = balancer.json(&["flows"])?;
    let flows = flows["flows"].as_array().context("a list of flows")?;
    assert_eq!(flows.len(), 60);
    let mut sources = BTreeSet::new();
    for flow in flows {
        let source: SocketAddr = flow["source"].as_str().context("a source")?.parse()?;
        assert!(pool().contains(&source.ip()), "{flow}");
        assert!(sources.insert(source), "{source} twice");
    }
    for mut stream in streams {
        stream.shutdown(Shutdown::Write)?;
        assert_eq!(stream.read(&mut [0])?, 0, "it went on to its end");
    }
    let status = Status::quiet(&balancer)?;
    assert_eq!(status.counter("pool_exhausted")?, 0);
    status.expect_no_drops()
}
