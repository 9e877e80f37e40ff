//! The engine's health: who is taken out, which guard forbids it, who comes back
//! and how.

use super::control_world::World;
use super::small::{CONNECTIONS, MS, S, config, flows, world, world as new_world};
use lb_common::control::{
    BackendView, Check, Command, Engine, EngineConfig, Event, FailDetectParameters, Failure,
    FailureKind, InbandParameters, Learned, Order, Unreachable,
};

const WRR: lb_common::control::Algorithm = lb_common::control::Algorithm::WeightedRoundRobin;

/// Backends of weight 1 with failure detection.
fn detecting(backends: usize) -> EngineConfig {
    let mut config = config(WRR, &vec![1; backends]);
    config.services[0].health.detect = FailDetectParameters::default();
    config
}

/// Backends of weight 1 with in-band health that removes.
fn removing(backends: usize, resume_service_us: u64) -> EngineConfig {
    let mut config = config(WRR, &vec![1; backends]);
    config.services[0].health.inband = InbandParameters {
        check: Check::Remove,
        resume_service_us,
        ..InbandParameters::default()
    };
    config
}

fn view(world: &World, index: u16, now_us: u64) -> BackendView {
    world.engine.backend(index, now_us).expect("configured")
}

fn states(world: &World) -> Vec<&'static str> {
    let indices = world.maps.keys();
    indices
        .map(|&index| view(world, index, 0).state.as_str())
        .collect()
}

fn guards(world: &World, index: u16) -> Vec<&'static str> {
    let guards = view(world, index, 0).guards;
    guards.iter().map(|guard| guard.as_str()).collect()
}

/// A SYN timeout of a client's attempt, counted in the maps and told of.
fn fail(world: &mut World, backend: u16, client: u64, attempt: u16, now_us: u64) {
    let maps = world.backend(backend);
    maps.live.half_opened += 1;
    maps.live.half_closed += 1;
    maps.live.syn_timeouts += 1;
    let failure = Failure {
        backend,
        kind: FailureKind::SynTimeout,
        client: Some(client),
        attempt,
        repeats: 2,
    };
    world.engine.handle(Event::Failure(failure), now_us);
    world.apply();
}

/// Eight failures of two clients.
fn fail_out(world: &mut World, backend: u16, now_us: u64) {
    for attempt in 0..8 {
        fail(world, backend, u64::from(attempt % 2), attempt, now_us);
    }
}

#[test]
fn the_cycle_of_failure_detection() {
    let mut world = world(detecting(3));
    flows(world.backend(1), 20, 20 * MS);
    flows(world.backend(3), 20, 20 * MS);
    world.sample(S);
    fail_out(&mut world, 2, 2 * S);
    assert_eq!(states(&world), ["in-service", "failed", "in-service"]);
    assert!(!world.backend(2).up);
    let reason = view(&world, 2, 0).reason;
    assert!(
        reason.contains("8 failures of 2 clients; out for 60.0 s"),
        "{reason}"
    );
    let next = view(&world, 2, 2 * S).next.expect("a return");
    assert!(next.at_us <= 62 * S, "{next:?}");

    world.sample(62 * S - 1);
    assert_eq!(states(&world)[1], "failed");
    world.sample(62 * S);
    assert_eq!(states(&world)[1], "ready-to-test");
    assert_eq!(guards(&world, 2), ["half-open-return"]);
    assert!(world.backend(2).up);
    // One more flow than have begun.
    let begun = world.backend(2).live.half_opened;
    assert_eq!(world.backend(2).budget.begun, Some(begun + 1));
    assert!(world.backend(2).expires_us > 62 * S);

    // Its handshake goes on, fails, and another one completes.
    world.backend(2).live.half_opened += 1;
    world.sample(63 * S);
    assert_eq!(states(&world)[1], "testing");
    assert_eq!(world.backend(2).budget.begun, Some(begun + 1));
    fail(&mut world, 2, 9, 99, 64 * S);
    assert_eq!(states(&world)[1], "failed");
    assert_eq!(world.backend(2).budget.begun, None);
    world.sample(124 * S);
    world.backend(2).open();
    world.sample(125 * S);
    assert_eq!(states(&world)[1], "in-service");
    assert_eq!(world.backend(2).budget.begun, None);
    assert_eq!(guards(&world, 2), [""; 0]);
}

