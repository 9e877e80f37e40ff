//! The matrix: every case of a flow's life in every mode, protocol and family.
//! A case has a cell for each of them, with rows or with the reason why it has
//! none.

mod bytes;
mod life;

use std::collections::BTreeSet;
use steerline_tests::packets::{
    FAMILIES, Family, Group, Lab, Row, Talk, Tunnel, early_in_a_tick,
    scene::{
        A, B, C, CLIENT, DIRECT, DIRECT_A, DIRECT_B, DIRECT_DNS, DIRECT_DNS_A, DIRECT_DNS_B, DNS,
        DNS_A, DNS_B, FULL, FULL_A, FULL_B, FULL_DNS, FULL_DNS_A, FULL_DNS_B, Server, Vip, WEB,
        router_hop,
    },
};

/// A mode, a protocol and a family.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    mode: &'static str,
    protocol: &'static str,
    vip: Vip,
    /// The flow of the cell.
    talk: Talk,
    /// The same client and service, should another server get it.
    other: Talk,
}

/// Numbers are the families of packets around those of clients.
const MODES: [&str; 7] = [
    "nat", "full-nat", "dsr", "ipip-4", "ipip-6", "gue-4", "gue-6",
];
const PROTOCOLS: [&str; 2] = ["tcp", "udp"];

fn columns() -> Vec<Column> {
    const TCP: (&str, Vip, [Server; 2]) = ("tcp", DIRECT, [DIRECT_A, DIRECT_B]);
    const UDP: (&str, Vip, [Server; 2]) = ("udp", DIRECT_DNS, [DIRECT_DNS_A, DIRECT_DNS_B]);
    let tunnel = |is_gue, family| Some(Tunnel::new(is_gue, family));
    let all = [
        (
            "nat",
            None,
            [("tcp", WEB, [A, B]), ("udp", DNS, [DNS_A, DNS_B])],
        ),
        (
            "full-nat",
            None,
            [
                ("tcp", FULL, [FULL_A, FULL_B]),
                ("udp", FULL_DNS, [FULL_DNS_A, FULL_DNS_B]),
            ],
        ),
        ("dsr", None, [TCP, UDP]),
        ("ipip-4", tunnel(false, Family::V4), [TCP, UDP]),
        ("ipip-6", tunnel(false, Family::V6), [TCP, UDP]),
        ("gue-4", tunnel(true, Family::V4), [TCP, UDP]),
        ("gue-6", tunnel(true, Family::V6), [TCP, UDP]),
    ];
    let mut columns = Vec::new();
    for family in FAMILIES {
        for (mode, tunnel, protocols) in all {
            for (protocol, vip, servers) in protocols {
                let vip = vip.in_family(*family);
                let [first, second] = servers.map(|server| {
                    let server = server.in_family(*family);
                    tunnel.map_or(server, |tunnel| server.behind(tunnel))
                });
                let talk = Talk::new(CLIENT.1, vip, first);
                columns.push(Column {
                    mode,
                    protocol,
                    vip,
                    talk,
                    other: talk.at(second).after(1),
                });
            }
        }
    }
    columns
}

impl Column {
    fn name(&self) -> String {
        let (mode, protocol, family) = self.place();
        format!("{mode} {protocol} {}", family.name())
    }

    const fn place(&self) -> (&'static str, &'static str, Family) {
        (self.mode, self.protocol, self.family())
    }

    const fn is_udp(&self) -> bool {
        self.talk.is_udp
    }

    const fn is_direct(&self) -> bool {
        self.talk.is_direct
    }

    const fn family(&self) -> Family {
        self.talk.family()
    }

    const fn is_ipv6(&self) -> bool {
        matches!(self.family(), Family::V6)
    }

    /// Bytes of an Ethernet and an IP header: where the next one starts.
    const fn behind_ip(&self) -> usize {
        14 + self.family().header()
    }

    /// Bytes of the headers of a packet: of IP, and of TCP or UDP behind it.
    const fn headers(&self) -> usize {
        self.family().header() + if self.is_udp() { 8 } else { 20 }
    }

