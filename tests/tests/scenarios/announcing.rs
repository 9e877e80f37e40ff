//! `announce = "address"`: clients on the same segment find the virtual address
//! by ARP, and lose it with `detach`.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::Value;
use steerline_tests::world::{
    BalancerConfig, Capture, Client, Load, NginxOptions, Server, Topology, World, run, topology,
    wait_until,
};

use crate::lab::{self, Lab, PATIENCE, Service, web};
use crate::turn;

/// An address of the segment between client and balancer.
const SEGMENT_VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);

/// The interfaces of the balancer that have [`SEGMENT_VIP`], with its prefix.
fn holders(world: &World) -> Result<Vec<(String, u64)>> {
    let output = run(world.balancer().command("ip").args(["-j", "address"]))?;
    let interfaces: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    let mut holders = Vec::new();
    for interface in &interfaces {
        let name = interface["ifname"].as_str().context("no name")?;
        for address in interface["addr_info"].as_array().context("no addresses")? {
            if address["local"] == SEGMENT_VIP.to_string() {
                let prefix = address["prefixlen"].as_u64().context("no prefix")?;
                holders.push((name.to_owned(), prefix));
            }
        }
    }
    Ok(holders)
}

#[test]
fn neighbours_find_the_address_until_it_is_withdrawn() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(2))?;
    let servers = (1..=2)
        .map(|number| {
            let options = NginxOptions::new(&web(number), World::server_address(number));
            Server::nginx(world.server(number)?, options)
        })
        .collect::<Result<_>>()?;
    let capture = Capture::start(world.client(), topology::CLIENT_DEVICE, "arp")?;
    let config: BalancerConfig = lab::config(&[
        Service::round_robin(&[1, 1]).announced(SEGMENT_VIP),
        // Two services, one address: it is put on and taken off once.
        Service::round_robin(&[1, 1])
            .named("other", 8080)
            .announced(SEGMENT_VIP),
    ]);
    let mut lab = Lab::in_front_of(world, servers, &config)?;
    assert_eq!(
        holders(&lab.world)?,
        [(topology::FRONT_DEVICE.to_owned(), 32)]
    );

    let target = SocketAddr::new(SEGMENT_VIP.into(), 80);
    let load = || Load::sequential(target, 6).run(lab.world.client());
    load()?.expect_success()?;
    let found =
        run(lab
            .world
            .client()
            .command("ip")
            .args(["neigh", "show", &SEGMENT_VIP.to_string()]))?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(
        found.contains("02:00:00:00:01:01"),
        "the balancer's front: {found}"
    );

    // Both forms of RFC 5227's announcement, from the balancer's own MAC.
    let pcap = capture.stop()?;
    for form in [1, 2] {
        let filter = format!(
            "arp.isgratuitous == 1 && arp.opcode == {form} && arp.src.proto_ipv4 == {SEGMENT_VIP} \
             && arp.src.hw_mac == 02:00:00:00:01:01"
        );
        assert!(pcap.count(&filter)? > 0, "no gratuitous ARP of form {form}");
    }

    // It is the balancer's as long as there are pins, daemon or not.
    lab.balancer.stop()?;
    load()?.expect_success()?;
    assert_eq!(holders(&lab.world)?.len(), 1);
    lab.balancer.start_again()?;
    assert_eq!(holders(&lab.world)?.len(), 1);
    load()?.expect_success()?;

    lab.balancer.detach()?;
    assert_eq!(holders(&lab.world)?, []);
    let answer = Client::new(lab.world.client()).get(None, target, "/")?;
    assert!(answer.is_err(), "{answer:?}");
    Ok(())
}

/// An address that somebody else put there stays theirs (keepalived moves its
/// own).
#[test]
fn an_address_of_somebody_else_stays() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1))?;
    world.balancer().ip(&format!(
        "address add {SEGMENT_VIP}/32 dev {}",
        topology::FRONT_DEVICE
    ))?;
    let options = NginxOptions::new(&web(1), World::server_address(1));
    let servers = vec![Server::nginx(world.server(1)?, options)?];
    let config = lab::config(&[Service::round_robin(&[1]).announced(SEGMENT_VIP)]);
    let mut lab = Lab::in_front_of(world, servers, &config)?;
    let target = SocketAddr::new(SEGMENT_VIP.into(), 80);
    Load::sequential(target, 3)
        .run(lab.world.client())?
        .expect_success()?;
    assert_eq!(lab.status()?.number("/services/0/new_flows")?, 3);

    // Without a daemon `detach` must know it as well as the daemon itself.
    lab.balancer.kill()?;
    lab.balancer.detach()?;
    wait_until("the pins are gone", PATIENCE, || {
        Ok((!lab.balancer.pin_directory().exists()).then_some(()))
    })?;
    assert_eq!(holders(&lab.world)?.len(), 1);
    Ok(())
}
