//! `stats`: counters straight from the pinned maps, with or without a daemon.

use super::{FlowTable, active, counters, flow_table, half_open};
use crate::dataplane::{Maps, decode_name};
use anyhow::Result;
use comfy_table::{Table, presets};
use lb_common::abi::name_state;
use serde::Serialize;
use std::{collections::BTreeMap, net::IpAddr};

/// What the pinned maps say.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// Packets by reason.
    pub counters: BTreeMap<&'static str, u64>,
    /// The flow tables.
    pub flow_table: Vec<FlowTable>,
    /// Services by name, removed ones that still have flows included.
    pub services: Vec<ServiceStats>,
}

/// A service's counters.
#[derive(Clone, Debug, Serialize)]
pub struct ServiceStats {
    /// Name.
    pub name: String,
    /// The VIP.
    pub address: IpAddr,
    /// 0: every port.
    pub port: u16,
    /// No longer configured.
    pub removed: bool,
    /// Packets forwarded, both directions.
    pub packets: u64,
    /// Their bytes from the IP header on.
    pub bytes: u64,
    /// Flows opened.
    pub new_flows: u64,
    /// Flows past the handshake.
    pub active_flows: u64,
    /// Backends.
    pub backends: Vec<BackendStats>,
}

/// A backend's counters.
#[derive(Clone, Debug, Serialize)]
pub struct BackendStats {
    /// Name.
    pub name: String,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// No longer configured.
    pub removed: bool,
    /// What the packet path uses.
    pub weight: u32,
    /// May take new flows.
    pub up: bool,
    /// Flows opened.
    pub new_flows: u64,
    /// Flows past the handshake.
    pub active_flows: u64,
    /// Flows in the handshake.
    pub half_open: u64,
    /// Flows that ended with a measurement.
    pub measured: u64,
    /// The mean of all measurements so far, milliseconds.
    pub mean_ms: Option<f64>,
    /// Server resets.
    pub resets: u64,
    /// Unanswered SYNs.
    pub syn_timeouts: u64,
}

/// Reads the pinned maps.
///
/// # Errors
/// What the kernel answers.
pub fn read(maps: &Maps) -> Result<Stats> {
    let mut services = Vec::new();
    for index in 0..maps.service_names.len() {
        let name = maps.service_names.read(index);
        if name.state == name_state::FREE {
            continue;
        }
        let entry = maps.service_table.read(index);
        let mut backends = Vec::new();
        for place in 1..maps.backend_names.len() {
            let backend = maps.backends.read(place);
            let name = maps.backend_names.read(place);
            if name.state == name_state::FREE || u32::from(backend.service) != index {
                continue;
            }
            let live = maps.live.read(place);
            let report = maps.report(place)?;
            let measured = report.short.count + report.long.count;
            let total = report.short.total_us + report.long.total_us;
            backends.push(BackendStats {
                name: decode_name(&name),
                address: crate::daemon::ip_address(&backend.address, backend.family),
                port: backend.port,
                removed: name.state == name_state::RETIRED,
                weight: backend.weight,
                up: backend.flags & lb_common::abi::backend_flags::UP != 0,
                new_flows: live.half_opened,
                active_flows: active(&live),
                half_open: half_open(&live),
                measured,
                mean_ms: (measured > 0).then(|| total as f64 / measured as f64 / 1_000.0),
                resets: live.resets,
                syn_timeouts: live.syn_timeouts,
            });
        }
        let traffic = maps.service_traffic(index)?;
        services.push(ServiceStats {
            name: decode_name(&name),
            address: crate::daemon::ip_address(&entry.address, entry.family),
            port: entry.port,
            removed: name.state == name_state::RETIRED,
            packets: traffic.packets,
            bytes: traffic.bytes,
            new_flows: backends.iter().map(|b| b.new_flows).sum(),
            active_flows: backends.iter().map(|b| b.active_flows).sum(),
            backends,
        });
    }
    Ok(Stats {
        counters: counters(maps)?,
        flow_table: flow_table(maps),
        services,
    })
}

/// The same for people.
pub fn render(stats: &Stats) -> String {
    let mut text = super::render::tables(&stats.flow_table, &stats.counters);
    for service in &stats.services {
        text += &format!(
            "\n{} {}:{}{}  {} packets, {} bytes, {} new flows, {} active\n",
            service.name,
            service.address,
            service.port,
            if service.removed { " (removed)" } else { "" },
            service.packets,
            service.bytes,
            service.new_flows,
            service.active_flows,
        );
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header([
            "backend",
            "address",
            "up",
            "weight",
            "new",
            "active",
            "half-open",
            "measured",
            "mean ms",
            "resets",
            "syn timeouts",
        ]);
        for b in &service.backends {
            table.add_row([
                format!("{}{}", b.name, if b.removed { " (removed)" } else { "" }),
                format!("{}:{}", b.address, b.port),
                if b.up { "yes" } else { "no" }.into(),
                b.weight.to_string(),
                b.new_flows.to_string(),
                b.active_flows.to_string(),
                b.half_open.to_string(),
                b.measured.to_string(),
                b.mean_ms.map_or("-".into(), |ms| format!("{ms:.2}")),
                b.resets.to_string(),
                b.syn_timeouts.to_string(),
            ]);
        }
        text += &table.to_string();
        text.push('\n');
    }
    text
}
