//! The daemon dies under load and comes back: nobody notices.
//!
//! The rules: overdrive#199 and XDP-Firewall#9 (a killed daemon left a program
//! that the next one could not handle), libbpf-rs#646 (replace, never detach
//! and attach), xdp-tutorial#402 (maps that were not reused), haproxy#918 and
//! #2085 (what was known of servers was lost).

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use steerline_tests::world::{
    Load, Report, RunningLoad, Topology, Until, World, topology, wait_until,
};

use crate::lab::{self, Lab, PATIENCE, Service, Status, WEB, growth, nginx, vip};
use crate::links::{self, Watch};
use crate::mirror::{self, Kept, Mirror};
use crate::turn;

/// What each server waits before an answer: long enough for many requests to be
/// under way at any moment, and different, so that loads differ.
const DELAYS: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_millis(350),
    Duration::from_millis(450),
];
/// A service that has been used and is left alone during the crash.
const QUIET: &str = "quiet";
const ECHO: &str = "echo";
const AT_LEAST_IN_FLIGHT: usize = 50;

fn services() -> Vec<Service> {
    let lines = "teardown_interval = \"500ms\"";
    vec![
        Service::aca(3, lines),
        Service::aca(3, lines).named(QUIET, 8080),
        Service::aca(0, lines)
            .named(ECHO, mirror::PORT)
            .backend(1, mirror::PORT, 8),
    ]
}

fn target(port: u16) -> SocketAddr {
    SocketAddr::new(topology::VIP.into(), port)
}

/// A load that goes on until it is stopped, with `workers` requests under way.
fn endless(lab: &Lab, workers: usize) -> Result<Load> {
    Ok(Load {
        target: vip(),
        path: "/".to_owned(),
        workers,
        sources: lab.world.fresh_clients(256)?,
        rate: None,
        until: Until::Time(Duration::from_secs(3_600)),
        limit: PATIENCE,
    })
}

fn wait_for_more(load: &RunningLoad, count: u64) -> Result<()> {
    let goal = load.completed() + count;
    wait_until("requests have ended", PATIENCE, || {
        Ok((load.completed() >= goal).then_some(()))
    })
}

/// Requests of `report` that were under way at `moment`.
fn in_flight(report: &Report, moment: Duration) -> usize {
    let under_way =
        |o: &&steerline_tests::world::Outcome| o.started < moment && moment < o.started + o.took;
    report.outcomes.iter().filter(under_way).count()
}

/// What is known of each backend of the quiet service: nothing of it may change
/// while nobody uses it.
fn knowledge(status: &Status) -> Result<Value> {
    let mut known = status.service(QUIET)?.clone();
    let backends = known["backends"].as_array_mut().context("no backends")?;
    for backend in backends {
        // These are of the last report interval, not of what is learned.
        backend
            .as_object_mut()
            .context("no object")?
            .remove("share");
        for percentile in ["p50", "p99"] {
            backend["response_ms"]
                .as_object_mut()
                .context("no object")?
                .remove(percentile);
        }
    }
    Ok(known)
}

