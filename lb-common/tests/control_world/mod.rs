//! The maps as the engine sees them: counters that a test moves, and commands
//! carried out.

use std::collections::BTreeMap;

use lb_common::abi::{Live, Report};
use lb_common::control::{Budget, Command, Engine, Event, Sample};

/// What the packet path has of one backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    pub(crate) report: Report,
    pub(crate) live: Live,
    pub(crate) weight: u32,
    pub(crate) up: bool,
    pub(crate) relative: u32,
    pub(crate) budget: Budget,
    pub(crate) expires_us: u64,
}

impl Maps {
    /// A flow enters and passes the handshake.
    pub(crate) fn open(&mut self) {
        self.live.half_opened += 1;
        self.live.half_closed += 1;
        self.live.opened += 1;
    }

    /// An open short flow ends after `us`.
    pub(crate) fn close(&mut self, us: u64) {
        self.live.closed += 1;
        self.report.short.count += 1;
        self.report.short.total_us += us;
        self.report.histogram[(us.max(1).ilog2() as usize).min(31)] += 1;
    }

    /// A flow whose SYN the server answers by a reset.
    pub(crate) fn reset(&mut self) {
        self.live.half_opened += 1;
        self.live.half_closed += 1;
        self.live.resets += 1;
        self.report.short.failures += 1;
    }

    pub(crate) fn failures(&self) -> u64 {
        self.live.resets + self.live.syn_timeouts
    }
}

/// An engine and the maps that it works on.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) maps: BTreeMap<u16, Maps>,
}

impl World {
    /// Carries out the engine's first commands.
    pub(crate) fn new(engine: Engine, backends: impl IntoIterator<Item = u16>) -> Self {
        let maps = backends.into_iter().map(|index| (index, Maps::default()));
        let mut world = Self {
            engine,
            maps: maps.collect(),
        };
        world.apply();
        world
    }

    pub(crate) fn backend(&mut self, index: u16) -> &mut Maps {
        self.maps.entry(index).or_default()
    }

    /// Carries out all commands, and returns them.
    pub(crate) fn apply(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        while let Some(command) = self.engine.next_command() {
            match command {
                Command::WriteBackend {
                    backend,
                    weight,
                    up,
                    relative,
                } => {
                    let maps = self.backend(backend);
                    (maps.weight, maps.up, maps.relative) = (weight, up, relative);
                }
                Command::Forgive { backend, total } => self.backend(backend).live.forgiven = total,
                Command::GrantTrial { backend } => self.backend(backend).live.trial = 1,
                Command::WriteBudget {
                    backend,
                    budget,
                    expires_us,
                } => {
                    let maps = self.backend(backend);
                    (maps.budget, maps.expires_us) = (budget, expires_us);
                }
                Command::PublishMembers { .. }
                | Command::Tell { .. }
                | Command::PublishRing { .. }
                | Command::EndFlows { .. }
                | Command::SaveLearned => {}
            }
            commands.push(command);
        }
        commands
    }

    /// Lets the engine's timer fire if it is due.
    pub(crate) fn handle_timeout(&mut self, now_us: u64) -> Vec<Command> {
        self.engine.handle_timeout(now_us);
        self.apply()
    }

    /// The counters of all backends.
    pub(crate) fn read(&self) -> Event {
        let samples = self.maps.iter().map(|(&backend, maps)| Sample {
            backend,
            report: maps.report,
            live: maps.live,
        });
        Event::Sample(samples.collect())
    }

    /// Hands the engine a sample of all backends.
    pub(crate) fn sample(&mut self, now_us: u64) -> Vec<Command> {
        self.engine.handle(self.read(), now_us);
        self.apply()
    }
}
