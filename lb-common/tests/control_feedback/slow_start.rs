//! The engine's slow start: who ramps, what the packet path is told second by
//! second, and what survives a restart.

use super::control_world::World;
use super::small::{CONNECTIONS, MS, S, config, flows, world, world as new_world};
use lb_common::control::{
    Algorithm, BackendConfig, Budget, Engine, EngineConfig, Event, Order, Ramp, RampList,
};

fn ramping(algorithm: Algorithm, backends: usize) -> EngineConfig {
    let mut config = config(algorithm, &vec![1; backends]);
    config.services[0].ramp = Ramp::Default;
    config
}

fn order(world: &mut World, backend: u16, order: Order, now_us: u64) {
    world
        .engine
        .handle(Event::Operator { backend, order }, now_us);
    world.apply();
}

fn state(world: &World, backend: u16) -> &'static str {
    world.engine.state(backend).expect("configured").as_str()
}

/// Disabled and enabled at `now_us`.
fn bounce(world: &mut World, backend: u16, now_us: u64) {
    order(world, backend, Order::Disable, now_us);
    order(world, backend, Order::Enable, now_us);
}

#[test]
fn the_table_second_by_second() {
    let mut world = world(ramping(CONNECTIONS, 2));
    world.sample(S);
    bounce(&mut world, 2, 10 * S);
    assert_eq!(state(&world, 2), "warming-up");
    // Port and server ramp of a server with one port: the lower one.
    let server = |n: u64| if n <= 20 { 10 * n } else { 20 * n };
    let mut port = 0;
    for n in 1..=60 {
        let rate = [10, 20, 30, 40, 50, 100][(n as usize - 1) / 10];
        port += rate;
        let ceiling = if n < 30 { port.min(server(n)) } else { port };
        let begun = world.backend(2).live.half_opened;
        for tenth in 0..10 {
            world.sample(10 * S + (n - 1) * S + tenth * 100 * MS);
            let expected = Budget {
                begun: Some(begun + rate),
                ceiling: Some(ceiling as u32),
                ..Budget::default()
            };
            assert_eq!(
                world.backend(2).budget,
                expected,
                "second {n}, tenth {tenth}"
            );
            let now_us = 10 * S + (n - 1) * S + tenth * 100 * MS;
            assert!(world.backend(2).expires_us > now_us + S, "second {n}");
            // As many as it may, and they end at once.
            if world.backend(2).live.half_opened < begun + rate {
                flows(world.backend(2), 1, MS);
            }
        }
        let view = world
            .engine
            .backend(2, 10 * S + n * S - 1)
            .expect("configured");
        let shown = view.slow_start.expect("a ramp");
        assert_eq!((shown.second, shown.rate), (n, Some(rate as u32)));
    }
    world.sample(70 * S);
    assert_eq!(state(&world, 2), "in-service");
    assert_eq!(world.backend(2).budget, Budget::default());
    assert!(
        world
            .engine
            .backend(2, 70 * S)
            .expect("configured")
            .slow_start
            .is_none()
    );
}

#[test]
fn who_ramps() {
    // At the very start nobody does: a restart of Steerline is no news.
    let mut fresh = world(ramping(CONNECTIONS, 2));
    assert_eq!(
        (state(&fresh, 1), state(&fresh, 2)),
        ("in-service", "in-service")
    );
    // All new: limits would spare nobody (envoy issue 19437).
    bounce(&mut fresh, 1, 10 * S);
    bounce(&mut fresh, 2, 11 * S);
    assert_eq!(
        (state(&fresh, 1), state(&fresh, 2)),
        ("in-service", "in-service")
    );
    // Once one is past its ramp, the other is limited for its rest.
    fresh.sample(70 * S);
    assert_eq!(
        (state(&fresh, 1), state(&fresh, 2)),
        ("in-service", "warming-up")
    );
    fresh.sample(71 * S);
    assert_eq!(state(&fresh, 2), "in-service");

    // Restarted in the middle, it goes on where it was.
    let mut world = new_world(ramping(CONNECTIONS, 2));
    bounce(&mut world, 2, 10 * S);
    let learned = world.engine.learned();
    let engine = Engine::new(ramping(CONNECTIONS, 2), Some(&learned), 22 * S);
    let shown = engine
        .backend(2, 22 * S)
        .expect("configured")
        .slow_start
        .expect("a ramp");
    assert_eq!((shown.second, shown.rate), (13, Some(20)));
    let engine = Engine::new(ramping(CONNECTIONS, 2), Some(&learned), 99 * S);
    assert_eq!(
        engine.state(2).map(|state| state.as_str()),
        Some("in-service")
    );

    // Added by a reload, a backend is new; a removed ramp ends.
    let engine = world.engine.reconfigured(ramping(CONNECTIONS, 3), 99 * S);
    let states = [1, 2, 3].map(|index| engine.state(index).expect("configured").as_str());
    assert_eq!(states, ["in-service", "in-service", "warming-up"]);
    let mut off = ramping(CONNECTIONS, 2);
    off.services[0].ramp = Ramp::Off;
    let mut engine = world.engine.reconfigured(off, 12 * S);
    assert_eq!(
        engine.state(2).map(|state| state.as_str()),
        Some("in-service")
    );
    world.sample(12 * S);
    assert!(world.backend(2).budget.begun.is_some());
    engine.handle(world.read(), 12 * S);
    world.engine = engine;
    world.apply();
    assert_eq!(
        world.backend(2).budget,
        Budget::default(),
        "written, not only forgotten"
    );

    // A weight of 0 and back, and a return from a drain, are ways into service.
    for (out, back) in [
        (Order::Weight(0), Order::DefaultWeight),
        (Order::Drain, Order::Enable),
    ] {
        let mut world = new_world(ramping(CONNECTIONS, 2));
        order(&mut world, 2, out, 10 * S);
        assert_ne!(state(&world, 2), "warming-up");
        order(&mut world, 2, back, 11 * S);
        assert_eq!(state(&world, 2), "warming-up", "{back:?}");
    }
}

