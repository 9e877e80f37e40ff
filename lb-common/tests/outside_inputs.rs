//! A million mangled inputs each for what peers send: nothing panics, and
//! nothing makes us keep more than a message. The streams are seeded; a failure
//! prints its input.
#![cfg(feature = "control")]

#[path = "control_world/random.rs"]
mod random;

use lb_common::control::agent::{self, AgentState, LINE_MAX, REASON_MAX};
use lb_common::control::dfp::{Frames, HostWeight, Key, Load, MESSAGE_MAX, Message, emit, parse};
use random::Random;

const INPUTS: u32 = 1_000_000;

fn below(random: &mut Random, limit: usize) -> usize {
    (random.bits() % limit as u64) as usize
}

/// Changes, cuts, repeats or inserts some bytes.
fn mangle(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=below(random, 4) {
        let at = below(random, bytes.len() + 1);
        match below(random, 5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, below(random, 256) as u8),
            2 => bytes.extend_from_within(at..),
            _ => {
                // Edges of a length field are likelier than chance.
                let edge = [0, 1, 4, 8, 0x7f, 0x80, 0xff][below(random, 7)];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = edge;
                }
            }
        }
    }
    bytes.truncate(4_096);
}

fn messages() -> Vec<Vec<u8>> {
    let host = HostWeight {
        address: [10, 1, 1, 1].into(),
        bind_id: 1,
        weight: 24,
    };
    let load = |hosts| Load {
        port: 80,
        protocol: 6,
        hosts: vec![host; hosts],
    };
    let key = Key {
        id: 0,
        secret: b"secret".to_vec(),
    };
    vec![
        emit(&Message::Preference(vec![load(1), load(20)]), None),
        emit(&Message::Preference(vec![load(2)]), Some(&key)),
        emit(&Message::Parameters { keepalive_s: 5 }, None),
        emit(&Message::BindReport(vec![]), None),
        emit(&Message::BindChange, None),
    ]
}

#[test]
fn dfp_takes_anything() {
    let mut random = Random(0xdf9);
    let (messages, key) = (
        messages(),
        Key {
            id: 0,
            secret: b"secret".to_vec(),
        },
    );
    let (mut whole, mut read, mut refused) = (0_u32, 0_u32, 0_u32);
    for _ in 0..INPUTS {
        let mut bytes = messages[below(&mut random, messages.len())].clone();
        mangle(&mut random, &mut bytes);
        let mut frames = Frames::default();
        let piece = 1 + below(&mut random, 64);
        for part in bytes.chunks(piece) {
            let result = frames.push(part, |message| {
                whole += 1;
                let unsigned = parse(message, None);
                read += u32::from(unsigned.is_ok());
                // What the secret proves is readable without it too.
                if let Ok(signed) = parse(message, Some(&key)) {
                    assert_eq!(unsigned, Ok(signed), "{message:02x?}");
                }
            });
            assert!(frames.held() <= MESSAGE_MAX, "{bytes:02x?}");
            if result.is_err() {
                refused += 1;
                break;
            }
        }
    }
    // The stream reaches the inside and the edges.
    let (least, most) = (INPUTS / 20, INPUTS * 2);
    for count in [whole, read, refused] {
        assert!((least..most).contains(&count), "{whole} {read} {refused}");
    }
}

#[test]
fn agent_text_takes_anything() {
    let mut random = Random(0xa9e);
    let lines: [&[u8]; 7] = [
        b"75%\n",
        b"up ready 100% maxconn:30\n",
        b"down#out of memory\n",
        b"drain\r\n",
        b"weight:12,maint\t50%\n",
        b"failed #\xc3\xa4\xc3\xb6 \xe2\x82\xac\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    let mut state = AgentState::default();
    let mut taken = 0_u32;
    for _ in 0..INPUTS {
        let mut bytes = lines[below(&mut random, lines.len())].to_vec();
        mangle(&mut random, &mut bytes);
        match agent::parse(&bytes) {
            Ok(line) => {
                taken += 1;
                let before = state.clone();
                let changed = state.take(&line);
                assert_eq!(changed, state != before, "{bytes:02x?}");
                assert!(state.reason.len() <= REASON_MAX, "{bytes:02x?}");
                if let Some(weight) = line.weight {
                    assert!(weight.of(8) <= 65_535, "{bytes:02x?}");
                }
            }
            Err(error) => assert!(error.to_string().len() < LINE_MAX, "{bytes:02x?}"),
        }
    }
    assert!((INPUTS / 10..INPUTS).contains(&taken), "{taken}");
}
