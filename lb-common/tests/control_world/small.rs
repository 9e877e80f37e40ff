//! A service of a few backends.

use lb_common::control::{
    AcaParameters, Algorithm, BackendConfig, Engine, EngineConfig, FailDetectParameters,
    HealthParameters, Pick, Ramp, ServiceConfig,
};

use super::control_world::{Maps, World};

pub(crate) const MS: u64 = 1_000;
pub(crate) const S: u64 = 1_000_000;
pub(crate) const CONNECTIONS: Algorithm = Algorithm::Aca {
    pick: Pick::Connections,
};
pub(crate) const SHARES: Algorithm = Algorithm::Aca { pick: Pick::Shares };

/// Service 7 with backends 1, 2, … of the given weights.
pub(crate) fn config(algorithm: Algorithm, weights: &[u32]) -> EngineConfig {
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
            aca: AcaParameters {
                dynamic_step: false,
                ..AcaParameters::default()
            },
            teardown_interval_us: 2 * S,
            syn_timeout_us: 5 * S,
            drain_timeout_us: 60 * S,
            outside: lb_common::control::OutsideSources::default(),
            // Tests of either turn it on.
            ramp: Ramp::Off,
            health: HealthParameters {
                detect: FailDetectParameters {
                    connections: 0,
                    ..FailDetectParameters::default()
                },
                ..HealthParameters::default()
            },
            backends: backends.collect(),
        }],
    }
}

/// A world at time 0 that has seen one sample of empty maps.
pub(crate) fn world(config: EngineConfig) -> World {
    let indices: Vec<u16> = config.services[0]
        .backends
        .iter()
        .map(|b| b.index)
        .collect();
    let mut world = World::new(Engine::new(config, None, 0), indices);
    assert_eq!(world.sample(0), []);
    world
}

pub(crate) fn with_threshold(mut config: EngineConfig, load_threshold: u8) -> EngineConfig {
    config.services[0].aca.load_threshold = load_threshold;
    config
}

pub(crate) fn flows(maps: &mut Maps, count: u64, us: u64) {
    for _ in 0..count {
        maps.open();
        maps.close(us);
    }
}
