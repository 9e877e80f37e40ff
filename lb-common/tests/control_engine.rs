//! The engine: reports, failures, trials, restarts, and streams of nonsense.
#![cfg(feature = "control")]

mod control_world;
#[path = "control_world/small.rs"]
mod small;

use control_world::{Maps, World};
use lb_common::control::{Algorithm, Command, Engine, State};
use small::{CONNECTIONS, MS, S, SHARES, config, flows, with_threshold, world};

fn write(backend: u16, weight: u32, up: bool, relative: u32) -> Command {
    Command::WriteBackend {
        backend,
        weight,
        up,
        relative,
    }
}

fn members(members: &[(u16, u32)]) -> Command {
    Command::PublishMembers {
        service: 7,
        members: members.to_vec(),
    }
}

#[test]
fn the_initial_state_is_written_at_once() {
    let written = [
        write(1, 3, true, 256),
        write(2, 0, false, 256),
        write(3, 1, true, 256),
    ];
    let listed = members(&[(1, 3), (3, 1)]);
    let ring = Command::PublishRing {
        service: 7,
        slots: vec![1, 1, 3, 1],
    };
    let rows = [
        (Algorithm::WeightedRoundRobin, vec![listed.clone()]),
        (CONNECTIONS, vec![listed.clone()]),
        (SHARES, vec![listed, ring]),
    ];
    for (algorithm, lists) in rows {
        let mut engine = Engine::new(config(algorithm, &[3, 0, 1]), None, 0);
        let commands: Vec<_> = std::iter::from_fn(|| engine.next_command()).collect();
        assert_eq!(commands, [&written[..], &lists].concat(), "{algorithm:?}");
        assert_eq!(engine.poll_timeout(), None);
    }
}

#[test]
fn a_report_writes_only_changes() {
    let mut world = world(config(CONNECTIONS, &[1, 1, 1]));
    for (index, us) in [(1, 20_000), (2, 30_000), (3, 20_000)] {
        flows(world.backend(index), 10, us);
    }
    assert_eq!(world.sample(S), []);
    assert_eq!(
        world.sample(2 * S),
        [write(2, 1, true, 384), Command::SaveLearned]
    );
    // A report without flows leaves the averages, so nothing changes.
    let trials = [1, 2, 3].map(|backend| Command::GrantTrial { backend });
    assert_eq!(world.sample(4 * S)[..3], trials);
    assert_eq!(world.sample(6 * S), []);
    let view = world.engine.backend(2, 0).unwrap();
    assert_eq!((view.average_us.short, view.relative), (Some(30_000), 384));
}

#[test]
fn failures_are_charged_and_held() {
    // Best average of the service, resets, SYN timeouts of backend 2, which
    // also ends 9 flows of 20 ms; its average, and for how long they are held.
    let rows = [
        (20 * MS, 0, 0, 20 * MS, None),
        (20 * MS, 1, 0, 518 * MS, Some(5 * S)),
        (20 * MS, 0, 1, 518 * MS, Some(5 * S)),
        (20 * MS, 4, 5, (180 * MS + 9 * 5 * S) / 18, Some(5 * S)),
        (2 * S, 1, 0, (180 * MS + 20 * S) / 10, Some(20 * S)),
        (20 * S, 1, 0, (180 * MS + 200 * S) / 10, Some(60 * S)),
    ];
    for (best, resets, syn_timeouts, average, hold) in rows {
        let mut world = world(config(CONNECTIONS, &[1, 1]));
        flows(world.backend(1), 10, best);
        world.sample(2 * S);
        let bad = world.backend(2);
        flows(bad, 9, 20 * MS);
        (0..resets).for_each(|_| bad.reset());
        bad.live.syn_timeouts = syn_timeouts;
        world.sample(3 * S);
        let due = hold.map(|hold| 3 * S + hold);
        let holds = &world.engine.learned().backends["web 10.0.0.2:80"].held;
        assert_eq!(holds.first().map(|held| held.due_us), due, "best {best}");
        world.sample(4 * S);
        let view = world.engine.backend(2, 0).unwrap();
        assert_eq!(view.average_us.short, Some(average), "best {best}");
        assert_eq!(
            (view.failures.resets, view.failures.syn_timeouts),
            (resets, syn_timeouts)
        );

        let Some(due) = due else { continue };
        assert!(world.engine.poll_timeout().is_some_and(|at| at <= due));
        world.handle_timeout(due - 1);
        assert_eq!(world.backend(2).live.forgiven, 0, "best {best}");
        let forgive = Command::Forgive {
            backend: 2,
            total: world.backend(2).failures(),
        };
        assert!(world.handle_timeout(due).contains(&forgive), "best {best}");
    }
}

