//! `status` for people: rendered from the JSON that the daemon answers, so that
//! both always say the same.

use super::FlowTable;
use comfy_table::{Table, presets};
use serde_json::Value;
use std::{collections::BTreeMap, fmt::Write as _};

/// Flow tables and counters.
pub(super) fn tables(flows: &[FlowTable], counters: &BTreeMap<&'static str, u64>) -> String {
    let mut text = String::new();
    for table in flows {
        let _ = writeln!(
            text,
            "flow table {}: {} live ({} half-open) of {}",
            table.family, table.live, table.half_open, table.capacity
        );
    }
    for (reason, count) in counters.iter().filter(|(_, count)| **count > 0) {
        let _ = writeln!(text, "  {reason:<22} {count:>14}");
    }
    text
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.2}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// The text of a status snapshot.
pub fn render(status: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "steerline {}, up {} s, snapshot {}",
        text(&status["version"]),
        text(&status["uptime_seconds"]),
        text(&status["sequence"])
    );
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for interface in list(&status["interfaces"]) {
        let _ = writeln!(
            out,
            "interface {}: {} mode, program {}",
            text(&interface["name"]),
            text(&interface["mode"]),
            text(&interface["program_id"])
        );
    }
    for flows in list(&status["flow_table"]) {
        let _ = writeln!(
            out,
            "flow table {}: {} live ({} half-open) of {}",
            text(&flows["family"]),
            text(&flows["live"]),
            text(&flows["half_open"]),
            text(&flows["capacity"])
        );
    }
    if let Some(counters) = status["counters"].as_object() {
        for (reason, count) in counters
            .iter()
            .filter(|(_, count)| count.as_u64() != Some(0))
        {
            let _ = writeln!(out, "  {reason:<22} {:>14}", text(count));
        }
    }
    for service in list(&status["services"]) {
        let _ = writeln!(
            out,
            "\n{} {}:{}/{} {} {}  {} packets, {} bytes, {} new flows, {} active",
            text(&service["name"]),
            text(&service["address"]),
            text(&service["port"]),
            text(&service["protocol"]),
            text(&service["forwarding"]),
            text(&service["algorithm"]),
            text(&service["packets"]),
            text(&service["bytes"]),
            text(&service["new_flows"]),
            text(&service["active_flows"]),
        );
        let _ = writeln!(out, "{}", backends(&list(&service["backends"])));
    }
    out
}

fn backends(backends: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "backend",
        "address",
        "state",
        "weight",
        "share",
        "load",
        "short/long",
        "ms p50",
        "p99",
        "new",
        "active",
        "half-open",
        "failures",
        "override",
    ]);
    for b in backends {
        let share = b["share"]
            .as_f64()
            .map_or("-".into(), |s| format!("{:.1} %", s * 100.0));
        let failures = &b["failures"];
        table.add_row([
            text(&b["name"]),
            format!("{}:{}", text(&b["address"]), text(&b["port"])),
            text(&b["state"]),
            format!("{}/{}", text(&b["effective_weight"]), text(&b["weight"])),
            share,
            text(&b["load"]["average"]),
            format!("{}/{}", text(&b["load"]["short"]), text(&b["load"]["long"])),
            text(&b["response_ms"]["p50"]),
            text(&b["response_ms"]["p99"]),
            text(&b["new_flows"]),
            text(&b["active_flows"]),
            text(&b["half_open"]),
            format!(
                "{} rst, {} syn",
                text(&failures["reset"]),
                text(&failures["syn_timeout"])
            ),
            overridden(&b["override"]),
        ]);
    }
    table
}

/// `drain for 12 s, 48 s left`, `weight 3 for 5 s`; nothing without an override.
pub(super) fn overridden(value: &Value) -> String {
    let Some(kind) = value["kind"].as_str() else {
        return String::new();
    };
    let weight = &value["weight"];
    let mut out = match kind {
        "weight" => format!("weight {}", text(weight)),
        kind if weight.is_null() => kind.to_owned(),
        kind => format!("{kind} (weight {})", text(weight)),
    };
    let _ = write!(out, " for {} s", text(&value["since_seconds"]));
    match value["deadline_seconds"].as_u64() {
        None => {}
        Some(0) => out += ", ending flows",
        Some(left) => {
            let _ = write!(out, ", {left} s left");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn overrides_in_words() {
        for (value, words) in [
            (Value::Null, ""),
            (
                json!({"kind": "disable", "since_seconds": 7}),
                "disable for 7 s",
            ),
            (
                json!({"kind": "weight", "weight": 3, "since_seconds": 5}),
                "weight 3 for 5 s",
            ),
            (
                json!({"kind": "drain", "since_seconds": 12, "deadline_seconds": 48}),
                "drain for 12 s, 48 s left",
            ),
            (
                json!({"kind": "drain", "weight": 0, "since_seconds": 60, "deadline_seconds": 0}),
                "drain (weight 0) for 60 s, ending flows",
            ),
        ] {
            assert_eq!(overridden(&value), words);
        }
    }
}
