//! `explain SERVICE`: per backend the inputs of its weight and state, what they
//! come to, and what changes next.

use crate::config::Service;
use anyhow::{Context as _, Result};
use lb_common::control::{BackendView, Engine, Ramp};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// A service, explained.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Explanation {
    /// Its name.
    pub(crate) service: String,
    /// As configured.
    pub(crate) algorithm: &'static str,
    /// Backends in file order.
    pub(crate) backends: Vec<Explained>,
}

/// A backend, explained.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Explained {
    /// Its name.
    pub(crate) name: String,
    /// As in `status`.
    pub(crate) state: &'static str,
    /// Why.
    pub(crate) reason: String,
    /// What goes in.
    pub(crate) inputs: Inputs,
    /// What comes out.
    pub(crate) result: Outcome,
    /// What time alone changes next; `null`: nothing.
    pub(crate) next: Option<Next>,
    /// The ramp that it is in, by its rates; empty: none.
    pub(crate) ramp: Vec<Band>,
}

/// The five inputs of a backend.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inputs {
    /// Of the file.
    pub(crate) weight: u32,
    /// Weight or gate that an operator gave; `null`: none.
    pub(crate) operator: Option<super::Override>,
    /// The adaptive load.
    pub(crate) load: super::Load,
    /// Response relative to the service's best, 1.0 best or unknown.
    pub(crate) relative: f64,
    /// Slow start; `null`: not limited.
    pub(crate) slow_start: Option<super::SlowStart>,
    /// Failures in a row, and the clients that saw them.
    pub(crate) failures_in_a_row: u32,
    /// See `failures_in_a_row`.
    pub(crate) failing_clients: u32,
    /// Guards that hold, or held within the last minute.
    pub(crate) guards: Vec<super::Guarded>,
}

/// What the packet path is told.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// The weight that it uses.
    pub(crate) effective_weight: u32,
    /// Share of the service's new flows, 0 to 1.
    pub(crate) share: f64,
}

/// A change that time alone brings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Next {
    /// Seconds from now.
    pub(crate) in_seconds: f64,
    /// What.
    pub(crate) change: &'static str,
}

/// Seconds of a ramp with one rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Band {
    /// The first second; the ramp's first is 1.
    pub(crate) from: u64,
    /// The last one.
    pub(crate) to: u64,
    /// New flows in each of them.
    pub(crate) rate: u32,
    /// Concurrent flows in the first of them, before the server's ramp.
    pub(crate) ceiling_from: u32,
    /// The same in the last.
    pub(crate) ceiling_to: u32,
}

/// The bands of a ramp.
fn bands(ramp: &Ramp) -> Vec<Band> {
    let mut bands = Vec::new();
    let mut from = 1;
    while let Some(first) = ramp.limits(from) {
        let to = ramp
            .turn_after(from)
            .map_or(ramp.seconds(), |turn| turn - 1);
        let last = ramp.limits(to).unwrap_or(first);
        bands.push(Band {
            from,
            to,
            rate: first.rate,
            ceiling_from: first.ceiling,
            ceiling_to: last.ceiling,
        });
        from = to + 1;
    }
    bands
}

fn explained(name: &str, ramp: &Ramp, view: BackendView, now_us: u64) -> Explained {
    let operator = super::Override::of(&view, now_us);
    let slow_start = super::slow_start(&view);
    Explained {
        name: name.to_owned(),
        state: view.state.as_str(),
        inputs: Inputs {
            weight: view.configured_weight,
            operator,
            load: super::Load::of(&view),
            relative: f64::from(view.relative) / 256.0,
            failures_in_a_row: view.consecutive.0,
            failing_clients: view.consecutive.1,
            guards: super::guards(&view),
            slow_start: slow_start.clone(),
        },
        result: Outcome {
            effective_weight: view.effective_weight,
            share: view.share,
        },
        next: view.next.map(|next| Next {
            in_seconds: next.at_us.saturating_sub(now_us) as f64 / 1e6,
            change: next.change.as_str(),
        }),
        ramp: slow_start.map_or_else(Vec::new, |_| bands(ramp)),
        reason: view.reason,
    }
}

/// Explains a service whose backends have these indices.
///
/// # Errors
/// A backend that the engine does not steer.
pub(crate) fn explain(
    service: &Service,
    places: &[u32],
    engine: &Engine,
    now_us: u64,
) -> Result<Explanation> {
    let mut backends = Vec::new();
    for (backend, place) in service.backends.iter().zip(places) {
        let view = engine
            .backend(u16::try_from(*place)?, now_us)
            .with_context(|| format!("backend {} is not steered", backend.name))?;
        backends.push(explained(&backend.name, &service.ramp, view, now_us));
    }
    Ok(Explanation {
        service: service.name.clone(),
        algorithm: service.algorithm.as_str(),
        backends,
    })
}

