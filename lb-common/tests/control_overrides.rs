//! What operators say: its effect, what it survives, and what ends it.
#![cfg(feature = "control")]

mod control_world;
#[path = "control_world/random.rs"]
mod random;
#[path = "control_world/small.rs"]
mod small;

use control_world::World;
use lb_common::control::{
    Algorithm, Command, EndedOverride, Engine, EngineConfig, Event, Gate, Learned, Order, State,
};
use random::Random;
use small::{CONNECTIONS, MS, S, SHARES, config, flows, with_threshold, world};

const ALGORITHMS: [Algorithm; 3] = [CONNECTIONS, SHARES, Algorithm::WeightedRoundRobin];

fn say(world: &mut World, backend: u16, order: Order, now_us: u64) -> Vec<Command> {
    let event = Event::Operator { backend, order };
    world.engine.handle(event, now_us);
    world.apply()
}

fn state(world: &World, backend: u16) -> State {
    world.engine.state(backend).expect("configured")
}

fn members(commands: &[Command]) -> Option<Vec<(u16, u32)>> {
    commands.iter().rev().find_map(|command| match command {
        Command::PublishMembers { members, .. } => Some(members.clone()),
        _ => None,
    })
}

/// What a daemon that is killed leaves and the next one reads.
fn through_json(learned: &Learned) -> Learned {
    let text = serde_json::to_string(learned).expect("plain data");
    serde_json::from_str(&text).expect("what was written")
}

#[test]
fn an_order_takes_effect_at_once_and_is_saved() {
    use Order::{DefaultWeight, Disable, Drain, Enable, Weight};
    // Orders about backend 2 of weights 3, 2; state, its weight and up in the
    // maps, and the member list.
    type Row = (&'static [Order], State, u32, bool, &'static [(u16, u32)]);
    let rows: &[Row] = &[
        (&[Drain], State::Drained, 0, false, &[(1, 3)]),
        (&[Disable], State::OutOfService, 0, false, &[(1, 3)]),
        (&[Weight(0)], State::OutOfService, 0, false, &[(1, 3)]),
        (&[Weight(7)], State::InService, 7, true, &[(1, 3), (2, 7)]),
        (&[Weight(7), Drain], State::Drained, 0, false, &[(1, 3)]),
        (
            &[Weight(7), Drain, Enable],
            State::InService,
            7,
            true,
            &[(1, 3), (2, 7)],
        ),
        // The configured weight comes back, not 1 and not 0 (keepalived issues
        // 187 and 1757, traefik issue 2986).
        (
            &[Weight(0), DefaultWeight],
            State::InService,
            2,
            true,
            &[(1, 3), (2, 2)],
        ),
        (
            &[Drain, Enable],
            State::InService,
            2,
            true,
            &[(1, 3), (2, 2)],
        ),
        (
            &[Disable, Enable],
            State::InService,
            2,
            true,
            &[(1, 3), (2, 2)],
        ),
    ];
    for algorithm in ALGORITHMS {
        for &(orders, expected, weight, up, list) in rows {
            let mut world = world(config(algorithm, &[3, 2]));
            let mut published = Vec::new();
            for order in orders {
                let commands = say(&mut world, 2, *order, S);
                assert_eq!(commands.last(), Some(&Command::SaveLearned), "{order:?}");
                published = members(&commands).unwrap_or(published);
            }
            assert_eq!(state(&world, 2), expected, "{algorithm:?} {orders:?}");
            let maps = world.backend(2);
            assert_eq!(
                (maps.weight, maps.up),
                (weight, up),
                "{algorithm:?} {orders:?}"
            );
            assert_eq!(published, list, "{algorithm:?} {orders:?}");
            let configured = world.engine.backend(2, 0).unwrap().configured_weight;
            assert_eq!(configured, 2, "the file's weight is kept apart");
        }
    }
}

#[test]
fn the_last_one_may_be_drained() {
    // cilium pull request 31840.
    for algorithm in ALGORITHMS {
        let mut world = world(config(algorithm, &[1, 1]));
        assert_eq!(world.engine.taking(7), 2);
        say(&mut world, 1, Order::Disable, S);
        assert_eq!(world.engine.taking(7), 1);
        let commands = say(&mut world, 2, Order::Drain, S);
        assert_eq!(world.engine.taking(7), 0);
        assert_eq!(members(&commands).as_deref(), Some(&[][..]));
        say(&mut world, 2, Order::Enable, 2 * S);
        assert_eq!((world.engine.taking(7), world.backend(2).up), (1, true));
    }
    assert_eq!(world(config(CONNECTIONS, &[1])).engine.taking(3), 0);
}

