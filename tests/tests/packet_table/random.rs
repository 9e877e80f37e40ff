//! Frames that nobody would send.
//!
//! `STEERLINE_RANDOM_FRAMES` says how many (200,000 if it does not; a million
//! where `STEERLINE_FULL_LENGTH` is set), `STEERLINE_RANDOM_SEED` which. A
//! failure names the seed and prints the frame: it goes into the corpus, with a
//! line that says what it was.

mod corpus;
mod sums;

use lb_common::reason::Reason;
use steerline_tests::{
    packets::{
        Counter, FAMILIES, Family, Frame, Port, Tag, Talk,
        flag::{ACK, FIN, RST, SYN},
        hex_difference,
        scene::{
            A, ANY, ANY_SERVER, B, CLIENT, DIRECT, DIRECT_A, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A,
            FRONT, ROUTER, ROUTER_MAC, SHARED, SHARED_A, WEB,
        },
        verdict,
    },
    world::skip_unless_root,
};

use crate::{REASON, laboratory};

/// Frames of a run that nobody asked for, and of one in CI.
const FRAMES: u32 = 200_000;
const FRAMES_IN_CI: u32 = 1_000_000;
const SEED: u64 = 0x5eed_0f57_ee71_1e00;

/// A number in the environment.
fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let digits = text.replace('_', "");
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

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
            | Reason::OverBudget
    )
}

/// Whether a frame of that fate left the program.
fn is_sent(reason: Reason) -> bool {
    matches!(reason, Reason::Forwarded | Reason::IcmpRelayed) || reason.answers()
}

/// Frames of a few flows, in every direction and with every flag, and what is said
/// about them.
fn seeds() -> Vec<(Vec<u8>, Port)> {
    let mut seeds = corpus::frames();
    for family in FAMILIES {
        let talks = [
            Talk::new(1_001, WEB.in_family(*family), A.in_family(*family)),
            Talk::new(1_002, WEB.in_family(*family), B.in_family(*family)),
            Talk::new(
                1_001,
                SHARED.in_family(*family),
                SHARED_A.in_family(*family),
            ),
            Talk::new(1_003, ANY.in_family(*family), ANY_SERVER.in_family(*family))
                .to((ANY.in_family(*family).endpoint.0, 42)),
            Talk::new(1_004, DNS.in_family(*family), DNS_A.in_family(*family)),
            Talk::new(
                1_001,
                DIRECT.in_family(*family),
                DIRECT_A.in_family(*family),
            ),
            Talk::new(
                1_004,
                DIRECT_DNS.in_family(*family),
                DIRECT_DNS_A.in_family(*family),
            ),
        ];
        for length in [0, 9, 700] {
            let (client, vip) = (CLIENT.0, WEB.in_family(*family).endpoint.0);
            let ping = Frame::ping((FRONT.1, ROUTER_MAC), family.counterpart(client), vip);
            seeds.push((ping.payload(length).bytes(), Port::Front));
        }
        for talk in talks {
            seeds.extend(conversation(talk));
            seeds.extend(odd(talk));
        }
    }
    seeds
}

fn conversation(talk: Talk) -> Vec<(Vec<u8>, Port)> {
    let mut seeds = Vec::new();
    for flags in [SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK] {
        for length in [0, 9, 700] {
            let client = talk.client_frame(flags).payload(length);
            let server = talk.server_frame(flags).payload(length);
            let options = client.clone().with(|frame| {
                frame.ip_options = vec![1; 12];
                frame.tcp_options = vec![1; 20];
                frame.tags = vec![Tag::customer(42)];
            });
            seeds.extend([
                (client.bytes(), Port::Front),
                (options.bytes(), Port::Front),
                (server.bytes(), Port::Back),
            ]);
        }
    }
    seeds
}

/// Fragments of a conversation, and errors about it.
fn odd(talk: Talk) -> Vec<(Vec<u8>, Port)> {
    let mut seeds = Vec::new();
    let (client, server) = (talk.client_frame(ACK), talk.server_frame(ACK));
    for piece in client.clone().payload(300).fragments(128) {
        seeds.push((piece.bytes(), Port::Front));
    }
    for piece in server.clone().payload(300).fragments(128) {
        seeds.push((piece.bytes(), Port::Back));
    }
    let kind = match talk.family() {
        Family::V4 => (3, 4),
        Family::V6 => (2, 0),
    };
    let rest = [0, 0, 5, 0x78];
    let router = talk.family().counterpart(ROUTER);
    let about_server = server.with(|frame| frame.source = talk.vip).payload(20);
    let about_client = client
        .with(|frame| frame.destination = talk.server.endpoint)
        .payload(20);
    seeds.push((
        Frame::error((FRONT.1, ROUTER_MAC), router, kind, rest, about_server).bytes(),
        Port::Front,
    ));
    seeds.push((
        Frame::error((FRONT.1, ROUTER_MAC), router, kind, rest, about_client).bytes(),
        Port::Back,
    ));
    seeds
}