#[test]
fn a_backend_over_the_threshold_leaves_and_returns() {
    let mut world = world(with_threshold(config(SHARES, &[1, 1, 1]), 99));
    let report = |world: &mut World, second: u64, rows: &[(u16, u64)]| {
        for &(index, us) in rows {
            flows(world.backend(index), 1, us);
        }
        world.sample(second * S)
    };
    report(
        &mut world,
        2,
        &[(1, 100 * MS), (2, 110 * MS), (3, 1_080 * MS)],
    );
    let view = world.engine.backend(3, 0).unwrap();
    assert_eq!((view.state, view.load.average), (State::Overloaded, 100));
    assert!(
        view.reason.contains("100") && view.reason.contains("99"),
        "{}",
        view.reason
    );
    assert_eq!((world.backend(3).up, world.backend(2).up), (false, true));
    let shares =
        |world: &World| [1, 2, 3].map(|index| world.engine.backend(index, 0).unwrap().share);
    assert_eq!(shares(&world), [2.0 / 3.0, 1.0 / 3.0, 0.0]);

    for second in (4..62).step_by(2) {
        let commands = report(&mut world, second, &[(1, 100 * MS), (2, 110 * MS)]);
        assert!(
            !commands.contains(&Command::GrantTrial { backend: 3 }),
            "at {second} s"
        );
    }
    world.handle_timeout(62 * S - 1);
    assert!(!world.backend(3).up);
    world.handle_timeout(62 * S);
    assert!(world.backend(3).up);
    let view = world.engine.backend(3, 0).unwrap();
    assert_eq!((view.state, view.load.average), (State::InService, 2));
    assert_eq!(shares(&world), [0.4, 0.2, 0.4]);
}

#[test]
fn the_last_ones_serve_whatever_their_load() {
    let mut world = world(with_threshold(config(CONNECTIONS, &[1, 1, 0]), 5));
    for (index, short, long) in [(1, 100 * MS, 900 * MS), (2, 900 * MS, 100 * MS)] {
        let maps = world.backend(index);
        flows(maps, 1, short);
        maps.report.long.count = 1;
        maps.report.long.total_us = long;
    }
    let commands = world.sample(2 * S);
    assert!(
        !commands
            .iter()
            .any(|c| matches!(c, Command::PublishMembers { .. }))
    );
    for index in [1, 2] {
        assert!(world.backend(index).up);
        let view = world.engine.backend(index, 0).unwrap();
        assert_eq!(view.state, State::Overloaded);
        assert!(
            view.reason.contains("still taking flows"),
            "{}",
            view.reason
        );
    }
    assert_eq!(
        world.engine.backend(3, 0).unwrap().state,
        State::OutOfService
    );
}

#[test]
fn loads_are_shown_but_not_obeyed_outside_aca() {
    let mut world = world(with_threshold(
        config(Algorithm::WeightedRoundRobin, &[3, 1]),
        5,
    ));
    flows(world.backend(1), 4, 100 * MS);
    flows(world.backend(2), 4, 900 * MS);
    assert_eq!(world.sample(2 * S), [Command::SaveLearned]);
    assert_eq!(world.sample(4 * S), []);
    let view = world.engine.backend(2, 0).unwrap();
    assert_eq!((view.state, view.load.average), (State::InService, 82));
    assert_eq!((view.relative, view.share), (256, 0.25));
}

