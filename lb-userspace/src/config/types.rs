//! The typed configuration: what the daemon runs on. Every value is in range
//! and every default is filled in.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use lb_common::control::Ramp;

use super::outside::{Agent, Capacity, Dfp, Probe};

/// Declares an enum of configuration values with the spelling of each, once.
/// `later` lists the format's values that this version does not have.
macro_rules! spelled {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $spelling:literal,)+
        }
        later: [$($later:literal),* $(,)?]
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// The value as the configuration file spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $spelling,)+
                }
            }

            /// Every spelling of the format; `None`: not in this version.
            pub(super) const SPELLINGS: &'static [(&'static str, Option<Self>)] = &[
                $(($spelling, Some(Self::$variant)),)+
                $(($later, None),)*
            ];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

/// A whole configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[data_plane]`
    pub data_plane: DataPlane,
    /// `[control]`
    pub control: Control,
    /// `[[service]]`, in file order, at most [`lb_common::abi::MAX_SERVICES`].
    pub services: Vec<Service>,
}

/// Where the XDP program runs and how much it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct DataPlane {
    /// Interfaces that get the XDP program: at least one, each once.
    pub interfaces: Vec<String>,
    /// How the program is attached.
    pub mode: Mode,
    /// Sizes of the flow tables.
    pub flow_table: FlowTable,
    /// Absolute path of a directory on a BPF filesystem for maps and links.
    pub pin_directory: PathBuf,
    /// Attach again to an interface that lost the program.
    pub reattach: bool,
    /// Our ends of tunnels, at most one entry for each family; without one, the
    /// address that the kernel's route to a server prefers.
    pub tunnel_sources: Vec<TunnelSource>,
    /// Our addresses that stand for clients in `full-nat`, each once, at most
    /// [`lb_common::abi::MAX_POOLS`]. Each has
    /// [`lb_common::ports::PORTS_PER_ADDRESS`] ports of either protocol.
    pub source_pool: Vec<IpAddr>,
}

spelled! {
    /// How XDP is attached to an interface.
    pub enum Mode {
        /// In the driver; an interface whose driver cannot is an error.
        Native = "native",
        /// In the kernel's generic hook: any interface, slower.
        Generic = "generic",
        /// In the driver where it can, else generic.
        Auto = "auto",
    }
    later: []
}

/// Live flows guaranteed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct FlowTable {
    /// IPv4 flows, 1,024 to 16,777,216.
    pub ipv4: u32,
    /// IPv6 flows, 0 or 1,024 to 16,777,216.
    pub ipv6: u32,
}

/// How the daemon is reached and where it keeps what must survive it.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// Absolute path of the daemon's Unix socket.
    pub socket: PathBuf,
    /// Absolute path of the directory for learned state.
    pub state_directory: PathBuf,
}

/// A virtual service: what clients connect to.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Unique name, 1 to [`lb_common::abi::NAME_BYTES`] bytes without `/`,
    /// white space or control characters.
    pub name: String,
    /// The virtual address (VIP).
    pub address: IpAddr,
    /// The virtual port; 0 is every port that no other service names.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// How packets reach the backends.
    pub forwarding: Forwarding,
    /// How a new flow's backend is chosen.
    pub algorithm: Algorithm,
    /// Which time of a flow counts as its response time.
    pub measure: Measure,
    /// Who answers for the VIP on the network.
    pub announce: Announce,
    /// UDP port of the servers' end of tunnels, 1 to 65535. IANA's for GUE: 6080.
    pub gue_port: u16,
    /// How long a drained backend's flows may go on, 0 to 24 h.
    pub drain_timeout: Duration,
    /// Whether connections that are ended at a deadline are answered with resets.
    pub drain_reset: bool,
    /// `[service.aca]`
    pub aca: Aca,
    /// `[service.slow_start] ramp`
    pub ramp: Ramp,
    /// `[service.inband_health]`
    pub inband_health: InbandHealth,
    /// `[service.fail_detect]`
    pub fail_detect: FailDetect,
    /// `[service.syn_guard]`
    pub syn_guard: SynGuard,
    /// `[service.probe]`; `None`: backends are not probed.
    pub probe: Option<Probe>,
    /// `[service.agent]`
    pub agent: Option<Agent>,
    /// `[service.dfp]`
    pub dfp: Option<Dfp>,
    /// `[service.capacity]`
    pub capacity: Option<Capacity>,
    /// `[[service.backend]]`, in file order.
    pub backends: Vec<Backend>,
}