#[test]
fn a_test_without_a_result_is_followed_by_another() {
    let mut world = world(detecting(2));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    fail_out(&mut world, 2, 2 * S);
    world.sample(62 * S);
    world.backend(2).live.half_opened += 1;
    world.sample(63 * S);
    assert_eq!(states(&world)[1], "testing");
    // Three SYN timeouts.
    world.sample(78 * S - 1);
    assert_eq!(states(&world)[1], "testing");
    world.sample(78 * S);
    assert_eq!(states(&world)[1], "ready-to-test");
    let begun = world.backend(2).live.half_opened;
    assert_eq!(world.backend(2).budget.begun, Some(begun + 1));
}

#[test]
fn guards_are_asked_and_named() {
    // Backends; which fail out, in this order; states; who has which guard.
    type Row = (
        usize,
        &'static [u16],
        &'static [&'static str],
        (u16, &'static str),
    );
    let rows: &[Row] = &[
        (1, &[1], &["in-service"], (1, "last-usable")),
        (2, &[1], &["failed", "in-service"], (1, "")),
        (2, &[1, 2], &["failed", "in-service"], (2, "last-usable")),
        (
            3,
            &[1, 2],
            &["failed", "in-service", "in-service"],
            (2, "max-ejected-percent"),
        ),
        (
            4,
            &[1, 2],
            &["failed", "failed", "in-service", "in-service"],
            (2, "jitter"),
        ),
    ];
    for &(backends, failing, expected, (whose, guard)) in rows {
        let mut world = world(detecting(backends));
        for index in 1..=backends as u16 {
            if !failing.contains(&index) {
                flows(world.backend(index), 20, 20 * MS);
            }
        }
        world.sample(S);
        for &index in failing {
            fail_out(&mut world, index, 2 * S);
        }
        assert_eq!(states(&world), expected, "{failing:?} of {backends}");
        let held = guards(&world, whose);
        assert_eq!(
            held,
            Vec::from_iter((!guard.is_empty()).then_some(guard)),
            "{failing:?}"
        );
        assert!(world.maps.values().any(|maps| maps.up));
        // A minute later it is no longer news.
        world.sample(63 * S);
        assert!(!guards(&world, whose).contains(&"max-ejected-percent"));
    }
    // All fail alike.
    let mut world = world(detecting(3));
    world.sample(S);
    for attempt in 0..8 {
        for index in 1..=3 {
            fail(&mut world, index, u64::from(attempt % 2), attempt, 2 * S);
        }
    }
    assert_eq!(states(&world), ["in-service"; 3]);
    assert_eq!(guards(&world, 2), ["like-peers"]);
}

#[test]
fn an_attempt_fails_once() {
    let mut world = world(detecting(2));
    flows(world.backend(2), 20, 20 * MS);
    world.sample(S);
    for _ in 0..20 {
        fail(&mut world, 1, 1, 7, 2 * S);
        fail(&mut world, 1, 2, 7, 2 * S);
    }
    assert_eq!(states(&world), ["in-service"; 2]);
    assert_eq!(view(&world, 1, 0).consecutive, (2, 2));
    assert_eq!(guards(&world, 1), ["one-per-attempt"]);
}

#[test]
fn a_success_between_them_begins_anew() {
    let mut world = world(detecting(2));
    flows(world.backend(2), 20, 20 * MS);
    world.sample(S);
    for attempt in 0..7 {
        fail(&mut world, 1, u64::from(attempt % 2), attempt, 2 * S);
    }
    assert_eq!(view(&world, 1, 0).consecutive, (7, 2));
    world.backend(1).open();
    world.sample(3 * S);
    assert_eq!(view(&world, 1, 0).consecutive, (0, 0));
}

