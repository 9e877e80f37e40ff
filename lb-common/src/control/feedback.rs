//! A service's part in health and slow start: who is judged, who is limited.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::config::Algorithm;
use super::engine::{Command, Notice};
use super::guard::{self, Guard, Peer};
use super::health::{Ejector, Failure, FailureKind};
use super::service::Service;
use super::slow_start::dummies_at_entry;

/// Untold failures of one sample that are judged one by one; more than a
/// threshold of in-band health that makes sense.
const MOST_UNTOLD: u64 = 100_000;

impl Service {
    /// Takes a failure that an event told of. True if it took the backend out.
    pub(super) fn told(
        &mut self,
        position: usize,
        failure: &Failure,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) -> bool {
        let counted = match failure.kind {
            FailureKind::Reset | FailureKind::SynTimeout => true,
            // Not among the failures of a sample.
            FailureKind::Unreachable(_) => false,
        };
        if counted && let Some(backend) = self.backends.get_mut(position) {
            backend.told();
        }
        let timers = self.backends.get(position).map(|backend| &backend.health);
        let due_us = timers.and_then(|health| health.poll_timeout(&self.health));
        if due_us.is_some_and(|due_us| due_us <= now_us) {
            // A return that is due goes first: it is by a test.
            self.end_outages(now_us, commands);
        }
        self.judge(position, failure, now_us, commands)
    }

    /// Takes failures of which only the number is known. True if they took the
    /// backend out.
    pub(super) fn judge_untold(
        &mut self,
        position: usize,
        untold: u64,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) -> bool {
        let Some(backend) = self.backends.get(position) else {
            return false;
        };
        let failure = Failure {
            backend: backend.index,
            kind: FailureKind::Reset,
            client: None,
            attempt: 0,
            repeats: 0,
        };
        let mut out = false;
        for _ in 0..untold.min(MOST_UNTOLD) {
            out |= self.judge(position, &failure, now_us, commands);
        }
        out
    }

    fn judge(
        &mut self,
        position: usize,
        failure: &Failure,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) -> bool {
        let parameters = self.health;
        let Some(backend) = self.backends.get_mut(position) else {
            return false;
        };
        let in_rotation = backend.composition.cause.in_service();
        let index = backend.index;
        let judgement = backend
            .health
            .failure(failure, &parameters, in_rotation, now_us);
        if judgement.log {
            commands.push_back(Command::Tell {
                backend: index,
                notice: Notice::InbandThreshold {
                    failures: backend.health.record().inband.counted(),
                    reset_time_us: parameters.inband.reset_time_us,
                },
            });
        }
        let Some(by) = judgement.eject else {
            return false;
        };
        if by != Ejector::Test {
            let peers: Vec<Peer> = self.backends.iter().map(|b| b.peer(now_us)).collect();
            if let Some(guard) = guard::judge(position, &peers, parameters.max_ejected_percent) {
                self.hold(position, guard, now_us, commands);
                return false;
            }
        }
        let mut others = self.backends.iter().enumerate();
        let others_out = others.any(|(other, backend)| other != position && backend.is_ejected());
        let length_us = match by {
            Ejector::Inband => parameters.inband.resume_service_us,
            Ejector::Detect | Ejector::Test => parameters.detect.retry_us,
        };
        // Whoever is out at the same moment gets other bits, which is all that
        // a spread needs.
        let bits = crate::hash::mix(now_us, [index.into(), length_us]) as u32;
        let jitter_us = guard::jitter_us(length_us, others_out, bits);
        if let Some(backend) = self.backends.get_mut(position) {
            backend.health.eject(by, &parameters, jitter_us, now_us);
        }
        self.refresh(now_us, commands);
        true
    }

    /// A guard keeps a backend in service; that is told when it begins.
    fn hold(
        &mut self,
        position: usize,
        guard: Guard,
        now_us: u64,
        commands: &mut VecDeque<Command>,
    ) {
        let Some(backend) = self.backends.get_mut(position) else {
            return;
        };
        let shown = backend.health.guards();
        let known = shown.iter().any(|held| held.as_str() == guard.as_str());
        backend.health.hold(guard, now_us);
        if !known {
            commands.push_back(Command::Tell {
                backend: backend.index,
                notice: Notice::Guarded(guard),
            });
        }
    }

    /// Ends outages that are over. True if any was. Whoever is to be tested
    /// gets the next flow, where the algorithm knows trials.
    pub(super) fn end_outages(&mut self, now_us: u64, commands: &mut VecDeque<Command>) -> bool {
        let mut any = false;
        for position in 0..self.backends.len() {
            if !self.backends[position].health.expire(&self.health, now_us) {
                continue;
            }
            any = true;
            // What it had measured is that it failed.
            self.aca.forget(position);
            self.refresh(now_us, commands);
            if matches!(self.algorithm, Algorithm::Aca { .. }) {
                commands.extend(self.backends[position].grant_trial());
            }
        }
        any
    }

    /// Whether a ramp that was going on has ended.
    pub(super) fn settles(&self, now_us: u64) -> bool {
        self.backends
            .iter()
            .any(|backend| backend.standing.advanced(&self.ramp, now_us) != backend.standing)
    }

    /// Who comes into service, goes on, leaves.
    pub(super) fn stand(&mut self, now_us: u64) {
        let counts = self.algorithm == Algorithm::WeightedLeastConnections;
        for position in 0..self.backends.len() {
            let backend = &self.backends[position];
            let dummies = if counts && backend.enters() {
                let others = self.backends.iter().enumerate();
                let others = others
                    .filter(|(other, peer)| *other != position && peer.takes_flows())
                    .map(|(_, peer)| (peer.live, peer.composition.weight));
                dummies_at_entry(backend.composition.weight, others)
            } else {
                0
            };
            self.backends[position].stand(&self.ramp, dummies, now_us);
        }
    }

    /// Whether somebody past its own ramp takes flows besides a backend. Limits
    /// spare one server at the expense of others (design 4).
    pub(super) fn is_limitable(&self, position: usize) -> bool {
        let mut others = self.backends.iter().enumerate();
        others.any(|(other, backend)| other != position && backend.is_settled())
    }

    /// Whether slow start limits a backend.
    pub(super) fn is_warming(&self, position: usize) -> bool {
        let Some(backend) = self.backends.get(position) else {
            return false;
        };
        backend.standing.entered_us().is_some()
            && backend.takes_flows()
            && backend.composition.cause.in_service()
            && self.is_limitable(position)
    }
}
