//! The transition table as a committed text, `snapshots/tcp.txt`: a change
//! of behaviour is a change of that file, to be reviewed.
//!
//! `STEERLINE_UPDATE_SNAPSHOTS=1` writes it anew.

use std::fmt::Write as _;

use lb_common::tcp::Side::{Client, ClientAlone, Server};
use lb_common::tcp::State::{
    self, Answered, Busy, ClientFin, Closed, Conversing, Datagram, Established, Free, HalfOpen,
    Reset, ServerFin,
};
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use lb_common::tcp::{End, Past, Segment, Side, Step, step};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/tcp.txt");

const HEAD: &str = "\
# What a segment does to a flow, by state and flags. `.` is no change; `ends` is a
# regular end, `FAILS` a server reset, each reported unless the flow was before. `alone`
# is the client in direct return; data there is, of an ended flow, data that tells.
";

const STATES: [State; 11] = [
    Free,
    Busy,
    HalfOpen,
    Answered,
    Established,
    ClientFin,
    ServerFin,
    Closed,
    Reset,
    Datagram,
    Conversing,
];

const SEGMENTS: [(Side, bool); 6] = [
    (Client, false),
    (Client, true),
    (Server, false),
    (Server, true),
    (ClientAlone, false),
    (ClientAlone, true),
];

fn flag_names(bits: u8) -> String {
    let all = [(SYN, "SYN"), (FIN, "FIN"), (RST, "RST"), (ACK, "ACK")];
    let names: Vec<&str> = all
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    if names.is_empty() {
        "none".into()
    } else {
        names.join("+")
    }
}

fn cell(state: State, past: Past, step: Step) -> String {
    let end = match step.end {
        End::None => "",
        End::Regular => " ends",
        End::ServerReset => " FAILS",
    };
    let unchanged = step
        == Step {
            state,
            end: End::None,
            reset_by_client: past.reset_by_client,
        };
    if unchanged {
        ".".into()
    } else {
        format!("{:?}{end}", step.state)
    }
}

fn end_line(text: &mut String) {
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Every state, origin of the reset, flag combination, side and payload.
fn table() -> String {
    let mut text = String::from(HEAD);
    let blocks = STATES.into_iter().flat_map(|state| {
        let origins: &[bool] = if state == Reset {
            &[true, false]
        } else {
            &[false]
        };
        origins.iter().map(move |&by_client| (state, by_client))
    });
    for (state, reset_by_client) in blocks {
        let origin = match (state, reset_by_client) {
            (Reset, true) => " by the client",
            (Reset, false) => " by the server",
            _ => "",
        };
        let columns = [
            "client",
            "client, data",
            "server",
            "server, data",
            "client alone",
            "alone, data",
        ];
        let title = format!("{state:?}{origin}");
        let _ = write!(text, "\n{title:<20}");
        columns
            .iter()
            .for_each(|column| _ = write!(text, "| {column:<16}"));
        end_line(&mut text);
        for bits in (0..32).filter(|bits| bits & !(SYN | FIN | RST | ACK) == 0) {
            let _ = write!(text, "{:<20}", flag_names(bits));
            for (side, has_payload) in SEGMENTS {
                let past = Past {
                    reported: false,
                    reset_by_client,
                };
                let segment = Segment {
                    side,
                    flags: bits,
                    has_payload,
                };
                let _ = write!(
                    text,
                    "| {:<16}",
                    cell(state, past, step(state, past, segment))
                );
            }
            end_line(&mut text);
        }
    }
    text
}

#[test]
fn transitions_are_those_of_the_snapshot() {
    let now = table();
    if std::env::var_os("STEERLINE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(FILE, &now).expect("the snapshot is writable");
    }
    let committed = std::fs::read_to_string(FILE).expect("the snapshot is readable");
    let mut block = "";
    for (old, new) in committed.lines().zip(now.lines()) {
        if new.contains("| client,") {
            block = new;
        }
        assert_eq!(
            old, new,
            "\n{block}\nIf this change is meant, run again with STEERLINE_UPDATE_SNAPSHOTS=1"
        );
    }
    assert_eq!(committed.lines().count(), now.lines().count());
}

/// What the snapshot leaves out because it is always so.
#[test]
fn rules_without_exception() {
    for state in STATES {
        for by_client in [false, true] {
            for bits in 0..=u8::MAX {
                for (side, has_payload) in SEGMENTS {
                    let past = Past {
                        reported: false,
                        reset_by_client: by_client,
                    };
                    let segment = Segment {
                        side,
                        flags: bits,
                        has_payload,
                    };
                    let first = step(state, past, segment);
                    let name = format!("{state:?} {past:?} {segment:?}");

                    let again = step(
                        state,
                        Past {
                            reported: true,
                            ..past
                        },
                        segment,
                    );
                    assert_eq!(
                        again,
                        Step {
                            end: End::None,
                            ..first
                        },
                        "reported once: {name}"
                    );

                    let other = Segment {
                        flags: bits ^ 0xe8,
                        ..segment
                    };
                    assert_eq!(
                        step(state, past, other),
                        first,
                        "PSH, URG, ECE, CWR: {name}"
                    );

                    if first.state == Reset && state != Reset {
                        assert_eq!(first.reset_by_client, side != Server, "{name}");
                    }
                    if first.end == End::ServerReset {
                        assert!(side == Server && bits & RST != 0, "{name}");
                        assert!(
                            !matches!(state, ClientFin | ServerFin | Closed | Reset),
                            "{name}"
                        );
                    }
                    if first.end == End::Regular {
                        assert!(!state.is_ended() || state == Reset, "{name}");
                    }
                    // Nobody goes back into the handshake.
                    if !state.is_half_open() {
                        assert!(!first.state.is_half_open(), "{name}");
                    }
                }
            }
        }
    }
}
