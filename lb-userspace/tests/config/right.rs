//! Files that are right: what they mean.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use steerline::config::{
    Aca, Algorithm, Announce, Backend, Calculation, Check, Config, Control, Curve, DataPlane,
    FailDetect, FlowTable, Forwarding, InbandHealth, LoadError, Measure, Mode, Pick, Protocol,
    Service, SynGuard, TunnelSource,
};

use lb_common::control::{Ramp, RampList};

use super::{BACKEND, FULL, HEAD, SERVICE, file, good};

#[test]
fn full_example() {
    let (config, warnings) = Config::parse(FULL, file()).expect("the example");
    assert_eq!(warnings, []);
    let expected = Config {
        data_plane: DataPlane {
            interfaces: vec!["eth0".into(), "eth1".into()],
            mode: Mode::Auto,
            flow_table: FlowTable {
                ipv4: 500_000,
                ipv6: 0,
            },
            pin_directory: "/sys/fs/bpf/lb".into(),
            reattach: false,
            source_pool: vec![
                "192.0.2.60".parse().unwrap(),
                "2001:db8::60".parse().unwrap(),
            ],
            tunnel_sources: vec![TunnelSource {
                address: "192.0.2.32".parse().unwrap(),
                length: 28,
            }],
        },
        control: Control {
            socket: "/run/lb/control.sock".into(),
            state_directory: "/var/lib/lb".into(),
        },
        services: vec![Service {
            name: "web".into(),
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)),
            port: 80,
            protocol: Protocol::Tcp,
            forwarding: Forwarding::Nat,
            algorithm: Algorithm::Aca,
            measure: Measure::FirstResponse,
            announce: Announce::None,
            gue_port: 6_081,
            drain_timeout: Duration::from_secs(90),
            drain_reset: true,
            aca: Aca {
                load_step: Duration::from_millis(5),
                dynamic_step: false,
                load_threshold: 99,
                teardown_interval: Duration::from_secs(20),
                ageout: Duration::ZERO,
                pick: Pick::Shares,
                smoothing: 1.0,
                short_flow_bytes: 15_000,
                calculation: Calculation::Relative,
                absolute_sensitivity: 21,
                variance: 0,
                curve: Curve::Reciprocal,
            },
            ramp: Ramp::Off,
            inband_health: InbandHealth {
                check: Check::Count,
                failures: 4,
                reset_time: Duration::from_millis(100),
                resume_service: Duration::from_secs(30),
                syn_timeout: Duration::from_secs(3),
                max_ejected_percent: 50,
            },
            fail_detect: FailDetect {
                connections: 0,
                clients: 2,
                reassign: 3,
                retry: Duration::from_secs(60),
            },
            syn_guard: SynGuard {
                unanswered: 0,
                interval: Duration::from_millis(100),
            },
            probe: None,
            agent: None,
            dfp: None,
            capacity: None,
            backends: vec![
                Backend {
                    name: "web-1".into(),
                    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 11)),
                    port: 8080,
                    weight: 8,
                },
                Backend {
                    name: "web-2".into(),
                    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 12)),
                    port: 80,
                    weight: 0,
                },
            ],
        }],
    };
    assert_eq!(config, expected);
}

#[test]
fn both_families_side_by_side() {
    let text = format!(
        "{SERVICE}\n{BACKEND}\n[[service]]\nname = \"six\"\naddress = \"2001:db8::10\"\n\
         port = 80\n[[service.backend]]\nname = \"a\"\naddress = \"2001:db8:0:1::1\"\n"
    );
    let config = good(&text);
    let addresses: Vec<String> = config
        .services
        .iter()
        .flat_map(|service| {
            let backends = service.backends.iter().map(|backend| backend.address);
            [service.address].into_iter().chain(backends)
        })
        .map(|address| address.to_string())
        .collect();
    let expected = ["192.0.2.10", "10.0.0.1", "2001:db8::10", "2001:db8:0:1::1"];
    assert_eq!(addresses, expected);
}

#[test]
fn defaults() {
    let config = good(&format!("{SERVICE}\n{BACKEND}\n"));
    assert_eq!(config.data_plane.mode, Mode::Native);
    assert_eq!(
        config.data_plane.flow_table,
        FlowTable {
            ipv4: 1_000_000,
            ipv6: 250_000
        }
    );
    assert_eq!(
        config.data_plane.pin_directory,
        PathBuf::from("/sys/fs/bpf/steerline")
    );
    assert!(config.data_plane.reattach);
    let control = Control {
        socket: "/run/steerline/control.sock".into(),
        state_directory: "/var/lib/steerline".into(),
    };
    assert_eq!(config.control, control);
    let service = &config.services[0];
    assert_eq!(service.protocol, Protocol::Tcp);
    assert_eq!(service.forwarding, Forwarding::Nat);
    assert_eq!(service.algorithm, Algorithm::Aca);
    assert_eq!(service.measure, Measure::SynToFin);
    assert_eq!(service.announce, Announce::Address);
    assert_eq!(service.drain_timeout, Duration::from_secs(60));
    assert!(!service.drain_reset);
    let aca = Aca {
        load_step: Duration::from_millis(10),
        dynamic_step: true,
        load_threshold: 254,
        teardown_interval: Duration::from_secs(2),
        ageout: Duration::from_secs(60),
        pick: Pick::Connections,
        smoothing: 0.3,
        short_flow_bytes: 15_360,
        calculation: Calculation::Relative,
        absolute_sensitivity: 21,
        variance: 0,
        curve: Curve::Reciprocal,
    };
    assert_eq!(service.aca, aca);
    assert_eq!(service.ramp, Ramp::Default);
    let inband = InbandHealth {
        check: Check::Count,
        failures: 4,
        reset_time: Duration::from_millis(100),
        resume_service: Duration::ZERO,
        syn_timeout: Duration::from_secs(5),
        max_ejected_percent: 50,
    };
    assert_eq!(service.inband_health, inband);
    let detect = FailDetect {
        connections: 8,
        clients: 2,
        reassign: 3,
        retry: Duration::from_secs(60),
    };
    assert_eq!(service.fail_detect, detect);
    let guard = SynGuard {
        unanswered: 0,
        interval: Duration::from_millis(100),
    };
    assert_eq!(service.syn_guard, guard);
    assert_eq!(service.backends[0].port, 80);
    assert_eq!(service.backends[0].weight, 8);
    // An empty section is an absent one, where that says nothing new.
    let empty = format!(
        "{SERVICE}\n[service.aca]\n[service.inband_health]\n[service.slow_start]\n[service.fail_detect]\n[service.syn_guard]\n{BACKEND}\n[control]\n"
    );
    assert_eq!(good(&empty), config);
}

