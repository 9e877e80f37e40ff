//! `weighted-round-robin` on the wire: the order of the SYNs that servers get,
//! and exact totals over a hundred thousand connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use steerline_tests::world::{BalancerConfig, Capture, Load, Topology, Until, World, topology};

use crate::lab::{self, Lab, PATIENCE, Service, WEB, nginx, vip, web};
use crate::turn;

/// Weights 3:1:2 on an idle machine, from the first SYN on: A A A B C C, and
/// again (IOS SLB's order; katran#35 gave weights that only approximated).
#[test]
fn syns_reach_servers_in_the_order_of_their_weights() -> Result<()> {
    const CYCLES: usize = 12;
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let lab = Lab::new(3, &[Service::round_robin(&[3, 1, 2])])?;
    let cycle = [1, 1, 1, 2, 3, 3];
    let expected: Vec<SocketAddr> = cycle
        .repeat(CYCLES)
        .into_iter()
        .map(|number| SocketAddr::new(World::server_address(number).into(), 80))
        .collect();

    // The far end of the balancer's back: on its own device an XDP program
    // hides what it sends.
    let capture = Capture::start(lab.world.switch(), topology::UPLINK_DEVICE, "tcp")?;
    let report = Load::sequential(vip(), expected.len() as u64).run(lab.world.client())?;
    report.expect_success()?;
    let pcap = capture.stop()?;

    assert_eq!(pcap.syn_destinations()?, expected);
    assert_eq!(pcap.count("tcp.analysis.retransmission")?, 0);
    // The clients were answered by those servers, with their payload.
    let answered: Vec<&str> = report.outcomes.iter().filter_map(|o| o.server()).collect();
    let names: Vec<String> = cycle.repeat(CYCLES).into_iter().map(web).collect();
    assert_eq!(answered, names);
    Ok(())
}

/// Ten thousand cycles of 7:2:1 from several clients at once: every cycle gives
/// its weights, whatever the processors do to the order within it, and nothing
/// is left in any book afterwards (traefik#4226: phantom open connections;
/// kube-router#290: wrong metrics).
#[test]
fn a_hundred_thousand_connections_are_shared_exactly() -> Result<()> {
    const CONNECTIONS: u64 = 100_000;
    let Some(_turn) = turn::alone() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(3))?;
    let servers = (1..=3)
        .map(|number| nginx(&world, number, &[Duration::ZERO]))
        .collect::<Result<Vec<_>>>()?;
    let lab = Lab::in_front_of(
        world,
        servers,
        &BalancerConfig {
            // Ended flows keep their place for ten seconds, so for this rate of
            // new ones the table must hold those too.
            data_plane: "flow_table = { ipv4 = 262_144, ipv6 = 0 }\n".to_owned(),
            ..lab::config(&[Service::round_robin(&[7, 2, 1])])
        },
    )?;
    let load = Load {
        target: vip(),
        path: "/".to_owned(),
        workers: 4,
        sources: lab.world.fresh_clients(64)?,
        rate: None,
        until: Until::Count(CONNECTIONS),
        limit: PATIENCE,
    };
    let report = load.run(lab.world.client())?;

    report.expect_success()?;
    let expected = [70_000, 20_000, 10_000];
    let by_server: BTreeMap<String, usize> = (1..).map(web).zip(expected).collect();
    let answered = report.by_server();
    assert_eq!(
        answered
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect::<BTreeMap<_, _>>(),
        by_server
    );
    let status = lab.wait_for_quiet()?;
    assert_eq!(
        status.each(WEB, "/new_flows")?,
        expected.map(|count| count as u64)
    );
    assert_eq!(status.each(WEB, "/failures/reset")?, [0; 3]);
    assert_eq!(status.each(WEB, "/failures/syn_timeout")?, [0; 3]);
    for (pointer, value) in [
        ("/services/0/new_flows", CONNECTIONS),
        ("/services/0/active_flows", 0),
        ("/counters/new_flow", CONNECTIONS),
        ("/counters/table_full", 0),
        ("/counters/no_flow", 0),
        ("/counters/syn_repeated", 0),
        ("/counters/internal", 0),
        ("/mismatches", 0),
    ] {
        assert_eq!(status.number(pointer)?, value, "{pointer}");
    }
    // The service's packets are those that were forwarded, and each connection
    // takes at least SYN, request and FIN of the client's, and the answers.
    let packets = status.number("/services/0/packets")?;
    assert_eq!(packets, status.counter("forwarded")?);
    assert!(packets >= 7 * CONNECTIONS, "{packets} packets");
    let measured: u64 = lab.stats()?.each(WEB, "/measured")?.iter().sum();
    assert_eq!(measured, CONNECTIONS, "every end was measured once");
    // What servers saw is what was counted.
    for (server, count) in lab.servers.iter().zip(expected) {
        let accesses = server.accesses().context("a server's log")?;
        assert_eq!(accesses.len(), count, "{}", server.name());
    }
    Ok(())
}