#[test]
fn a_drain_ends_with_its_last_flow_or_at_its_deadline() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    let end = |end| Command::EndFlows { backend: 2, end };
    world.backend(2).open();
    world.backend(2).open();
    world.sample(S);
    say(&mut world, 2, Order::Drain, S);
    assert_eq!(state(&world, 2), State::Draining);
    let view = world.engine.backend(2, 0).unwrap();
    assert!(view.reason.contains("2 flows"), "{}", view.reason);
    assert_eq!(view.deadline_us, Some(61 * S));
    assert_eq!(world.engine.poll_timeout(), Some(61 * S));

    world.backend(2).close(20 * MS);
    world.sample(2 * S);
    assert_eq!(state(&world, 2), State::Draining);
    // Said again: the deadline stays.
    say(&mut world, 2, Order::Drain, 50 * S);
    assert_eq!(world.handle_timeout(61 * S - 1), []);
    assert_eq!(world.handle_timeout(61 * S), [end(true)]);
    assert_eq!(world.handle_timeout(62 * S), []);
    world.backend(2).close(20 * MS);
    world.sample(62 * S);
    assert_eq!(state(&world, 2), State::Drained);
    let commands = say(&mut world, 2, Order::Enable, 63 * S);
    assert!(commands.contains(&end(false)), "{commands:?}");
    assert_eq!(state(&world, 2), State::InService);
}

#[test]
fn disabling_has_no_deadline() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    world.backend(2).open();
    world.sample(S);
    say(&mut world, 2, Order::Disable, S);
    assert_eq!(world.engine.backend(2, 0).unwrap().deadline_us, None);
    let commands = world.handle_timeout(10_000 * S);
    assert!(
        !commands
            .iter()
            .any(|c| matches!(c, Command::EndFlows { .. }))
    );
    // A drain that is past its deadline, then disabled: what is left may go on.
    say(&mut world, 2, Order::Drain, 10_000 * S);
    world.handle_timeout(10_060 * S);
    let commands = say(&mut world, 2, Order::Disable, 10_061 * S);
    let on = Command::EndFlows {
        backend: 2,
        end: false,
    };
    assert!(commands.contains(&on), "{commands:?}");
}

#[test]
fn without_a_drain_timeout_flows_end_at_once() {
    let mut config = config(CONNECTIONS, &[1, 1]);
    config.services[0].drain_timeout_us = 0;
    let mut world = world(config);
    world.backend(2).open();
    world.sample(S);
    let commands = say(&mut world, 2, Order::Drain, S);
    assert!(commands.contains(&Command::EndFlows {
        backend: 2,
        end: true
    }));
}

#[test]
fn orders_survive_a_crash_and_keep_their_age() {
    let orders = [
        (1, Order::Weight(5)),
        (2, Order::Drain),
        (3, Order::Disable),
        (3, Order::Weight(0)),
    ];
    for algorithm in ALGORITHMS {
        let start = || world(config(algorithm, &[1, 2, 3, 4]));
        let mut world = start();
        for (at, (backend, order)) in (1..).zip(orders) {
            say(&mut world, backend, order, at * S);
        }
        let learned = through_json(&world.engine.learned());

        let mut engine = Engine::new(config(algorithm, &[1, 2, 3, 4]), Some(&learned), 30 * S);
        assert_eq!(engine.take_ended(), []);
        assert_eq!(engine.learned().backends.len(), 4);
        let mut world = World::new(engine, 1..=4);
        let written = [1, 2, 3, 4].map(|index| {
            let maps = world.backend(index);
            (maps.weight, maps.up)
        });
        assert_eq!(written, [(5, true), (0, false), (0, false), (4, true)]);
        // Nobody has counted the flows yet.
        assert_eq!(state(&world, 2), State::Draining);
        world.sample(30 * S);
        assert_eq!(state(&world, 2), State::Drained);
        assert_eq!(state(&world, 3), State::OutOfService);
        let view = world.engine.backend(2, 0).unwrap();
        assert_eq!(
            view.overrides.gate.map(|g| (g.gate, g.since_us)),
            Some((Gate::Drain, 2 * S))
        );
        assert_eq!(view.deadline_us, Some(62 * S));
        say(&mut world, 3, Order::Enable, 31 * S);
        assert_eq!(state(&world, 3), State::OutOfService, "weight 0 is left");
        say(&mut world, 3, Order::DefaultWeight, 32 * S);
        assert_eq!(world.backend(3).weight, 3);
    }
}

