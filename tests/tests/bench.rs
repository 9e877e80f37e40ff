//! The benchmark's machinery: that what it times is what it says.
//!
//! `cargo xtask bench packet` measures; here only few packets run, and no
//! duration is looked at.

use steerline_tests::{
    bench::{self, Audience, Case, Contender, Mode, Options, Protocol, Site, Size, Subject, World},
    packets::Family,
    world::skip_unless_root,
};

const REASON: &str = "loads BPF programs and makes a network namespace";

struct Nobody;

impl Audience for Nobody {
    fn tell(&self, _: &str) {}
    fn has_left(&self) -> bool {
        false
    }
}

fn options() -> Options {
    Options {
        size: Size::QUICK,
        runs: 1,
        flows: vec![256],
        only: Vec::new(),
    }
}

/// Each run asserts verdicts and counters of every repeat, and each table that
/// samples of both directions are forwarded byte for byte as expected.
#[test]
fn every_program_treats_every_packet_as_its_case_says() {
    if skip_unless_root(REASON) {
        return;
    }
    let options = options();
    let report = bench::run(&options, &Nobody).expect("measurements");
    let cases = Site::all().into_iter();
    let cases: Vec<Case> = cases.flat_map(|site| site.cases(&options.flows)).collect();
    let measured: Vec<Case> = report.rows.iter().map(|row| row.case).collect();
    assert_eq!(measured, cases);
    for row in &report.rows {
        let counts: Vec<usize> = row.samples.values().map(Vec::len).collect();
        assert!(counts.iter().all(|count| *count == 1), "{row:?}");
        for contender in [Contender::Empty, Contender::Steerline] {
            assert!(row.samples.contains_key(&contender), "{row:?}");
        }
    }
    let json = report.json();
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(cases.len()));
    let text = report.to_string();
    for case in cases {
        assert!(text.contains(&case.to_string()), "{case} in\n{text}");
    }
}

#[test]
fn a_run_in_which_packets_are_dropped_is_no_measurement() {
    if skip_unless_root(REASON) {
        return;
    }
    let site = Site {
        family: Family::V4,
        mode: Mode::Nat,
        protocol: Protocol::Tcp,
    };
    let case = Case {
        site,
        subject: Subject::ToServer,
        flows: Size::QUICK.live,
    };
    let mut world = World::new(site, Size::QUICK).expect("a table");
    world
        .measure(Contender::Steerline, case)
        .expect("every packet is forwarded");
    world.lose_flows();
    let error = world
        .measure(Contender::Steerline, case)
        .expect_err("packets of lost flows are dropped");
    assert!(error.to_string().contains("no_flow"), "{error}");
    // The floors lost nothing.
    world
        .measure(Contender::Lru, case)
        .expect("every packet is forwarded");
}

#[test]
fn flows_that_cannot_take_turns_are_refused() {
    for (flows, part) in [(3, "3 flows"), (0, "0 flows"), (4_096, "at most 2048")] {
        let options = Options {
            flows: vec![flows],
            ..options()
        };
        let error = bench::run(&options, &Nobody).expect_err("an impossible number");
        assert!(error.to_string().contains(part), "{error}");
    }
    let few = Options {
        size: Size {
            live: 100,
            ..Size::QUICK
        },
        ..options()
    };
    let error = bench::run(&few, &Nobody).expect_err("an impossible table");
    assert!(error.to_string().contains("100 flows"), "{error}");
    let options = Options {
        only: vec!["ipv5".into()],
        ..options()
    };
    let error = bench::run(&options, &Nobody).expect_err("nothing to measure");
    assert!(error.to_string().contains("ipv5"), "{error}");
}
