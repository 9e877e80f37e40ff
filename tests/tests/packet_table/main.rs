//! The packet table: frames through the loaded program, with the verdict, every
//! byte and every counter asserted.
//!
//! `cargo test -p steerline-tests --test packet_table -- --nocapture` prints
//! each row as it runs; `cargo xtask test --list` prints them all without
//! running any, with the matrix of modes, protocols and families.

mod answers;
mod bulk;
mod checksums;
mod cpus;
mod datagrams;
mod direct;
mod ends;
mod errors;
mod feedback;
mod fragments;
mod frames;
mod full;
mod full_nat;
mod handshake;
mod hops;
mod ipv6;
mod matrix;
mod odd;
mod passed;
mod picks;
mod ping;
mod random;
mod reports;
mod tunnels;

use steerline_tests::{
    packets::{Group, Lab},
    world::skip_unless_root,
};

/// Buckets and spill entries of the usual laboratory: small enough to be read
/// as a whole around every frame.
const BUCKETS: u32 = 64;
const SPILL: u32 = 8;

/// What a test needs root for.
const REASON: &str = "loads a BPF program and makes a network namespace";

/// Every subject.
fn groups() -> Vec<Group> {
    vec![
        handshake::group(),
        handshake::refusals(),
        ends::group(),
        passed::group(),
        frames::sizes(),
        frames::cuts(),
        frames::lengths(),
        checksums::group(),
        hops::group(),
        picks::round_robin(),
        picks::adaptive(),
        picks::collisions(),
        feedback::budgets(),
        feedback::syns(),
        feedback::turns(),
        full::group(),
        reports::group(),
        matrix::group(),
        datagrams::group(),
        direct::lives(),
        direct::room(),
        direct::reports(),
        ping::group(),
        ipv6::group(),
        answers::resets(),
        answers::errors(),
        tunnels::group(),
        full_nat::group(),
        errors::from_clients(),
        errors::from_servers(),
        fragments::group(),
        odd::group(),
        odd::cuts(),
    ]
}

/// The name of every case.
fn cases() -> Vec<String> {
    groups().iter().flat_map(Group::names).collect()
}

fn laboratory() -> Lab {
    Lab::new(BUCKETS, SPILL).expect("a laboratory")
}

fn run(group: &Group) {
    if skip_unless_root(REASON) {
        return;
    }
    group.run(&mut laboratory());
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = cases();
    let mut unique = std::collections::BTreeSet::new();
    let mut text = String::new();
    for case in &cases {
        assert!(unique.insert(case), "`{case}` twice");
        text += &format!("{case}\n");
    }
    text += &format!("{} cases\n\n{}", cases.len(), matrix::text());
    // What `cargo xtask test --list` prints.
    if let Some(path) = std::env::var_os("STEERLINE_CASE_LIST") {
        std::fs::write(path, text).expect("writing the list of cases");
    }
}

#[test]
fn handshakes() {
    run(&handshake::group());
    run(&handshake::refusals());
}

#[test]
fn ends_of_flows() {
    run(&ends::group());
}

#[test]
fn what_is_not_ours() {
    run(&passed::group());
}

#[test]
fn shapes_of_frames() {
    run(&frames::sizes());
    run(&frames::lengths());
}

#[test]
fn frames_cut_at_every_length() {
    run(&frames::cuts());
}

#[test]
fn checksums_and_headers() {
    run(&checksums::group());
}

#[test]
fn next_hops() {
    run(&hops::group());
}

#[test]
fn choices() {
    run(&picks::round_robin());
    run(&picks::adaptive());
    run(&picks::collisions());
}

#[test]
fn what_traffic_tells() {
    run(&feedback::budgets());
    run(&feedback::syns());
    run(&feedback::turns());
}

#[test]
fn full_tables() {
    run(&full::group());
}

#[test]
fn every_mode_and_protocol() {
    run(&matrix::group());
}

#[test]
fn datagrams_through_nat() {
    run(&datagrams::group());
}

#[test]
fn direct_return() {
    run(&direct::lives());
    run(&direct::room());
    run(&direct::reports());
}

#[test]
fn headers_of_ipv6() {
    run(&ipv6::group());
}

#[test]
fn servers_behind_tunnels() {
    run(&tunnels::group());
}

#[test]
fn addresses_that_stand_for_clients() {
    run(&full_nat::group());
}

#[test]
fn pings() {
    run(&ping::group());
}

#[test]
fn answers_of_our_own() {
    run(&answers::resets());
    run(&answers::errors());
}

#[test]
fn fragments_follow_their_first() {
    run(&fragments::group());
}

#[test]
fn rare_conversations() {
    run(&odd::group());
    run(&odd::cuts());
}

#[test]
fn errors_of_others() {
    run(&errors::from_clients());
    run(&errors::from_servers());
}

#[test]
fn errors_are_few_a_tick() {
    if !skip_unless_root(REASON) {
        answers::budget(&mut laboratory());
    }
}

#[test]
fn teardown_reports() {
    run(&reports::group());
}