#[test]
fn feedback() {
    let config = good(&format!(
        "{SERVICE}\n[service.aca]\ncalculation = \"absolute\"\nabsolute_sensitivity = 23\n\
         variance = 5\npick = \"shares\"\ncurve = \"bucket\"\n\
         [service.slow_start.ramp]\nrate1 = 10\ninterval1 = \"30s\"\nrate2 = 20\n\
         interval2 = \"1m\"\nmaximum = 600\n\
         [service.inband_health]\ncheck = \"remove\"\nfailures = 1\nresume_service = \"30s\"\n\
         {BACKEND}"
    ));
    let service = &config.services[0];
    assert_eq!(service.aca.calculation, Calculation::Absolute);
    assert_eq!(service.aca.curve, Curve::Bucket);
    let (sensitivity, variance) = (service.aca.absolute_sensitivity, service.aca.variance);
    assert_eq!((sensitivity, variance), (23, 5));
    let list = RampList {
        rate1: 10,
        interval1_s: 30,
        rate2: 20,
        interval2_s: 60,
        maximum: 600,
    };
    assert_eq!(service.ramp, Ramp::List(list));
    let inband = &service.inband_health;
    assert_eq!((inband.check, inband.failures), (Check::Remove, 1));
    assert_eq!(inband.resume_service, Duration::from_secs(30));
}

#[test]
fn warnings() {
    for (text, expected) in [
        (HEAD.to_owned(), [(1, "nothing is balanced")].as_slice()),
        (SERVICE.to_owned(), &[(3, "no `[[service.backend]]`")]),
        (
            format!("{SERVICE}\n{BACKEND}\nweight = 0\n"),
            &[(3, "every backend has weight 0")],
        ),
        (format!("{SERVICE}\n{BACKEND}\n"), &[]),
        (
            format!(
                "{SERVICE}\nmeasure = \"request-to-response\"\nforwarding = \"dsr\"\n{BACKEND}"
            ),
            &[(7, "up to 40 ms")],
        ),
        (
            format!(
                "{SERVICE}\n[service.aca]\nabsolute_sensitivity = 20\ncurve = \"bucket\"\n{BACKEND}"
            ),
            &[(8, "changes nothing"), (9, "pick = \"shares\"")],
        ),
        (
            format!(
                "{SERVICE}\n[service.inband_health]\ncheck = \"log\"\nfailures = 2_000\n{BACKEND}"
            ),
            &[(9, "never trips")],
        ),
        (
            format!(
                "{SERVICE}\n[service.inband_health]\ncheck = \"remove\"\nfailures = 4\nmax_ejected_percent = 0\n{BACKEND}"
            ),
            &[(8, "until an operator"), (8, "keeps every backend")],
        ),
    ] {
        let (_, warnings) = Config::parse(&text, file()).expect(&text);
        assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
        for (warning, (line, part)) in warnings.iter().zip(expected) {
            assert_eq!(warning.0.line, *line);
            assert!(warning.to_string().contains(part), "{warning}");
        }
    }
}

#[test]
fn files() {
    let missing = Config::load(Path::new("/nonexistent/lb.toml")).expect_err("no such file");
    let text = missing.to_string();
    assert!(matches!(missing, LoadError::Unreadable { .. }));
    assert!(
        text.contains("/nonexistent/lb.toml") && text.contains("--config"),
        "{text}"
    );
    let directory = std::env::temp_dir().join(format!("steerline-config-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("latin1.toml");
    std::fs::write(&path, b"# \xe4\n").expect("a file");
    let found = Config::load(&path);
    std::fs::write(&path, FULL).expect("a file");
    let loaded = Config::load(&path);
    std::fs::remove_dir_all(&directory).expect("removal");
    let text = found.expect_err("not UTF-8").to_string();
    assert!(text.contains("not UTF-8 text (byte 2)"), "{text}");
    assert_eq!(loaded.expect("the example").0, good(FULL));
}

#[test]
fn examples_load_without_warnings() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        match Config::load(&path) {
            Ok((_, warnings)) => assert_eq!(warnings, [], "{}", path.display()),
            Err(error) => panic!("{error}"),
        }
        names.push(path.file_name().map(ToOwned::to_owned));
    }
    assert!(names.contains(&Some("nat.toml".into())), "{names:?}");
}

/// Examples in the documentation load too, so that they cannot rot.
#[test]
fn documented_examples_load() {
    for page in ["configuration.md", "outside.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs")
            .join(page);
        let text = std::fs::read_to_string(path).expect(page);
        let blocks: Vec<&str> = text
            .split("```toml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert!(!blocks.is_empty(), "{page}");
        for block in blocks {
            good(block);
        }
    }
}