    /// Bytes that the way to the server adds to a packet.
    fn overhead(&self) -> usize {
        let tunnel = self.talk.server.tunnel;
        tunnel.map_or(0, |tunnel| tunnel.overhead())
    }

    /// Makes the services of the scene those of the column, and sees to it that a
    /// tick has just begun: a second datagram of the same tick tells nothing, one
    /// of the next does.
    fn prepare(&self, lab: &Lab) {
        if self.talk.server.tunnel.is_some() {
            lab.tunnel(self.vip, &[self.talk.server, self.other.server]);
        }
        early_in_a_tick();
    }

    /// Index of the next hop of the router in front of the client.
    const fn router_hop(&self) -> u32 {
        router_hop(self.family())
    }

    /// Every server that the service of the flow may have.
    fn servers(&self) -> [Server; 3] {
        let third = C.in_family(self.family());
        [self.talk.server, self.other.server, third]
    }
}

/// The rows of a cell after the flow's beginning, or why there are none.
type Cell = Result<Row, &'static str>;

/// A line of the matrix.
type Case = (&'static str, fn(Column, Row) -> Cell);

const NO_END: &str = "datagrams have no end";

fn lines() -> Vec<Case> {
    let mut all = life::CASES.to_vec();
    all.extend_from_slice(bytes::CASES);
    all
}

fn cell(case: Case, column: Column) -> Cell {
    let (name, fill) = case;
    let row = Row::new(format!("{name} ({})", column.name()));
    let row = row.change(move |lab| column.prepare(lab));
    fill(column, row)
}

/// All cells that have rows.
pub(crate) fn group() -> Group {
    let columns = columns();
    let rows = lines()
        .into_iter()
        .flat_map(|case| columns.iter().filter_map(move |c| cell(case, *c).ok()));
    Group::new("matrix", rows.collect())
}

/// The matrix as text: a line a case, a cell a column, in it how many frames it
/// sends.
pub(crate) fn text() -> String {
    let columns = columns();
    let line = |first: &str, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:<8}")).collect();
        format!("{}\n", format!("{first:<44}{cells}").trim_end())
    };
    let head = |part: fn(&Column) -> &str| columns.iter().map(|c| part(c).to_owned()).collect();
    let mut text = line("frames in each cell of the matrix", head(|c| c.mode));
    text += &line("", head(|c| c.protocol));
    text += &line("", head(|c| c.family().name()));
    for case in lines() {
        let mut reasons = BTreeSet::new();
        let mut cells = Vec::new();
        for column in &columns {
            cells.push(match cell(case, *column) {
                Ok(row) => row.frames().to_string(),
                Err(reason) => {
                    reasons.insert(reason);
                    "n/a".to_owned()
                }
            });
        }
        text += &line(case.0, cells);
        for reason in reasons {
            text += &format!("    n/a: {reason}\n");
        }
    }
    text
}

/// Every mode with every protocol and family has a column, and every case a
/// cell in each: frames, or a reason.
#[test]
fn no_cell_is_empty() {
    let columns = columns();
    let places: BTreeSet<_> = columns.iter().map(Column::place).collect();
    let mut wanted = BTreeSet::new();
    for mode in MODES {
        for protocol in PROTOCOLS {
            wanted.extend(FAMILIES.iter().map(|family| (mode, protocol, *family)));
        }
    }
    assert_eq!(places, wanted);
    assert_eq!(columns.len(), wanted.len());
    for case in lines() {
        let mut rows = 0;
        for column in &columns {
            let name = format!("{} ({})", case.0, column.name());
            match cell(case, *column) {
                Ok(row) => {
                    assert!(row.frames() > 0, "{name}: no frame is sent");
                    rows += 1;
                }
                Err(reason) => assert!(!reason.is_empty(), "{name}: no frame and no reason"),
            }
        }
        assert!(rows > 0, "{}: no cell has rows", case.0);
    }
}
