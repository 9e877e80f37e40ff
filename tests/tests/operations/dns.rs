//! Datagrams: DNS through a real server, and flows that leave a backend with
//! its removal.
//!
//! The rules: katran#35 (weights that only approximated), kubernetes#76664,
//! kubernetes#71514 and keepalived#1781 (datagrams kept going to a server that
//! was gone for as long as the client kept asking).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{Balancer, Topology, World};

use crate::resolver::{self, NameServer, Resolver};
use crate::site::{self, Service, Status};
use crate::turn;

const DNS: &str = "dns";
const WEIGHTS: [u32; 3] = [3, 1, 1];
/// Of each client address; no two queries have the same source.
const PORTS: u16 = 200;
const FIRST_PORT: u16 = 20_000;

fn service(family: Family) -> Service {
    Service::nat(DNS, resolver::PORT)
        .in_family(family)
        .line("protocol", "udp")
        .round_robin()
        .over(&WEIGHTS)
}

struct Scene {
    balancer: Balancer,
    _servers: Vec<NameServer>,
    world: World,
}

impl Scene {
    fn new(family: Family) -> Result<Self> {
        let world = World::new(&Topology::two_armed(3).dual_stack())?;
        let servers = (1..=3)
            .map(|number| NameServer::start(&world, number, family))
            .collect::<Result<_>>()?;
        let config = site::config(&[&service(family)]);
        let balancer = Balancer::start(world.balancer(), &config)?;
        Ok(Self {
            balancer,
            _servers: servers,
            world,
        })
    }
}

/// Who answered, and how often, in order of the servers.
fn shares(answers: &[Ipv4Addr]) -> Vec<usize> {
    let mut counts: BTreeMap<Ipv4Addr, usize> = (1..=3)
        .map(|number| (World::server_address(number), 0))
        .collect();
    for answer in answers {
        *counts.entry(*answer).or_default() += 1;
    }
    counts.into_values().collect()
}

#[test]
fn ten_thousand_queries_are_answered_in_exact_shares() -> Result<()> {
    for family in Family::ALL {
        ten_thousand_queries(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn ten_thousand_queries(family: Family) -> Result<()> {
    const QUERIES: usize = 10_000;
    const WORKERS: usize = 4;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new(family)?;
    let target = service(family).target();
    let clients = scene
        .world
        .fresh_clients_in(family, (QUERIES / usize::from(PORTS)) as u16)?;
    let sources: Vec<SocketAddr> = (FIRST_PORT..FIRST_PORT + PORTS)
        .flat_map(|port| {
            clients
                .iter()
                .map(move |client| SocketAddr::new(*client, port))
        })
        .collect();
    assert_eq!(sources.len(), QUERIES);

    let answers: Vec<Ipv4Addr> = thread::scope(|scope| {
        let workers: Vec<_> = sources
            .chunks(QUERIES / WORKERS)
            .map(|part| {
                let client = scene.world.client();
                scope.spawn(move || {
                    client.enter(|| {
                        part.iter()
                            .map(|source| {
                                Resolver::new(*source, target)?
                                    .ask()
                                    .with_context(|| format!("from {source}"))
                            })
                            .collect::<Result<Vec<_>>>()
                    })?
                })
            })
            .collect();
        let results = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();

    println!(
        "{} answers, by server {:?}",
        answers.len(),
        shares(&answers)
    );
    assert_eq!(shares(&answers), [6_000, 2_000, 2_000]);
    let status = Status::now(&scene.balancer)?;
    assert_eq!(status.each(DNS, "/new_flows")?, [6_000, 2_000, 2_000]);
    assert_eq!(status.counter("new_flow")?, QUERIES as u64);
    assert_eq!(status.counter("forwarded")?, 2 * QUERIES as u64);
    // One question and one answer each: the client has gone on in none of them.
    let (place, other) = match family {
        Family::V4 => (0, 1),
        Family::V6 => (1, 0),
    };
    let live = |table| status.number(&format!("/flow_table/{table}/live"));
    assert_eq!(
        (live(place)?, live(other)?),
        (QUERIES as u64, 0),
        "{}",
        status.0
    );
    status.expect_no_drops()
}

#[test]
fn a_removed_backends_flows_go_to_the_others_with_their_next_datagram() -> Result<()> {
    for family in Family::ALL {
        a_removed_backends_flows(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn a_removed_backends_flows(family: Family) -> Result<()> {
    const FLOWS: u16 = 50;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new(family)?;
    let target = service(family).target();
    let client = scene.world.fresh_clients_in(family, 1)?[0];
    let mut resolvers: Vec<Resolver> = scene.world.client().enter(|| {
        (FIRST_PORT..FIRST_PORT + FLOWS)
            .map(|port| Resolver::new(SocketAddr::new(client, port), target))
            .collect::<Result<_, _>>()
    })??;
    let mut ask_all = || -> Result<Vec<Ipv4Addr>> {
        resolvers
            .iter_mut()
            .map(|resolver| resolver.ask())
            .collect()
    };
    let first = ask_all()?;
    assert_eq!(shares(&first), [30, 10, 10]);
    assert_eq!(ask_all()?, first, "a flow stays with its server");

    scene
        .balancer
        .write_config(&site::config(&[&service(family).without(1)]))?;
    let answer = scene.balancer.json(&["reload"])?;
    assert_eq!(answer["removed"][0], "dns/web-1", "{answer}");

    let gone = World::server_address(1);
    let second = ask_all()?;
    for (before, after) in first.iter().zip(&second) {
        if *before == gone {
            assert_ne!(*after, gone, "it was removed");
        } else {
            assert_eq!(after, before, "its server is still there");
        }
    }
    println!("before {:?}, after {:?}", shares(&first), shares(&second));
    assert_eq!(shares(&second)[0], 0);
    assert_eq!(ask_all()?, second, "and there they stay");
    Status::now(&scene.balancer)?.expect_no_drops()
}
