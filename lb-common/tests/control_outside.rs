//! Words from outside through the engine: what they do to flows, and what they
//! survive.
#![cfg(feature = "control")]

use std::collections::BTreeMap;

use lb_common::control::agent::{Administration, AgentState, AgentWeight};
use lb_common::control::capacity::CacheState;
use lb_common::control::health::HealthParameters;
use lb_common::control::probe::ProbeRecord;
use lb_common::control::slow_start::Ramp;
use lb_common::control::{
    AcaParameters, Algorithm, BackendConfig, Command, Engine, EngineConfig, Event, Learned, Order,
    OutsideRecord, OutsideSources, OutsideWord, Pick, Sample, ServiceConfig, State,
};

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
const CONNECTIONS: Algorithm = Algorithm::Aca {
    pick: Pick::Connections,
};
const SHARES: Algorithm = Algorithm::Aca { pick: Pick::Shares };

const ALGORITHMS: [Algorithm; 4] = [
    CONNECTIONS,
    SHARES,
    Algorithm::WeightedRoundRobin,
    Algorithm::WeightedLeastConnections,
];

const ALL: OutsideSources = OutsideSources {
    probe: true,
    agent: true,
    dfp: true,
    capacity: false,
    snmp_weight: true,
    force_delete: false,
};

const CACHES: OutsideSources = OutsideSources {
    capacity: true,
    ..ALL
};

/// Service 7 with backends 1, 2, … of the given weights.
fn config(algorithm: Algorithm, weights: &[u32]) -> EngineConfig {
    let backends = (1..).zip(weights).map(|(index, &weight)| BackendConfig {
        index,
        identity: format!("web 10.0.0.{index}:80"),
        server: format!("10.0.0.{index}"),
        weight,
    });
    EngineConfig {
        services: vec![ServiceConfig {
            index: 7,
            algorithm,
            aca: AcaParameters::default(),
            teardown_interval_us: 2 * S,
            syn_timeout_us: 5 * S,
            drain_timeout_us: 60 * S,
            outside: OutsideSources::default(),
            ramp: Ramp::Off,
            health: HealthParameters::default(),
            backends: backends.collect(),
        }],
    }
}

/// What the packet path has of one backend.
#[derive(Clone, Copy, Default)]
struct Maps {
    weight: u32,
    up: bool,
}

/// An engine, and what it wrote into maps where nothing else happens.
struct World {
    engine: Engine,
    maps: BTreeMap<u16, Maps>,
}

impl World {
    fn backend(&mut self, index: u16) -> Maps {
        self.maps.get(&index).copied().unwrap_or_default()
    }

    /// Carries out all commands, and returns them.
    fn apply(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        while let Some(command) = self.engine.next_command() {
            if let Command::WriteBackend {
                backend,
                weight,
                up,
                ..
            } = command
            {
                self.maps.insert(backend, Maps { weight, up });
            }
            commands.push(command);
        }
        commands
    }
}

/// A world at time 0 that has seen one sample of empty maps.
fn new_world(config: EngineConfig) -> World {
    let samples = config.services[0].backends.iter().map(|backend| Sample {
        backend: backend.index,
        report: Default::default(),
        live: Default::default(),
    });
    let sample = Event::Sample(samples.collect());
    let mut world = World {
        engine: Engine::new(config, None, 0),
        maps: BTreeMap::new(),
    };
    world.engine.handle(sample, 0);
    world.apply();
    world
}

fn asked(mut config: EngineConfig, outside: OutsideSources) -> EngineConfig {
    config.services[0].outside = outside;
    config
}

fn probe(up: bool) -> OutsideWord {
    OutsideWord::Probe(ProbeRecord {
        up: Some(up),
        streak: 0,
        detail: if up { "" } else { "connection refused" }.into(),
    })
}

fn agent(administration: Administration, down: bool, percent: u32) -> OutsideWord {
    OutsideWord::Agent(AgentState {
        weight: Some(AgentWeight::Percent(percent)),
        administration,
        down,
        ..AgentState::default()
    })
}

fn say(world: &mut World, backend: u16, word: OutsideWord, now_us: u64) -> Vec<Command> {
    world
        .engine
        .handle(Event::Outside { backend, word }, now_us);
    world.apply()
}

fn members(commands: &[Command]) -> Option<Vec<(u16, u32)>> {
    commands.iter().rev().find_map(|command| match command {
        Command::PublishMembers { members, .. } => Some(members.clone()),
        _ => None,
    })
}

fn state(world: &World, backend: u16) -> State {
    world.engine.state(backend).expect("configured")
}

