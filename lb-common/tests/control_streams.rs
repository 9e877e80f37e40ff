//! The engine under random streams of events: restarts change nothing, and
//! nonsense breaks nothing.
#![cfg(feature = "control")]

mod control_world;
#[path = "control_world/random.rs"]
mod random;
#[path = "control_world/small.rs"]
mod small;

use control_world::{Maps, World};
use lb_common::abi::Live;
use lb_common::control::{Algorithm, Command, Engine, EngineConfig, Event, Learned};
use random::Random;
use small::{CONNECTIONS, MS, S, SHARES, config, flows, with_threshold, world};

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        (self.bits() >> 22) % bound
    }
}

/// Anything that may happen to a backend in a tenth of a second.
fn stir(random: &mut Random, maps: &mut Maps) {
    match random.below(12) {
        0..=4 => {
            let us = 1 << random.below(33);
            let count = random.below(20);
            flows(maps, count, us);
        }
        5 => {
            maps.report.long.count += 1;
            maps.report.long.total_us += 1 << random.below(40);
        }
        6 => (0..random.below(30)).for_each(|_| maps.reset()),
        7 => maps.live.syn_timeouts += random.below(3),
        8 => maps.live.trial = 0,
        9 => maps.report.long.failures += 1,
        _ => {}
    }
}

#[test]
fn a_restart_changes_nothing() {
    let (mut held, mut overloaded) = (false, false);
    for (seed, algorithm) in [(1, CONNECTIONS), (2, SHARES), (3, CONNECTIONS), (4, SHARES)] {
        let mut random = Random(seed);
        let config = with_threshold(config(algorithm, &[4, 2, 1]), 60);
        let mut world = world(config.clone());
        let mut next = |world: &mut World| {
            for maps in world.maps.values_mut() {
                stir(&mut random, maps);
            }
        };
        for tick in 1..=405 {
            next(&mut world);
            world.sample(tick * 100 * MS);
        }
        let now_us = 405 * 100 * MS;
        // Through JSON, as the daemon keeps it.
        let text = serde_json::to_string(&world.engine.learned()).unwrap();
        let learned: Learned = serde_json::from_str(&text).unwrap();
        assert_eq!(learned, world.engine.learned());
        held |= learned.backends.values().any(|b| !b.held.is_empty());
        overloaded |= learned.backends.values().any(|b| b.load.overload.is_some());
        let mut twin = World::new(Engine::new(config, Some(&learned), now_us), []);
        assert_eq!(twin.engine.learned(), learned);
        for (index, maps) in &world.maps {
            let written = twin.backend(*index);
            assert_eq!(
                (maps.weight, maps.up, maps.relative),
                (written.weight, written.up, written.relative)
            );
        }
        twin.maps = world.maps.clone();
        assert_eq!(twin.sample(now_us), world.sample(now_us));
        for tick in 406..1_300 {
            next(&mut world);
            let now_us = tick * 100 * MS;
            let event = world.read();
            twin.engine.handle(event.clone(), now_us);
            world.engine.handle(event, now_us);
            let unsaved = |command: &Command| *command != Command::SaveLearned;
            let (mut ours, mut theirs) = (world.apply(), twin.apply());
            ours.retain(unsaved);
            theirs.retain(unsaved);
            assert_eq!(ours, theirs, "seed {seed} at {now_us}");
            assert_eq!(world.engine.learned(), twin.engine.learned());
        }
    }
    assert!(held && overloaded, "nothing worth restoring was there");
}

/// What must hold after every event, whatever came before.
fn check(world: &World, weights: &[u32], commands: &[Command]) {
    let any_weight = weights.iter().any(|&weight| weight > 0);
    for (index, maps) in &world.maps {
        assert!((1..=65_535).contains(&maps.relative), "{index}: {maps:?}");
        assert!(maps.live.forgiven <= maps.failures(), "{index}: {maps:?}");
        let view = world.engine.backend(*index, 0).expect("configured");
        assert!((0.0..=1.0).contains(&view.share), "{view:?}");
    }
    assert_eq!(
        world.maps.values().any(|maps| maps.up && maps.weight > 0),
        any_weight
    );
    for command in commands {
        match command {
            Command::PublishMembers { members, .. } => assert_eq!(!members.is_empty(), any_weight),
            Command::PublishRing { slots, .. } => {
                assert_eq!(!slots.is_empty(), any_weight);
                assert!(slots.iter().all(|index| world.maps[index].up));
            }
            Command::WriteBackend { .. }
            | Command::Forgive { .. }
            | Command::GrantTrial { .. }
            | Command::EndFlows { .. }
            | Command::WriteBudget { .. }
            | Command::Tell { .. }
            | Command::SaveLearned => {}
        }
    }
}

#[test]
fn streams_of_nonsense_break_nothing() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let algorithm = [CONNECTIONS, SHARES, Algorithm::WeightedRoundRobin][seed as usize % 3];
        let weights: Vec<u32> = (0..random.below(6))
            .map(|_| random.below(4) as u32)
            .collect();
        let mut config = with_threshold(config(algorithm, &weights), random.below(256) as u8);
        let service = &mut config.services[0];
        service.aca.ageout_us = [0, 1, S, 60 * S][random.below(4) as usize];
        service.aca.load_step_ms = random.below(3) * random.below(100_000);
        service.aca.dynamic_step = random.below(2) == 0;
        service.teardown_interval_us = [0, 1, 2 * S][random.below(3) as usize];
        service.syn_timeout_us = [0, 5 * S, u64::MAX][random.below(3) as usize];

        let indices = 1..=weights.len() as u16;
        let mut world = World::new(Engine::new(config.clone(), None, 0), indices);
        let mut now_us = 0u64;
        for _ in 0..600 {
            world
                .maps
                .values_mut()
                .for_each(|maps| stir(&mut random, maps));
            now_us = match random.below(20) {
                0 => now_us.saturating_sub(random.below(10 * S)),
                1 => now_us.saturating_add(random.below(100 * S)),
                _ => now_us + 100 * MS,
            };
            if random.below(50) == 0
                && let Some(maps) = world.maps.values_mut().next()
            {
                maps.report = Default::default();
                maps.live = Live::default();
            }
            if random.below(40) == 0 {
                let learned = world.engine.learned();
                world.engine = Engine::new(config.clone(), Some(&learned), now_us);
            }
            let mut commands = match random.below(4) {
                0 => world.handle_timeout(now_us),
                _ => world.apply(),
            };
            commands.extend(world.sample(now_us));
            check(&world, &weights, &commands);
        }
    }
    let mut engine = Engine::new(EngineConfig { services: vec![] }, None, 0);
    engine.handle(Event::Sample(vec![]), u64::MAX);
    assert_eq!((engine.next_command(), engine.poll_timeout()), (None, None));
}
