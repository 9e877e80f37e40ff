//! `aca` takes new connections away from the server that answers slowly, and
//! gives them back: what cilium#163 and haproxy#1977 asked for.
//!
//! Time is counted in report intervals, by the daemon's own snapshots: ten of
//! them a second, as many as its clock ticks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use steerline_tests::world::{Load, RunningLoad, Topology, Until, World, wait_until};

use crate::lab::{self, Lab, PATIENCE, Service, Status, WEB, growth, nginx, vip};
use crate::turn;

const FAST: Duration = Duration::from_millis(20);
const SLOW: Duration = Duration::from_millis(200);
/// The last of three servers is the slow one.
const SLOW_ONE: usize = 2;
const FAIR: f64 = 1.0 / 3.0;
/// Snapshots in a report interval of half a second.
const INTERVAL: u64 = 5;
/// Requests a second: some four under way on fast servers, far below what they
/// can do.
const RATE: u32 = 200;

struct Scene {
    load: RunningLoad,
    lab: Lab,
}

impl Scene {
    /// Three servers, one of them slow, under load.
    fn new(pick: &str) -> Result<Self> {
        let world = World::new(&Topology::two_armed(3))?;
        let servers = [FAST, FAST, SLOW]
            .into_iter()
            .zip(1..)
            .map(|(delay, number)| nginx(&world, number, &[delay, FAST]))
            .collect::<Result<_>>()?;
        let lines = format!("teardown_interval = \"500ms\"\npick = {pick:?}\n");
        let lab = Lab::in_front_of(world, servers, &lab::config(&[Service::aca(3, &lines)]))?;
        let load = Load {
            target: vip(),
            path: "/".to_owned(),
            workers: 32,
            sources: lab.world.fresh_clients(64)?,
            rate: Some(RATE),
            until: Until::Time(Duration::from_secs(3_600)),
            limit: PATIENCE,
        }
        .start(lab.world.client())?;
        Ok(Self { load, lab })
    }

    /// Lets so many report intervals pass.
    fn pass(&self, intervals: u64) -> Result<Status> {
        self.lab.pass(intervals * INTERVAL)
    }

    /// What part of the connections of so many intervals each server got.
    fn shares(&self, intervals: u64) -> Result<Vec<f64>> {
        let before = self.lab.status()?.each(WEB, "/new_flows")?;
        let after = self.pass(intervals)?.each(WEB, "/new_flows")?;
        let flows = growth(&before, &after)?;
        let all: u64 = flows.iter().sum();
        ensure!(all > 100, "too few connections to judge: {flows:?}");
        Ok(flows.iter().map(|part| *part as f64 / all as f64).collect())
    }
}

fn loads(status: &Status) -> Result<Vec<u64>> {
    status.each(WEB, "/load/average")
}

/// Back within four reports of its recovery. Its share is then measured over
/// the length of one: at most one passes before a whole one begins, one during
/// it, and one more since neither is on the grid of reports.
const REPORTS_TO_COME_BACK: u64 = 4 + 3;

/// Below a fifth of fair after three intervals, its load the highest; back
/// above half of fair within [`REPORTS_TO_COME_BACK`], and to stay.
fn a_slow_server_is_avoided_and_comes_back(pick: &str) -> Result<()> {
    let scene = Scene::new(pick)?;
    scene.pass(3)?;
    let shares = scene.shares(8)?;
    let loads = loads(&scene.lab.status()?)?;
    println!("{pick}: shares {shares:.4?}, loads {loads:?}");
    assert!(shares[SLOW_ONE] < FAIR / 5.0, "{shares:?}");
    assert!(
        loads[SLOW_ONE] > loads[0] && loads[SLOW_ONE] > loads[1],
        "{loads:?}"
    );
    // The others share the rest as equals.
    assert!(
        shares[..SLOW_ONE].iter().all(|share| *share > FAIR),
        "{shares:?}"
    );

    let recovered = scene.lab.status()?.sequence()?;
    scene.lab.servers[SLOW_ONE].set_delay(FAST)?;
    let mut before = scene.lab.status()?;
    let reports = wait_until("the server has its share back", PATIENCE, || {
        let after = scene.pass(1)?;
        let flows = growth(
            &before.each(WEB, "/new_flows")?,
            &after.each(WEB, "/new_flows")?,
        )?;
        let all: u64 = flows.iter().sum();
        let sequence = after.sequence()?;
        before = after;
        let back = flows[SLOW_ONE] as f64 > all as f64 * FAIR / 2.0;
        Ok(back.then(|| (sequence - recovered).div_ceil(INTERVAL)))
    })?;
    println!("{pick}: back after {reports} reports");
    assert!(
        reports <= REPORTS_TO_COME_BACK,
        "only after {reports} reports"
    );
    scene.pass(4)?;
    let shares = scene.shares(6)?;
    println!("{pick}: shares after recovery {shares:.4?}");
    assert!(shares[SLOW_ONE] > FAIR / 2.0, "it did not last: {shares:?}");

    scene
        .load
        .stop()?
        .expect_success()
        .context("no request may fail")
}

#[test]
fn by_connections_a_slow_server_is_avoided_and_comes_back() -> Result<()> {
    let Some(_turn) = turn::alone() else {
        return Ok(());
    };
    a_slow_server_is_avoided_and_comes_back("connections")
}

#[test]
fn by_shares_a_slow_server_is_avoided_and_comes_back() -> Result<()> {
    let Some(_turn) = turn::alone() else {
        return Ok(());
    };
    a_slow_server_is_avoided_and_comes_back("shares")
}