#[test]
fn a_killed_daemon_is_missed_by_no_request() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(3))?;
    let servers = (1..)
        .zip(DELAYS)
        .map(|(number, delay)| nginx(&world, number, &[delay]))
        .collect::<Result<_>>()?;
    let _mirror = Mirror::start(world.server(1)?)?;
    let mut lab = Lab::in_front_of(world, servers, &lab::config(&services()))?;
    let source = lab.world.fresh_clients(1)?[0];
    let mut kept = Kept::open(lab.world.client(), source, target(mirror::PORT))?;
    kept.talk()?;
    teach_the_quiet_service(&lab)?;

    let start = Instant::now();
    let load = endless(&lab, 120)?.start(lab.world.client())?;
    wait_for_more(&load, 400)?;
    let pins: Vec<String> = interface_links(&lab.status()?)?;
    let link_ids = |pins: &[String]| -> Result<Vec<u32>> {
        pins.iter()
            .map(|pin| links::link_id(Path::new(pin)))
            .collect()
    };
    let ids_before = link_ids(&pins)?;
    let programs_before = links::programs(lab.world.balancer())?;
    let before = lab.status()?;

    let watch = Watch::start(lab.world.balancer());
    let killed = start.elapsed();
    lab.balancer.kill()?;
    let dead = start.elapsed();
    // The maps say the same as the clients: these flows are under way.
    let stats = lab.stats()?;
    let active: u64 = stats.each(WEB, "/active_flows")?.iter().sum();
    assert!(
        active >= AT_LEAST_IN_FLIGHT as u64,
        "{active} flows are live"
    );
    wait_for_more(&load, 300)?;
    kept.talk()?;

    lab.balancer.start_again()?;
    let back = start.elapsed();
    let after = lab.status()?;
    kept.talk()?;
    wait_for_more(&load, 600)?;
    let seen = watch.finish()?;
    let report = load.stop()?;

    // No request failed: not one under way at the kill, not one begun while
    // nobody was there, not one during or after the start.
    report.expect_success()?;
    let begun = |from, to| {
        let within = |o: &&steerline_tests::world::Outcome| from <= o.started && o.started < to;
        report.outcomes.iter().filter(within).count()
    };
    let counts = [
        in_flight(&report, killed),
        in_flight(&report, dead),
        begun(dead, back),
        in_flight(&report, back),
    ];
    println!(
        "{} requests; {} under way at the kill, {} begun while it was dead, {} under way at its \
         return",
        report.outcomes.len(),
        counts[0],
        counts[2],
        counts[3]
    );
    assert!(
        counts.iter().all(|count| *count >= AT_LEAST_IN_FLIGHT),
        "{counts:?}"
    );

    // Always one program an interface, first the old one and then the new one.
    assert_eq!(interface_links(&after)?, pins);
    assert_eq!(link_ids(&pins)?, ids_before, "the links stay");
    let programs_after = links::programs(lab.world.balancer())?;
    assert_eq!(programs_before.len(), 2);
    assert!(programs_before.keys().eq(programs_after.keys()));
    for (interface, program) in &programs_after {
        assert_ne!(programs_before[interface], *program, "{interface}");
        assert!(
            seen.states
                .iter()
                .all(|state| state.contains_key(interface)),
            "{interface} had no program for a moment: {:?}",
            seen.states
        );
    }
    println!("{} looks at the hooks: {:?}", seen.looks, seen.states);
    assert_eq!(seen.states.first(), Some(&programs_before));
    assert_eq!(seen.states.last(), Some(&programs_after));

    // What was known is known.
    assert_eq!(knowledge(&after)?, knowledge(&before)?);
    for (name, pointer) in [(QUIET, "/load/average"), (WEB, "/load/average")] {
        let loads = after.each(name, pointer)?;
        assert!(loads[2] > loads[0], "the slowest server's load: {loads:?}");
    }
    for status in [&before, &after] {
        assert_eq!(
            status.each(ECHO, "/active_flows")?,
            [1],
            "the connection that stayed"
        );
        assert_eq!(status.each(ECHO, "/new_flows")?, [1]);
    }
    assert_counters_went_on(&before, &after)?;

    kept.close()?;
    let end = lab.wait_for_quiet()?;
    let total: u64 = end.each(WEB, "/new_flows")?.iter().sum();
    assert_eq!(
        total,
        report.outcomes.len() as u64,
        "no flow was counted twice or lost"
    );
    assert_eq!(end.number("/mismatches")?, 0);
    Ok(())
}

/// Uses the quiet service until each of its loads is known and all is reported.
fn teach_the_quiet_service(lab: &Lab) -> Result<()> {
    Load {
        target: target(8080),
        workers: 6,
        sources: lab.world.fresh_clients(16)?,
        until: Until::Count(30),
        ..endless(lab, 6)?
    }
    .run(lab.world.client())?
    .expect_success()?;
    let mut before = None;
    // Ten snapshots later a report interval has passed without a change.
    wait_until("the quiet service's reports are in", PATIENCE, || {
        let status = lab.glance()?;
        let (now, sequence) = (knowledge(&status)?, status.sequence()?);
        match &before {
            Some((then, since)) if *then == now => Ok((sequence >= since + 10).then_some(())),
            _ => {
                before = Some((now, sequence));
                Ok(None)
            }
        }
    })?;
    let status = lab.status()?;
    for backend in status.service(QUIET)?["backends"]
        .as_array()
        .context("no backends")?
    {
        assert!(
            backend["response_ms"]["short"].is_number(),
            "nothing learned: {backend}"
        );
    }
    Ok(())
}

fn interface_links(status: &Status) -> Result<Vec<String>> {
    status.0["interfaces"]
        .as_array()
        .context("no interfaces")?
        .iter()
        .map(|interface| Ok(interface["link"].as_str().context("no link")?.to_owned()))
        .collect()
}

fn assert_counters_went_on(before: &Status, after: &Status) -> Result<()> {
    for name in [WEB, QUIET, ECHO] {
        for pointer in ["/new_flows", "/failures/reset", "/failures/syn_timeout"] {
            growth(&before.each(name, pointer)?, &after.each(name, pointer)?)?;
        }
        for pointer in ["/packets", "/bytes"] {
            let of = |status: &Status| lab::number(status.service(name)?, pointer);
            growth(&[of(before)?], &[of(after)?])?;
        }
    }
    let counters = before.0["counters"].as_object().context("no counters")?;
    for reason in counters.keys() {
        growth(&[before.counter(reason)?], &[after.counter(reason)?])?;
    }
    assert!(after.counter("forwarded")? > before.counter("forwarded")?);
    Ok(())
}
