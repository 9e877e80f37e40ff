//! `cargo +nightly fuzz run dfp`: a DFP agent that sends anything.
#![no_main]

use lb_common::control::dfp::{Frames, Key, MESSAGE_MAX, emit, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let key = Key {
        id: 0,
        secret: b"secret".to_vec(),
    };
    let mut frames = Frames::default();
    for part in bytes.chunks(7) {
        let result = frames.push(part, |message| {
            let _ = parse(message, Some(&key));
            if let Ok(read) = parse(message, None) {
                assert_eq!(parse(&emit(&read, None), None), Ok(read));
            }
        });
        assert!(frames.held() <= MESSAGE_MAX);
        if result.is_err() {
            return;
        }
    }
});
