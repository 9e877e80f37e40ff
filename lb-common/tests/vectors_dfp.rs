//! The `dfp` cases of `vectors.json`: messages and their bytes, both ways.
//! `STEERLINE_VECTORS=FILE` replaces the file.
#![cfg(feature = "control")]

use lb_common::control::dfp::{
    BindEntry, BindTable, DfpError, Frames, HostWeight, Key, Load, MESSAGE_MAX, Message, emit,
    parse,
};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = std::env::var("STEERLINE_VECTORS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json").into());
    let text = std::fs::read_to_string(&path).expect("the vector file is readable");
    let all: Vec<Value> = serde_json::from_str(&text).expect("the vector file is a JSON list");
    all.into_iter()
        .filter(|case| case["system"] == "dfp")
        .collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).expect("a hexadecimal digit") as u8;
    hex.as_bytes()
        .chunks_exact(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn message_of(input: &Value) -> Message {
    match input["message"].as_str().expect("a message") {
        "dfp_parameters" => Message::Parameters {
            keepalive_s: number(&input["keepalive_s"]) as u32,
        },
        "preference" => {
            let hosts: Vec<HostWeight> = input["hosts"]
                .as_array()
                .expect("hosts")
                .iter()
                .map(|host| HostWeight {
                    address: host[0].as_str().expect("a host").parse().expect("IPv4"),
                    bind_id: number(&host[1]) as u16,
                    weight: number(&host[2]) as u16,
                })
                .collect();
            Message::Preference(if hosts.is_empty() {
                Vec::new()
            } else {
                vec![Load {
                    port: number(&input["port"]) as u16,
                    protocol: number(&input["protocol"]) as u8,
                    hosts,
                }]
            })
        }
        "bindid_request" => Message::BindRequest,
        "bindid_report" => Message::BindReport(Vec::new()),
        other => panic!("message {other}"),
    }
}

#[test]
fn every_case_holds() {
    let cases = cases();
    assert!(!cases.is_empty(), "the vector file has no dfp case");
    for case in &cases {
        let name = &case["name"];
        let message = message_of(&case["input"]);
        let bytes = bytes_of(case["expect"]["hex"].as_str().expect("bytes"));
        assert_eq!(emit(&message, None), bytes, "{name}");
        assert_eq!(parse(&bytes, None), Ok(message), "{name}");
    }
}

fn samples() -> Vec<Message> {
    let host = |last: u8, weight| HostWeight {
        address: [10, 1, 1, last].into(),
        bind_id: u16::from(last),
        weight,
    };
    let load = |port, hosts: u8| Load {
        port,
        protocol: 6,
        hosts: (0..hosts).map(|last| host(last, 7)).collect(),
    };
    vec![
        Message::Preference(vec![load(80, 1), load(443, 3), load(0, 0)]),
        Message::Parameters { keepalive_s: 0 },
        Message::BindRequest,
        Message::BindReport(vec![BindTable {
            address: [10, 1, 1, 1].into(),
            port: 80,
            protocol: 6,
            entries: vec![BindEntry {
                id: 3,
                address: [192, 0, 2, 0].into(),
                mask: [255, 255, 255, 0].into(),
            }],
        }]),
        Message::BindChange,
        Message::Other(0x0500),
    ]
}

fn key(id: u32, secret: &[u8]) -> Key {
    Key {
        id,
        secret: secret.to_vec(),
    }
}

#[test]
fn signed_messages_are_read_by_whoever_has_the_secret() {
    let good = key(0, b"a secret");
    for message in samples() {
        let signed = emit(&message, Some(&good));
        assert_eq!(parse(&signed, Some(&good)), Ok(message.clone()));
        // Without a secret of one's own, signatures are not looked at.
        assert_eq!(parse(&signed, None), Ok(message.clone()));
        for (other, error) in [
            (key(0, b"another"), DfpError::Digest),
            (key(1, b"a secret"), DfpError::Algorithm),
        ] {
            assert_eq!(parse(&signed, Some(&other)), Err(error));
        }
        let unsigned = emit(&message, None);
        assert_eq!(parse(&unsigned, Some(&good)), Err(DfpError::Unsigned));
        for at in 0..signed.len() {
            let mut forged = signed.clone();
            forged[at] ^= 1;
            assert!(parse(&forged, Some(&good)).is_err(), "byte {at}");
        }
    }
}

#[test]
fn a_stream_is_cut_into_messages_wherever_it_was_split() {
    let sent: Vec<Vec<u8>> = samples().iter().map(|m| emit(m, None)).collect();
    let stream = sent.concat();
    for piece in 1..=stream.len() {
        let mut frames = Frames::default();
        let mut got = Vec::new();
        for bytes in stream.chunks(piece) {
            let result = frames.push(bytes, |message| got.push(message.to_vec()));
            assert_eq!(result, Ok(()), "pieces of {piece}");
        }
        assert_eq!(got, sent, "pieces of {piece}");
        assert_eq!(frames.held(), 0);
    }
}

#[test]
fn what_cannot_be_a_message_ends_the_stream() {
    let too_long = MESSAGE_MAX as u32 + 1;
    let tlv = |kind, length| DfpError::TlvLength { kind, length };
    for (hex, error) in [
        ("02", DfpError::Version(2)),
        ("474554202f20", DfpError::Version(0x47)),
        ("01000101ffffffff", DfpError::MessageLength(u32::MAX)),
        ("0100010100010001", DfpError::MessageLength(too_long)),
        ("0100010100000007", DfpError::MessageLength(7)),
        ("0100010100000000", DfpError::MessageLength(0)),
        ("010001010000000a0002", tlv(0, 0)),
        ("010001010000000c00020000", tlv(2, 0)),
        ("010001010000000c00020003", tlv(2, 3)),
        ("010001010000000c00020005", tlv(2, 5)),
        // A host is announced and not there; one is there and not announced.
        ("010001010000001000020c0000000000", tlv(2, 0x0c00)),
        ("01000101000000140002000c0000000000010000", tlv(2, 12)),
        (
            "010001010000001c000200140050060000000000 0a01010100000018",
            tlv(2, 20),
        ),
        ("010003010000000c01010004", tlv(0x0101, 4)),
    ] {
        let bytes = bytes_of(&hex.replace(' ', ""));
        let mut result = Ok(());
        let mut frames = Frames::default();
        let framed = frames.push(&bytes, |message| result = parse(message, None).map(|_| ()));
        assert_eq!(framed.and(result), Err(error), "{hex}");
        assert!(frames.held() <= MESSAGE_MAX);
    }
}
