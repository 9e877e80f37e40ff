//! A server that refuses every connection answers faster than any other, and
//! must look slower (ingress-nginx#9882, envoy#32942).

use std::time::Duration;

use anyhow::Result;
use steerline_tests::world::{Load, Report, Topology, Until, World};

use crate::lab::{self, Lab, PATIENCE, Service, WEB, growth, nginx, vip, web};
use crate::turn;

/// What the good servers wait: with [`WORKERS`] requests under way they have
/// some ten each.
const DELAY: Duration = Duration::from_millis(50);
const WORKERS: usize = 30;
/// Nobody listens there.
const REFUSING: usize = 3;

fn resets(report: &Report) -> u64 {
    let reset =
        |o: &&steerline_tests::world::Outcome| o.result.as_ref().is_err_and(|e| e.is_reset());
    report.outcomes.iter().filter(reset).count() as u64
}

#[test]
fn a_server_that_resets_gets_under_one_percent() -> Result<()> {
    const WARM_UP: u64 = 1_000;
    const REQUESTS: u64 = 6_000;
    let Some(_turn) = turn::alone() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(4))?;
    let servers = (1..=3)
        .map(|number| nginx(&world, number, &[DELAY]))
        .collect::<Result<_>>()?;
    let lab = Lab::in_front_of(world, servers, &lab::config(&[Service::aca(4, "")]))?;
    let load = |count| -> Result<Report> {
        Load {
            target: vip(),
            path: "/".to_owned(),
            workers: WORKERS,
            sources: lab.world.fresh_clients(64)?,
            rate: None,
            until: Until::Count(count),
            limit: PATIENCE,
        }
        .run(lab.world.client())
    };
    let warm_up = load(WARM_UP)?;
    let between = lab.status()?.each(WEB, "/new_flows")?;
    let main = load(REQUESTS)?;
    let status = lab.wait_for_quiet()?;
    let flows = status.each(WEB, "/new_flows")?;
    let later = growth(&between, &flows)?;

    let percent = |flows: &[u64]| 100.0 * flows[REFUSING] as f64 / flows.iter().sum::<u64>() as f64;
    println!(
        "the refusing server got {} of {} ({:.2} %) after the warm-up, {} of {} ({:.2} %) overall",
        later[REFUSING],
        later.iter().sum::<u64>(),
        percent(&later),
        flows[REFUSING],
        flows.iter().sum::<u64>(),
        percent(&flows),
    );
    assert!(percent(&later) < 1.0, "{later:?}");
    assert!(percent(&flows) < 1.0, "{flows:?}");
    // It was tried, each of its connections was refused and counted once, and
    // nobody else failed.
    assert!(flows[REFUSING] > 0);
    let refused = resets(&warm_up) + resets(&main);
    let failed = warm_up.failures().count() + main.failures().count();
    assert_eq!((refused, failed as u64), (flows[REFUSING], flows[REFUSING]));
    assert_eq!(
        status.each(WEB, "/failures/reset")?,
        [0, 0, 0, flows[REFUSING]]
    );
    let loads = status.each(WEB, "/load/average")?;
    println!("loads {loads:?}");
    assert!(
        loads[..REFUSING].iter().all(|load| *load < loads[REFUSING]),
        "{loads:?}"
    );
    Ok(())
}

/// By round robin a server that was killed gets its turns all the same: as many
/// refusals, no more; and once it is back, exactly its share (cilium#14250, where
/// a restarted server got less for good).
#[test]
fn a_restarted_server_gets_its_exact_share_again() -> Result<()> {
    const CYCLES: u64 = 25;
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let mut lab = Lab::new(3, &[Service::round_robin(&[2, 1, 1])])?;
    let cycles = |lab: &Lab| Load::sequential(vip(), 4 * CYCLES).run(lab.world.client());
    let before = cycles(&lab)?;
    before.expect_success()?;

    lab.servers.remove(0).kill()?;
    let during = cycles(&lab)?;
    assert_eq!(resets(&during), 2 * CYCLES);
    assert_eq!(
        during.failures().count() as u64,
        2 * CYCLES,
        "nobody else failed"
    );
    let status = lab.wait_for_quiet()?;
    assert_eq!(status.each(WEB, "/failures/reset")?, [2 * CYCLES, 0, 0]);

    lab.servers.insert(0, nginx(&lab.world, 1, &[])?);
    let after = cycles(&lab)?;
    after.expect_success()?;
    let expected = [(web(1), 2 * CYCLES), (web(2), CYCLES), (web(3), CYCLES)];
    for report in [&before, &after] {
        let answered: Vec<(String, u64)> = report
            .by_server()
            .into_iter()
            .map(|(server, count)| (server.to_owned(), count as u64))
            .collect();
        assert_eq!(answered, expected);
    }
    assert_eq!(
        lab.status()?.each(WEB, "/new_flows")?,
        [6 * CYCLES, 3 * CYCLES, 3 * CYCLES]
    );
    Ok(())
}
