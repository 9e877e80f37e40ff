//! What the loop notices beside its work: changed states, flows that it ended,
//! removed backends that are gone, hooks that were lost.

use super::{Daemon, clock, journal::Happening};
use crate::{
    dataplane::{Pass, decode_name},
    status,
};
use anyhow::Result;
use lb_common::{abi::backend_flags, control::Notice};
use std::collections::BTreeMap;

/// Names of service and backend, by backend index.
pub(super) type Names = BTreeMap<u32, (String, String)>;

impl Daemon {
    /// The names of backends, removed ones included, as the maps have them.
    pub(super) fn names_of(&self, backends: impl Iterator<Item = u32>) -> Names {
        backends
            .map(|index| {
                let service = self.maps.backends.read(index).service;
                let service = decode_name(&self.maps.service_names.read(service.into()));
                (
                    index,
                    (service, decode_name(&self.maps.backend_names.read(index))),
                )
            })
            .collect()
    }

    /// Tells of every backend whose state is not what was last told. The first
    /// state of a backend is no news. True if there was any.
    pub(super) fn note_states(&mut self) -> bool {
        let mut changed = false;
        for place in self.placed.iter().flat_map(|placed| &placed.backends) {
            let Ok(index) = u16::try_from(*place) else {
                continue;
            };
            let Some(state) = self.engine.state(index) else {
                continue;
            };
            let Some(former) = self
                .states
                .insert(index, state)
                .filter(|from| *from != state)
            else {
                continue;
            };
            changed = true;
            let Some(view) = self.engine.backend(index, clock::micros()) else {
                continue;
            };
            let live = self.maps.live.read(*place);
            for (service, backend) in self.names_of([*place].into_iter()).into_values() {
                self.journal.record(&Happening::State {
                    service,
                    backend,
                    from: former.as_str(),
                    to: state.as_str(),
                    reason: view.reason.clone(),
                    effective_weight: view.effective_weight,
                    load: view.load.average,
                    active_flows: status::active(&live),
                    half_open: status::half_open(&live),
                });
            }
        }
        changed
    }

    /// Tells what the engine has to say besides changes of state.
    pub(super) fn tell(&mut self, backend: u16, notice: Notice) {
        let index = u32::from(backend);
        for (service, backend) in self.names_of([index].into_iter()).into_values() {
            self.journal.record(&match notice {
                Notice::InbandThreshold {
                    failures,
                    reset_time_us,
                } => Happening::InbandThreshold {
                    service,
                    backend,
                    failures,
                    reset_time_ms: reset_time_us / 1_000,
                },
                Notice::Guarded(guard) => Happening::Guarded {
                    service,
                    backend,
                    guard: guard.as_str(),
                    reason: guard.to_string(),
                },
            });
        }
    }

    /// Lets the sweep end a backend's flows from now on, or no longer.
    pub(super) fn end_flows(&mut self, backend: u16, end: bool) {
        let index = u32::from(backend);
        let begins = end && !self.sweeper.ending().any(|ending| ending == index);
        self.sweeper.end_flows(index, end);
        if !begins {
            return;
        }
        let live = self.maps.live.read(index);
        let flows = status::active(&live) + status::half_open(&live);
        if flows == 0 {
            return;
        }
        let reset = self.maps.backends.read(index).flags & backend_flags::RESET_FLOWS != 0;
        for (service, backend) in self.names_of([index].into_iter()).into_values() {
            self.journal.record(&Happening::DrainDeadline {
                service,
                backend,
                flows,
                reset,
            });
        }
    }

    /// Ends the flows of removed backends that have had their time.
    pub(super) fn end_retired(&mut self) {
        let due: Vec<u32> = self.retired.due(clock::micros()).collect();
        for index in due {
            if let Ok(backend) = u16::try_from(index) {
                self.end_flows(backend, true);
            }
        }
    }

    /// A removed backend's index is free for another one.
    pub(super) fn forget_retired(&mut self, index: u32, names: &Names) {
        self.sweeper.end_flows(index, false);
        if self.retired.forget(index)
            && let Some((service, backend)) = names.get(&index).cloned()
        {
            self.journal
                .record(&Happening::Forgotten { service, backend });
        }
    }

    pub(super) fn note_ended_flows(&mut self, pass: &Pass) {
        self.ended_flows += pass.ended.values().sum::<u64>();
        for (index, (service, backend)) in self.names_of(pass.ended.keys().copied()) {
            let flows = pass.ended.get(&index).copied().unwrap_or(0);
            self.journal.record(&Happening::FlowsEnded {
                service,
                backend,
                flows,
            });
        }
    }

    /// Looks whether every interface still runs our program, and attaches it
    /// again where the hook is free.
    pub(super) async fn watch_hooks(&mut self) -> Result<()> {
        let program = self.loaded.program_id()?;
        let links = self.network.links().await?;
        let (news, free) = self.watchdog.look(&links, program);
        for happening in &news {
            self.journal.record(happening);
        }
        if self.config.data_plane.reattach {
            for link in free {
                self.attach_again(link, &links, program).await;
            }
        }
        Ok(())
    }
}
