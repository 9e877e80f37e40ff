//! One virtual service: its report rounds, and what it publishes.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use super::aca::{Aca, Record};
use super::backend::{Backend, Setup};
use super::class::{PerClass, SizeClass};
use super::compose::{Overloaded, State};
use super::config::{Algorithm, Pick, ServiceConfig};
use super::engine::{Command, Sample};
use super::health::HealthParameters;
use super::learned::{Learned, LearnedBackend};
use super::outside::{OutsideRecord, OutsideWord};
use super::overrides::{GivenWeight, Order};
use super::penalty::{HOLD_CLASS, charge_us, charged_average_us, hold_us};
use super::ring::smooth_ring;
use super::slow_start::Ramp;
use crate::abi::RING_SLOTS;

/// SYN timeouts for which a test may go on without a result: its flow has failed
/// or is open after two.
const TEST_TIMEOUTS: u64 = 3;

pub(super) struct Service {
    pub(super) index: u16,
    pub(super) algorithm: Algorithm,
    pub(super) ramp: Ramp,
    pub(super) health: HealthParameters,
    pub(super) interval_us: u64,
    pub(super) syn_timeout_us: u64,
    pub(super) drain_timeout_us: u64,
    pub(super) aca: Aca,
    pub(super) backends: Vec<Backend>,
    /// `None`: no reports.
    pub(super) report_due_us: Option<u64>,
    /// As last published; `None` until the first time.
    pub(super) members: Option<Vec<(u16, u32)>>,
    pub(super) ring: Option<Vec<u16>>,
}

impl Service {
    /// Besides, operators' weights that the configuration ended, by identity.
    pub(super) fn new(
        config: ServiceConfig,
        learned: Option<&Learned>,
        now_us: u64,
    ) -> (Self, Vec<(String, GivenWeight)>) {
        let known = |identity: &str| learned.and_then(|learned| learned.backends.get(identity));
        let next_us = now_us.saturating_add(config.teardown_interval_us);
        let learned_due_us = config
            .backends
            .iter()
            .filter_map(|backend| known(&backend.identity))
            .map(|learned| learned.report_due_us)
            .min();
        let mut health = config.health;
        health.detect.test_us = config.syn_timeout_us.saturating_mul(TEST_TIMEOUTS);
        let setup = Setup {
            health: &health,
            begins: !learned.is_some_and(Learned::knows_service),
            sources: config.outside,
        };
        let mut ended = Vec::new();
        let mut loads: Vec<(bool, Record)> = Vec::new();
        let mut backends = Vec::new();
        for backend in config.backends {
            let learned = known(&backend.identity);
            let load = learned.map_or_else(Record::default, |learned| learned.load);
            let (backend, ended_weight) = Backend::new(backend, learned, &setup, now_us);
            if let Some(weight) = ended_weight {
                ended.push((String::from(backend.identity()), weight));
            }
            loads.push((backend.is_wanted(), load));
            backends.push(backend);
        }
        let service = Self {
            index: config.index,
            algorithm: config.algorithm,
            ramp: config.ramp,
            health,
            interval_us: config.teardown_interval_us,
            syn_timeout_us: config.syn_timeout_us,
            drain_timeout_us: config.drain_timeout_us,
            aca: match config.algorithm {
                Algorithm::Aca { .. } => Aca::new(config.aca, loads, now_us),
                Algorithm::WeightedRoundRobin | Algorithm::WeightedLeastConnections => {
                    Aca::observing(config.aca, loads, now_us)
                }
            },
            // Not past the next one from now: the interval may have become
            // shorter, or the clock may be that of another boot.
            report_due_us: (config.teardown_interval_us > 0)
                .then(|| learned_due_us.map_or(next_us, |due_us| due_us.min(next_us))),
            backends,
            members: None,
            ring: None,
        };
        (service, ended)
    }

    /// Takes an operator's word about a backend.
    pub(super) fn obey(
        &mut self,
        position: usize,
        order: Order,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) {
        let Some(backend) = self.backends.get_mut(position) else {
            return;
        };
        commands.extend(backend.obey(order, now_us));
        self.refresh(now_us, commands);
    }

    /// Takes a word from outside about a backend. True if it changed anything.
    pub(super) fn hear(
        &mut self,
        position: usize,
        word: OutsideWord,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) -> bool {
        let Some(backend) = self.backends.get_mut(position) else {
            return false;
        };
        if !backend.hear(word) {
            return false;
        }
        self.refresh(now_us, commands);
        true
    }

