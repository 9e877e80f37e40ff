//! What `status` and `stats` tell: one snapshot of names and numbers that
//! every view shares. Field names are stable (design, section 6).

mod explain;
mod flows;
mod outside;
mod render;
mod stats;

pub(crate) use explain::explain;
pub use explain::render_explanation;
pub use flows::{Filter, Flow, Flows, UnknownService, read as read_flows, render as render_flows};
pub use outside::Outside;
pub use render::render;
pub use stats::{Stats, read as read_stats, render as render_stats};

use crate::{Family, config::Config, dataplane::Maps};
use anyhow::{Context as _, Result};
use lb_common::{
    abi::Live,
    control::{BackendView, Engine, Gated},
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// The snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: &'static str,
    /// Seconds since this daemon started.
    pub uptime_seconds: u64,
    /// Number of the snapshot: equal number, equal contents.
    pub sequence: u64,
    /// Map entries that somebody else changed and that were put right.
    pub mismatches: u64,
    /// Flows ended since this daemon started because their backend was drained
    /// or removed and the drain timeout had passed.
    pub ended_flows: u64,
    /// Interfaces that carry traffic.
    pub interfaces: Vec<Interface>,
    /// Packets by reason.
    pub counters: BTreeMap<&'static str, u64>,
    /// The flow tables.
    pub flow_table: Vec<FlowTable>,
    /// Services in file order.
    pub services: Vec<Service>,
}

/// An interface.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// `native`, `generic`, `offload`, or `detached` if somebody took the
    /// program off or replaced it.
    pub mode: &'static str,
    /// Path of the pinned link.
    pub link: String,
    /// Id of the program that is attached, whoever's it is; 0: none.
    pub program_id: u32,
    /// How often it lost our program since this daemon started.
    pub losses: u64,
}

/// Fill of a flow table.
#[derive(Clone, Debug, Serialize)]
pub struct FlowTable {
    /// `ipv4` or `ipv6`.
    pub family: &'static str,
    /// Live flows guaranteed.
    pub capacity: u32,
    /// Live flows: half-open and established ones.
    pub live: u64,
    /// Those of them in the handshake.
    pub half_open: u64,
}

/// A virtual service.
#[derive(Clone, Debug, Serialize)]
pub struct Service {
    /// Name.
    pub name: String,
    /// The VIP.
    pub address: String,
    /// 0: every port.
    pub port: u16,
    /// `tcp`.
    pub protocol: &'static str,
    /// `nat`.
    pub forwarding: &'static str,
    /// As configured.
    pub algorithm: &'static str,
    /// Packets forwarded, both directions.
    pub packets: u64,
    /// Their bytes from the IP header on.
    pub bytes: u64,
    /// Flows opened, over all backends.
    pub new_flows: u64,
    /// Flows past the handshake, closing included.
    pub active_flows: u64,
    /// Backends in file order.
    pub backends: Vec<Backend>,
}

/// A backend.
#[derive(Clone, Debug, Serialize)]
pub struct Backend {
    /// Name.
    pub name: String,
    /// Address.
    pub address: String,
    /// Port.
    pub port: u16,
    /// See the documentation of `status`.
    pub state: &'static str,
    /// Why, in words; empty in service.
    pub reason: String,
    /// As configured.
    pub weight: u32,
    /// What the packet path uses.
    pub effective_weight: u32,
    /// Share of the service's new flows, 0 to 1.
    pub share: f64,
    /// Adaptive loads, 2 (best) to 255.
    pub load: Load,
    /// Response times.
    pub response_ms: ResponseMs,
    /// Flows opened.
    pub new_flows: u64,
    /// Flows past the handshake, closing included.
    pub active_flows: u64,
    /// Flows in the handshake.
    pub half_open: u64,
    /// Failures by kind.
    pub failures: Failures,
    /// Where it is in its ramp; `null`: not limited.
    pub slow_start: Option<SlowStart>,
    /// Guards that hold, or held within the last minute.
    pub guards: Vec<Guarded>,
    /// What an operator has said.
    pub r#override: Option<Override>,
    /// What others have told; `null` where nobody is asked.
    pub outside: Option<Outside>,
}