#[test]
fn trials_go_to_whoever_had_no_flow() {
    type Setup = fn(&mut Maps);
    // What happened to backend 2 in the interval; whether it gets a trial.
    let rows: &[(&str, Setup, bool)] = &[
        ("nothing", |_| {}, true),
        ("a flow ended", |maps| flows(maps, 1, 20 * MS), false),
        ("a flow is live", |maps| maps.open(), false),
        (
            "a handshake is live",
            |maps| maps.live.half_opened += 1,
            false,
        ),
        ("a failure is held", |maps| maps.reset(), false),
        ("a trial is left", |maps| maps.live.trial = 1, false),
    ];
    for &(name, setup, expected) in rows {
        let mut world = world(config(CONNECTIONS, &[1, 1]));
        flows(world.backend(1), 5, 20 * MS);
        setup(world.backend(2));
        let granted = world
            .sample(2 * S)
            .contains(&Command::GrantTrial { backend: 2 });
        assert_eq!(granted, expected, "{name}");
    }
    // A weight of 0 takes no flow, and round robin starves nobody.
    for (algorithm, weights) in [
        (CONNECTIONS, [1, 0]),
        (Algorithm::WeightedRoundRobin, [1, 1]),
    ] {
        let mut world = world(config(algorithm, &weights));
        flows(world.backend(1), 5, 20 * MS);
        let commands = world.sample(2 * S);
        assert!(
            !commands.contains(&Command::GrantTrial { backend: 2 }),
            "{algorithm:?}"
        );
    }
}

#[test]
fn late_samples_make_one_report_on_the_grid() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    // Seconds of samples, whether each makes a report.
    for (second, reported) in [
        (1, false),
        (7, true),
        (7, false),
        (8, true),
        (9, false),
        (10, true),
    ] {
        flows(world.backend(1), 1, 20 * MS);
        let saved = world.sample(second * S).contains(&Command::SaveLearned);
        assert_eq!(saved, reported, "at {second} s");
    }
}

#[test]
fn percentiles_are_of_the_last_interval_with_data() {
    let mut world = world(config(CONNECTIONS, &[1]));
    let percentiles = |world: &World| {
        let view = world.engine.backend(1, 0).unwrap();
        (view.p50_us, view.p99_us)
    };
    assert_eq!(percentiles(&world), (None, None));
    flows(world.backend(1), 1, 20_000);
    world.sample(2 * S);
    let one = (Some(24_576), Some(24_576));
    assert_eq!(percentiles(&world), one);
    world.sample(4 * S);
    assert_eq!(percentiles(&world), one);
}

#[test]
fn counts_from_before_the_first_sample_are_nobodys() {
    let mut world = World::new(Engine::new(config(CONNECTIONS, &[1, 1]), None, 0), [1, 2]);
    flows(world.backend(2), 9, 900 * MS);
    (0..5).for_each(|_| world.backend(2).reset());
    let forgive = Command::Forgive {
        backend: 2,
        total: 5,
    };
    assert_eq!(world.sample(0), [forgive]);
    world.sample(2 * S);
    assert_eq!(world.engine.backend(2, 0).unwrap().average_us.short, None);
}

#[test]
fn recreated_maps_start_from_zero() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    flows(world.backend(2), 9, 100 * MS);
    (0..5).for_each(|_| world.backend(2).reset());
    world.sample(S);
    let learned = world.engine.learned();

    *world.backend(2) = Maps::default();
    flows(world.backend(2), 2, 20 * MS);
    world.engine = Engine::new(config(CONNECTIONS, &[1, 1]), Some(&learned), 30 * S);
    world.apply();
    assert_eq!(
        world.engine.poll_timeout(),
        None,
        "the maps are unknown so far"
    );
    world.sample(30 * S);
    assert_eq!(world.backend(2).live.forgiven, 0);
    world.sample(32 * S);
    assert_eq!(
        world.engine.backend(2, 0).unwrap().average_us.short,
        Some(20 * MS)
    );
}

#[test]
fn flows_that_ended_while_no_daemon_ran_are_in_the_next_report() {
    let mut world = world(config(CONNECTIONS, &[1, 1]));
    flows(world.backend(1), 4, 20 * MS);
    world.sample(2 * S);
    let learned = world.engine.learned();
    flows(world.backend(1), 4, 10 * MS);
    world.engine = Engine::new(config(CONNECTIONS, &[1, 1]), Some(&learned), 50 * S);
    world.apply();
    world.sample(50 * S);
    assert_eq!(
        world.engine.backend(1, 0).unwrap().average_us.short,
        Some(10 * MS)
    );
}
