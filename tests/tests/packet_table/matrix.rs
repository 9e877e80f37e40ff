//! The matrix: every case of a flow's life in every mode and protocol. A case
//! has a cell for each of them, with rows or with the reason why it has none.

mod bytes;
mod life;

use steerline_tests::packets::{
    Group, Row, Talk, early_in_a_tick,
    scene::{
        A, B, CLIENT, DIRECT, DIRECT_A, DIRECT_B, DIRECT_DNS, DIRECT_DNS_A, DIRECT_DNS_B, DNS,
        DNS_A, DNS_B, Server, WEB,
    },
};

/// A mode and a protocol.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    name: &'static str,
    /// The flow of the cell.
    talk: Talk,
    /// The same client and service, should another server get it.
    other: Talk,
}

const fn column(name: &'static str, talk: Talk, other: Server) -> Column {
    Column {
        name,
        talk,
        other: talk.at(other),
    }
}

const COLUMNS: [Column; 4] = [
    column("nat tcp", Talk::new(CLIENT.1, WEB, A), B),
    column("nat udp", Talk::new(CLIENT.1, DNS, DNS_A), DNS_B),
    column("dsr tcp", Talk::new(CLIENT.1, DIRECT, DIRECT_A), DIRECT_B),
    column(
        "dsr udp",
        Talk::new(CLIENT.1, DIRECT_DNS, DIRECT_DNS_A),
        DIRECT_DNS_B,
    ),
];

impl Column {
    const fn is_udp(&self) -> bool {
        self.talk.is_udp
    }

    const fn is_direct(&self) -> bool {
        self.talk.is_direct
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
    // A second datagram of the same tick tells nothing, one of the next does.
    let row = Row::new(format!("{name} ({})", column.name)).change(|_| early_in_a_tick());
    fill(column, row)
}

/// All cells that have rows.
pub(crate) fn group() -> Group {
    let rows = lines()
        .into_iter()
        .flat_map(|case| COLUMNS.map(|column| cell(case, column).ok()))
        .flatten();
    Group::new("matrix", rows.collect())
}

/// The matrix as text: a line a case, a cell a column.
pub(crate) fn text() -> String {
    let line = |first: &str, cells: [&str; 4]| {
        let [a, b, c, d] = cells;
        let text = format!("{first:<44} {a:<8} {b:<8} {c:<8} {d:<8}");
        format!("{}\n", text.trim_end())
    };
    let mut text = line("", COLUMNS.map(|column| column.name));
    for case in lines() {
        let reason = COLUMNS.iter().find_map(|column| cell(case, *column).err());
        let cells = COLUMNS.map(|column| match cell(case, column) {
            Ok(_) => "row",
            Err(_) => "n/a",
        });
        let name = match reason {
            None => case.0.into(),
            Some(reason) => format!("{} ({reason})", case.0),
        };
        text += &line(&name, cells);
    }
    text
}
