//! `cargo +nightly fuzz run agent`: an HAProxy agent that sends anything.
#![no_main]

use lb_common::control::agent::{AgentState, REASON_MAX, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut state = AgentState::default();
    for line in bytes.split(|&byte| byte == b'\n') {
        if let Ok(said) = parse(line) {
            state.take(&said);
            assert!(state.reason.len() <= REASON_MAX);
        }
    }
});