/// A frame at random, a seed as it is, or one with some of its bytes changed
/// and perhaps its end cut off.
fn frame(random: &mut Random, seeds: &[(Vec<u8>, Port)]) -> (Vec<u8>, Port) {
    let (seed, port) = &seeds[random.below(seeds.len())];
    let mut bytes = seed.clone();
    // Where the addresses end, so that it stays ours, and where headers do.
    let behind = if bytes.get(12..14) == Some(&[0x86, 0xdd]) {
        54
    } else {
        34
    };
    let end = bytes.len().min(behind + 70);
    match random.below(10) {
        0 => {
            let length = 14 + random.below(200);
            bytes = random.bytes(length);
            match random.below(3) {
                // So that more than the EtherType is looked at.
                0 => bytes[12..14].copy_from_slice(&[8, 0]),
                1 => bytes[12..14].copy_from_slice(&[0x86, 0xdd]),
                _ => {}
            }
        }
        1 | 2 => {}
        3 => bytes.truncate(14 + random.below(bytes.len() - 13)),
        4 => bytes.resize(bytes.len() + random.below(40), 0x5a),
        5 => {
            for _ in 0..=random.below(4) {
                bytes[random.below(end)] = (random.next() >> 56) as u8;
            }
        }
        6 if end > 14 => {
            // Lengths, offsets and protocols: the first bytes of the IP header.
            for _ in 0..=random.below(2) {
                let place = 14 + random.below(12.min(end - 14));
                bytes[place] ^= 1 << random.below(8);
            }
        }
        _ if end > behind => {
            for _ in 0..=random.below(3) {
                let place = behind + random.below(end - behind);
                bytes[place] ^= 1 << random.below(8);
            }
        }
        _ => {}
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
    let corpus = corpus::frames().len();
    let seed = asked("STEERLINE_RANDOM_SEED").unwrap_or(SEED);
    let usual = if std::env::var_os("STEERLINE_FULL_LENGTH").is_some() {
        FRAMES_IN_CI
    } else {
        FRAMES
    };
    let frames = asked("STEERLINE_RANDOM_FRAMES").unwrap_or_else(|| usual.into());
    println!("{frames} frames of seed {seed:#x}");
    let mut random = Random(seed);
    let mut seen = [0u64; 5];
    let before = lab.snapshot();
    for number in 0..frames {
        // The corpus as it is, then anything.
        let (bytes, port) = match seeds[..corpus].get(number as usize) {
            Some(seed) => seed.clone(),
            None => frame(&mut random, &seeds),
        };
        let (verdict, out) = lab.run(&bytes, port);
        assert!(
            matches!(
                verdict,
                verdict::DROP | verdict::PASS | verdict::TX | verdict::REDIRECT
            ),
            "frame {number} of seed {seed:#x}: {}\n{}",
            verdict::name(verdict),
            corpus::hex(&bytes)
        );
        if matches!(verdict, verdict::DROP | verdict::PASS) {
            let difference = hex_difference(&bytes, &out);
            assert!(
                difference.is_empty(),
                "frame {number} of seed {seed:#x} was changed:\n{difference}\n{}",
                corpus::hex(&bytes)
            );
        } else if verdict == verdict::REDIRECT {
            assert_eq!(out.len(), bytes.len(), "frame {number} has another length");
        }
        if matches!(verdict, verdict::TX | verdict::REDIRECT) {
            // What comes in with right checksums leaves with right ones, what with
            // wrong ones with wrong ones; answers are right.
            let right = sums::are_right(&out);
            let answers = verdict == verdict::TX;
            assert!(
                right == sums::are_right(&bytes) || answers && right != Some(false),
                "frame {number} of seed {seed:#x}: {:?} became {right:?}\n{}\n{}",
                sums::are_right(&bytes),
                corpus::hex(&bytes),
                corpus::hex(&out)
            );
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
        frames.cast_signed(),
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
        Reason::FragmentFollowed,
        Reason::IcmpRelayed,
        Reason::IcmpForged,
        Reason::PassedIcmp,
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
