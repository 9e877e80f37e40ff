//! Frames that nobody would send.

use lb_common::reason::Reason;
use steerline_tests::{
    packets::{
        Counter, Frame, Port, Talk,
        flag::{ACK, FIN, RST, SYN},
        hex_difference,
        scene::{
            A, ANY, ANY_SERVER, B, CLIENT, DIRECT, DIRECT_A, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A,
            FRONT, ROUTER_MAC, SHARED, SHARED_A, WEB,
        },
        verdict,
    },
    world::skip_unless_root,
};

use crate::{REASON, laboratory};

/// Frames, and the seed that gives them.
const FRAMES: u32 = 200_000;
const SEED: u64 = 0x5eed_0f57_ee71_1e00;

/// xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 56) as u8).collect()
    }
}

/// Reasons of which every frame has exactly one; the others come on top.
fn is_fate(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::NewFlow
            | Reason::SynRepeated
            | Reason::EvictedHalfOpen
            | Reason::Spilled
            | Reason::Restored
            | Reason::Trial
            | Reason::Withdrawn
            | Reason::ServerUnreachable
            | Reason::FragmentFollowed
    )
}

/// Whether a frame of that fate left the program.
fn is_sent(reason: Reason) -> bool {
    matches!(reason, Reason::Forwarded | Reason::IcmpRelayed) || reason.answers()
}

/// Frames of a few flows, in every direction and with every flag.
fn seeds() -> Vec<(Vec<u8>, Port)> {
    let talks = [
        Talk::web(1_001, A),
        Talk::web(1_002, B),
        Talk::new(1_001, SHARED, SHARED_A),
        Talk::new(1_003, ANY, ANY_SERVER).to((ANY.endpoint.0, 42)),
        Talk::new(1_004, DNS, DNS_A),
        Talk::new(1_001, DIRECT, DIRECT_A),
        Talk::new(1_004, DIRECT_DNS, DIRECT_DNS_A),
    ];
    let mut seeds = Vec::new();
    for length in [0, 9, 700] {
        let ping = Frame::ping((FRONT.1, ROUTER_MAC), CLIENT.0, WEB.endpoint.0);
        seeds.push((ping.payload(length).bytes(), Port::Front));
    }
    for talk in talks {
        for flags in [SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK] {
            for length in [0, 9, 700] {
                let client = talk.client_frame(flags).payload(length);
                let server = talk.server_frame(flags).payload(length);
                let options = client.clone().with(|frame| {
                    frame.ip_options = vec![1; 12];
                    frame.tcp_options = vec![1; 20];
                });
                seeds.extend([
                    (client.bytes(), Port::Front),
                    (options.bytes(), Port::Front),
                    (server.bytes(), Port::Back),
                ]);
            }
        }
    }
    seeds
}

/// A frame at random, a seed as it is, or one with some of its bytes changed
/// and perhaps its end cut off.
fn frame(random: &mut Random, seeds: &[(Vec<u8>, Port)]) -> (Vec<u8>, Port) {
    let (seed, port) = &seeds[random.below(seeds.len())];
    let mut bytes = seed.clone();
    match random.below(8) {
        0 => {
            let length = 14 + random.below(200);
            bytes = random.bytes(length);
            if random.below(2) == 0 {
                // So that more than the EtherType is looked at.
                bytes[12..14].copy_from_slice(&[8, 0]);
            }
        }
        1 | 2 => {}
        3 => bytes.truncate(14 + random.below(bytes.len() - 13)),
        4 => {
            let end = bytes.len().min(58);
            for _ in 0..=random.below(4) {
                bytes[random.below(end)] = (random.next() >> 56) as u8;
            }
        }
        _ => {
            // Behind the addresses, so that it stays ours.
            let end = bytes.len().min(58);
            for _ in 0..=random.below(3) {
                let place = 34 + random.below(end - 34);
                bytes[place] ^= 1 << random.below(8);
            }
        }
    }
    (bytes, *port)
}

#[test]
fn no_frame_makes_the_program_fail_and_every_one_is_counted_once() {
    if skip_unless_root(REASON) {
        return;
    }
    let mut lab = laboratory();
    let seeds = seeds();
    let mut random = Random(SEED);
    let mut seen = [0u64; 5];
    let before = lab.snapshot();
    for number in 0..FRAMES {
        let (bytes, port) = frame(&mut random, &seeds);
        let (verdict, out) = lab.run(&bytes, port);
        assert!(
            matches!(
                verdict,
                verdict::DROP | verdict::PASS | verdict::TX | verdict::REDIRECT
            ),
            "frame {number} of seed {SEED:#x}: {}\n{bytes:02x?}",
            verdict::name(verdict)
        );
        if matches!(verdict, verdict::DROP | verdict::PASS) {
            let difference = hex_difference(&bytes, &out);
            assert!(
                difference.is_empty(),
                "frame {number} was changed:\n{difference}"
            );
        } else if verdict == verdict::REDIRECT {
            assert_eq!(out.len(), bytes.len(), "frame {number} has another length");
        }
        seen[verdict as usize] += 1;
        lab.forget_wanted();
    }
    let moved = before.moved(&lab.snapshot());
    let by_reason = |wanted: fn(Reason) -> bool| -> i64 {
        let reasons = Reason::ALL.iter().filter(|reason| wanted(**reason));
        reasons
            .map(|reason| moved.of(Counter::Reason(*reason)))
            .sum()
    };
    println!("seed {SEED:#x}");
    for reason in Reason::ALL {
        println!(
            "{:>9}  {}",
            moved.of(Counter::Reason(*reason)),
            reason.name()
        );
    }
    let [_, dropped, passed, sent_back, redirected] = seen.map(u64::cast_signed);
    assert_eq!(
        by_reason(is_fate),
        i64::from(FRAMES),
        "every frame has one fate"
    );
    assert_eq!(by_reason(Reason::drops), dropped, "drops");
    assert_eq!(
        by_reason(is_sent),
        sent_back + redirected,
        "forwarded and answered"
    );
    assert_eq!(
        by_reason(|reason| { is_fate(reason) && !reason.drops() && !is_sent(reason) }),
        passed,
        "passed"
    );
    assert_eq!(
        moved.of(Counter::Reason(Reason::Internal)),
        0,
        "a state that cannot be"
    );
    // The frames reach what they are meant to reach.
    for reason in [
        Reason::Forwarded,
        Reason::NewFlow,
        Reason::NoFlow,
        Reason::Malformed,
        Reason::PassedMalformed,
        Reason::PassedNotIp,
        Reason::FragmentEarly,
        Reason::Restored,
        Reason::TtlAnswered,
        Reason::EchoAnswered,
    ] {
        assert!(
            moved.of(Counter::Reason(reason)) > 0,
            "no frame was {}",
            reason.name()
        );
    }
    lab.books_agree().expect("the books agree with the table");
    lab.nothing_strayed().expect("no other counter moved");
}
