//! Shares over many new flows.

use lb_common::reason::Reason;
use steerline_tests::{
    packets::{
        Counter, Lab, Moved, Port, Talk,
        flag::SYN,
        map_address,
        scene::{A, B, C, Server, WEB},
        verdict,
    },
    world::skip_unless_root,
};

use crate::REASON;

/// New flows, and buckets for twice as many.
const FLOWS: u16 = 10_000;
const BUCKETS: u32 = 8_192;
/// A cycle of weights 7, 2 and 1.
const WEIGHTS: [(Server, u32); 3] = [(A, 7), (B, 2), (C, 1)];

/// The server to which a frame was rewritten.
fn destination(frame: &[u8]) -> usize {
    [A, B, C]
        .iter()
        .position(|server| map_address(server.endpoint.0).starts_with(&frame[30..34]))
        .expect("a frame to a server of the service")
}

/// loxilb's cicd/wrrtcplb1 allows 3 of 32; here every cycle is exact.
#[test]
fn ten_thousand_flows_by_weight_are_exact_in_every_cycle() {
    if skip_unless_root(REASON) {
        return;
    }
    let mut lab = Lab::new(BUCKETS, 1_024).expect("a laboratory");
    let members: Vec<_> = WEIGHTS
        .iter()
        .map(|(server, weight)| (server.index, *weight))
        .collect();
    lab.publish(WEB, &members);
    let before = lab.snapshot();
    let mut cycle = Vec::new();
    let mut bytes = 0;
    for number in 0..FLOWS {
        let frame = Talk::web(10_000 + number, A).client_frame(SYN);
        bytes += i64::from(frame.total_length());
        let (verdict, out) = lab.run(&frame.bytes(), Port::Front);
        assert_eq!(verdict, verdict::REDIRECT, "SYN {number}");
        cycle.push(destination(&out));
        if cycle.len() == 10 {
            assert_eq!(
                cycle,
                [0, 0, 0, 0, 0, 0, 0, 1, 1, 2],
                "the cycle that ends at SYN {number}"
            );
            cycle.clear();
        }
    }
    let moved = before.moved(&lab.snapshot());
    let mut wanted = Moved::new();
    let flows = i64::from(FLOWS);
    wanted.add(Counter::Reason(Reason::NewFlow), flows);
    wanted.add(Counter::Reason(Reason::Forwarded), flows);
    wanted.add(Counter::Packets(WEB.index), flows);
    wanted.add(Counter::Bytes(WEB.index), bytes);
    wanted.add(Counter::flows(lb_common::tcp::State::HalfOpen), flows);
    for (server, weight) in WEIGHTS {
        wanted.add(
            Counter::HalfOpened(server.index),
            flows / 10 * i64::from(weight),
        );
    }
    let difference = wanted.difference(&moved);
    assert!(difference.is_empty(), "{difference:#?}");
}