    /// What others have told of a backend.
    pub(super) fn outside(&self, position: usize) -> Option<&OutsideRecord> {
        Some(&self.backends.get(position)?.outside)
    }

    /// Backends that take new flows.
    pub(super) fn taking(&self) -> usize {
        self.list_members().len()
    }

    /// Index into the service maps.
    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// The state of a backend.
    pub(super) fn state(&self, position: usize) -> Option<State> {
        let backend = self.backends.get(position)?;
        Some(backend.composition.cause.state())
    }

    /// Goes on showing what `former`, of an earlier configuration, showed.
    pub(super) fn keep_shown(&mut self, former: &Self) {
        for backend in &mut self.backends {
            let mut former = former.backends.iter();
            if let Some(former) = former.find(|f| f.identity() == backend.identity()) {
                backend.keep_shown(former);
            }
        }
    }

    /// Index and position of every backend.
    pub(super) fn positions(&self) -> impl Iterator<Item = (u16, usize)> + '_ {
        self.backends
            .iter()
            .enumerate()
            .map(|(position, backend)| (backend.index, position))
    }

    /// Identity and learned state of every backend.
    pub(super) fn learned(&self) -> impl Iterator<Item = (&str, LearnedBackend)> + '_ {
        let report_due_us = self.report_due_us.unwrap_or(0);
        self.backends
            .iter()
            .enumerate()
            .map(move |(position, backend)| {
                let learned = backend.learned(self.aca.record(position), report_due_us);
                (backend.identity(), learned)
            })
    }

    /// Takes a sample of a backend. True if that taught anything that a
    /// restart must know of.
    pub(super) fn observe(
        &mut self,
        position: usize,
        sample: &Sample,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) -> bool {
        let Some(backend) = self.backends.get_mut(position) else {
            return false;
        };
        // What failed before goes before what succeeded since.
        let untold = backend.untold(sample);
        let out = self.judge_untold(position, untold, now_us, commands);
        let hold_us = hold_us(
            self.syn_timeout_us,
            self.aca.best_us(HOLD_CLASS),
            self.aca.parameters().ageout_us,
        );
        let seen = self.backends[position].observe(sample, hold_us, now_us);
        if seen.tested {
            self.refresh(now_us, commands);
        }
        out || seen.learned || seen.tested
    }

    /// Runs the report round if it is due and any backend was sampled since
    /// the last: then tells whether there was anything to learn.
    pub(super) fn report(&mut self, now_us: u64, commands: &mut VecDeque<Command>) -> Option<bool> {
        let due_us = self.report_due_us.filter(|&due_us| due_us <= now_us)?;
        if !self.backends.iter().any(Backend::fresh) {
            return None;
        }
        // On the grid of the first, so that late samples do not add up.
        let missed = (now_us - due_us) / self.interval_us;
        let elapsed_us = (missed + 1).saturating_mul(self.interval_us);
        self.report_due_us = Some(due_us.saturating_add(elapsed_us));

        // All backends are charged by the best average before this round.
        let charges =
            PerClass::from_fn(|class| charge_us(self.syn_timeout_us, self.aca.best_us(class)));
        let mut learned = false;
        let mut idle = Vec::new();
        for (position, backend) in self.backends.iter_mut().enumerate() {
            let Some(round) = backend.take_round() else {
                continue;
            };
            for class in SizeClass::ALL {
                let flows = round.classes.get(class);
                let charge_us = charges.get(class);
                let average =
                    charged_average_us(flows.count, flows.total_us, flows.failures, charge_us);
                if let Some(average_us) = average {
                    self.aca.report(position, class, average_us, now_us);
                }
            }
            if round.idle {
                idle.push(position);
            } else {
                learned = true;
            }
        }
        self.aca.recompute(now_us);
        self.publish(now_us, commands);
        if matches!(self.algorithm, Algorithm::Aca { .. }) {
            let grants = idle
                .into_iter()
                .filter_map(|position| self.backends.get_mut(position)?.grant_trial());
            commands.extend(grants);
        }
        Some(learned)
    }

    /// Timers: holds, outages, ramps, time out of rotation, age of data. True if
    /// any fired.
    pub(super) fn handle_timeout(&mut self, now_us: u64, commands: &mut VecDeque<Command>) -> bool {
        let mut changed = false;
        for command in self.backends.iter_mut().filter_map(|b| b.forgive(now_us)) {
            commands.push_back(command);
            changed = true;
        }
        let timeout_us = self.drain_timeout_us;
        let backends = self.backends.iter_mut();
        commands.extend(backends.filter_map(|b| b.end_drained(timeout_us, now_us)));
        let returned = self.end_outages(now_us, commands);
        let settled = self.settles(now_us);
        if self.aca.expire(now_us) || returned || settled {
            self.refresh(now_us, commands);
            changed = true;
        }
        changed
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        self.backends
            .iter()
            .flat_map(|backend| {
                [
                    backend.poll_timeout(),
                    backend.pending_deadline_us(self.drain_timeout_us),
                    backend.health.poll_timeout(&self.health),
                    backend.standing.settles_us(&self.ramp),
                ]
            })
            .flatten()
            .chain(self.aca.poll_timeout())
            .min()
    }

    /// Weighs everything anew, after a change of what keeps a backend away.
    pub(super) fn refresh(&mut self, now_us: u64, commands: &mut VecDeque<Command>) {
        let last_resort = self.is_last_resort();
        for (position, backend) in self.backends.iter().enumerate() {
            let active = backend.is_wanted() && (last_resort || !backend.is_ejected());
            self.aca.set_active(position, active);
        }
        self.aca.recompute(now_us);
        self.publish(now_us, commands);
    }

    /// Whether failures would leave nobody: then they keep nobody out.
    fn is_last_resort(&self) -> bool {
        let mut wanted = self.backends.iter().filter(|backend| backend.is_wanted());
        wanted.all(Backend::is_ejected)
    }

    /// Emits whatever the packet path does not have yet: backends before the
    /// lists that name them.
    pub(super) fn publish(&mut self, now_us: u64, commands: &mut VecDeque<Command>) {
        let threshold = self.aca.parameters().load_threshold;
        let (overloaded, ejected) = (self.aca.last_resort(), self.is_last_resort());
        let has_good = self
            .backends
            .iter()
            .any(|backend| backend.is_wanted() && backend.outside.is_good());
        for (position, backend) in self.backends.iter_mut().enumerate() {
            let overload = self.aca.record(position).overload;
            let overload = overload.map(|overload| Overloaded {
                load: overload.load,
                threshold,
                last_resort: overloaded,
            });
            backend.compose(overload, ejected, has_good);
        }
        self.stand(now_us);
        for position in 0..self.backends.len() {
            let relative = match self.algorithm {
                Algorithm::Aca { .. } => Some(self.aca.selection(position).relative),
                Algorithm::WeightedRoundRobin | Algorithm::WeightedLeastConnections => None,
            };
            let warming = self.is_warming(position);
            commands.extend(self.backends[position].conclude(warming, relative));
        }

        let members = self.list_members();
        if self.members.as_ref() != Some(&members) {
            commands.push_back(Command::PublishMembers {
                service: self.index,
                members: members.clone(),
            });
            self.members = Some(members);
        }
        if self.is_ring() {
            let ring = self.lay_ring();
            if self.ring.as_ref() != Some(&ring) {
                commands.push_back(Command::PublishRing {
                    service: self.index,
                    slots: ring.clone(),
                });
                self.ring = Some(ring);
            }
        }
    }

    fn is_ring(&self) -> bool {
        match self.algorithm {
            Algorithm::Aca { pick: Pick::Shares } => true,
            Algorithm::Aca {
                pick: Pick::Connections,
            }
            | Algorithm::WeightedRoundRobin
            | Algorithm::WeightedLeastConnections => false,
        }
    }

    fn list_members(&self) -> Vec<(u16, u32)> {
        self.backends
            .iter()
            .filter(|backend| backend.composition.up && backend.composition.weight > 0)
            .map(|backend| (backend.index, backend.composition.weight))
            .collect()
    }

    fn lay_ring(&self) -> Vec<u16> {
        let weights: Vec<u32> = self
            .backends
            .iter()
            .map(|backend| backend.composition.weight)
            .collect();
        let shares = self.aca.share_weights(&weights);
        let indexed: Vec<(u16, u32)> = self
            .backends
            .iter()
            .map(|backend| backend.index)
            .zip(shares)
            .collect();
        smooth_ring(&indexed, RING_SLOTS as usize)
    }
}
