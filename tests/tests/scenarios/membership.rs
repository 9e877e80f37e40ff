//! Backends that the configuration loses and gets back across a restart: their
//! connections go on, and their numbers are theirs alone (cilium#34077 could not
//! remove them after a restart, cilium#17729 sent flows to whoever got the
//! index, rancher#10593 kept the weight at 0 afterwards).

use std::net::SocketAddr;

use anyhow::{Context, Result};
use steerline_tests::world::{Topology, World, topology, wait_until};

use crate::lab::{self, Lab, PATIENCE, Service, number};
use crate::mirror::{self, Kept, Mirror};
use crate::turn;

const ECHO: &str = "echo";

fn service() -> Service {
    (1..=3).fold(
        Service::new("weighted-round-robin").named(ECHO, mirror::PORT),
        |service, number| service.backend(number, mirror::PORT, 1),
    )
}

struct Scene {
    lab: Lab,
    mirrors: Vec<Mirror>,
}

impl Scene {
    fn new() -> Result<Self> {
        let world = World::new(&Topology::two_armed(3))?;
        let mirrors = world
            .servers()
            .iter()
            .map(Mirror::start)
            .collect::<Result<_>>()?;
        let lab = Lab::in_front_of(world, Vec::new(), &lab::config(&[service()]))?;
        Ok(Self { lab, mirrors })
    }

    fn open(&self) -> Result<Kept> {
        let source = self.lab.world.fresh_clients(1)?[0];
        let target = SocketAddr::new(topology::VIP.into(), mirror::PORT);
        let mut kept = Kept::open(self.lab.world.client(), source, target)?;
        kept.talk()?;
        Ok(kept)
    }

    /// Opens and ends `count` connections; returns how many each server got.
    fn use_it(&self, count: usize) -> Result<Vec<u64>> {
        let accepted = || {
            self.mirrors
                .iter()
                .map(Mirror::accepted)
                .collect::<Vec<_>>()
        };
        let before = accepted();
        for _ in 0..count {
            self.open()?.close()?;
        }
        lab::growth(&before, &accepted())
    }

    fn restart_with(&mut self, service: Service) -> Result<()> {
        self.lab.balancer.kill()?;
        self.lab.balancer.write_config(&lab::config(&[service]))?;
        self.lab.balancer.start_again()
    }
}

#[test]
fn a_removed_backend_keeps_its_connections_and_comes_back_anew() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let mut scene = Scene::new()?;
    // One for each server, in this order.
    let mut kept = [scene.open()?, scene.open()?, scene.open()?];
    assert_eq!(scene.use_it(6)?, [2, 2, 2]);

    scene.restart_with(service().without(2))?;
    for kept in &mut kept {
        kept.talk()?;
    }
    assert_eq!(
        scene.use_it(6)?,
        [3, 0, 3],
        "nothing new for the removed one"
    );
    let stats = scene.lab.stats()?;
    let removed = stats.backend(ECHO, 2)?;
    assert_eq!(removed["removed"], true, "{removed}");
    assert_eq!(number(removed, "/active_flows")?, 1, "{removed}");
    assert_eq!(number(removed, "/new_flows")?, 3, "{removed}");
    assert_eq!(stats.backend(ECHO, 1)?["removed"], false);
    assert!(
        scene.lab.status()?.backend(ECHO, 2).is_err(),
        "it is not configured"
    );

    // Another restart must not free what is held.
    scene.restart_with(service().without(2))?;
    scene.lab.pass(25)?;
    kept[1].talk()?;
    let [first, second, third] = kept;
    second.close()?;
    wait_until("nobody holds the removed backend's index", PATIENCE, || {
        Ok(scene.lab.stats()?.backend(ECHO, 2).is_err().then_some(()))
    })?;

    scene.restart_with(service())?;
    let stats = scene.lab.stats()?;
    let back = stats.backend(ECHO, 2)?;
    assert_eq!(back["removed"], false, "{back}");
    for pointer in [
        "/new_flows",
        "/active_flows",
        "/half_open",
        "/measured",
        "/resets",
    ] {
        assert_eq!(number(back, pointer)?, 0, "{pointer} of {back}");
    }
    assert_eq!(scene.use_it(9)?, [3, 3, 3]);
    let status = scene.lab.status()?;
    assert_eq!(status.each(ECHO, "/new_flows")?, [9, 3, 9]);
    for mut kept in [first, third] {
        kept.talk().context("a connection of those that stayed")?;
        kept.close()?;
    }
    scene.lab.wait_for_quiet()?;
    Ok(())
}

/// Back before its index was freed, it goes on with its numbers: they are the
/// same server's.
#[test]
fn a_backend_that_comes_back_early_is_the_same_one() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let mut scene = Scene::new()?;
    let mut kept = [scene.open()?, scene.open()?, scene.open()?];
    scene.restart_with(service().without(2))?;
    assert_eq!(scene.use_it(4)?, [2, 0, 2]);
    scene.restart_with(service())?;
    for kept in &mut kept {
        kept.talk()?;
    }
    assert_eq!(scene.use_it(6)?, [2, 2, 2], "its weight is back");
    let status = scene.lab.status()?;
    assert_eq!(status.each(ECHO, "/new_flows")?, [5, 3, 5]);
    assert_eq!(status.each(ECHO, "/active_flows")?, [1, 1, 1]);
    for kept in kept {
        kept.close()?;
    }
    scene.lab.wait_for_quiet()?;
    Ok(())
}