#[test]
fn in_band_health_removes_and_returns() {
    let mut world = world(removing(3, 30 * S));
    for index in [1, 3] {
        flows(world.backend(index), 20, 20 * MS);
    }
    world.sample(S);
    for attempt in 0..3 {
        fail(&mut world, 2, 1, attempt, 2 * S);
    }
    assert_eq!(states(&world)[1], "in-service");
    // One client is enough for ACE.
    let failure = Failure {
        backend: 2,
        kind: FailureKind::Unreachable(Unreachable::Port),
        client: Some(1),
        attempt: 3,
        repeats: 0,
    };
    world
        .engine
        .handle(Event::Failure(failure), 2 * S + 99 * MS);
    let told = world
        .apply()
        .iter()
        .any(|command| matches!(command, Command::Tell { backend: 2, .. }));
    assert!(told);
    assert_eq!(states(&world)[1], "inband-failed");
    world.sample(32 * S + 99 * MS);
    assert_eq!(states(&world)[1], "ready-to-test");
    world.backend(2).open();
    world.sample(33 * S);
    assert_eq!(states(&world)[1], "in-service");

    // Without a time, an operator must enable it.
    let mut world = new_world(removing(2, 0));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    for attempt in 0..4 {
        fail(&mut world, 2, 1, attempt, 2 * S);
    }
    world.sample(9_999 * S);
    assert_eq!(states(&world)[1], "inband-failed");
    let enable = Event::Operator {
        backend: 2,
        order: Order::Enable,
    };
    world.engine.handle(enable, 9_999 * S);
    world.apply();
    assert_eq!(states(&world)[1], "in-service");
}

/// A lost event does not lose its failure: what the maps count and nobody told
/// of is judged a sample later.
#[test]
fn untold_failures_are_judged() {
    let mut world = world(removing(2, 30 * S));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    (0..4).for_each(|_| world.backend(2).reset());
    world.sample(1_100 * MS);
    assert_eq!(states(&world)[1], "in-service");
    world.sample(1_200 * MS);
    assert_eq!(states(&world)[1], "inband-failed");

    // Told of before or after they are counted, they are judged once.
    let mut world = new_world(removing(2, 30 * S));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    for attempt in 0..2 {
        fail(&mut world, 2, 1, attempt, S);
    }
    for tick in 11..40 {
        world.sample(tick * 100 * MS);
    }
    let learned = world.engine.learned();
    assert_eq!(learned.backends["web 10.0.0.2:80"].health.inband.total, 2);
}

#[test]
fn whoever_is_left_serves_as_the_last_resort() {
    let mut world = world(detecting(2));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    fail_out(&mut world, 2, 2 * S);
    assert_eq!(states(&world), ["in-service", "failed"]);
    // An operator takes the other one.
    let order = |world: &mut World, order| {
        let event = Event::Operator { backend: 1, order };
        world.engine.handle(event, 3 * S);
        world.apply();
    };
    order(&mut world, Order::Disable);
    assert_eq!(states(&world), ["out-of-service", "failed"]);
    assert!(world.backend(2).up, "nobody else is left");
    let reason = view(&world, 2, 0).reason;
    assert!(reason.contains("nobody else is left"), "{reason}");
    order(&mut world, Order::Enable);
    assert!(!world.backend(2).up);
}

/// An outage, a test and counts survive a restart; a changed `resume_service`
/// acts at once where ACE's does.
#[test]
fn a_restart_and_a_reload() {
    let mut world = world(removing(2, 60 * S));
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    for attempt in 0..4 {
        fail(&mut world, 2, 1, attempt, 2 * S);
    }
    let text = serde_json::to_string(&world.engine.learned()).expect("JSON");
    let learned: Learned = serde_json::from_str(&text).expect("what was written");
    // New resume_service in seconds; state after 10 s.
    for (resume, state) in [
        (60, "inband-failed"),
        (120, "inband-failed"),
        (0, "inband-failed"),
        (30, "ready-to-test"),
    ] {
        let config = removing(2, resume * S);
        let restarted = Engine::new(config.clone(), Some(&learned), 10 * S);
        let reloaded = world.engine.reconfigured(config, 10 * S);
        for engine in [restarted, reloaded] {
            let view = engine.backend(2, 10 * S).expect("configured");
            assert_eq!(view.state.as_str(), state, "{resume}");
        }
    }
}

/// ACA gives whoever is ready the next flow.
#[test]
fn a_trial_is_granted_for_the_test() {
    let mut config = detecting(2);
    config.services[0].algorithm = CONNECTIONS;
    let mut world = world(config);
    flows(world.backend(1), 20, 20 * MS);
    world.sample(S);
    fail_out(&mut world, 2, 2 * S);
    world.sample(62 * S - 1);
    world.backend(2).live.trial = 0;
    let commands = world.sample(62 * S);
    assert!(
        commands.contains(&Command::GrantTrial { backend: 2 }),
        "{commands:?}"
    );
}