#[test]
fn a_deadline_that_passed_while_no_daemon_ran_is_kept() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    say(&mut world, 2, Order::Drain, S);
    let learned = through_json(&world.engine.learned());
    let mut engine = Engine::new(config(CONNECTIONS, &[1, 1]), Some(&learned), 100 * S);
    let commands: Vec<_> = std::iter::from_fn(|| engine.next_command()).collect();
    assert!(commands.contains(&Command::EndFlows {
        backend: 2,
        end: true
    }));
}

#[test]
fn orders_outlive_the_boot_they_were_given_in() {
    let mut world = world(config(CONNECTIONS, &[1, 1, 1]));
    flows(world.backend(1), 3, 20 * MS);
    world.sample(2 * S);
    say(&mut world, 2, Order::Drain, 500 * S);
    say(&mut world, 3, Order::Weight(4), 600 * S);
    // Times in the future are of another boot.
    let learned = through_json(&world.engine.learned());
    let engine = Engine::new(config(CONNECTIONS, &[1, 1, 1]), Some(&learned), 10 * S);
    assert_eq!(engine.backend(2, 0).unwrap().deadline_us, Some(70 * S));
    // For other maps only the orders hold.
    let only = learned.overrides_only(20 * S);
    let identities: Vec<&str> = only.backends.keys().map(String::as_str).collect();
    assert_eq!(identities, ["web 10.0.0.2:80", "web 10.0.0.3:80"]);
    assert!(only.backends.values().all(|b| b.baseline.is_none()));
    let engine = Engine::new(config(CONNECTIONS, &[1, 1, 1]), Some(&only), 20 * S);
    assert_eq!(engine.backend(2, 0).unwrap().deadline_us, Some(80 * S));
    assert_eq!(engine.backend(3, 0).unwrap().effective_weight, 4);
}

fn reconfigured(world: &mut World, config: EngineConfig, now_us: u64) -> Vec<EndedOverride> {
    world.engine = world.engine.reconfigured(config, now_us);
    world.apply();
    world.engine.take_ended()
}

#[test]
fn a_reload_ends_what_it_changes_and_nothing_else() {
    let mut world = world(config(CONNECTIONS, &[8, 8, 8, 8]));
    say(&mut world, 1, Order::Weight(3), S);
    say(&mut world, 2, Order::Weight(3), S);
    say(&mut world, 3, Order::Drain, S);
    say(&mut world, 4, Order::Disable, S);
    assert_eq!(
        reconfigured(&mut world, config(CONNECTIONS, &[8, 8, 8, 8]), 2 * S),
        []
    );
    // Backend 2's weight changes, so does that of 3, which is only drained; 4
    // is removed.
    let ended = reconfigured(&mut world, config(CONNECTIONS, &[8, 5, 5]), 3 * S);
    match &ended[..] {
        [
            EndedOverride::WeightChanged { identity, given },
            EndedOverride::Removed {
                identity: removed,
                overrides,
            },
        ] => {
            assert_eq!(
                (&identity[..], given.weight, given.configured),
                ("web 10.0.0.2:80", 3, 8)
            );
            assert_eq!(removed, "web 10.0.0.4:80");
            assert_eq!(overrides.gate.map(|gated| gated.gate), Some(Gate::Disable));
        }
        other => panic!("{other:?}"),
    }
    world.sample(3 * S);
    let weights = [1, 2, 3].map(|index| world.engine.backend(index, 0).unwrap().effective_weight);
    assert_eq!(weights, [3, 5, 0]);
    assert_eq!(state(&world, 3), State::Drained);
    // It is said once, and a backend that comes back has no past.
    assert_eq!(
        reconfigured(&mut world, config(CONNECTIONS, &[8, 5, 5, 8]), 4 * S),
        []
    );
    assert_eq!(world.backend(4).weight, 8);
}

#[test]
fn a_changed_weight_is_applied_and_a_failed_one_does_not_stay() {
    // keepalived issue 1354: a changed weight was not applied on reload; issue
    // 187: the weight of a failed server stayed 0; issue 1757: 0 became 1.
    let rows = [
        ([8, 8], [8, 3], [8, 3], [true, true]),
        ([8, 0], [8, 3], [8, 3], [true, true]),
        ([8, 3], [8, 0], [8, 0], [true, false]),
        ([0, 0], [1, 65_535], [1, 65_535], [true, true]),
    ];
    for algorithm in ALGORITHMS {
        for (before, after, weights, ups) in rows {
            let mut world = world(config(algorithm, &before));
            reconfigured(&mut world, config(algorithm, &after), S);
            let written = [1, 2].map(|index| world.backend(index).weight);
            assert_eq!(written, weights, "{before:?} to {after:?}");
            assert_eq!([1, 2].map(|index| world.backend(index).up), ups);
        }
    }
}