/// The text of an explanation, from the JSON that the daemon answers.
pub fn render_explanation(explanation: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let _ = writeln!(
        out,
        "{}, {}",
        text(&explanation["service"]),
        text(&explanation["algorithm"])
    );
    for backend in list(&explanation["backends"]) {
        let (inputs, result) = (&backend["inputs"], &backend["result"]);
        let _ = writeln!(
            out,
            "\n{}: {}: {}",
            text(&backend["name"]),
            text(&backend["state"]),
            text(&backend["reason"])
        );
        let operator = match &inputs["operator"] {
            Value::Null => "nothing".to_owned(),
            operator => match &operator["weight"] {
                Value::Null => text(&operator["kind"]),
                weight => format!("{} {weight}", text(&operator["kind"])),
            },
        };
        let load = &inputs["load"];
        let slow_start = match &inputs["slow_start"] {
            Value::Null => "no limit".to_owned(),
            ramp => format!(
                "second {}: {} new flows a second, {} at a time",
                text(&ramp["second"]),
                text(&ramp["rate"]),
                text(&ramp["ceiling"])
            ),
        };
        let guards: Vec<String> = list(&inputs["guards"])
            .iter()
            .map(|guard| format!("; {}: {}", text(&guard["guard"]), text(&guard["reason"])))
            .collect();
        let lines = [
            ("weight", text(&inputs["weight"])),
            ("operator", operator),
            (
                "load",
                format!(
                    "{} (short {}, long {}), response {:.2} of the best",
                    text(&load["average"]),
                    text(&load["short"]),
                    text(&load["long"]),
                    inputs["relative"].as_f64().unwrap_or(1.0)
                ),
            ),
            ("slow start", slow_start),
            (
                "health",
                format!(
                    "{} failures in a row, seen by {} clients{}",
                    text(&inputs["failures_in_a_row"]),
                    text(&inputs["failing_clients"]),
                    guards.concat()
                ),
            ),
            (
                "result",
                format!(
                    "weight {}, {:.1} % of new flows",
                    text(&result["effective_weight"]),
                    result["share"].as_f64().unwrap_or(0.0) * 100.0
                ),
            ),
            (
                "next",
                match &backend["next"] {
                    Value::Null => "nothing by itself".to_owned(),
                    next => format!(
                        "in {:.1} s {}",
                        next["in_seconds"].as_f64().unwrap_or(0.0),
                        text(&next["change"])
                    ),
                },
            ),
        ];
        for (key, value) in lines {
            let _ = writeln!(out, "  {key:<10} {value}");
        }
        for band in list(&backend["ramp"]) {
            let _ = writeln!(
                out,
                "    seconds {:>3} to {:>3}: {:>4} new flows a second, {} to {} at a time",
                text(&band["from"]),
                text(&band["to"]),
                text(&band["rate"]),
                text(&band["ceiling_from"]),
                text(&band["ceiling_to"])
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::control::RampList;

    #[test]
    fn bands_of_ramps() {
        let band = |from, to, rate, ceiling_from, ceiling_to| Band {
            from,
            to,
            rate,
            ceiling_from,
            ceiling_to,
        };
        let list = Ramp::List(RampList {
            rate1: 10,
            interval1_s: 30,
            rate2: 20,
            interval2_s: 30,
            maximum: 600,
        });
        for (ramp, expected) in [
            (Ramp::Off, vec![]),
            (
                Ramp::Default,
                vec![
                    band(1, 10, 10, 10, 100),
                    band(11, 20, 20, 120, 300),
                    band(21, 30, 30, 330, 600),
                    band(31, 40, 40, 640, 1_000),
                    band(41, 50, 50, 1_050, 1_500),
                    band(51, 60, 100, 1_600, 2_500),
                ],
            ),
            (
                list,
                vec![band(1, 30, 10, 10, 300), band(31, 60, 20, 320, 600)],
            ),
        ] {
            assert_eq!(bands(&ramp), expected, "{ramp:?}");
        }
    }

    #[test]
    fn an_explanation_for_people() {
        let explanation = serde_json::json!({
            "service": "web", "algorithm": "aca",
            "backends": [{
                "name": "web-1", "state": "warming-up", "reason": "within limits",
                "inputs": {
                    "weight": 8, "operator": { "kind": "weight", "weight": 4 },
                    "load": { "short": 2, "long": null, "average": 2 }, "relative": 1.5,
                    "slow_start": { "second": 3, "rate": 10, "ceiling": 30 },
                    "failures_in_a_row": 1, "failing_clients": 1,
                    "guards": [{ "guard": "last-usable", "reason": "it is the last" }],
                },
                "result": { "effective_weight": 4, "share": 0.25 },
                "next": { "in_seconds": 7.25, "change": "slow start allows more" },
                "ramp": [{ "from": 1, "to": 10, "rate": 10, "ceiling_from": 10, "ceiling_to": 100 }],
            }],
        });
        let expected = "\
web, aca

web-1: warming-up: within limits
  weight     8
  operator   weight 4
  load       2 (short 2, long -), response 1.50 of the best
  slow start second 3: 10 new flows a second, 30 at a time
  health     1 failures in a row, seen by 1 clients; last-usable: it is the last
  result     weight 4, 25.0 % of new flows
  next       in 7.2 s slow start allows more
    seconds   1 to  10:   10 new flows a second, 10 to 100 at a time
";
        assert_eq!(render_explanation(&explanation), expected);
    }
}
