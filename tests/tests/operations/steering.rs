//! What operators do to a service in use, and that no client notices: reloads,
//! drains, weights, a crash in between.
//!
//! The rules: loxilb#1020 (skew when servers change), cilium#27096 (new
//! connections to a server that is leaving), kube-router#413 (a graceful end),
//! rancher#10593 (weight stuck at 0 after a restart), haproxy#918, #2085 and
//! #409 (what operators had said was lost by a restart).

use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use steerline::Family;
use steerline_tests::world::{
    Balancer, Load, NginxOptions, RunningLoad, Server, Topology, Until, World, wait_until,
};

use crate::hosts;
use crate::site::{self, PATIENCE, Service, Status, number, web};
use crate::turn;

const WEB: &str = "web";
/// Requests a second.
const RATE: u32 = 50;
/// Waits for requests in the scenario of all steps, each for as many.
const WAITS: u64 = 11;
/// So long that at every moment a request is under way.
const DELAY: Duration = Duration::from_millis(60);

/// Requests that must have ended before the next step, so that all of them take
/// a minute where the machine is asked for it, else a third.
fn full_length() -> u64 {
    let asked = std::env::var_os("STEERLINE_FULL_LENGTH").is_some();
    let seconds = if asked { 60 } else { 20 };
    (seconds * u64::from(RATE)).div_ceil(WAITS)
}

fn service(family: Family) -> Service {
    Service::nat(WEB, 80)
        .in_family(family)
        .line("drain_timeout", "1h")
        .round_robin()
}

struct Scene {
    family: Family,
    /// See [`full_length`].
    between: u64,
    load: RunningLoad,
    balancer: Balancer,
    servers: Vec<Server>,
    world: World,
}

impl Scene {
    fn new(family: Family, between: u64) -> Result<Self> {
        let world = World::new(&Topology::two_armed(3).dual_stack())?;
        let servers = (1..=3)
            .map(|number| {
                let options = NginxOptions::new(&web(number), World::server_ip(number, family));
                Server::nginx(world.server(number)?, options.delay(DELAY))
            })
            .collect::<Result<_>>()?;
        let service = service(family).over(&[8, 8, 8]);
        let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
        let load = Load {
            target: service.target(),
            path: "/".to_owned(),
            workers: 12,
            sources: world.fresh_clients_in(family, 128)?,
            rate: Some(RATE),
            until: Until::Time(Duration::from_secs(600)),
            limit: PATIENCE,
        };
        let scene = Self {
            family,
            between,
            load: load.start(world.client())?,
            balancer,
            servers,
            world,
        };
        scene.go_on()?;
        Ok(scene)
    }

    /// Waits for as many requests as there are between two steps.
    fn go_on(&self) -> Result<()> {
        let goal = self.load.completed() + self.between;
        wait_until("requests have ended", PATIENCE, || {
            Ok((self.load.completed() >= goal).then_some(()))
        })
    }

    /// Requests that each server has answered by its own log.
    fn answered(&self) -> Result<Vec<usize>> {
        let logs = self.servers.iter();
        logs.map(|server| Ok(server.accesses()?.len())).collect()
    }

    /// What each server answers between two steps.
    fn shares(&self) -> Result<Vec<usize>> {
        let before = self.answered()?;
        self.go_on()?;
        let after = self.answered()?;
        Ok(after.iter().zip(&before).map(|(a, b)| a - b).collect())
    }

    fn reload(&self, service: &Service) -> Result<Value> {
        self.balancer.write_config(&site::config(&[service]))?;
        self.balancer.json(&["reload"])
    }

    fn state(&self, number: u8, state: &str) -> Result<Status> {
        let what = format!("{} is {state}", web(number));
        Status::wait(&self.balancer, &what, |status| {
            Ok(status.backend(WEB, number)?["state"] == state)
        })
    }

    /// A connection that server `number` holds: it waits for the client's
    /// request, which does not come.
    fn keep(&self, number: u8) -> Result<TcpStream> {
        let address = SocketAddr::new(World::server_ip(number, self.family), 80).to_string();
        let target = service(self.family).target();
        // By turns of the load as well, so the first may be another's.
        for source in self.world.fresh_clients_in(self.family, 64)? {
            let stream = self
                .world
                .client()
                .enter(|| hosts::open(source, target))??;
            let client = stream.local_addr()?.to_string();
            let answer = self.balancer.json(&["flows", "--limit", "0"])?;
            let flows = answer["flows"].as_array().context("no list")?;
            let flow = flows.iter().find(|flow| flow["client"] == client.as_str());
            if flow.context("the flow is not listed")?["server"] == address.as_str() {
                return Ok(stream);
            }
        }
        anyhow::bail!("{address} got none of 64 connections")
    }
}

