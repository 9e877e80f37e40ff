//! The typed sections about what others tell: probes, agents, DFP, SNMP.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use lb_common::control::snmp_weight::Autoadjust;

/// `[service.probe]`: an active check of every backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is sent.
    pub kind: ProbeKind,
    /// Port that is probed; `None`: the backend's.
    pub port: Option<u16>,
    /// Time between probes, 100 ms to 65,535 s.
    pub interval: Duration,
    /// The same while the last results contradict the state.
    pub fast_interval: Duration,
    /// Time for the whole probe, 10 ms to 65,535 s.
    pub timeout: Duration,
    /// Successes in a row that raise a backend, 1 to 65,535.
    pub rise: u32,
    /// Failures in a row that fell it, 1 to 65,535.
    pub fall: u32,
    /// How much earlier than the interval a probe may come, percent.
    pub jitter: u32,
    /// Address that probes come from; `None`: the kernel's choice.
    pub source: Option<IpAddr>,
}

/// What a probe sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeKind {
    /// An echo request.
    Icmp,
    /// A connection, closed at once.
    Tcp,
    /// A request.
    Http(HttpProbe),
    /// A query.
    Dns(DnsProbe),
}

impl ProbeKind {
    /// The kind as the configuration file spells it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Icmp => "icmp",
            Self::Tcp => "tcp",
            Self::Http(HttpProbe { tls: None, .. }) => "http",
            Self::Http(HttpProbe { tls: Some(_), .. }) => "https",
            Self::Dns(_) => "dns",
        }
    }
}

/// A request and the answer that is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProbe {
    /// Path and query, beginning with `/`.
    pub path: String,
    /// Header `Host`; `None`: the backend's address and port.
    pub host: Option<String>,
    /// Statuses that are right, 100 to 599.
    pub expect_status: Vec<u16>,
    /// Text that the first 64 KiB of the body must contain.
    pub expect_body: Option<String>,
    /// `https`.
    pub tls: Option<TlsProbe>,
}

/// How a server's certificate is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsProbe {
    /// Name asked for (SNI) and expected in the certificate; `None`: that of
    /// `host`, else the backend's address.
    pub server_name: Option<String>,
    /// Whether the certificate must be good.
    pub verify: bool,
    /// Certificates of authorities, PEM; `None`: the system's.
    pub ca_file: Option<PathBuf>,
}

/// A query whose answer must hold a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsProbe {
    /// Name that is asked for.
    pub query: String,
}

/// `[service.agent]`: HAProxy's agent on every backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Port of the agents.
    pub port: u16,
    /// Time between questions, 100 ms to 65,535 s.
    pub interval: Duration,
    /// Time for connection and answer.
    pub timeout: Duration,
    /// Text sent before the answer is read; HAProxy: `agent-send`.
    pub send: Option<String>,
    /// Address that questions come from; `None`: the kernel's choice.
    pub source: Option<IpAddr>,
}

/// `[service.dfp]`: agents of Cisco's Dynamic Feedback Protocol.
#[derive(Clone, PartialEq, Eq)]
pub struct Dfp {
    /// Who is connected to, at least one.
    pub agents: Vec<SocketAddr>,
    /// Shared secret of 1 to 32 bytes; `None`: messages are not signed.
    pub password: Option<String>,
    /// Number of the key that the secret is.
    pub key_id: u32,
    /// Silence after which an agent is lost; 0: never.
    pub timeout: Duration,
    /// Attempts in a row after which an agent is given up; 0: never.
    pub retries: u32,
    /// Time between attempts.
    pub interval: Duration,
    /// Which bind id the weights of this service have.
    pub bind_id: u16,
}

impl std::fmt::Debug for Dfp {
    /// Without the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Dfp")
            .field("agents", &self.agents)
            .field("bind_id", &self.bind_id)
            .finish_non_exhaustive()
    }
}

/// `[service.capacity]`: numbers that every backend tells by SNMP.
#[derive(Clone, PartialEq, Eq)]
pub struct Capacity {
    /// What is polled, and what the numbers mean.
    pub kind: CapacityKind,
    /// SNMPv2c community.
    pub community: String,
    /// Port of the SNMP agents.
    pub port: u16,
    /// Time between polls, 1 s to 65,535 s.
    pub interval: Duration,
    /// Time for one answer.
    pub timeout: Duration,
    /// How often a question is repeated, 0 to 10.
    pub retries: u32,
}

impl std::fmt::Debug for Capacity {
    /// Without the community, which is a secret of sorts.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Capacity")
            .field("kind", &self.kind)
            .field("port", &self.port)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// An SNMP object identifier, two arcs or more.
pub type Oid = Vec<u64>;

/// What is polled, and what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityKind {
    /// One number from 1 to 9, the state of a cache (ServerIron).
    State {
        /// Where the number is.
        oid: Oid,
        /// End the open flows of a cache that is OFFLINE or INITIALIZING.
        force_delete: bool,
    },
    /// Numbers with a maximum and a weight (ACE's least-loaded).
    LeastLoaded {
        /// Where the numbers are; the weights add up to 16,000.
        objects: Vec<Object>,
        /// What a load of 0 is taken for.
        autoadjust: Autoadjust,
    },
    /// Numbers with a threshold and a coefficient (F5's dynamic ratio).
    Headroom {
        /// Where the numbers are.
        objects: Vec<Object>,
    },
}

impl CapacityKind {
    /// The kind as the configuration file spells it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::LeastLoaded { .. } => "least-loaded",
            Self::Headroom { .. } => "headroom",
        }
    }
}

/// A number that backends tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Where it is.
    pub oid: Oid,
    /// Value at which the backend is full, at least 1. For counters: a second.
    pub maximum: u64,
    /// What it counts against the others, at least 1.
    pub weight: u32,
}
