//! Both ends of tunnels as they change: reloads, drains, routes, prefixes, and
//! servers that are not on the balancer's segment.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};

use anyhow::{Context, Result, ensure};
use steerline::Family;
use steerline_tests::world::{Balancer, BalancerConfig, Capture, World, topology, wait_until};

use crate::endings;
use crate::hosts::{self, Manner};
use crate::site::{self, Service, Status};
use crate::tunnels::{Scene, WEB, WRAPPED, advise, expect_no_drops, send_all, service};
use crate::turn;

/// A letter to a host that is obedient and has not been told how to end: it
/// answers by the letter and waits.
fn converse(stream: &mut TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    ensure!(rest.is_empty(), "{rest:?}");
    Ok(())
}

/// Open connections of one-sided services are sent as their service says now:
/// from one tunnel into the other and out of both, none is lost. A drain keeps
/// the open ones and gives the server no new ones.
#[test]
fn connections_go_on_through_reloads_and_drains() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(PORT, Manner::Obedient)?;
    let inner = Family::V4;
    let first = ("ipip", Family::V4);
    let config = |kind| site::config(&[&service(kind, inner, PORT).line("drain_timeout", "1h")]);
    let balancer = Balancer::start(scene.world.balancer(), &config(first))?;
    let target = service(first, inner, PORT).target();
    let sources = scene.world.fresh_clients_in(inner, 12)?;
    let open = |sources: &[IpAddr]| {
        scene.world.client().enter(|| {
            sources
                .iter()
                .map(|source| hosts::open(*source, target))
                .collect::<Result<Vec<_>>>()
        })?
    };
    let mut kept = open(&sources[..6])?;
    let wait = |what: &str, active: [u64; 2]| {
        Status::wait(&balancer, what, |status| {
            Ok(status.each(WEB, "/active_flows")? == active)
        })
    };
    wait("three each", [3, 3])?;

    let wire = Capture::start(scene.world.switch(), topology::UPLINK_DEVICE, WRAPPED)?;
    // The same servers' addresses, so the same backends.
    balancer.write_config(&config(("gue", Family::V4)))?;
    let answer = balancer.json(&["reload"])?;
    assert_eq!(answer["changed"][0]["key"], "forwarding", "{answer}");
    assert_eq!(
        answer["removed"].as_array().map(Vec::len),
        Some(0),
        "{answer}"
    );
    for stream in &mut kept[..2] {
        converse(stream)?;
    }
    let answer = balancer.json(&["drain", "web/web-1"])?;
    assert_eq!(answer["state"], "draining", "{answer}");
    kept.extend(open(&sources[6..])?);
    for stream in &mut kept[2..] {
        converse(stream)?;
    }
    let wire = wire.stop()?;
    assert_eq!(wire.count("ip.proto == 4")?, 0, "all of it in GUE now");
    assert_eq!(wire.bad_checksums()?, Vec::<String>::new());
    endings::shorten(&balancer)?;
    let status = Status::quiet(&balancer)?;
    // Of the first six each had half; the drained one got none of the others.
    assert_eq!(status.each(WEB, "/new_flows")?, [3, 9]);
    scene.expect_no_refusals()?;
    expect_no_drops(&status)
}

/// Our end of the tunnel is the address that the kernel's route prefers, and
/// follows the route.
#[test]
fn our_end_follows_the_route() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(PORT, Manner::Receiving)?;
    let kind = ("ipip", Family::V4);
    let service = service(kind, Family::V4, PORT);
    let balancer = Balancer::start(scene.world.balancer(), &site::config(&[&service]))?;
    let sources = || -> Result<BTreeSet<String>> {
        let wire = Capture::start(scene.world.switch(), topology::UPLINK_DEVICE, WRAPPED)?;
        send_all(&scene, Family::V4, service.target())?;
        let rows = wire.stop()?.fields("ip.proto == 4", &["ip.src"])?;
        let outer = |row: &Vec<String>| row[0].split(',').next().map(str::to_owned);
        Ok(rows.iter().filter_map(outer).collect())
    };
    advise(&scene, Family::V4, Some(1_400))?;
    assert_eq!(sources()?, BTreeSet::from([topology::BACK.to_string()]));

    let device = topology::BACK_DEVICE;
    let ip = |command: &str| scene.world.balancer().ip(command);
    ip(&format!("address add 10.2.0.200/32 dev {device}"))?;
    ip(&format!(
        "route replace 10.2.0.0/16 dev {device} src 10.2.0.200"
    ))?;
    let maps = site::maps(&balancer)?;
    wait_until("the daemon has heard of it", site::PATIENCE, || {
        let ends: Vec<_> = (1..=2)
            .map(|index| maps.backends.read(index).tunnel_source)
            .collect();
        let wanted = lb_common::abi::address4([10, 2, 0, 200]);
        Ok((ends == [wanted; 2]).then_some(()))
    })?;
    assert_eq!(sources()?, BTreeSet::from(["10.2.0.200".to_owned()]));
    scene.expect_no_refusals()?;
    expect_no_drops(&Status::now(&balancer)?)
}

