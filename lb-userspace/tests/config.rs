//! The configuration file: rows of text and what is said about it.

#[path = "config/command_line.rs"]
mod command_line;
#[path = "config/report.rs"]
mod report;
#[path = "config/right.rs"]
mod right;

use std::path::Path;

use steerline::config::Config;

/// The example of the format's description, as far as this version goes.
const FULL: &str = r#"[data_plane]
interfaces = ["eth0", "eth1"]
mode = "auto"
flow_table = { ipv4 = 500_000, ipv6 = 0 }
pin_directory = "/sys/fs/bpf/lb"
reattach = false
tunnel_source = ["192.0.2.32/28"]
source_pool = ["192.0.2.60", "2001:db8::60"]

[control]
socket = "/run/lb/control.sock"
state_directory = "/var/lib/lb"

[[service]]
name = "web"
address = "192.0.2.10"
port = 80
protocol = "tcp"
forwarding = "nat"
algorithm = "aca"
measure = "first-response"
announce = "none"
gue_port = 6_081
sticky = "0s"
drain_timeout = "90s"
drain_reset = true

[service.aca]
load_step = "5ms"
dynamic_step = false
load_threshold = 99
teardown_interval = "20s"
ageout = "0s"
pick = "shares"
smoothing = 1
short_flow_bytes = 15_000
calculation = "relative"
absolute_sensitivity = 21
variance = 0
curve = "reciprocal"

[service.slow_start]
ramp = "off"

[service.inband_health]
check = "count"
failures = 4
reset_time = "100ms"
resume_service = "30s"
syn_timeout = "3s"
max_ejected_percent = 50

[service.fail_detect]
connections = 0
clients = 2
reassign = 3
retry = "60s"

[service.syn_guard]
unanswered = 0
interval = "100ms"

[[service.backend]]
name = "web-1"
address = "10.0.0.11"
port = 8080
weight = 8
max_connections = 0
backup = false

[[service.backend]]
name = "web-2"
address = "10.0.0.12"
weight = 0
"#;

/// What a file needs so that a case can be about something else.
const HEAD: &str = "[data_plane]
interfaces = [\"eth0\"]";
const SERVICE: &str = "[data_plane]
interfaces = [\"eth0\"]
\
    [[service]]
name = \"web\"
address = \"192.0.2.10\"
port = 80";
const BACKEND: &str = "[[service.backend]]
name = \"a\"
address = \"10.0.0.1\"";

fn file() -> &'static Path {
    Path::new("lb.toml")
}

/// Parses a file that must be right.
fn good(text: &str) -> Config {
    match Config::parse(text, file()) {
        Ok((config, _)) => config,
        Err(mistakes) => panic!("{mistakes}\n---\n{text}"),
    }
}

/// The lines that a case file abbreviates.
fn expand(line: &str) -> &str {
    match line {
        "@head" => HEAD,
        "@service" => SERVICE,
        "@backend" => BACKEND,
        other => other,
    }
}

/// Asserts exactly these mistakes, each `LINE:COLUMN` and a part of its text.
fn check_mistakes<S: AsRef<str>>(title: &str, text: &str, expected: &[S]) {
    let Err(mistakes) = Config::parse(text, file()) else {
        panic!("{title}: accepted\n---\n{text}");
    };
    let found: Vec<String> = mistakes.mistakes.iter().map(ToString::to_string).collect();
    let same = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| {
            let (place, part) = expected
                .as_ref()
                .split_once(' ')
                .unwrap_or((expected.as_ref(), ""));
            found.starts_with(&format!("{place}: ")) && found.contains(part)
        });
    let expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
    assert!(
        same,
        "{title}\nexpected\n  {}\nfound\n  {}\n---\n{text}",
        expected.join("\n  "),
        found.join("\n  ")
    );
}

/// The blocks of a case file: title and lines, comments left out.
fn cases(text: &str) -> Vec<(&str, Vec<&str>)> {
    text.split("\n== ")
        .skip(1)
        .map(|block| {
            let mut lines = block.lines();
            let title = lines.next().unwrap_or_default();
            (title, lines.filter(|line| !line.is_empty()).collect())
        })
        .collect()
}

