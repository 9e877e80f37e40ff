//! The engine: events in, commands out, no I/O.
//!
//! The daemon samples the counters about every 100 ms and hands them over as
//! [`Event::Sample`]. Each sample moves the holds of failures; the first one
//! at or after a service's `teardown_interval` also makes its report, so that
//! a report never works on counters older than itself and a daemon that was
//! stopped for a while makes one late report instead of several empty ones.
//!
//! *First start*: everything is up with load 2, and the first sample of a
//! backend is what later ones are compared to. *Restart*: given what
//! [`Engine::learned`] returned, the engine goes on as if it had never stopped;
//! it forgives nothing before it has seen the maps again. *Dead daemon*: the
//! packet path goes on with the last commands.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::budget::Budget;
use super::compose::State;
use super::config::EngineConfig;
use super::guard::Guard;
use super::health::Failure;
use super::learned::Learned;
use super::outside::{OutsideRecord, OutsideWord};
use super::overrides::{GivenWeight, Order, Overrides};
use super::rationing;
use super::service::Service;
use super::view::BackendView;
use crate::abi::{Live, Report};

/// Something that the engine must know.
#[derive(Clone, Debug)]
pub enum Event {
    /// The counters of some or all backends.
    Sample(Vec<Sample>),
    /// An operator said something about a backend.
    Operator {
        /// Index into the backend maps.
        backend: u16,
        /// What.
        order: Order,
    },
    /// A flow failed.
    Failure(Failure),
    /// Somebody outside said something about a backend.
    Outside {
        /// Index into the backend maps.
        backend: u16,
        /// What.
        word: OutsideWord,
    },
}

/// The counters of one backend, read at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Index into the backend maps.
    pub backend: u16,
    /// The teardown report summed over CPUs: absolute, monotonic.
    pub report: Report,
    /// The live counts: absolute.
    pub live: Live,
}

/// Something that the caller must do. Commands are absolute: carrying one out
/// twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write a backend's fields in map `BACKENDS`.
    WriteBackend {
        /// Index into the backend maps.
        backend: u16,
        /// Effective weight, 0..=65,535.
        weight: u32,
        /// Whether it may take new flows.
        up: bool,
        /// See [`crate::abi::Backend::relative`], 256..=65,535.
        relative: u32,
    },
    /// Publish a service's member list.
    PublishMembers {
        /// Index into the service maps.
        service: u16,
        /// Backend index and weight of those that are up and have one, in
        /// configuration order.
        members: Vec<(u16, u32)>,
    },
    /// Publish a service's ring (`pick = "shares"`).
    PublishRing {
        /// Index into the service maps.
        service: u16,
        /// Backend index per slot, at most [`crate::abi::RING_SLOTS`].
        slots: Vec<u16>,
    },
    /// Write [`Live::forgiven`].
    Forgive {
        /// Index into the backend maps.
        backend: u16,
        /// Failures whose hold has ended, ever.
        total: u64,
    },
    /// Give a backend the next new flow whatever its metric: set
    /// [`Live::trial`].
    GrantTrial {
        /// Index into the backend maps.
        backend: u16,
    },
    /// End whatever flows a backend has, from now on, or no longer.
    EndFlows {
        /// Index into the backend maps.
        backend: u16,
        /// Whether.
        end: bool,
    },
    /// Write a backend's budget.
    WriteBudget {
        /// Index into the backend maps.
        backend: u16,
        /// Its limits.
        budget: Budget,
        /// When all of them but `maximum` expire, monotonic microseconds.
        expires_us: u64,
    },
    /// Tell people.
    Tell {
        /// Index into the backend maps.
        backend: u16,
        /// What.
        notice: Notice,
    },
    /// Save [`Engine::learned`].
    SaveLearned,
}

/// What people are told of a backend besides its changes of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The failures of a window reached the threshold of in-band health.
    InbandThreshold {
        /// Failures so far.
        failures: u32,
        /// Length of the window, microseconds.
        reset_time_us: u64,
    },
    /// A guard keeps the backend in service.
    Guarded(Guard),
}

/// An operator's word that a new configuration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedOverride {
    /// The file's weight is another than when the weight was given.
    WeightChanged {
        /// [`BackendConfig::identity`](super::config::BackendConfig::identity).
        identity: String,
        /// What ended.
        given: GivenWeight,
    },
    /// The backend is no longer configured.
    Removed {
        /// The same.
        identity: String,
        /// What ended.
        overrides: Overrides,
    },
}

/// The controller's state over all services.
pub struct Engine {
    services: Vec<Service>,
    /// Backend index → service and backend position.
    positions: BTreeMap<u16, (usize, usize)>,
    commands: VecDeque<Command>,
    ended: Vec<EndedOverride>,
    /// What is learned differs from what was last saved.
    unsaved: bool,
}

impl Engine {
    /// Takes control: commands for the whole initial state are ready at once.
    /// With `learned`, every backend whose identity is in it goes on where it
    /// was. `now_us` is the monotonic clock.
    pub fn new(config: EngineConfig, learned: Option<&Learned>, now_us: u64) -> Self {
        let mut services: Vec<Service> = Vec::new();
        let mut ended = Vec::new();
        for service in config.services {
            let (service, weights) = Service::new(service, learned, now_us);
            ended.extend(
                weights
                    .into_iter()
                    .map(|(identity, given)| EndedOverride::WeightChanged { identity, given }),
            );
            services.push(service);
        }
        ended.extend(
            learned
                .into_iter()
                .flat_map(|learned| removed(learned, &services)),
        );
        let mut commands = VecDeque::new();
        for service in &mut services {
            service.handle_timeout(now_us, &mut commands);
            service.refresh(now_us, &mut commands);
        }
        if !ended.is_empty() {
            // Else a crash before the next report would bring them back.
            commands.push_back(Command::SaveLearned);
        }
        let positions = services
            .iter()
            .enumerate()
            .flat_map(|(service, state)| {
                state
                    .positions()
                    .map(move |(index, backend)| (index, (service, backend)))
            })
            .collect();
        Self {
            services,
            positions,
            commands,
            ended,
            unsaved: false,
        }
    }

