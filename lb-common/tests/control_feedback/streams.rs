//! The engine under random streams of failures, flows, orders, restarts and
//! reloads: what must hold after each of them.

use std::collections::BTreeMap;

use lb_common::control::{
    Algorithm, Check, Engine, EngineConfig, Event, Failure, FailureKind, Order, Ramp, RampList,
    Unreachable,
};

use super::control_world::World;
use super::random::Random;
use super::small::{CONNECTIONS, MS, S, SHARES, config, flows, with_threshold};

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        (self.bits() >> 22) % bound
    }
}

fn random_config(random: &mut Random, algorithm: Algorithm, weights: &[u32]) -> EngineConfig {
    let mut config = with_threshold(config(algorithm, weights), 60 + random.below(195) as u8);
    let service = &mut config.services[0];
    service.ramp = match random.below(3) {
        0 => Ramp::Off,
        1 => Ramp::Default,
        _ => Ramp::List(RampList {
            rate1: 1 + random.below(5) as u32,
            interval1_s: 1 + random.below(5) as u32,
            rate2: 5 + random.below(5) as u32,
            interval2_s: 1 + random.below(5) as u32,
            maximum: 1 + random.below(40) as u32,
        }),
    };
    let health = &mut service.health;
    health.max_ejected_percent = [0, 34, 50, 100][random.below(4) as usize];
    health.detect.connections = random.below(5) as u32;
    health.detect.clients = 1 + random.below(2) as u32;
    health.detect.retry_us = random.below(4) * 10 * S;
    health.inband.check =
        [Check::Count, Check::Log, Check::Remove, Check::Remove][random.below(4) as usize];
    health.inband.failures = 1 + random.below(6) as u32;
    health.inband.reset_time_us = 100 * MS + random.below(S);
    health.inband.resume_service_us = random.below(3) * 30 * S;
    config
}

/// One thing that happens. True if states may change for another reason than
/// failures and time.
fn stir(random: &mut Random, world: &mut World, now_us: u64) -> bool {
    let backends = world.maps.len() as u64;
    let backend = 1 + random.below(backends) as u16;
    match random.below(12) {
        0..=2 => {
            let (count, us) = (random.below(9), 1 << random.below(27));
            flows(world.backend(backend), count, us);
        }
        3 => world.backend(backend).open(),
        4 => world.backend(backend).reset(),
        5..=9 => {
            let kinds = [
                FailureKind::Reset,
                FailureKind::SynTimeout,
                FailureKind::Unreachable(Unreachable::Host),
            ];
            let failure = Failure {
                backend,
                kind: kinds[random.below(3) as usize],
                client: (random.below(5) > 0).then(|| random.below(4)),
                attempt: random.below(200) as u16,
                repeats: random.below(3) as u32,
            };
            if failure.kind == FailureKind::Reset && random.below(3) > 0 {
                world.backend(backend).reset();
            }
            world.engine.handle(Event::Failure(failure), now_us);
        }
        10 => {
            world.backend(backend).live.half_opened += random.below(3);
        }
        _ if random.below(4) == 0 => {
            let orders = [
                Order::Drain,
                Order::Disable,
                Order::Enable,
                Order::Enable,
                Order::Weight(random.below(3) as u32),
                Order::DefaultWeight,
            ];
            let order = orders[random.below(6) as usize];
            world
                .engine
                .handle(Event::Operator { backend, order }, now_us);
            return true;
        }
        _ => {}
    }
    false
}

fn states(world: &World) -> BTreeMap<u16, &'static str> {
    let state = |index: &u16| world.engine.state(*index).expect("configured").as_str();
    world
        .maps
        .keys()
        .map(|index| (*index, state(index)))
        .collect()
}