#[test]
fn a_word_takes_effect_at_once() {
    use Administration::{Drain, Maintenance, Ready};
    // Words about backend 2 of weights 4, 2; its state, weight and up in the
    // maps, and the member list.
    type Row<'a> = (&'a [OutsideWord], State, u32, bool, &'a [(u16, u32)]);
    let rows: &[Row<'_>] = &[
        (&[probe(false)], State::ProbeFailed, 2, false, &[(1, 4)]),
        (
            &[probe(false), probe(true)],
            State::InService,
            2,
            true,
            &[(1, 4), (2, 2)],
        ),
        (
            &[agent(Ready, false, 200)],
            State::InService,
            4,
            true,
            &[(1, 4), (2, 4)],
        ),
        (
            &[agent(Drain, false, 100)],
            State::Drained,
            2,
            false,
            &[(1, 4)],
        ),
        (
            &[agent(Drain, false, 100), agent(Ready, false, 100)],
            State::InService,
            2,
            true,
            &[(1, 4), (2, 2)],
        ),
        (
            &[agent(Maintenance, false, 100)],
            State::OutOfService,
            2,
            false,
            &[(1, 4)],
        ),
        (
            &[agent(Ready, true, 100)],
            State::ProbeFailed,
            2,
            false,
            &[(1, 4)],
        ),
        (
            &[agent(Ready, false, 0)],
            State::Throttled,
            0,
            false,
            &[(1, 4)],
        ),
        (
            &[OutsideWord::Dfp(Some(24))],
            State::InService,
            24,
            true,
            &[(1, 4), (2, 24)],
        ),
        (
            &[OutsideWord::Dfp(Some(0))],
            State::Throttled,
            0,
            false,
            &[(1, 4)],
        ),
        // The agent is lost: the configured weight again (spec 4.4).
        (
            &[OutsideWord::Dfp(Some(24)), OutsideWord::Dfp(None)],
            State::InService,
            2,
            true,
            &[(1, 4), (2, 2)],
        ),
        (
            &[OutsideWord::SnmpWeight(Some(9))],
            State::InService,
            9,
            true,
            &[(1, 4), (2, 9)],
        ),
    ];
    for algorithm in ALGORITHMS {
        for (words, expected, weight, up, list) in rows {
            let mut world = new_world(asked(config(algorithm, &[4, 2]), ALL));
            let mut commands = Vec::new();
            for word in *words {
                commands.extend(say(&mut world, 2, word.clone(), MS));
                let repeated = say(&mut world, 2, word.clone(), MS);
                assert_eq!(repeated, [], "{words:?}");
            }
            assert_eq!(state(&world, 2), *expected, "{algorithm:?} {words:?}");
            let maps = world.backend(2);
            assert_eq!((maps.weight, maps.up), (*weight, *up), "{words:?}");
            if let Some(members) = members(&commands) {
                assert_eq!(members, *list, "{algorithm:?} {words:?}");
            } else {
                assert_eq!(*list, [(1, 4), (2, 2)], "{words:?}");
            }
            assert_eq!(world.engine.taking(7), list.len());
        }
    }
}

#[test]
fn an_operator_has_the_last_word() {
    let mut world = new_world(asked(config(CONNECTIONS, &[4, 2]), ALL));
    say(&mut world, 2, OutsideWord::Dfp(Some(0)), MS);
    assert_eq!(state(&world, 2), State::Throttled);
    for (order, expected, weight) in [
        (Order::Weight(7), State::InService, 7),
        (Order::Weight(0), State::OutOfService, 0),
        (Order::DefaultWeight, State::Throttled, 0),
        (Order::Drain, State::Drained, 0),
        (Order::Enable, State::Throttled, 0),
    ] {
        world
            .engine
            .handle(Event::Operator { backend: 2, order }, MS);
        world.apply();
        assert_eq!(state(&world, 2), expected, "{order:?}");
        assert_eq!(world.backend(2).weight, weight, "{order:?}");
    }
    // DFP alone may raise what the file has at 0: its weight is the operating
    // one (spec 4.4).
    let mut dfp = new_world(asked(config(CONNECTIONS, &[4, 0]), ALL));
    assert_eq!(state(&dfp, 2), State::OutOfService);
    say(&mut dfp, 2, OutsideWord::Dfp(Some(5)), MS);
    assert_eq!(state(&dfp, 2), State::InService);
    say(&mut dfp, 2, agent(Administration::Ready, false, 50), MS);
    assert_eq!(state(&dfp, 2), State::InService);
    say(&mut dfp, 2, OutsideWord::Dfp(None), MS);
    assert_eq!(state(&dfp, 2), State::OutOfService);
}