#[test]
fn a_list_and_its_maximum() {
    let mut config = config(CONNECTIONS, &[1, 1]);
    config.services[0].ramp = Ramp::List(RampList {
        rate1: 10,
        interval1_s: 30,
        rate2: 20,
        interval2_s: 30,
        maximum: 250,
    });
    let mut world = World::new(Engine::new(config, None, 0), [1, 2]);
    let lasting = Budget {
        maximum: Some(250),
        ..Budget::default()
    };
    world.sample(S);
    assert_eq!(world.backend(1).budget, lasting, "without any ramp");
    bounce(&mut world, 2, 10 * S);
    for (second, rate, ceiling) in [(1, 10, 10), (26, 10, 250), (45, 20, 250)] {
        world.sample(10 * S + (second - 1) * S);
        let expected = Budget {
            begun: Some(rate),
            ceiling: Some(ceiling),
            ..lasting
        };
        assert_eq!(world.backend(2).budget, expected, "second {second}");
    }
    world.sample(70 * S);
    assert_eq!(world.backend(2).budget, lasting);
}

/// Two ports of one server share its ramp, over services.
#[test]
fn a_server_of_two_services() {
    let mut config = ramping(CONNECTIONS, 2);
    let mut second = config.services[0].clone();
    second.index = 8;
    second.backends = (1..=2)
        .map(|number| BackendConfig {
            index: 10 + number,
            identity: format!("tls 10.0.0.{number}:443"),
            server: format!("10.0.0.{number}"),
            weight: 1,
        })
        .collect();
    config.services.push(second);
    let mut world = World::new(Engine::new(config, None, 0), [1, 2, 11, 12]);
    world.sample(S);
    for index in [2, 12] {
        order(&mut world, index, Order::Disable, 10 * S);
    }
    for index in [2, 12] {
        order(&mut world, index, Order::Enable, 10 * S);
    }
    // Flows of both ports in second 11; ceilings. The server may have 110.
    for (flows, ceilings) in [
        ((0, 0), (55, 55)),
        ((50, 0), (80, 30)),
        ((90, 60), (90, 60)),
    ] {
        world.backend(2).live.half_opened = flows.0;
        world.backend(12).live.half_opened = flows.1;
        world.sample(20 * S);
        let ceiling = |world: &mut World, index| world.backend(index).budget.ceiling;
        assert_eq!(ceiling(&mut world, 2), Some(ceilings.0), "{flows:?}");
        assert_eq!(ceiling(&mut world, 12), Some(ceilings.1), "{flows:?}");
    }
    // A port that comes back to a server in service does not begin its ramp.
    let mut world = new_world(ramping(CONNECTIONS, 2));
    world.sample(S);
    bounce(&mut world, 2, 10 * S);
    world.sample(20 * S);
    assert_eq!(world.backend(2).budget.ceiling, Some(110));
}

#[test]
fn least_connections_count_dummies() {
    let wlc = Algorithm::WeightedLeastConnections;
    let mut world = world(ramping(wlc, 3));
    for index in [1, 3] {
        (0..100).for_each(|_| world.backend(index).open());
    }
    world.sample(S);
    bounce(&mut world, 2, 10 * S);
    for (seconds, dummies) in [(0, 100), (15, 50), (30, 0), (40, 0)] {
        world.sample(10 * S + seconds * S);
        assert_eq!(world.backend(2).budget.dummies, dummies, "{seconds} s");
    }
    let mut world = new_world(ramping(CONNECTIONS, 3));
    (0..100).for_each(|_| world.backend(1).open());
    world.sample(S);
    bounce(&mut world, 2, 10 * S);
    assert_eq!(world.backend(2).budget.dummies, 0);
}
