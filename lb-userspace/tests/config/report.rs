//! What `check` says about a file that is right.

use steerline::config::check::{self, Finding, Severity};
use steerline::config::{Config, FlowTable};

use super::{BACKEND, FULL, SERVICE, file, good};

#[test]
fn memory_follows_the_map_abi() {
    let mut config = good(FULL);
    for (flows, buckets, spill) in [
        (1_024, 512, 1_024),
        (1_025, 1_024, 1_024),
        (500_000, 262_144, 7_812),
        (1_000_000, 524_288, 15_625),
        (16_777_216, 8_388_608, 262_144),
    ] {
        config.data_plane.flow_table = FlowTable {
            ipv4: flows,
            ipv6: flows,
        };
        let sizes = config.data_plane.flow_table.sizes();
        assert_eq!((sizes.buckets4, sizes.buckets6), (buckets, buckets));
        assert_eq!((sizes.spill4, sizes.spill6), (spill, spill));
        let memory = config.memory(4);
        for (line, name, bucket, spilled) in [(0, "IPv4", 128, 96), (2, "IPv6", 256, 128)] {
            let [table, room] = [&memory.lines[line], &memory.lines[line + 1]];
            assert_eq!(table.name, format!("{name} flow table"));
            assert_eq!(table.bytes, u64::from(buckets) * (bucket + 256), "{flows}");
            assert_eq!(room.name, format!("{name} spill table"));
            assert_eq!(
                room.bytes,
                u64::from(spill) * (16 + spilled + 80),
                "{flows}"
            );
        }
        let sum: u64 = memory.lines.iter().map(|line| line.bytes).sum();
        assert_eq!(memory.total_bytes, sum);
    }
    let per_cpu = |cpus| -> u64 {
        let memory = config.memory(cpus);
        memory
            .lines
            .iter()
            .filter(|line| line.per_cpu)
            .map(|line| line.bytes)
            .sum()
    };
    assert_eq!(per_cpu(8), 8 * (4_096 * 304 + 256 * 16 + 64 * 8));
}

#[test]
fn check_report() {
    let text = format!("{SERVICE}\n{BACKEND}\nweight = 0\n");
    let (config, warnings) = Config::parse(&text, file()).expect("a configuration");
    let finding = |severity| Finding {
        severity,
        subject: "interface eth0".into(),
        message: "does not exist; name another".into(),
    };
    let report = check::report(&config, warnings, vec![finding(Severity::Failure)], 2);
    assert!(report.failed());
    assert!(!check::report(&config, vec![], vec![finding(Severity::Warning)], 2).failed());
    let text = report.to_string();
    for part in [
        "service web: 192.0.2.10:80 tcp, nat, aca by connections, measures syn-to-fin\n",
        "  a  10.0.0.1:80            weight 0\n",
        "memory for 1000000 IPv4 and 250000 IPv6 flows on 2 CPUs:\n",
        "  IPv4 flow table            192.0 MiB\n",
        "  IPv6 flow table             64.0 MiB\n",
        "warning: 3:1: service[0]: every backend has weight 0",
        "failure: interface eth0: does not exist; name another\n",
    ] {
        assert!(text.contains(part), "{part:?} not in\n{text}");
    }
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["services"][0]["backends"][0]["address"], "10.0.0.1");
    assert_eq!(json["services"][0]["algorithm"], "aca");
    assert_eq!(json["warnings"][0]["line"], 3);
    assert_eq!(json["findings"][0]["severity"], "failure");
}