spelled! {
    /// Transport protocol of a service.
    pub enum Protocol {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
    later: []
}

spelled! {
    /// How packets reach the backends.
    pub enum Forwarding {
        /// The destination is rewritten; replies return through this box.
        Nat = "nat",
        /// Direct return: only the MAC address is rewritten; servers hold the
        /// VIP on a loopback and answer clients themselves.
        Dsr = "dsr",
        /// Direct return through a tunnel: an IP packet in an IP packet to the
        /// server, of either family (RFC 2003, RFC 2473, RFC 4213).
        Ipip = "ipip",
        /// The same in UDP, by Generic UDP Encapsulation.
        Gue = "gue",
        /// As `nat`, with one of our own addresses in place of the client's:
        /// replies come back here whatever the servers' routes are.
        FullNat = "full-nat",
    }
    later: ["transparent"]
}

impl Forwarding {
    /// Whether servers answer clients themselves.
    pub const fn is_direct(self) -> bool {
        match self {
            Self::Dsr | Self::Ipip | Self::Gue => true,
            Self::Nat | Self::FullNat => false,
        }
    }

    /// Whether packets travel to the servers inside others.
    pub const fn is_tunnel(self) -> bool {
        matches!(self, Self::Ipip | Self::Gue)
    }
}

/// Addresses of ours from which tunnels to servers begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelSource {
    /// The first one, with zeros where addresses differ.
    pub address: IpAddr,
    /// Bits that all have in common; at most 16 fewer than an address has.
    pub length: u8,
}

impl TunnelSource {
    /// Most low bits in which the addresses may differ.
    pub const MOST_SPREAD: u8 = 16;

    /// Low bits in which the addresses differ.
    pub const fn spread(&self) -> u32 {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        bits - self.length as u32
    }
}

spelled! {
    /// How a new flow's backend is chosen.
    pub enum Algorithm {
        /// Runs of `weight` flows each, in configuration order (Cisco IOS SLB).
        WeightedRoundRobin = "weighted-round-robin",
        /// Fewest connections by weight (Cisco IOS SLB).
        WeightedLeastConnections = "weighted-least-connections",
        /// By measured response time (Cisco CSS ACA).
        Aca = "aca",
    }
    later: ["response", "source-hash", "destination-hash", "maglev"]
}

spelled! {
    /// Which time of a flow counts as its response time.
    pub enum Measure {
        /// From the client's SYN to the server's FIN. With keep-alive this is
        /// mostly the client's idle time.
        SynToFin = "syn-to-fin",
        /// From the client's SYN to the server's SYN-ACK.
        SynToSynAck = "syn-to-syn-ack",
        /// From the client's first data to the server's first data after it.
        FirstResponse = "first-response",
        /// From the client's data to the server's data after it, at every turn
        /// of a connection.
        RequestToResponse = "request-to-response",
    }
    later: []
}

spelled! {
    /// Who answers for a VIP on the network.
    pub enum Announce {
        /// The daemon puts the VIP on the interface and announces it by ARP or
        /// neighbour discovery.
        Address = "address",
        /// Somebody else: a route to this box, or another daemon.
        None = "none",
    }
    later: []
}