/// Where a backend is in its ramp.
#[derive(Clone, Debug, Serialize)]
pub struct SlowStart {
    /// Ordinal second since it came into service, 1 for the first.
    pub second: u64,
    /// New flows allowed in this second; `null`: no limit.
    pub rate: Option<u32>,
    /// Concurrent flows allowed; `null`: no limit.
    pub ceiling: Option<u32>,
}

/// A guard that keeps the controller from doing harm.
#[derive(Clone, Debug, Serialize)]
pub struct Guarded {
    /// Its name.
    pub guard: &'static str,
    /// What it holds against, with the numbers.
    pub reason: String,
}

/// What an operator has said about a backend.
#[derive(Clone, Debug, Serialize)]
pub struct Override {
    /// `drain`, `disable` or `weight`: what decides, if both a gate and a weight
    /// are in force the gate.
    pub kind: &'static str,
    /// The operator's weight, if one is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Age of `kind`.
    pub since_seconds: u64,
    /// Seconds until the flows of a drained backend are ended; 0: they are
    /// being ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
}

impl Override {
    /// What is overridden of a backend, at `now_us`.
    pub(crate) fn of(view: &BackendView, now_us: u64) -> Option<Self> {
        let given = view.overrides.weight;
        let (kind, since_us) = match (view.overrides.gate, given) {
            (Some(Gated { gate, since_us }), _) => (gate.as_str(), since_us),
            (None, Some(given)) => ("weight", given.since_us),
            (None, None) => return None,
        };
        let seconds = |us: u64| us / 1_000_000;
        Some(Self {
            kind,
            weight: given.map(|given| given.weight),
            since_seconds: seconds(now_us.saturating_sub(since_us)),
            deadline_seconds: view
                .deadline_us
                .map(|deadline_us| deadline_us.saturating_sub(now_us).div_ceil(1_000_000)),
        })
    }
}

/// Adaptive loads; `null` where there is no data of the class.
#[derive(Clone, Debug, Serialize)]
pub struct Load {
    /// Of flows below `short_flow_bytes`.
    pub short: Option<u8>,
    /// Of the others.
    pub long: Option<u8>,
    /// What counts.
    pub average: u8,
}

impl Load {
    fn of(view: &BackendView) -> Self {
        Self {
            short: view.load.short,
            long: view.load.long,
            average: view.load.average,
        }
    }
}

fn slow_start(view: &BackendView) -> Option<SlowStart> {
    view.slow_start.map(|ramp| SlowStart {
        second: ramp.second,
        rate: ramp.rate,
        ceiling: ramp.ceiling,
    })
}

fn guards(view: &BackendView) -> Vec<Guarded> {
    let shown = view.guards.iter().map(|guard| Guarded {
        guard: guard.as_str(),
        reason: guard.to_string(),
    });
    shown.collect()
}

/// Milliseconds; `null` where there is no data.
#[derive(Clone, Debug, Serialize)]
pub struct ResponseMs {
    /// Average of short flows.
    pub short: Option<f64>,
    /// Average of long flows.
    pub long: Option<f64>,
    /// Median of the last interval that had data.
    pub p50: Option<f64>,
    /// 99th percentile of the same.
    pub p99: Option<f64>,
}

/// Failures of a backend.
#[derive(Clone, Debug, Serialize)]
pub struct Failures {
    /// It reset a flow before the client was done.
    pub reset: u64,
    /// It did not answer a SYN in time.
    pub syn_timeout: u64,
    /// ICMP errors; not counted in this version.
    pub icmp: u64,
}

/// Flows past the handshake.
pub(crate) fn active(live: &Live) -> u64 {
    // The two counts are read one after the other while packets move them.
    live.opened.saturating_sub(live.closed)
}

/// Flows in the handshake.
pub(crate) fn half_open(live: &Live) -> u64 {
    live.half_opened.saturating_sub(live.half_closed)
}

