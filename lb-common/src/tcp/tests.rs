//! Sequences of segments, and the table against the function.

use super::{End::*, Side::*, State::*, *};
use flags::{ACK, FIN, RST, SYN};

fn run(start: State, segments: &[(Side, u8, bool)]) -> (State, Vec<End>) {
    let mut state = start;
    let mut past = Past::default();
    let mut ends = Vec::new();
    for (side, flags, has_payload) in segments {
        let step = step(
            state,
            past,
            Segment {
                side: *side,
                flags: *flags,
                has_payload: *has_payload,
            },
        );
        state = step.state;
        past.reset_by_client = step.reset_by_client;
        if step.end != None {
            past.reported = true;
            ends.push(step.end);
        }
    }
    (state, ends)
}

#[test]
fn sequences_of_segments() {
    type Row = (
        &'static str,
        &'static [(Side, u8, bool)],
        State,
        &'static [End],
    );
    let rows: &[Row] = &[
        ("SYN repeated", &[(Client, SYN, false)], HalfOpen, &[]),
        ("answered", &[(Server, SYN | ACK, false)], Answered, &[]),
        (
            "handshake",
            &[(Server, SYN | ACK, false), (Client, ACK, false)],
            Established,
            &[],
        ),
        (
            "refused",
            &[(Server, RST | ACK, false)],
            Reset,
            &[ServerReset],
        ),
        (
            "client gives up: final, nobody but a client was seen",
            &[
                (Client, RST, false),
                (Client, ACK, true),
                (Client, ACK, false),
            ],
            Closed,
            &[],
        ),
        (
            "client gives up the answered handshake: final",
            &[
                (Server, SYN | ACK, false),
                (Client, RST, false),
                (Client, ACK, true),
            ],
            Closed,
            &[],
        ),
        (
            "server closes first",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Server, FIN | ACK, true),
                (Client, FIN | ACK, false),
                (Server, ACK, false),
            ],
            Closed,
            &[Regular],
        ),
        (
            "client closes first",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, false),
                (Client, FIN | ACK, true),
                (Server, ACK, true),
                (Server, FIN | ACK, false),
                (Client, ACK, false),
            ],
            Closed,
            &[Regular],
        ),
        (
            "server resets mid-flow",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Server, RST, false),
            ],
            Reset,
            &[ServerReset],
        ),
        (
            "reset after the client's FIN is no failure",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Client, FIN | ACK, false),
                (Server, RST | ACK, false),
            ],
            Reset,
            &[Regular],
        ),
        (
            "client aborts",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Client, RST, false),
            ],
            Reset,
            &[Regular],
        ),
        (
            "blind reset as from the server: its data brings the flow back",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Server, RST, false),
                (Client, ACK, true),
                (Server, ACK, true),
                (Server, FIN | ACK, false),
                (Client, FIN | ACK, false),
            ],
            Closed,
            &[ServerReset],
        ),
        (
            "data in flight towards a server that reset brings nothing back",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Server, RST, false),
                (Client, ACK, true),
                (Client, FIN | ACK, false),
            ],
            Reset,
            &[ServerReset],
        ),
        (
            "blind reset as from the client",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Client, RST, false),
                (Server, ACK, true),
                (Client, ACK, false),
            ],
            Established,
            &[Regular],
        ),
        (
            "SYN on a live flow changes nothing (challenge ACK, RFC 5961 section 4)",
            &[
                (Server, SYN | ACK, false),
                (Client, ACK, true),
                (Client, SYN, false),
                (Server, ACK, false),
            ],
            Established,
            &[],
        ),
    ];
    for (name, segments, state, ends) in rows {
        assert_eq!(run(HalfOpen, segments), (*state, ends.to_vec()), "{name}");
    }
}

#[test]
fn the_table_says_what_the_function_says() {
    for number in 0..16u8 {
        let state = State::from_number(number);
        for bits in 0..=255u8 {
            for rest in 0..8u8 {
                let past = Past {
                    reported: false,
                    reset_by_client: rest & 1 != 0,
                };
                let segment = Segment {
                    side: if rest & 2 != 0 { Client } else { Server },
                    flags: bits,
                    has_payload: rest & 4 != 0,
                };
                let expected = step(state, past, segment);
                let number = Number(state as u64);
                let got = Transition::at(Transition::index(number, past.reset_by_client, segment));
                assert!(got.state().is(expected.state));
                assert_eq!(got.ends(), expected.end != None);
                assert_eq!(got.fails(), expected.end == ServerReset);
                assert_eq!(got.reset_by_client() != 0, expected.reset_by_client);
                assert_eq!(number.is_active(), state.is_active());
                assert_eq!(number.is_half_open(), state.is_half_open());
                assert_eq!(number.is_ended(), state.is_ended());
            }
        }
    }
}

#[test]
fn a_flow_is_reported_once_whatever_comes() {
    let mut seed = 1u64;
    for _ in 0..20_000 {
        let mut segments = Vec::new();
        for _ in 0..24 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = (seed >> 33) as u8;
            segments.push((
                if bits & 0x80 == 0 { Client } else { Server },
                bits & (FIN | SYN | RST | ACK),
                bits & 0x40 != 0,
            ));
        }
        let (_, ends) = run(HalfOpen, &segments);
        assert!(ends.len() <= 1);
    }
}

#[test]
fn bytes_wrap_with_the_sequence_space() {
    assert_eq!(bytes_seen(1_000, 0xffff_ff00, Some(50), 40), 1_256 + 10);
    assert_eq!(bytes_seen(20, 10, Option::None, 0), 10);
}
