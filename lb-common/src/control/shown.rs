//! What people are shown of a service's backends.

use super::backend::Backend;
use super::class::PerClass;
use super::config::{Algorithm, Pick};
use super::health::Ill;
use super::histogram::percentile_us;
use super::service::Service;
use super::slow_start::SECOND_US;
use super::view::{BackendView, Change, FailureTotals, LoadView, Next, SlowStartView};

impl Service {
    pub(super) fn view(&self, position: usize, now_us: u64) -> Option<BackendView> {
        let backend = self.backends.get(position)?;
        let load = self.aca.load(position);
        let averages = self.aca.record(position).averages;
        let written = backend.written;
        Some(BackendView {
            state: backend.composition.cause.state(),
            reason: backend.composition.cause.reason_with(&backend.outside),
            outside: backend.outside.clone(),
            configured_weight: backend.weight,
            effective_weight: backend.composition.weight,
            overrides: backend.overrides,
            deadline_us: backend.deadline_us(self.drain_timeout_us),
            load: LoadView {
                short: load.classes.short,
                long: load.classes.long,
                average: load.average,
            },
            average_us: PerClass::from_fn(|class| averages.get(class).map(|a| a.average_us)),
            relative: written.map_or(load.relative, |written| written.relative),
            share: self.share(backend),
            p50_us: percentile_us(&backend.histogram, 50),
            p99_us: percentile_us(&backend.histogram, 99),
            failures: FailureTotals {
                resets: backend.current.resets,
                syn_timeouts: backend.current.syn_timeouts,
            },
            slow_start: self.slow_start(position, now_us),
            guards: backend.health.guards(),
            consecutive: backend.health.towards_detection(),
            next: self.next(position, now_us),
        })
    }

    fn slow_start(&self, position: usize, now_us: u64) -> Option<SlowStartView> {
        if !self.is_warming(position) {
            return None;
        }
        let backend = self.backends.get(position)?;
        // Its end may be due and not yet acted on.
        let standing = backend.standing.advanced(&self.ramp, now_us);
        let limits = standing.limits(&self.ramp, now_us);
        let written = backend.budgeting.written();
        Some(SlowStartView {
            second: standing.second(now_us)?,
            seconds: self.ramp.seconds(),
            rate: limits.map(|limits| limits.rate),
            ceiling: written.ceiling,
            dummies: written.dummies,
        })
    }

    /// What time alone changes next.
    fn next(&self, position: usize, now_us: u64) -> Option<Next> {
        let backend = self.backends.get(position)?;
        let test = match backend.health.ill() {
            Some(Ill::Testing) => Change::NextTest,
            Some(Ill::Inband(_) | Ill::Failed(..) | Ill::ReadyToTest) | None => Change::Test,
        };
        let overloaded = self.aca.record(position).overload.is_some();
        let aged = if overloaded {
            Change::Return
        } else {
            Change::Forget
        };
        let warming = self.is_warming(position);
        let rate_us = warming
            .then(|| self.next_rate_us(backend, now_us))
            .flatten();
        let changes = [
            (backend.health.poll_timeout(&self.health), test),
            (self.aca.timeout_of(position), aged),
            (
                backend.pending_deadline_us(self.drain_timeout_us),
                Change::EndFlows,
            ),
            (rate_us, Change::Rate),
            (backend.standing.settles_us(&self.ramp), Change::RampEnd),
            (backend.poll_timeout(), Change::Forgive),
            (self.report_due_us, Change::Report),
        ];
        let due = changes
            .into_iter()
            .filter_map(|(at_us, change)| Some((at_us?, change)));
        // What is overdue comes with the next sample.
        due.min().map(|(at_us, change)| Next {
            at_us: at_us.max(now_us),
            change,
        })
    }

    /// When the ramp's next rate begins.
    fn next_rate_us(&self, backend: &Backend, now_us: u64) -> Option<u64> {
        let at_us = backend.standing.entered_us()?;
        let second = backend.standing.second(now_us)?;
        let turn = self.ramp.turn_after(second)?;
        Some(at_us.saturating_add((turn - 1).saturating_mul(SECOND_US)))
    }

    fn share(&self, backend: &Backend) -> f64 {
        let (part, whole) = match self.algorithm {
            Algorithm::WeightedRoundRobin => {
                let members = self.members.as_deref().unwrap_or_default();
                let weight_of = |&(_, weight): &(u16, u32)| u64::from(weight);
                let own = members.iter().find(|&&(index, _)| index == backend.index);
                (
                    own.map_or(0, weight_of),
                    members.iter().map(weight_of).sum::<u64>(),
                )
            }
            Algorithm::Aca { pick: Pick::Shares } => {
                let ring = self.ring.as_deref().unwrap_or_default();
                let own = ring.iter().filter(|&&index| index == backend.index);
                (own.count() as u64, ring.len() as u64)
            }
            Algorithm::WeightedLeastConnections
            | Algorithm::Aca {
                pick: Pick::Connections,
            } => (
                backend.new_flows,
                self.backends.iter().map(|b| b.new_flows).sum(),
            ),
        };
        if whole == 0 {
            0.0
        } else {
            part as f64 / whole as f64
        }
    }
}