/// Nobody comes back from an outage without being tested.
fn assert_probation(
    before: &BTreeMap<u16, &'static str>,
    after: &BTreeMap<u16, &'static str>,
    title: &str,
) {
    for (index, before) in before {
        let skipped = matches!(*before, "failed" | "inband-failed")
            && matches!(after[index], "in-service" | "warming-up");
        assert!(
            !skipped,
            "{title}: {index} from {before} to {}",
            after[index]
        );
    }
}

/// What must hold whatever came before.
fn check(world: &World, now_us: u64, title: &str) {
    let mut wanted = false;
    for (index, maps) in &world.maps {
        let view = world.engine.backend(*index, now_us).expect("configured");
        let weight = view
            .overrides
            .weight
            .map_or(view.configured_weight, |w| w.weight);
        wanted |= view.overrides.gate.is_none() && weight > 0;
        assert!(maps.live.forgiven <= maps.failures(), "{title}: {maps:?}");
        assert!((0.0..=1.0).contains(&view.share), "{title}: {view:?}");
        if let Some(ramp) = view.slow_start {
            assert_eq!(view.state.as_str(), "warming-up", "{title}: {view:?}");
            assert!((1..=60).contains(&ramp.second), "{title}: {ramp:?}");
            // Never below what it has, so nobody is starved for ever.
            assert!(ramp.rate != Some(0), "{title}: {ramp:?}");
        }
        if let Some(next) = view.next {
            assert!(next.at_us >= now_us, "{title}: {next:?}");
        }
    }
    // Never the last.
    let any = world.maps.values().any(|maps| maps.up && maps.weight > 0);
    assert_eq!(any, wanted, "{title}: {:?}", states(world));
}

#[test]
fn whatever_happens() {
    let (mut outages, mut tests, mut ramps) = (0u64, 0u64, 0u64);
    for seed in 0..600 {
        let mut random = Random(seed);
        let algorithm = [
            CONNECTIONS,
            SHARES,
            Algorithm::WeightedRoundRobin,
            Algorithm::WeightedLeastConnections,
        ][seed as usize % 4];
        let weights: Vec<u32> = (0..1 + random.below(4))
            .map(|_| random.below(4) as u32)
            .collect();
        let mut config = random_config(&mut random, algorithm, &weights);
        let indices = 1..=weights.len() as u16;
        let mut world = World::new(Engine::new(config.clone(), None, 0), indices);
        let mut now_us = 0;
        world.sample(now_us);
        for step in 0..600 {
            let title = format!("seed {seed} step {step}");
            now_us += match random.below(40) {
                0 => random.below(100 * S),
                _ => 100 * MS,
            };
            let before = states(&world);
            let mut other = stir(&mut random, &mut world, now_us);
            world.apply();
            check(&world, now_us, &title);
            let stirred = states(&world);
            if !other {
                assert_probation(&before, &stirred, &title);
            }
            if random.below(50) == 0 {
                let text = serde_json::to_string(&world.engine.learned()).expect("JSON");
                let learned = serde_json::from_str(&text).expect("what was written");
                world.engine = Engine::new(config.clone(), Some(&learned), now_us);
                other = true;
            } else if random.below(50) == 0 {
                config = random_config(&mut random, algorithm, &weights);
                world.engine = world.engine.reconfigured(config.clone(), now_us);
                other = true;
            }
            match random.below(6) {
                0 => world.handle_timeout(now_us),
                _ => world.sample(now_us),
            };
            check(&world, now_us, &title);
            if !other {
                assert_probation(&stirred, &states(&world), &title);
            }
            for (index, after) in states(&world) {
                let before = before[&index];
                if before == after {
                    continue;
                }
                outages += u64::from(matches!(after, "failed" | "inband-failed"));
                tests +=
                    u64::from(before == "testing" && matches!(after, "in-service" | "warming-up"));
                ramps += u64::from(after == "warming-up");
            }
        }
    }
    assert!(
        outages > 500 && tests > 50 && ramps > 500,
        "{outages} {tests} {ramps}"
    );
}
