//! `dsr` over two interfaces: real web servers that hold the virtual address
//! answer their clients themselves.
//!
//! The rules: xdp-tutorial#357 and loxilb#1054 (checksums right for some lengths
//! alone), haproxy#1099 (what least connections equalises), cilium#20407 (a
//! balancer that never sees the server's end kept entries for hours).

use std::io::Read as _;
use std::net::Shutdown;
use std::time::Duration;

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{
    Balancer, Capture, Client, Load, NginxOptions, PAYLOAD_SIZES, Server, Topology, Until, World,
    payload_digest, topology,
};

use crate::endings;
use crate::hosts::{self, Host, Manner};
use crate::site::{self, PATIENCE, Service, Status, web};
use crate::turn;

const WEB: &str = "web";
/// What the client's kernel sends with.
const TIME_TO_LIVE: u8 = 64;

/// An nginx on server `number` that listens at the virtual address only.
pub(crate) fn nginx(world: &World, number: u8, family: Family) -> Result<Server> {
    let server = world.server(number)?;
    site::hold(server)?;
    let options = NginxOptions::new(&web(number), site::direct(family));
    Server::nginx(server, options)
}

#[test]
fn payloads_of_every_size_come_back_past_the_balancer() -> Result<()> {
    for family in Family::ALL {
        payloads_come_back(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn payloads_come_back(family: Family) -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(3).dual_stack())?;
    site::unmerged(world.balancer())?;
    // Answers come back by the balancer's kernel, which is the servers' router.
    // In IPv4 it is one as soon as its interfaces forward, in IPv6 by this.
    let is_router = "net/ipv6/conf/all/forwarding";
    world.balancer().sysctl(is_router, "1")?;
    let _servers: Vec<Server> = (1..=3)
        .map(|number| nginx(&world, number, family))
        .collect::<Result<_>>()?;
    let service = Service::dsr(WEB, 80).in_family(family);
    let service = service.least_connections().over(&[1, 1, 1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp")?;
    let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp")?;

    let client = Client::new(world.client());
    let source = world.fresh_clients_in(family, 1)?[0];
    for size in PAYLOAD_SIZES {
        let path = format!("/bytes/{size}");
        let response = client.get(Some(source), service.target(), &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
    }
    // Many at a time, so that the fewest connections lead to every server.
    let load = Load {
        workers: 8,
        sources: world.fresh_clients_in(family, 16)?,
        path: "/bytes/15361".to_owned(),
        ..Load::sequential(service.target(), 300)
    };
    let report = load.run(world.client())?;
    report.expect_success()?;
    println!("{:?}", report.by_server());
    assert_eq!(report.by_server().len(), 3, "{:?}", report.by_server());

    let (at_client, at_servers) = (at_client.stop()?, at_servers.stop()?);
    for pcap in [&at_client, &at_servers] {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    }
    // What goes to the servers is the client's packet, but for the MACs.
    let towards = "tcp.dstport == 80";
    let sent = at_client.count(towards)?;
    assert_eq!(at_servers.count(towards)?, sent);
    let target = service.target().ip();
    let (address, left) = match family {
        Family::V4 => ("ip.dst", "ip.ttl"),
        Family::V6 => ("ipv6.dst", "ipv6.hlim"),
    };
    let same = format!("{towards} && {address} == {target} && {left} == {TIME_TO_LIVE}");
    assert_eq!(at_servers.count(&same)?, sent);
    let macs = "eth.src == 02:00:00:00:02:01 && eth.dst[0:5] == 02:00:00:00:04";
    assert_eq!(at_servers.count(&format!("{towards} && {macs}"))?, sent);
    println!("{sent} packets towards servers, all for {target}");

    // Each packet of a client was forwarded; those of servers were not touched.
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("forwarded")?, sent as u64);
    let requests = (PAYLOAD_SIZES.len() + report.outcomes.len()) as u64;
    assert_eq!(status.sum(WEB, "/new_flows")?, requests);
    status.expect_no_drops()?;
    // Of nginx's FINs nothing is seen: what the clients' leave is shortened.
    endings::shorten(&balancer)?;
    Status::quiet(&balancer)?;
    Ok(())
}

/// One after the other, each connection goes where the fewest are for the
/// weight: 2:1 of thirty are twenty and ten, ties by weight.
#[test]
fn kept_connections_are_spread_by_weight() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(2))?;
    for server in world.servers() {
        site::hold(server)?;
    }
    let _hosts: Vec<Host> = world
        .servers()
        .iter()
        .map(|server| Host::start(server, PORT, Manner::Obedient))
        .collect::<Result<_>>()?;
    let service = Service::dsr(WEB, PORT).least_connections().over(&[2, 1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let sources = world.fresh_clients(30)?;
    let open = |count: usize| {
        world.client().enter(|| {
            sources[..count]
                .iter()
                .map(|source| hosts::open(*source, service.target()))
                .collect::<Result<Vec<_>>>()
        })?
    };
    let kept = open(30)?;
    let live = |expected: [u64; 2]| {
        Status::wait(&balancer, "the books say who has which", |status| {
            let half_open = status.each(WEB, "/half_open")?;
            Ok(status.each(WEB, "/active_flows")? == expected && half_open == [0, 0])
        })
    };
    let status = live([20, 10])?;
    assert_eq!(status.each(WEB, "/new_flows")?, [20, 10]);

    // The server's FIN is not seen; the client's is, and its last ACK.
    for mut stream in kept {
        stream.shutdown(Shutdown::Write)?;
        assert_eq!(stream.read(&mut [0])?, 0);
    }
    endings::shorten(&balancer)?;
    let status = Status::quiet(&balancer)?;
    assert_eq!(status.number("/counters/no_flow")?, 0);
    Ok(())
}

/// A service of one backend, drained: new connections are dropped and counted,
/// the old one goes on (cilium#31840: losing the last backend broke draining).
#[test]
fn the_last_backend_can_be_drained() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1))?;
    site::hold(world.server(1)?)?;
    let _host = Host::start(world.server(1)?, PORT, Manner::Obedient)?;
    let service = Service::dsr(WEB, PORT).least_connections().over(&[1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let source = world.fresh_clients(1)?[0];
    let mut kept = world
        .client()
        .enter(|| hosts::open(source, service.target()))??;
    let answer = balancer.json(&["drain", "web/web-1"])?;
    assert_eq!(answer["state"], "draining", "{answer}");
    assert!(answer["warnings"][0].is_string(), "{answer}");

    let load = Load {
        until: Until::Count(1),
        limit: Duration::from_millis(500),
        ..Load::sequential(service.target(), 1)
    };
    let report = load.run(world.client())?;
    assert_eq!(report.failures().count(), 1);
    kept.set_read_timeout(Some(PATIENCE))?;
    kept.shutdown(Shutdown::Write)?;
    assert_eq!(kept.read(&mut [0])?, 0, "it went on to its end");
    endings::shorten(&balancer)?;
    Status::quiet(&balancer)?;
    let status = Status::wait(&balancer, "it is drained", |status| {
        Ok(status.backend(WEB, 1)?["state"] == "drained")
    })?;
    assert!(status.counter("no_backend")? >= 1);
    assert_eq!(status.each(WEB, "/new_flows")?, [1]);
    Ok(())
}