#[test]
fn one_bad_line() {
    let mut count = 0;
    for (above, rows) in cases(include_str!("config/lines.cases")) {
        let above: Vec<&str> = above.split(';').map(expand).collect();
        let above = above.join("\n");
        let lines = above.lines().count();
        for row in rows {
            let [line, column, part] = row.split(" | ").collect::<Vec<_>>()[..] else {
                panic!("{row}: not three fields");
            };
            let expected = format!("{}:{column} {part}", lines + 1);
            let rest = if lines == 1 { "" } else { "\n" };
            check_mistakes(row, &format!("{above}\n{line}\n{rest}"), &[expected]);
            count += 1;
        }
    }
    assert!(count > 120, "only {count} rows");
}

#[test]
fn bad_files() {
    let mut count = 0;
    for (title, lines) in cases(include_str!("config/files.cases")) {
        let mut text = String::new();
        let mut expected = Vec::new();
        for line in lines {
            match line.strip_prefix(">> ") {
                Some(mistake) => expected.push(mistake),
                None => {
                    text.push_str(expand(line));
                    text.push('\n');
                }
            }
        }
        check_mistakes(title, &text, &expected);
        count += 1;
    }
    assert!(count > 25, "only {count} files");
    // What a case file cannot hold: a byte order mark, other line ends.
    check_mistakes(
        "mark",
        "\u{feff}data_plane = 1\n",
        &["1:14 expected one table"],
    );
    let text = "[data_plane]\r\ninterfaces = []\r\nmode = 1";
    check_mistakes(
        "line ends",
        text,
        &["2:14 no interface", "3:8 expected a string"],
    );
    let long = format!("{HEAD}\n[control]\nsocket = \"/{}\"\n", "s".repeat(107));
    check_mistakes("socket", &long, &["4:10 at most 107 bytes"]);
}

#[test]
fn what_is_possible() {
    for more in [
        "[[service.backend]]\nname = \"b\"\naddress = \"192.0.2.10\"\nport = 81\n",
        "[[service.backend]]\nname = \"b\"\naddress = \"10.0.0.1\"\nport = 81\n",
        "[[service]]\nname = \"all\"\naddress = \"192.0.2.10\"\nport = 0\n",
    ] {
        good(&format!("{SERVICE}\n{BACKEND}\n{more}"));
    }
    let every = SERVICE.replace("port = 80", "port = 0");
    let config = good(&format!("{every}\n{BACKEND}\nport = 9"));
    assert_eq!(
        (config.services[0].port, config.services[0].backends[0].port),
        (0, 9)
    );
}

#[test]
fn twelve_mistakes_are_twelve_messages() {
    let text = r#"[data_plane]
interfaces = []
flow_table = { ipv4 = 500 }

[[service]]
name = "web"
address = "192.0.2.300"
port = 70_000
algorithm = "weighted-round-robbin"
sticky = "10"

[service.aca]
smoothing = 0.0
load_threshold = "99"

[[service.backend]]
address = "10.0.0.11"
wieght = 8

[[service.backend]]
name = "web-2"
address = "fe80::1"
backup = true
"#;
    let expected = [
        "2:14 data_plane.interfaces: no interface",
        "3:23 data_plane.flow_table.ipv4: 500 is out of range; 1024 to 16777216",
        "7:11 service[0].address: \"192.0.2.300\": not an IP address",
        "8:8 service[0].port: 70000 is out of range; 0 to 65535",
        "9:13 did you mean \"weighted-round-robin\"?",
        "10:10 service[0].sticky: \"10\": the unit is missing",
        "13:13 service[0].aca.smoothing: 0 is out of range; above 0",
        "14:18 aca.load_threshold: expected an integer, found the string \"99\"",
        "16:1 service[0].backend[0].name: `name` is missing",
        "18:1 unknown key `wieght`; did you mean `weight`?",
        "22:11 backend[1].address: \"fe80::1\": this is a link-local address",
        "23:10 backend[1].backup: `backup = true` is not available",
    ];
    assert_eq!(expected.len(), 12);
    check_mistakes("twelve", text, &expected);
}