/// Where a snapshot is built from.
pub(crate) struct Sources<'a> {
    pub(crate) config: &'a Config,
    pub(crate) maps: &'a Maps,
    pub(crate) engine: &'a Engine,
    /// Index of each service, and of its backends.
    pub(crate) placed: &'a [(u32, Vec<u32>)],
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) uptime: Duration,
    pub(crate) sequence: u64,
    pub(crate) mismatches: u64,
    pub(crate) ended_flows: u64,
    /// The engine's time.
    pub(crate) now_us: u64,
}

/// Builds the snapshot.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn build(sources: &Sources<'_>) -> Result<Status> {
    let maps = sources.maps;
    let mut services = Vec::new();
    for (service, (index, places)) in sources.config.services.iter().zip(sources.placed) {
        let mut backends = Vec::new();
        let (mut new_flows, mut active_flows) = (0, 0);
        for (backend, place) in service.backends.iter().zip(places) {
            let view = sources
                .engine
                .backend(u16::try_from(*place)?, sources.now_us)
                .with_context(|| format!("backend {} is not steered", backend.name))?;
            let live = maps.live.read(*place);
            new_flows += live.half_opened;
            active_flows += active(&live);
            backends.push(describe(backend, view, &live, sources.now_us));
        }
        let traffic = maps.service_traffic(*index)?;
        services.push(Service {
            name: service.name.clone(),
            address: service.address.to_string(),
            port: service.port,
            protocol: service.protocol.as_str(),
            forwarding: service.forwarding.as_str(),
            algorithm: service.algorithm.as_str(),
            packets: traffic.packets,
            bytes: traffic.bytes,
            new_flows,
            active_flows,
            backends,
        });
    }
    Ok(Status {
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: sources.uptime.as_secs(),
        sequence: sources.sequence,
        mismatches: sources.mismatches,
        ended_flows: sources.ended_flows,
        interfaces: sources.interfaces.clone(),
        counters: counters(maps)?,
        flow_table: flow_table(maps),
        services,
    })
}

fn describe(
    backend: &crate::config::Backend,
    view: BackendView,
    live: &Live,
    now_us: u64,
) -> Backend {
    let ms = |micros: u64| micros as f64 / 1_000.0;
    Backend {
        r#override: Override::of(&view, now_us),
        outside: Outside::of(&view),
        slow_start: slow_start(&view),
        guards: guards(&view),
        load: Load::of(&view),
        name: backend.name.clone(),
        address: backend.address.to_string(),
        port: backend.port,
        state: view.state.as_str(),
        reason: view.reason,
        weight: view.configured_weight,
        effective_weight: view.effective_weight,
        share: view.share,
        response_ms: ResponseMs {
            short: view.average_us.short.map(ms),
            long: view.average_us.long.map(ms),
            p50: view.p50_us.map(ms),
            p99: view.p99_us.map(ms),
        },
        new_flows: live.half_opened,
        active_flows: active(live),
        half_open: half_open(live),
        failures: Failures {
            reset: live.resets,
            syn_timeout: live.syn_timeouts,
            icmp: 0,
        },
    }
}

/// Packets by reason.
pub(crate) fn counters(maps: &Maps) -> Result<BTreeMap<&'static str, u64>> {
    Ok(maps
        .reason_counts()?
        .into_iter()
        .map(|(reason, count)| (reason.name(), count))
        .collect())
}

/// Fill of the tables, from the books of all backends, removed ones included.
pub(crate) fn flow_table(maps: &Maps) -> Vec<FlowTable> {
    let settings = maps.settings.read(0);
    let table = |family: Family| {
        let (mut live, mut handshakes) = (0, 0);
        for index in 1..maps.live.len() {
            let service = maps.backends.read(index).service;
            if maps.service_table.read(service.into()).family != family.number() {
                continue;
            }
            let books = maps.live.read(index);
            handshakes += half_open(&books);
            live += active(&books) + half_open(&books);
        }
        FlowTable {
            family: family.name(),
            capacity: match family {
                Family::V4 => settings.flow_capacity4,
                Family::V6 => settings.flow_capacity6,
            },
            live,
            half_open: handshakes,
        }
    };
    Family::ALL.map(table).to_vec()
}