    /// Takes control of a changed configuration: an engine that goes on with
    /// what this one has learned, keyed by identity. Nothing of a backend that
    /// did not change is reset (envoy issue 39552, haproxy issue 918). What this
    /// engine commanded last must have been carried out.
    pub fn reconfigured(&self, config: EngineConfig, now_us: u64) -> Self {
        let mut engine = Self::new(config, Some(&self.learned()), now_us);
        for service in &mut engine.services {
            for former in &self.services {
                service.keep_shown(former);
            }
        }
        engine
    }

    /// The operators' words that [`Engine::new`] found ended; once.
    pub fn take_ended(&mut self) -> Vec<EndedOverride> {
        core::mem::take(&mut self.ended)
    }

    /// Takes an event. Samples of unknown backends are ignored.
    pub fn handle(&mut self, event: Event, now_us: u64) {
        match event {
            Event::Sample(samples) => {
                for sample in &samples {
                    if let Some(&(service, backend)) = self.positions.get(&sample.backend) {
                        let service = &mut self.services[service];
                        self.unsaved |=
                            service.observe(backend, sample, now_us, &mut self.commands);
                    }
                }
                self.handle_timeout(now_us);
                self.report(now_us);
            }
            Event::Operator { backend, order } => {
                if let Some(&(service, backend)) = self.positions.get(&backend) {
                    self.services[service].obey(backend, order, now_us, &mut self.commands);
                    self.handle_timeout(now_us);
                    self.commands.push_back(Command::SaveLearned);
                }
            }
            Event::Failure(failure) => {
                if let Some(&(service, backend)) = self.positions.get(&failure.backend)
                    && self.services[service].told(backend, &failure, now_us, &mut self.commands)
                {
                    self.handle_timeout(now_us);
                    self.commands.push_back(Command::SaveLearned);
                }
            }
            Event::Outside { backend, word } => {
                if let Some(&(service, backend)) = self.positions.get(&backend)
                    && self.services[service].hear(backend, word, now_us, &mut self.commands)
                {
                    self.handle_timeout(now_us);
                    self.unsaved = true;
                }
            }
        }
    }

    fn report(&mut self, now_us: u64) {
        let before = self.commands.len();
        let mut round = false;
        for service in &mut self.services {
            if let Some(learned) = service.report(now_us, &mut self.commands) {
                round = true;
                self.unsaved |= learned;
            }
        }
        self.unsaved |= self.commands.len() > before;
        if round && self.unsaved {
            self.unsaved = false;
            self.commands.push_back(Command::SaveLearned);
        }
    }

    /// The next thing that the caller must do.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// When [`Engine::handle_timeout`] next has something to do, monotonic
    /// microseconds. Reports are not among it: samples drive them.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.services
            .iter()
            .filter_map(Service::poll_timeout)
            .chain(rationing::poll_timeout(&self.services))
            .min()
    }

    /// Does what is due at `now_us`; an early call does nothing.
    pub fn handle_timeout(&mut self, now_us: u64) {
        for service in &mut self.services {
            self.unsaved |= service.handle_timeout(now_us, &mut self.commands);
        }
        rationing::ration(&mut self.services, now_us, &mut self.commands);
    }

    /// All that must survive the process.
    pub fn learned(&self) -> Learned {
        Learned {
            backends: self
                .services
                .iter()
                .flat_map(Service::learned)
                .map(|(identity, learned)| (String::from(identity), learned))
                .collect(),
        }
    }

    /// The state of a backend; `None` for an index that is not configured.
    pub fn state(&self, index: u16) -> Option<State> {
        let &(service, backend) = self.positions.get(&index)?;
        self.services.get(service)?.state(backend)
    }

    /// What others have told of a backend; nothing for an index that is not
    /// configured.
    pub fn outside(&self, index: u16) -> OutsideRecord {
        let position = self.positions.get(&index);
        let told = position.and_then(|&(service, backend)| {
            let service = self.services.get(service)?;
            service.outside(backend)
        });
        told.cloned().unwrap_or_default()
    }

    /// How many backends of a service, by its index into the maps, take new
    /// flows.
    pub fn taking(&self, service: u16) -> usize {
        let mut services = self.services.iter();
        services
            .find(|known| known.index() == service)
            .map_or(0, Service::taking)
    }

    /// What to show of a backend at `now_us`; `None` for an index that is not configured.
    pub fn backend(&self, index: u16, now_us: u64) -> Option<BackendView> {
        let &(service, backend) = self.positions.get(&index)?;
        self.services.get(service)?.view(backend, now_us)
    }
}

/// Operators' words about backends that are no longer there.
fn removed<'a>(
    learned: &'a Learned,
    services: &[Service],
) -> impl Iterator<Item = EndedOverride> + 'a {
    let configured: BTreeSet<String> = services
        .iter()
        .flat_map(Service::learned)
        .map(|(identity, _)| String::from(identity))
        .collect();
    learned
        .backends
        .iter()
        .filter(move |(identity, known)| {
            !known.overrides.is_empty() && !configured.contains(*identity)
        })
        .map(|(identity, known)| EndedOverride::Removed {
            identity: identity.clone(),
            overrides: known.overrides,
        })
}