#[test]
fn too_many() {
    let services = |count: usize| -> String {
        let service = |index: usize| {
            let port = index + 1;
            format!("[[service]]\nname = \"s{index}\"\naddress = \"192.0.2.1\"\nport = {port}\n")
        };
        (0..count).map(service).collect()
    };
    let most = good(&format!("{HEAD}\n{}", services(256)));
    assert_eq!(most.services.len(), 256);
    let line = 3 + 256 * 4;
    let expected = format!("{line}:1 service[256]: 258 services are too many; 256 are possible");
    check_mistakes(
        "services",
        &format!("{HEAD}\n{}", services(258)),
        &[expected],
    );

    let backends = |count: usize| -> String {
        let backend = |index: usize| {
            let (high, low) = (index / 250, index % 250 + 1);
            let address = format!("address = \"10.0.{high}.{low}\"");
            format!("[[service.backend]]\nname = \"b{index}\"\n{address}\n")
        };
        (0..count).map(backend).collect()
    };
    let most = good(&format!("{SERVICE}\n{}", backends(4_095)));
    assert_eq!(most.services[0].backends.len(), 4_095);
    let line = 7 + 4_095 * 3;
    let expected = format!("{line}:1 4097 backends over all services are too many; 4095");
    check_mistakes(
        "backends",
        &format!("{SERVICE}\n{}", backends(4_097)),
        &[expected],
    );
}

#[test]
fn messages_read_as_file_line_column() {
    let mistakes = Config::parse("[data_plane]\ninterfaces = []\nmode = \n", file())
        .expect_err("two mistakes");
    let text = mistakes.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(
        lines[0],
        "lb.toml:2:14: data_plane.interfaces: no interface is named; name at least the one that \
         clients come in by"
    );
    assert!(lines[1].starts_with("lb.toml:3:8: "), "{text}");
    let json = serde_json::to_value(&mistakes).expect("JSON");
    assert_eq!(json["file"], "lb.toml");
    assert_eq!(json["mistakes"][0]["line"], 2);
    assert_eq!(json["mistakes"][0]["column"], 14);
    assert_eq!(json["mistakes"][0]["path"], "data_plane.interfaces");
}

/// A seeded generator (Knuth's MMIX constants), so that a failure repeats.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

#[test]
fn mutations_never_panic() {
    let pieces = [
        "",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        "\"",
        "'",
        "\"\"\"",
        "=",
        ".",
        ",",
        "#",
        "\n",
        "\r",
        "\0",
        "ä",
        "\u{feff}",
        "-",
        "0x",
        "1e999",
        "nan",
        "99999999999999999999",
        "1979-05-27",
        "[service]",
        "[[service.aca]]",
        "service.backend = 1\n",
    ];
    let mut random = Lcg(0x5eed);
    for _ in 0..20_000 {
        let mut text: Vec<char> = FULL.chars().collect();
        for _ in 0..=random.below(4) {
            let from = random.below(text.len());
            let longest = if random.below(8) == 0 { 200 } else { 4 };
            let length = random.below(longest);
            let to = (from + length).min(text.len());
            let piece: Vec<char> = match random.below(4) {
                // A piece of the file again, somewhere else.
                0 => {
                    let start = random.below(text.len());
                    let end = (start + random.below(60)).min(text.len());
                    text[start..end].to_vec()
                }
                _ => pieces[random.below(pieces.len())].chars().collect(),
            };
            text.splice(from..to, piece);
        }
        let text: String = text.into_iter().collect();
        if let Err(mistakes) = Config::parse(&text, file()) {
            assert!(
                !mistakes.mistakes.is_empty(),
                "refused without a reason:\n{text}"
            );
            let places = mistakes
                .mistakes
                .iter()
                .map(|mistake| (mistake.line, mistake.column));
            assert!(places.is_sorted(), "{mistakes}");
        }
    }
}
