//! Next hops are the kernel's, and follow it: neighbours that change, that are
//! not there yet, and routes (cilium#22782: it only worked while ARP was fresh).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use steerline_tests::world::{
    Capture, Client, Load, NginxOptions, Report, Server, Topology, World, topology, wait_until,
};

use crate::lab::{self, Lab, PATIENCE, Service, WEB, nginx, vip, web};
use crate::mirror::{self, Kept, Mirror};
use crate::turn;

/// Neighbours are asked for again after 5 s at the earliest, which is fifty
/// snapshots; a change that the kernel reports must not take that long.
const BY_ASKING_AGAIN: u64 = 30;

/// A server gets another network card: as soon as it says so, packets find it,
/// those of connections that stayed included.
#[test]
fn a_server_with_a_new_mac_address_is_found() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(2))?;
    let _mirror = Mirror::start(world.server(1)?)?;
    let servers = (1..=2)
        .map(|number| nginx(&world, number, &[]))
        .collect::<Result<_>>()?;
    let echo = Service::new("weighted-round-robin")
        .named("echo", mirror::PORT)
        .backend(1, mirror::PORT, 1);
    let services = [Service::round_robin(&[1, 1]), echo];
    let lab = Lab::in_front_of(world, servers, &lab::config(&services))?;
    let source = lab.world.fresh_clients(1)?[0];
    let target = SocketAddr::new(topology::VIP.into(), mirror::PORT);
    let mut kept = Kept::open(lab.world.client(), source, target)?;
    kept.talk()?;

    let capture = Capture::start(lab.world.switch(), topology::UPLINK_DEVICE, "tcp")?;
    let server = lab.world.server(1)?;
    // A gratuitous ARP tells of the change, as from a card that is replaced.
    server.sysctl("net/ipv4/conf/all/arp_notify", "1")?;
    server.ip(&format!(
        "link set {} address 02:00:00:00:05:01",
        topology::SERVER_DEVICE
    ))?;
    let changed = lab.status()?.sequence()?;
    let hasty = Client::new(lab.world.client()).limit(Duration::from_millis(200));
    wait_until("server 1 is found", PATIENCE, || {
        let answers = [hasty.get(None, vip(), "/")?, hasty.get(None, vip(), "/")?];
        Ok(answers.iter().all(Result::is_ok).then_some(()))
    })?;
    let found = lab.status()?.sequence()?;
    println!("found after {} snapshots", found - changed);
    assert!(
        found - changed < BY_ASKING_AGAIN,
        "only when it asked again"
    );
    Load::sequential(vip(), 20)
        .run(lab.world.client())?
        .expect_success()?;
    kept.talk()?;
    kept.close()?;
    let pcap = capture.stop()?;
    let filter = format!(
        "eth.dst == 02:00:00:00:05:01 && ip.dst == {}",
        World::server_address(1)
    );
    assert!(pcap.count(&filter)? > 0);
    Ok(())
}

/// One server is off when the daemon starts. The others are served from the
/// first connection on, and it joins when it comes.
#[test]
fn a_server_that_is_off_does_not_keep_the_others_from_being_served() -> Result<()> {
    const EACH: usize = 5;
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(3))?;
    let servers = (1..=3)
        .map(|number| nginx(&world, number, &[]))
        .collect::<Result<Vec<_>>>()?;
    let port = format!("link set s{} ", 3);
    world.switch().ip(&(port.clone() + "down"))?;
    let lab = Lab::in_front_of(
        world,
        servers,
        &lab::config(&[Service::round_robin(&[1, 1, 1])]),
    )?;
    let load = |limit| -> Result<Report> {
        Load {
            limit,
            ..Load::sequential(vip(), 3 * EACH as u64)
        }
        .run(lab.world.client())
    };
    // Each connection to the one that is off fails, and no other.
    let report = load(Duration::from_millis(200))?;
    let answered = report.by_server();
    let expected = [(web(1), EACH), (web(2), EACH)];
    assert_eq!(
        answered
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect::<Vec<_>>(),
        expected
    );
    let status = lab.status()?;
    assert!(
        status.counter("neighbour_unresolved")? >= EACH as u64,
        "{:?}",
        status.0
    );
    assert_eq!(status.each(WEB, "/new_flows")?, [EACH as u64; 3]);

    lab.world.switch().ip(&(port + "up"))?;
    let hasty = Client::new(lab.world.client()).limit(Duration::from_millis(200));
    wait_until("the third has joined", PATIENCE, || {
        let mut good = 0;
        for _ in 0..3 {
            good += u32::from(hasty.get(None, vip(), "/")?.is_ok());
        }
        Ok((good == 3).then_some(()))
    })?;
    load(PATIENCE)?.expect_success()
}

/// The clients' network moves behind another gateway: replies go there, also
/// those of connections that began before.
#[test]
fn replies_follow_the_route_to_the_client() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
    const GATEWAY_MAC: &str = "02:00:00:00:06:01";
    let world = World::new(&Topology::two_armed(1))?;
    let _mirror = Mirror::start(world.server(1)?)?;
    let options = NginxOptions::new(&web(1), World::server_address(1));
    let servers = vec![Server::nginx(world.server(1)?, options)?];
    let echo = Service::new("weighted-round-robin")
        .named("echo", mirror::PORT)
        .backend(1, mirror::PORT, 1);
    let services = [Service::round_robin(&[1]), echo];
    let lab = Lab::in_front_of(world, servers, &lab::config(&services))?;
    let client = lab.world.client();
    // A second card of the clients' host with an address of its own, for which
    // the first does not answer.
    client.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    client.ip(&format!(
        "link add link {} gateway address {GATEWAY_MAC} type macvlan mode bridge",
        topology::CLIENT_DEVICE
    ))?;
    client.ip(&format!(
        "address add {GATEWAY}/24 dev gateway noprefixroute"
    ))?;
    client.ip("link set gateway up")?;

    let sources = lab.world.fresh_clients(2)?;
    let target = SocketAddr::new(topology::VIP.into(), mirror::PORT);
    let mut kept = Kept::open(client, sources[0], target)?;
    kept.talk()?;
    let load = |source: IpAddr| {
        Load {
            sources: vec![source],
            ..Load::sequential(vip(), 10)
        }
        .run(client)
    };
    let replies = |mac: &str| format!("eth.dst == {mac} && ip.src == {} && tcp", topology::VIP);
    let capture = Capture::start(client, topology::CLIENT_DEVICE, "tcp")?;
    load(sources[1])?.expect_success()?;
    let pcap = capture.stop()?;
    assert!(pcap.count(&replies("02:00:00:00:01:02"))? > 0);
    assert_eq!(pcap.count(&replies(GATEWAY_MAC))?, 0);

    lab.world.balancer().ip(&format!(
        "route replace {}/16 via {GATEWAY}",
        topology::CLIENTS
    ))?;
    // No reply may be lost meanwhile; how soon they move is asserted below.
    load(sources[1])?.expect_success()?;
    kept.talk()?;
    wait_until("replies go to the new gateway", PATIENCE, || {
        let capture = Capture::start(client, topology::CLIENT_DEVICE, "tcp")?;
        kept.talk()?;
        load(sources[1])?.expect_success()?;
        let pcap = capture.stop()?;
        let old = pcap.count(&replies("02:00:00:00:01:02"))?;
        let new = pcap.count(&replies(GATEWAY_MAC))?;
        Ok((old == 0 && new > 0).then_some(()))
    })?;
    kept.close()
}
