//! `reload`: the file is read again, and what differs is applied whole or not
//! at all.
//!
//! 1. A file with any mistake is refused, as is one that changes what only a
//!    restart can: nothing was touched.
//! 2. Room for indices and lists is counted, and new addresses are put on their
//!    interfaces: still nothing that a packet could notice.
//! 3. Entries of new backends are written and their next hops resolved. Then a
//!    new engine, which goes on with what the old one has learned, publishes
//!    weights and lists; then the services' keys lead to them; then what is no
//!    longer wanted takes no new flows. At every moment each packet meets either
//!    the old or the new configuration of its service.
//! 4. What was removed keeps its flows until they end, or until `drain_timeout`.
//!
//! Should the kernel refuse something in step 3 all the same, the former
//! configuration is applied again by the same steps.

use super::{
    Daemon, Desired, RESOLVE, clock,
    diff::{self, Diff},
    journal::Happening,
    outside, prepare,
    protocol::{Refusal, Response},
};
use crate::{
    config::{Algorithm, Config, LoadError, Pick, Warning},
    dataplane::{Books, Present},
};
use anyhow::{Context as _, Result};
use lb_common::{
    abi::name_state,
    control::{EndedOverride, GivenWeight},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Drain timeout of a backend whose service was removed, too, before this
/// daemon started: the default of the configuration.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Why nothing was reloaded.
enum Refused {
    /// The file is at fault.
    File(Refusal),
    /// The machine is.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn refusal(error: LoadError) -> Refusal {
    let message = error.to_string();
    let mistakes = match error {
        LoadError::Mistakes(mistakes) => serde_json::to_value(mistakes).ok(),
        LoadError::Unreadable { .. } | LoadError::NotText { .. } => None,
    };
    Refusal { message, mistakes }
}

impl Daemon {
    /// Reads the file again. The answer says what changed, or why nothing did.
    pub(super) async fn reload(&mut self) -> Response {
        match self.try_reload().await {
            Ok(answer) => Response::ok(answer),
            Err(Refused::File(refusal)) => {
                self.refused(&refusal.message);
                Response::refused(refusal)
            }
            Err(Refused::Failed(error)) => {
                self.refused(&format!("{error:#}"));
                Response::result(Err(error))
            }
        }
    }

    fn refused(&mut self, reason: &str) {
        // Mistakes are a line each; an event is one.
        let reason = reason.lines().collect::<Vec<_>>().join("; ");
        self.journal.record(&Happening::ReloadRefused { reason });
        self.changed();
    }

    async fn try_reload(&mut self) -> Result<Value, Refused> {
        let loaded = Config::load(&self.file);
        let (config, warnings) = loaded.map_err(|error| Refused::File(refusal(error)))?;
        let fixed = diff::fixed(&self.config, &config);
        if !fixed.is_empty() {
            return Err(Refused::File(Refusal::from(format!(
                "{} cannot change while the daemon runs; restart it (connections go on), or put \
                 the former value back",
                fixed.join(", ")
            ))));
        }
        let diff = diff::diff(&self.config, &config);
        if diff.is_empty() {
            return Ok(self.answer(&diff, &warnings, Vec::new()));
        }
        self.check_room(&config)
            .map_err(|message| Refused::File(message.into()))?;
        let timeouts = self.drain_timeouts();
        let placed = self.network.place_addresses(&config).await?;
        match self.apply(&config).await {
            Ok(()) => {}
            Err(error) => {
                let former = self.config.clone();
                let restored = self.apply(&former).await;
                self.note_ended();
                self.network.take_back(placed).await;
                restored.context("and the former configuration could not be put back: restart")?;
                return Err(Refused::Failed(
                    error.context("the former configuration is in force"),
                ));
            }
        }
        self.network.announce_placed(placed);
        self.config = config;
        let ended = self.note_ended();
        self.update_retired(&timeouts, &BTreeMap::new());
        // Indices are free only after a pass that began after they were retired.
        self.pass_is_late = true;
        self.journal.record(&Happening::Reloaded {
            added: diff.added.clone(),
            removed: diff.removed.clone(),
            changed: diff.changed.len(),
        });
        self.save();
        self.note_states();
        self.changed();
        if let Err(error) = self.network.withdraw_unused(&self.config, &self.maps).await {
            tracing::warn!("{error:#}; trying again");
        }
        Ok(self.answer(&diff, &warnings, ended))
    }

    fn answer(&self, diff: &Diff, warnings: &[Warning], ended: Vec<String>) -> Value {
        json!({
            "file": self.file.display().to_string(),
            "added": diff.added,
            "removed": diff.removed,
            "changed": diff.changed,
            "ended_overrides": ended,
            "warnings": warnings,
        })
    }

    fn check_room(&self, config: &Config) -> Result<(), String> {
        Present::read(&self.maps).room_for(&prepare::wanted(config))?;
        let lists: Vec<u32> = config
            .services
            .iter()
            .map(|service| service.backends.len() as u32)
            .collect();
        let shares = |service: &&crate::config::Service| {
            service.algorithm == Algorithm::Aca
                && service.aca.pick == Pick::Shares
                && !self.config.services.contains(service)
        };
        let rings = config.services.iter().filter(shares).count();
        if self.publisher.has_room(&lists, rings) {
            return Ok(());
        }
        Err(
            "the selection tables have no room for old and new lists at once; reload again in a \
             second, or change fewer services with pick = \"shares\" at a time"
                .into(),
        )
    }

    /// Steps 3 and 4 of the module's documentation.
    async fn apply(&mut self, config: &Config) -> Result<()> {
        let mut books = Books::new();
        let placed = prepare::place(config, &mut self.maps, &mut books)?;
        prepare::write_filter(&self.maps);
        let backends: Vec<u32> = placed.iter().flat_map(|p| p.backends.clone()).collect();
        // Those steered already may be unreachable: nothing new to wait for.
        let is_new = |index: &u32| {
            !u16::try_from(*index).is_ok_and(|index| self.desired.contains_key(&index))
        };
        let new: Vec<u32> = backends.iter().copied().filter(is_new).collect();
        self.network.reach(&mut self.maps, &new, RESOLVE).await?;

        // The latest counters, so that nothing between them and now is lost.
        self.sample()?;
        self.carry_out()?;
        let engine = prepare::engine_config(config, &placed)?;
        self.engine = self.engine.reconfigured(engine, clock::micros());
        self.placed = placed;
        for backend in &backends {
            // The new engine says again whose flows are to end.
            self.sweeper.end_flows(*backend, false);
        }
        self.forget_undesired(&backends);
        self.sample()?;
        self.carry_out()?;

        prepare::switch(config, &mut self.maps, &books, &self.placed)?;
        self.books = books;
        self.outside = outside::start(config, &self.placed, &self.engine)?;
        Ok(())
    }

    /// Leaves entries alone that the engine no longer steers.
    fn forget_undesired(&mut self, backends: &[u32]) {
        self.desired
            .retain(|index, _: &mut Desired| backends.contains(&u32::from(*index)));
        self.states
            .retain(|index, _| backends.contains(&u32::from(*index)));
    }

    /// Tells of operators' words that the configuration ended.
    pub(super) fn note_ended(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        for ended in self.engine.take_ended() {
            let (identity, reason) = explain(ended);
            said.push(format!("{identity}: {reason}"));
            self.journal
                .record(&Happening::OverrideEnded { identity, reason });
        }
        said
    }

    /// The services' drain timeouts by index.
    pub(super) fn drain_timeouts(&self) -> BTreeMap<u32, Duration> {
        let services = self.config.services.iter().zip(&self.placed);
        services
            .map(|(service, placed)| (placed.index, service.drain_timeout))
            .collect()
    }

    /// Takes note of all backends that are removed and have flows.
    pub(super) fn update_retired(
        &mut self,
        timeouts: &BTreeMap<u32, Duration>,
        saved: &BTreeMap<u32, u64>,
    ) {
        let retired: Vec<(u32, Duration)> = (1..self.maps.backend_names.len())
            .filter(|index| self.maps.backend_names.read(*index).state == name_state::RETIRED)
            .map(|index| {
                let service = u32::from(self.maps.backends.read(index).service);
                (
                    index,
                    timeouts.get(&service).copied().unwrap_or(DRAIN_TIMEOUT),
                )
            })
            .collect();
        self.retired.update(retired, saved, clock::micros());
    }
}

fn explain(ended: EndedOverride) -> (String, String) {
    match ended {
        EndedOverride::WeightChanged {
            identity,
            given: GivenWeight {
                weight, configured, ..
            },
        } => {
            let reason = format!(
                "the operator's weight {weight} has ended: the file's weight, {configured} when it \
                 was given, has changed"
            );
            (identity, reason)
        }
        EndedOverride::Removed {
            identity,
            overrides,
        } => {
            let mut what = Vec::new();
            if let Some(gated) = overrides.gate {
                what.push(gated.gate.as_str().to_owned());
            }
            if let Some(given) = overrides.weight {
                what.push(format!("weight {}", given.weight));
            }
            let reason = format!(
                "the operator's {} has ended: the backend is not in the file any more",
                what.join(" and ")
            );
            (identity, reason)
        }
    }
}