#[test]
fn a_reload_keeps_what_was_learned() {
    // envoy issue 39552: any rebuild reset learned weights; haproxy issue 918:
    // after a reload dead servers looked alive.
    let before = with_threshold(config(CONNECTIONS, &[1, 1, 1]), 99);
    let mut world = world(before.clone());
    for (index, us) in [(1, 100 * MS), (2, 300 * MS), (3, 1_500 * MS)] {
        flows(world.backend(index), 5, us);
    }
    world.backend(2).reset();
    world.sample(2 * S);
    let shown = |world: &World| {
        [1, 2, 3].map(|index| {
            let view = world.engine.backend(index, 0).unwrap();
            (
                view.state,
                view.relative,
                view.average_us,
                view.p99_us,
                view.share,
            )
        })
    };
    let old = shown(&world);
    assert_eq!(old[2].0, State::Overloaded);
    let held = world.engine.learned();
    assert_eq!(world.backend(2).failures(), 1);

    let mut after = before;
    after.services[0].backends[0].weight = 9;
    reconfigured(&mut world, after.clone(), 3 * S);
    assert_eq!(shown(&world), old);
    assert_eq!(world.engine.learned(), held);
    // The overloaded one comes back when it would have, and not before.
    world.sample(4 * S);
    world.handle_timeout(62 * S - 1);
    assert!(!world.backend(3).up);
    world.handle_timeout(62 * S);
    assert!(world.backend(3).up);
}

#[test]
fn the_last_resort_does_not_count_who_is_drained() {
    let mut world = world(with_threshold(config(SHARES, &[1, 1]), 99));
    flows(world.backend(1), 5, 100 * MS);
    flows(world.backend(2), 5, 2_000 * MS);
    world.sample(2 * S);
    assert!(!world.backend(2).up, "overloaded");
    say(&mut world, 1, Order::Drain, 3 * S);
    assert!(world.backend(2).up, "nobody else is left");
    assert_eq!(world.engine.taking(7), 1);
    say(&mut world, 1, Order::Enable, 4 * S);
    assert!(world.backend(1).up);
}

#[test]
fn no_stream_of_orders_leaves_a_gated_backend_taking_flows() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut below = |n: u64| random.bits() % n;
        let algorithm = ALGORITHMS[seed as usize % 3];
        let mut weights: Vec<u32> = (0..4).map(|_| below(4) as u32).collect();
        let mut world = world(config(algorithm, &weights));
        let mut now_us = 0;
        for _ in 0..300 {
            now_us += below(3 * S);
            let index = 1 + below(4) as u16;
            match below(10) {
                0 => {
                    weights[usize::from(index) - 1] = below(4) as u32;
                    reconfigured(&mut world, config(algorithm, &weights), now_us);
                }
                1 => {
                    let learned = through_json(&world.engine.learned());
                    world.engine = Engine::new(config(algorithm, &weights), Some(&learned), now_us);
                    world.apply();
                }
                2 | 3 => {
                    world.backend(index).open();
                    world.sample(now_us);
                }
                4 => drop(world.handle_timeout(now_us)),
                _ => {
                    let order = [
                        Order::Drain,
                        Order::Disable,
                        Order::Enable,
                        Order::Enable,
                        Order::Weight(below(4) as u32),
                        Order::DefaultWeight,
                    ][below(6) as usize];
                    say(&mut world, index, order, now_us);
                }
            }
            let mut taking = 0;
            for index in 1..=4 {
                let view = world.engine.backend(index, 0).unwrap();
                let given = view.overrides.weight.map(|given| given.weight);
                let wanted = given.unwrap_or(weights[usize::from(index) - 1]);
                let gated = view.overrides.gate.is_some();
                let maps = world.backend(index);
                assert_eq!(maps.weight, if gated { 0 } else { wanted }, "seed {seed}");
                // No load was ever reported: nothing else keeps flows away.
                assert_eq!(maps.up, !gated && wanted > 0, "seed {seed}");
                taking += usize::from(maps.up);
            }
            assert_eq!(world.engine.taking(7), taking, "seed {seed}");
        }
    }
}