#[test]
fn stressed_caches_serve_only_when_nobody_else_does() {
    use CacheState::*;
    // States of the caches 1, 2, 3, and who takes new flows.
    for (states, takers) in [
        ([Offline, Offline, Offline], &[][..]),
        ([Underused, Normal, Burdened], &[1, 2, 3]),
        ([Stressed, Underused, Burdened], &[2, 3]),
        ([Stressed, Stressed, Stressed], &[1, 2, 3]),
        ([Overtaxed, Stressed, Stressed], &[2, 3]),
        ([Overtaxed, Stressed, Underused], &[3]),
        ([Overloaded, Overloaded, Overloaded], &[]),
        ([Halting, Initializing, Offline], &[]),
    ] {
        let mut world = new_world(asked(config(CONNECTIONS, &[4, 2, 1]), CACHES));
        for (backend, state) in (1..).zip(states) {
            say(&mut world, backend, OutsideWord::Capacity(state), MS);
        }
        let taking: Vec<u16> = (1..=3)
            .filter(|&backend| world.backend(backend).up)
            .collect();
        assert_eq!(taking, takers, "{states:?}");
    }
    // One that is good and drained spares nobody.
    let mut world = new_world(asked(config(CONNECTIONS, &[4, 2]), CACHES));
    say(&mut world, 1, OutsideWord::Capacity(Underused), MS);
    say(&mut world, 2, OutsideWord::Capacity(Stressed), MS);
    assert_eq!(state(&world, 2), State::CapacityLimited);
    say(&mut world, 1, probe(false), MS);
    assert_eq!(state(&world, 2), State::InService);
}

#[test]
fn flows_of_a_cache_that_has_gone_are_ended_if_wanted() {
    let ends = |commands: &[Command]| {
        commands.iter().find_map(|command| match command {
            Command::EndFlows { backend: 2, end } => Some(*end),
            _ => None,
        })
    };
    for force_delete in [false, true] {
        let sources = OutsideSources {
            force_delete,
            ..CACHES
        };
        let mut world = new_world(asked(config(CONNECTIONS, &[4, 2]), sources));
        let mut hear = |state| ends(&say(&mut world, 2, OutsideWord::Capacity(state), MS));
        let end = |end| force_delete.then_some(end);
        assert_eq!(hear(CacheState::Normal), end(false));
        assert_eq!(hear(CacheState::Halting), None);
        assert_eq!(hear(CacheState::Offline), end(true));
        assert_eq!(hear(CacheState::Initializing), None);
        assert_eq!(hear(CacheState::Overloaded), end(false));
    }
}

#[test]
fn words_survive_restart_and_reload_while_their_source_is_there() {
    let before = asked(config(CONNECTIONS, &[4, 2]), ALL);
    let mut world = new_world(before.clone());
    say(&mut world, 2, probe(false), MS);
    say(&mut world, 2, OutsideWord::Dfp(Some(24)), MS);
    say(&mut world, 1, agent(Administration::Drain, false, 50), MS);
    let words = |engine: &Engine| (engine.outside(1), engine.outside(2));
    let known = words(&world.engine);

    let text = serde_json::to_string(&world.engine.learned()).expect("plain data");
    let learned: Learned = serde_json::from_str(&text).expect("what was written");
    let restarted = Engine::new(before.clone(), Some(&learned), S);
    let reloaded = world.engine.reconfigured(before.clone(), S);
    for engine in [&restarted, &reloaded] {
        assert_eq!(words(engine), known);
        assert_eq!(engine.state(2), Some(State::ProbeFailed));
        assert_eq!(engine.taking(7), 0);
    }
    let deaf = asked(before, OutsideSources::default());
    let reloaded = world.engine.reconfigured(deaf, S);
    let nothing = OutsideRecord::default();
    assert_eq!(words(&reloaded), (nothing.clone(), nothing));
    assert_eq!(reloaded.taking(7), 2);
    // What concerns nobody here is no event.
    assert_eq!(say(&mut world, 99, probe(false), S), []);
}

#[test]
fn people_are_told_why() {
    let mut world = new_world(asked(config(CONNECTIONS, &[4, 2]), ALL));
    for (word, expected) in [
        (probe(false), "its probe fails: connection refused"),
        (
            agent(Administration::Maintenance, true, 100),
            "its agent says maint",
        ),
        (
            agent(Administration::Ready, false, 0),
            "its probe fails: connection refused",
        ),
        (probe(true), "agent gave it weight 0"),
    ] {
        say(&mut world, 2, word, MS);
        let view = world.engine.backend(2, MS).expect("configured");
        assert_eq!(view.reason, expected);
    }
}

#[test]
fn who_comes_back_by_a_word_warms_up() {
    let mut config = asked(config(Algorithm::WeightedRoundRobin, &[1, 1]), ALL);
    config.services[0].ramp = Ramp::Default;
    let mut world = new_world(config);
    let ready = Administration::Ready;
    for (down, up) in [
        (probe(false), probe(true)),
        (
            agent(Administration::Drain, false, 100),
            agent(ready, false, 100),
        ),
        (agent(ready, true, 100), agent(ready, false, 100)),
        (OutsideWord::Dfp(Some(0)), OutsideWord::Dfp(Some(1))),
    ] {
        assert_eq!(state(&world, 2), State::InService, "{down:?}");
        say(&mut world, 2, down.clone(), S);
        assert_ne!(state(&world, 2), State::InService, "{down:?}");
        say(&mut world, 2, up, 2 * S);
        assert_eq!(state(&world, 2), State::WarmingUp, "{down:?}");
        world.engine.handle_timeout(100 * S);
        world.apply();
    }
}
