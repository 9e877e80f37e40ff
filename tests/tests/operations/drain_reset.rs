//! `drain_reset`: who goes on after the drain timeout is told.
//!
//! The rule: cilium#27730, a client that never gets a valid reset hangs until
//! its own timeout.

use std::io::{ErrorKind, Read as _, Write as _};

use anyhow::{Context as _, Result};
use steerline_tests::world::{Balancer, Capture, Topology, World, topology, wait_until};

use crate::hosts::{self, Host, Manner};
use crate::site::{self, PATIENCE, Service, Status};
use crate::turn;

const ECHO: &str = "echo";
const PORT: u16 = 9_000;

#[test]
fn both_sides_of_an_ended_connection_are_told() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1))?;
    // What is sent back into a veth needs a program at its other end.
    let _ends = [
        site::other_end(world.client(), topology::CLIENT_DEVICE)?,
        site::other_end(world.switch(), topology::UPLINK_DEVICE)?,
    ];
    let host = Host::start(world.server(1)?, PORT, Manner::Silent)?;
    let service = Service::nat(ECHO, PORT)
        .line("drain_timeout", "0s")
        .raw("drain_reset = true")
        .over(&[1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp")?;
    let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp")?;
    let source = world.fresh_clients(1)?[0];
    let mut kept = world
        .client()
        .enter(|| hosts::open(source, service.target()))??;
    wait_until("the server has it", PATIENCE, || {
        Ok((host.kept() == 1).then_some(()))
    })?;

    balancer.verb(&["drain", "echo/web-1"])?;
    Status::wait(&balancer, "it is ended", |status| {
        Ok(status.number("/ended_flows")? == 1 && status.backend(ECHO, 1)?["state"] == "drained")
    })?;
    let events = balancer.json(&["events"])?;
    let deadline = events["events"]
        .as_array()
        .and_then(|events| events.iter().find(|e| e["event"] == "drain-deadline"))
        .context("no deadline is told of")?;
    assert_eq!(deadline["reset"], true, "{deadline}");
    // Nobody is told who says nothing.
    assert_eq!(Status::now(&balancer)?.counter("reset_answered")?, 0);

    kept.write_all(b"hello")?;
    let told = kept.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(told, Err(ErrorKind::ConnectionReset), "the client");
    let told = host.speak()?;
    assert_eq!(told, [ErrorKind::ConnectionReset], "the server");
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("reset_answered")?, 2);
    status.expect_no_drops()?;

    for (pcap, from) in [
        (at_client.stop()?, topology::VIP.into()),
        (at_servers.stop()?, source),
    ] {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
        let resets = format!("tcp.flags.reset == 1 && ip.src == {from}");
        assert_eq!(pcap.count(&resets)?, 1, "{resets}");
    }
    Ok(())
}