/// Parameters of Cisco CSS's Arrowpoint Content Awareness load, see
/// `docs/configuration.md`.
#[derive(Debug, Clone, PartialEq)]
pub struct Aca {
    /// Response time that one unit of load stands for: whole
    /// milliseconds, 1 ms to 1,000,000 s.
    /// CSS: `load step`, 10 ms.
    pub load_step: Duration,
    /// Widen the step so that the slowest backend's load is at most 254.
    pub dynamic_step: bool,
    /// A backend whose load exceeds this takes no new flows, 2 to 254.
    pub load_threshold: u8,
    /// Time between reports, 100 ms to 1,000,000,000 s; 0: none. CSS: `load
    /// teardown-timer`, 20 s there; 2 s here, see `pick`.
    pub teardown_interval: Duration,
    /// Age at which a backend's times are forgotten, and how long one over the
    /// threshold stays out, 0 to 1,000,000,000 s; 0: never. CSS: 60 s.
    pub ageout: Duration,
    /// What the load is used for.
    pub pick: Pick,
    /// Weight of a new report that is worse than what is known, above 0 and
    /// at most 1; at 1 the last report wins, as on the CSS.
    pub smoothing: f64,
    /// Bytes in both directions from which a flow is "long". CSS: 15K.
    pub short_flow_bytes: u32,
    /// What loads are counted from.
    pub calculation: Calculation,
    /// How fine absolute loads are, 1 to 25. CSS: 21.
    pub absolute_sensitivity: u8,
    /// Loads up to so much above the lowest count as the lowest when a backend is
    /// chosen, 0 to 252.
    pub variance: u8,
    /// How shares fall with the load.
    pub curve: Curve,
}

spelled! {
    /// What loads are counted from.
    pub enum Calculation {
        /// The best backend's time.
        Relative = "relative",
        /// Zero.
        Absolute = "absolute",
    }
    later: []
}

spelled! {
    /// How shares fall with the load.
    pub enum Curve {
        /// As 1/(load − 1).
        Reciprocal = "reciprocal",
        /// By twelve buckets, each with half the share of the one before.
        Bucket = "bucket",
    }
    later: []
}

spelled! {
    /// How ACA turns response times into choices.
    pub enum Pick {
        /// Fewest live connections, weighed by relative response time.
        Connections = "connections",
        /// Shares proportional to 1/(load − 1), as on the CSS.
        Shares = "shares",
    }
    later: []
}

spelled! {
    /// What follows when failures reach the threshold (Cisco ACE).
    pub enum Check {
        /// Nothing.
        Count = "count",
        /// It is logged.
        Log = "log",
        /// It is logged, and the backend takes no new flows.
        Remove = "remove",
    }
    later: []
}

/// In-band health (Cisco ACE), and what counts as a failed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InbandHealth {
    /// What follows.
    pub check: Check,
    /// Failures within `reset_time` that are too many, at least 1.
    pub failures: u32,
    /// Length of a window, 100 ms to 300 s. ACE: 100 ms.
    pub reset_time: Duration,
    /// How long a removed backend stays out, 30 s to 1 h; 0: until an operator
    /// enables it. ACE: 0.
    pub resume_service: Duration,
    /// Time without a SYN-ACK after which a SYN has failed, 250 ms to 120 s.
    pub syn_timeout: Duration,
    /// Backends of the service that failures may take out of it, percent.
    pub max_ejected_percent: u8,
}

/// Failure detection (Cisco IOS SLB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailDetect {
    /// Failures in a row that are too many, at most 255; 0: off. IOS: 8.
    pub connections: u8,
    /// Clients that must have seen them, 1 to 8. IOS: 2.
    pub clients: u8,
    /// Unanswered SYNs of a connection after which the next one goes to another
    /// backend, 1 to 4. IOS: 3.
    pub reassign: u8,
    /// How long a failed backend gets no connection, 1 s to 1 h; 0: until an
    /// operator enables it. IOS: 60 s.
    pub retry: Duration,
}

/// SynGuard (Cisco IOS SLB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynGuard {
    /// SYNs without an answer within an interval; 0: no limit.
    pub unanswered: u32,
    /// Length of an interval, 50 ms to 5 s. IOS: 100 ms.
    pub interval: Duration,
}

/// A server behind a service.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// Name, unique in its service; same rules as [`Service::name`].
    pub name: String,
    /// Address of the server, of the service's family.
    pub address: IpAddr,
    /// Port of the server, 1 to 65535. In direct return the service's, which
    /// may be 0 for every port.
    pub port: u16,
    /// Relative capacity; 0 takes no new flows. IOS SLB: 0 to 65535, 8.
    pub weight: u16,
}
