//! The operator's verbs about one backend.

use super::{
    Daemon, clock,
    journal::Happening,
    protocol::{Refusal, Response},
};
use crate::{config::Config, status};
use anyhow::{Context as _, Result};
use lb_common::control::{Event, Gate, Order};
use serde_json::{Value, json};

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

fn no_service(config: &Config, service: &str) -> Refusal {
    Refusal::from(format!(
        "no service `{service}` is configured; there is: {}",
        names(config.services.iter().map(|known| &known.name[..]))
    ))
}

/// A backend's place: of its service and of itself, in file order.
fn find(config: &Config, service: &str, backend: &str) -> Result<(usize, usize), Refusal> {
    let Some(at) = config
        .services
        .iter()
        .position(|known| known.name == service)
    else {
        return Err(no_service(config, service));
    };
    let backends = &config.services[at].backends;
    match backends.iter().position(|known| known.name == backend) {
        Some(place) => Ok((at, place)),
        None => Err(Refusal::from(format!(
            "service `{service}` has no backend `{backend}`; it has: {}",
            names(backends.iter().map(|known| &known.name[..]))
        ))),
    }
}

/// The verb of an order, and the weight that `weight` gives.
fn spoken(order: Order) -> (&'static str, Option<u32>) {
    match order {
        Order::Drain => ("drain", None),
        Order::Disable => ("disable", None),
        Order::Enable => ("enable", None),
        Order::Weight(weight) => ("weight", Some(weight)),
        Order::DefaultWeight => ("weight", None),
    }
}

impl Daemon {
    /// Carries an order out, and says what has become of the backend.
    pub(super) fn order(&mut self, service: &str, backend: &str, order: Order) -> Response {
        match find(&self.config, service, backend) {
            Ok(place) => Response::result(self.obey(place, order)),
            Err(refusal) => Response::refused(refusal),
        }
    }

    /// Why the backends of a service are what they are.
    pub(super) fn explain(&self, service: &str) -> Response {
        let services = &self.config.services;
        let Some(at) = services.iter().position(|known| known.name == service) else {
            return Response::refused(no_service(&self.config, service));
        };
        let places = &self.placed[at].backends;
        let explanation = status::explain(&services[at], places, &self.engine, clock::micros());
        Response::result(explanation.and_then(|explanation| Ok(serde_json::to_value(explanation)?)))
    }

    fn obey(&mut self, (service, backend): (usize, usize), order: Order) -> Result<Value> {
        let placed = &self.placed[service];
        let (service_index, index) = (placed.index, placed.backends[backend]);
        let index = u16::try_from(index)?;
        let before = self
            .engine
            .backend(index, clock::micros())
            .context("not steered")?;
        let now = clock::micros();
        self.engine.handle(
            Event::Operator {
                backend: index,
                order,
            },
            now,
        );
        self.carry_out()?;
        // The answer tells a drained backend from one that still has flows, so
        // it must not rest on counts from before the order.
        self.sample()?;
        self.carry_out()?;
        let view = self
            .engine
            .backend(index, clock::micros())
            .context("not steered")?;
        let changed = before.overrides != view.overrides;
        let live = self.maps.live.read(index.into());
        let (active_flows, half_open) = (status::active(&live), status::half_open(&live));
        let (verb, weight) = spoken(order);
        let config = &self.config.services[service];
        let names = (config.name.clone(), config.backends[backend].name.clone());
        if changed {
            self.journal.record(&Happening::Override {
                service: names.0.clone(),
                backend: names.1.clone(),
                verb,
                weight,
                active_flows,
                half_open,
            });
        }
        self.note_states();
        self.changed();

        let mut warnings = Vec::new();
        if self.engine.taking(u16::try_from(service_index)?) == 0 {
            warnings.push(format!(
                "no backend of `{}` takes new connections now: they are dropped until one does",
                names.0
            ));
        }
        let gate = view.overrides.gate.map(|gated| gated.gate);
        match (order, gate) {
            (Order::Weight(_) | Order::DefaultWeight, Some(gate)) => {
                let state = match gate {
                    Gate::Drain => "drained",
                    Gate::Disable => "disabled",
                };
                warnings.push(format!("it is {state}: the weight acts once it is enabled"));
            }
            (Order::Enable, None) if view.effective_weight == 0 => {
                warnings.push("its weight is 0: it takes no new connections".into());
            }
            _ => {}
        }
        if self.save_failed {
            warnings.push(
                "it could not be saved and would not survive a restart; see the daemon's log"
                    .into(),
            );
        }
        Ok(json!({
            "service": names.0,
            "backend": names.1,
            "verb": verb,
            "changed": changed,
            "state": view.state.as_str(),
            "reason": view.reason,
            "weight": view.configured_weight,
            "effective_weight": view.effective_weight,
            "active_flows": active_flows,
            "half_open": half_open,
            "override": status::Override::of(&view, now),
            "warnings": warnings,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn backends_are_found_by_name() {
        let text = "[data_plane]\ninterfaces = [\"e\"]\n\
                    [[service]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\n\
                    [[service.backend]]\nname = \"w 1\"\naddress = \"10.0.0.1\"\n\
                    [[service.backend]]\nname = \"w2\"\naddress = \"10.0.0.2\"\n\
                    [[service]]\nname = \"dark\"\naddress = \"192.0.2.1\"\nport = 81\n";
        let (config, _) = Config::parse(text, Path::new("a.toml")).unwrap();
        let rows = [
            ("web", "w 1", Ok((0, 0))),
            ("web", "w2", Ok((0, 1))),
            ("web", "w3", Err("it has: w 1, w2")),
            ("dark", "w2", Err("it has: none")),
            ("Web", "w2", Err("there is: web, dark")),
        ];
        for (service, backend, expected) in rows {
            match (find(&config, service, backend), expected) {
                (Ok(place), Ok(expected)) => assert_eq!(place, expected),
                (Err(refusal), Err(part)) => {
                    assert!(refusal.message.contains(part), "{}", refusal.message);
                }
                (got, _) => panic!("{service}/{backend}: {got:?}"),
            }
        }
    }
}
