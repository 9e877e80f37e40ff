//! What is measured: tables filled in one way, and packets on them.

use crate::packets::Family;
use lb_common::abi::algorithm;
use std::fmt;

/// How the service forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Addresses, ports and checksums are rewritten, both ways.
    Nat,
    /// MAC addresses only; the server answers directly.
    Dsr,
}

/// What flows consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Segments.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A table half full of established flows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Of clients, service and servers.
    pub family: Family,
    /// Of the service.
    pub mode: Mode,
    /// Of the service.
    pub protocol: Protocol,
}

impl Site {
    /// Every kind of table.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for family in Family::ALL {
            for mode in [Mode::Nat, Mode::Dsr] {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    all.push(Self {
                        family,
                        mode,
                        protocol,
                    });
                }
            }
        }
        all
    }

    /// What is measured on it, for these numbers of flows that take turns.
    pub fn cases(self, flows: &[u32]) -> Vec<Case> {
        let mut cases = Vec::new();
        let mut case = |subject, flows| {
            cases.push(Case {
                site: self,
                subject,
                flows,
            });
        };
        for count in flows {
            case(Subject::ToServer, *count);
            if self.mode == Mode::Nat {
                case(Subject::ToClient, *count);
            }
        }
        case(Subject::New(algorithm::WEIGHTED_ROUND_ROBIN), 0);
        if self.protocol == Protocol::Tcp {
            case(Subject::New(algorithm::WEIGHTED_LEAST_CONNECTIONS), 0);
            case(Subject::New(algorithm::ACA_CONNECTIONS), 0);
        }
        if (self.mode, self.protocol) == (Mode::Nat, Protocol::Tcp) {
            case(Subject::NotOurs, 1);
            case(Subject::NoService, 1);
        }
        cases
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.name();
        let mode = match self.mode {
            Mode::Nat => "nat",
            Mode::Dsr => "dsr",
        };
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{family} {mode} {protocol}")
    }
}

/// Which packets are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A client's data on established flows.
    ToServer,
    /// A server's data on established flows.
    ToClient,
    /// SYNs or first datagrams, each of another client; the service chooses by
    /// one of [`algorithm`].
    New(u8),
    /// Packets between strangers.
    NotOurs,
    /// SYNs to a port of the VIP where no service listens.
    NoService,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// With which flows.
    pub site: Site,
    /// Which packets.
    pub subject: Subject,
    /// How many flows take turns; 0: each packet has its own.
    pub flows: u32,
}

impl Case {
    /// The ratio to the LRU hash that it is to reach at most (design, section
    /// 7: "what every part is measured by").
    pub fn target(self) -> Option<f64> {
        match (self.subject, self.flows, self.site.mode) {
            (Subject::ToServer | Subject::ToClient, 1_024, _) => Some(0.5),
            (Subject::ToServer | Subject::ToClient, 524_288, Mode::Dsr) => Some(0.45),
            (Subject::ToServer | Subject::ToClient, 524_288, Mode::Nat) => Some(0.55),
            (Subject::New(algorithm::WEIGHTED_ROUND_ROBIN), ..) => Some(0.5),
            _ => None,
        }
    }

    /// Whether its name has all of these words in it.
    pub fn is_named(self, words: &[String]) -> bool {
        let name = self.to_string();
        words.iter().all(|word| name.contains(word.as_str()))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::ToServer => "to-server",
            Subject::ToClient => "to-client",
            Subject::New(algorithm::WEIGHTED_ROUND_ROBIN) => "new",
            Subject::New(algorithm::WEIGHTED_LEAST_CONNECTIONS) => "new-wlc",
            Subject::New(algorithm::ACA_CONNECTIONS) => "new-aca",
            Subject::New(_) => "new-other",
            Subject::NotOurs => "not-ours",
            Subject::NoService => "no-service",
        };
        write!(f, "{} {subject}", self.site)
    }
}

/// A flow, by number in the order in which flows are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow(pub u32);

/// Servers of the service. Flows are given to them in turn.
pub const SERVERS: u8 = 8;

impl Flow {
    /// The client: the last four bytes of its address (198.18.0.0/15, RFC 2544
    /// appendix C) and its port. 131,072 addresses; no two flows share both.
    pub fn client(self) -> ([u8; 4], u16) {
        let address = u32::from_be_bytes([198, 18, 0, 0]) | (self.0 & 0x1_ffff);
        let port = 1_024 + u16::try_from(self.0 >> 17).expect("at most 2^31 flows") * 1_009;
        (address.to_be_bytes(), port)
    }

    /// The server by round robin, 1 to [`SERVERS`]: the last byte of its
    /// address.
    pub fn server(self) -> u8 {
        1 + (self.0 % u32::from(SERVERS)) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_flows_have_the_same_client() {
        const FLOWS: u32 = 600_000;
        let clients: BTreeSet<_> = (0..FLOWS).map(|number| Flow(number).client()).collect();
        assert_eq!(clients.len(), FLOWS as usize);
        let addresses = clients.iter().map(|(address, _)| address[..2].to_vec());
        let networks: BTreeSet<_> = addresses.collect();
        assert_eq!(networks, BTreeSet::from([vec![198, 18], vec![198, 19]]));
    }

    #[test]
    fn every_line_of_the_table_has_a_name_of_its_own() {
        let cases = Site::all().into_iter().flat_map(|site| site.cases(&[1, 8]));
        let mut names = BTreeSet::new();
        for case in cases {
            let name = format!("{case} {}", case.flows);
            assert!(!name.contains("other"), "{name}");
            assert!(names.insert(name.clone()), "{name} twice");
        }
    }
}