/// `tunnel_source`, a prefix: receivers can tell flows apart by addresses alone.
/// It changes by a restart, also back to none, and connections go on.
#[test]
fn our_end_is_spread_over_a_prefix() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(PORT, Manner::Receiving)?;
    advise(&scene, Family::V4, Some(1_400))?;
    let service = service(("ipip", Family::V4), Family::V4, PORT);
    let plain = site::config(&[&service]);
    let spread = BalancerConfig {
        data_plane: format!("{}tunnel_source = [\"10.2.64.16/28\"]\n", plain.data_plane),
        ..plain.clone()
    };
    let mut balancer = Balancer::start(scene.world.balancer(), &spread)?;
    let sources = || -> Result<BTreeSet<String>> {
        let wire = Capture::start(scene.world.switch(), topology::UPLINK_DEVICE, WRAPPED)?;
        for source in scene.world.fresh_clients(64)? {
            let target = service.target();
            scene
                .world
                .client()
                .enter(|| hosts::send(source, target, 10))??;
        }
        let wire = wire.stop()?;
        assert_eq!(wire.bad_checksums()?, Vec::<String>::new());
        // One address for each client, in every packet of its.
        let rows = wire.fields("ip.proto == 4", &["ip.src"])?;
        let pairs: BTreeSet<String> = rows.into_iter().flatten().collect();
        assert_eq!(pairs.len(), 64, "{pairs:?}");
        let outer = |pair: &String| pair.split(',').next().map(str::to_owned);
        Ok(pairs.iter().filter_map(outer).collect())
    };
    let ends = sources()?;
    println!("{ends:?}");
    // Of 64 flows over 16 addresses one in ten thousand runs misses more than four.
    assert!(ends.len() >= 12, "{ends:?}");
    for end in &ends {
        let address: Ipv4Addr = end.parse()?;
        assert_eq!(u32::from(address) >> 4, 0x0a02_4010 >> 4, "{end}");
    }

    balancer.write_config(&plain)?;
    let refused = balancer.command(&["reload"]).output()?;
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("data_plane.tunnel_source"), "{message}");
    balancer.stop()?;
    balancer.start_again()?;
    assert_eq!(sources()?, BTreeSet::from([topology::BACK.to_string()]));
    scene.expect_no_refusals()?;
    expect_no_drops(&Status::now(&balancer)?)
}

/// Servers need not be on a segment of the balancer: server 2 is behind server 1,
/// which is a router here.
#[test]
fn servers_behind_a_router() -> Result<()> {
    const PORT: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(PORT, Manner::Receiving)?;
    advise(&scene, Family::V4, Some(1_400))?;
    let (router, far) = (scene.world.server(1)?, scene.world.server(2)?);
    router.sysctl("net/ipv4/ip_forward", "1")?;
    router.sysctl("net/ipv4/conf/all/send_redirects", "0")?;
    router.sysctl("net/ipv4/conf/eth0/send_redirects", "0")?;
    router.ip(&format!(
        "route add 10.3.0.0/24 via {}",
        World::server_address(2)
    ))?;
    far.ip("address add 10.3.0.1/32 dev lo")?;
    let via = World::server_address(1);
    scene
        .world
        .balancer()
        .ip(&format!("route add 10.3.0.0/24 via {via}"))?;
    for forwarding in ["ipip", "gue"] {
        let before = scene.delivered();
        let service = Service::tunnel(WEB, PORT, forwarding, Family::V4).least_connections();
        let mut config = site::config(&[&service]);
        config.services += "[[service.backend]]\nname = \"far\"\naddress = \"10.3.0.1\"\n";
        let balancer = Balancer::start(scene.world.balancer(), &config)?;
        send_all(&scene, Family::V4, service.target()).context(forwarding)?;
        scene.settle(before, &balancer)?;
        scene.expect_no_refusals()?;
        expect_no_drops(&Status::now(&balancer)?)?;
    }
    assert_eq!(scene.ends[0].delivered(), 0, "the router takes nothing out");
    Ok(())
}
