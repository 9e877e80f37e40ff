//! What the engine is told once: the services and backends it controls.
//!
//! Values arrive validated; where one would break the arithmetic anyway the
//! engine clamps it and says so at the field.

use alloc::string::String;
use alloc::vec::Vec;

use super::aca::AcaParameters;
use super::health::HealthParameters;
use super::outside::OutsideSources;
use super::slow_start::Ramp;

/// Everything that the engine controls.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Virtual services.
    pub services: Vec<ServiceConfig>,
}

/// A virtual service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceConfig {
    /// Index into the service maps.
    pub index: u16,
    /// How it chooses a backend.
    pub algorithm: Algorithm,
    /// Parameters of the adaptive load. They are used for every algorithm,
    /// since loads are shown for all; only [`Algorithm::Aca`] obeys them.
    pub aca: AcaParameters,
    /// Time between reports, microseconds (spec 1.1 `load teardown-timer`). 0:
    /// no reports.
    pub teardown_interval_us: u64,
    /// Time after which an unanswered SYN is a failure, microseconds; the
    /// least that a failure is charged (design 3.4).
    pub syn_timeout_us: u64,
    /// How long the flows of a drained backend may go on, microseconds. 0: they
    /// are ended at once.
    pub drain_timeout_us: u64,
    /// How backends that come into service warm up.
    pub ramp: Ramp,
    /// What failures lead to.
    pub health: HealthParameters,
    /// Who else is asked about the backends.
    pub outside: OutsideSources,
    /// Backends in configuration order.
    pub backends: Vec<BackendConfig>,
}

/// How a service chooses a backend, as far as the controller is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `weighted-round-robin`.
    WeightedRoundRobin,
    /// `weighted-least-connections`.
    WeightedLeastConnections,
    /// `aca`.
    Aca {
        /// How loads become picks.
        pick: Pick,
    },
}

/// How adaptive loads become picks (design 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Lowest (live + 1) × relative ÷ weight.
    Connections,
    /// A smooth ring of shares 1/(load − 1).
    Shares,
}

/// A backend of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// Index into the backend maps, unique over all services.
    pub index: u16,
    /// Key of what is learned, `service-name address:port`.
    pub identity: String,
    /// The server that it is a port of: backends of one server, of whatever
    /// service, share its ramp.
    pub server: String,
    /// Configured weight, 0..=65,535 (spec 4.1 `weight`; 0: no new flows). A
    /// larger one counts as 65,535, the width that the packet path multiplies.
    pub weight: u32,
}