#[test]
fn no_request_fails_through_reloads_a_drain_and_a_crash() -> Result<()> {
    // What the length is for is the same in both families.
    for (family, between) in [(Family::V4, full_length()), (Family::V6, 40)] {
        steer(family, between).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn steer(family: Family, between: u64) -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let service = || service(family);
    let mut scene = Scene::new(family, between)?;
    let mut counts = vec![("8:8:8", scene.shares()?)];

    let answer = scene.reload(&service().over(&[8, 8, 8]).without(3))?;
    assert_eq!(answer["removed"][0], "web/web-3", "{answer}");
    wait_for_retired(&scene)?;
    counts.push(("web-3 removed", scene.shares()?));
    let answer = scene.reload(&service().over(&[8, 8, 8]))?;
    assert_eq!(answer["added"][0], "web/web-3", "{answer}");
    counts.push(("web-3 back", scene.shares()?));
    let answer = scene.reload(&service().over(&[2, 1, 1]))?;
    assert_eq!(
        answer["changed"].as_array().map(Vec::len),
        Some(3),
        "{answer}"
    );
    counts.push(("2:1:1", scene.shares()?));

    // A drain, with a connection that stays for as long as it is wanted.
    let kept = scene.keep(2)?;
    let answer = scene.balancer.json(&["drain", "web/web-2"])?;
    assert_eq!(answer["state"], "draining", "{answer}");
    let new_flows = Status::now(&scene.balancer)?.each(WEB, "/new_flows")?[1];
    // What was under way then ends within its 60 ms of delay.
    Status::wait(&scene.balancer, "only the kept one is left", |status| {
        let drained = status.backend(WEB, 2)?;
        Ok(number(drained, "/active_flows")? == 1 && number(drained, "/half_open")? == 0)
    })?;
    counts.push(("web-2 draining", scene.shares()?));
    scene.state(2, "draining")?;

    // A crash: what the operator said holds before and after.
    scene.balancer.kill()?;
    counts.push(("killed", scene.shares()?));
    scene.balancer.start_again()?;
    counts.push(("started again", scene.shares()?));
    let status = scene.state(2, "draining")?;
    let drained = status.backend(WEB, 2)?;
    assert_eq!(drained["override"]["kind"], "drain", "{drained}");
    assert_eq!(number(drained, "/active_flows")?, 1, "{drained}");
    assert_eq!(number(drained, "/new_flows")?, new_flows, "none was opened");

    end(kept)?;
    let status = scene.state(2, "drained")?;
    assert_eq!(status.each(WEB, "/new_flows")?[1], new_flows);
    scene.balancer.verb(&["enable", "web/web-2"])?;
    let status = scene.state(2, "in-service")?;
    assert_eq!(status.backend(WEB, 2)?["override"], Value::Null);
    counts.push(("web-2 enabled", scene.shares()?));

    // The operator's weight, and the file's again.
    let answer = scene.balancer.json(&["weight", "web/web-1", "0"])?;
    assert_eq!(answer["effective_weight"], 0, "{answer}");
    let status = Status::wait(&scene.balancer, "web-1 has no connection left", |status| {
        let idle = status.backend(WEB, 1)?;
        Ok(number(idle, "/active_flows")? == 0 && number(idle, "/half_open")? == 0)
    })?;
    assert_eq!(status.backend(WEB, 1)?["state"], "out-of-service");
    counts.push(("web-1 weight 0", scene.shares()?));
    let answer = scene.balancer.json(&["weight", "web/web-1", "default"])?;
    assert_eq!(answer["effective_weight"], 2, "{answer}");
    counts.push(("web-1 default", scene.shares()?));

    let report = scene.load.stop()?;
    println!("{} requests, 0 failures expected", report.outcomes.len());
    for (step, shares) in &counts {
        println!("  {step}: {shares:?}");
    }
    report.expect_success()?;
    for (step, shares) in &counts {
        let idle: &[usize] = match *step {
            "web-3 removed" => &[2],
            "web-2 draining" | "killed" | "started again" => &[1],
            "web-1 weight 0" => &[0],
            _ => &[],
        };
        for (server, count) in shares.iter().enumerate() {
            assert_eq!(*count == 0, idle.contains(&server), "{step}: {shares:?}");
        }
    }
    let status = Status::quiet(&scene.balancer)?;
    status.expect_no_drops()
}

/// Waits until the removed backend has answered what it had.
fn wait_for_retired(scene: &Scene) -> Result<()> {
    wait_until("the removed backend has no connection", PATIENCE, || {
        let status = Status(scene.balancer.json(&["stats"])?);
        Ok(match status.backend(WEB, 3) {
            Ok(removed) => number(removed, "/active_flows")? + number(removed, "/half_open")? == 0,
            // Forgotten already.
            Err(_) => true,
        }
        .then_some(()))
    })
}

/// Ends a connection to a server that has not been asked.
fn end(mut kept: TcpStream) -> Result<()> {
    kept.set_read_timeout(Some(PATIENCE))?;
    kept.shutdown(Shutdown::Write)?;
    assert_eq!(kept.read(&mut [0])?, 0, "the server ends it as well");
    Ok(())
}
