//! What `steerline check` says about a configuration that loads.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::memory::Memory;
use super::mistakes::Warning;
use super::types::{Algorithm, Announce, Config, FlowTable, Forwarding, Measure, Pick, Protocol};

/// The whole report. Displays as `check` prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckReport {
    /// Services in file order.
    pub services: Vec<CheckedService>,
    /// Live flows guaranteed.
    pub flow_table: FlowTable,
    /// Kernel memory of the maps.
    pub memory: Memory,
    /// What the file probably does not mean.
    pub warnings: Vec<Warning>,
    /// What this machine says to the configuration.
    pub findings: Vec<Finding>,
}

/// A service in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedService {
    /// Its name.
    pub name: String,
    /// The VIP.
    pub address: IpAddr,
    /// Its port, 0: every port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its forwarding mode.
    pub forwarding: Forwarding,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// What `aca` does with the loads; nothing under another algorithm.
    pub pick: Option<Pick>,
    /// What it measures.
    pub measure: Measure,
    /// Who answers for the VIP.
    pub announce: Announce,
    /// Its backends in file order.
    pub backends: Vec<CheckedBackend>,
}

/// A backend in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedBackend {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its configured weight.
    pub weight: u16,
}

/// Something that this machine, rather than the file, says: an interface that
/// does not exist, a route that leaves by another interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: `interface eth0`, `web/web-1`.
    pub subject: String,
    /// What was found, and the remedy.
    pub message: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Works, probably not as meant.
    Warning,
    /// Will not work; `check` fails.
    Failure,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        })
    }
}

/// Puts the report together. `cpus` are the possible CPUs of this machine.
pub fn report(
    config: &Config,
    warnings: Vec<Warning>,
    findings: Vec<Finding>,
    cpus: u32,
) -> CheckReport {
    let services = config.services.iter().map(|service| CheckedService {
        name: service.name.clone(),
        address: service.address,
        port: service.port,
        protocol: service.protocol,
        forwarding: service.forwarding,
        algorithm: service.algorithm,
        pick: match service.algorithm {
            Algorithm::Aca => Some(service.aca.pick),
            Algorithm::WeightedRoundRobin | Algorithm::WeightedLeastConnections => None,
        },
        measure: service.measure,
        announce: service.announce,
        backends: service
            .backends
            .iter()
            .map(|backend| CheckedBackend {
                name: backend.name.clone(),
                address: backend.address,
                port: backend.port,
                weight: backend.weight,
            })
            .collect(),
    });
    CheckReport {
        services: services.collect(),
        flow_table: config.data_plane.flow_table,
        memory: config.memory(cpus),
        warnings,
        findings,
    }
}

impl CheckReport {
    /// Whether a finding makes `check` fail.
    pub fn failed(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity == Severity::Failure)
    }
}

/// An endpoint as text, `192.0.2.10:80` or `192.0.2.10, every port`.
fn endpoint(address: IpAddr, port: u16) -> String {
    match port {
        0 => format!("{address}, every port"),
        port => SocketAddr::new(address, port).to_string(),
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for service in &self.services {
            let place = endpoint(service.address, service.port);
            write!(
                formatter,
                "service {}: {place} {}, {}, {}",
                service.name, service.protocol, service.forwarding, service.algorithm
            )?;
            if let Some(pick) = service.pick {
                write!(formatter, " by {pick}")?;
            }
            writeln!(formatter, ", measures {}", service.measure)?;
            let widest = service
                .backends
                .iter()
                .map(|backend| backend.name.chars().count());
            let width = widest.max().unwrap_or(0);
            let places = service.backends.iter().map(|b| endpoint(b.address, b.port));
            // As wide as the longest of IPv4, in every service.
            let place_width = places.map(|place| place.len()).max().unwrap_or(0).max(21);
            for backend in &service.backends {
                writeln!(
                    formatter,
                    "  {:width$}  {:place_width$}  weight {}",
                    backend.name,
                    endpoint(backend.address, backend.port),
                    backend.weight
                )?;
            }
        }
        writeln!(
            formatter,
            "memory for {} IPv4 and {} IPv6 flows on {} CPUs:",
            self.flow_table.ipv4, self.flow_table.ipv6, self.memory.cpus
        )?;
        for line in &self.memory.lines {
            writeln!(formatter, "  {:22}  {}", line.name, mebibytes(line.bytes))?;
        }
        writeln!(
            formatter,
            "  {:22}  {}",
            "together",
            mebibytes(self.memory.total_bytes)
        )?;
        for warning in &self.warnings {
            writeln!(formatter, "warning: {warning}")?;
        }
        for finding in &self.findings {
            writeln!(
                formatter,
                "{}: {}: {}",
                finding.severity, finding.subject, finding.message
            )?;
        }
        Ok(())
    }
}

/// Bytes in MiB with one decimal, rounded up: an estimate should not be low.
fn mebibytes(bytes: u64) -> String {
    let tenths = (bytes * 10).div_ceil(1 << 20);
    format!("{:>6}.{} MiB", tenths / 10, tenths % 10)
}
