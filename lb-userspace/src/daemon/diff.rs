//! What a reload would change, and what it may not.

use crate::config::{Backend, Config, Service, format_duration};
use lb_common::control::{Ramp, RampList};
use serde::Serialize;
use std::net::SocketAddr;

/// The differences between two configurations, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Diff {
    /// New services, and new backends of others.
    pub(crate) added: Vec<String>,
    /// Services that are gone, and backends that are gone of others.
    pub(crate) removed: Vec<String>,
    pub(crate) changed: Vec<Change>,
}

/// A key that has another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// `SERVICE` or `SERVICE/BACKEND`.
    pub(crate) name: String,
    /// The key as the file has it.
    pub(crate) key: &'static str,
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Diff {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// Keys outside of services that differ: they need a restart.
pub(crate) fn fixed(old: &Config, new: &Config) -> Vec<&'static str> {
    let (a, b) = (&old.data_plane, &new.data_plane);
    let (c, d) = (&old.control, &new.control);
    let keys = [
        ("data_plane.interfaces", a.interfaces != b.interfaces),
        ("data_plane.mode", a.mode != b.mode),
        ("data_plane.flow_table", a.flow_table != b.flow_table),
        (
            "data_plane.pin_directory",
            a.pin_directory != b.pin_directory,
        ),
        ("data_plane.source_pool", a.source_pool != b.source_pool),
        (
            "data_plane.tunnel_source",
            a.tunnel_sources != b.tunnel_sources,
        ),
        ("data_plane.reattach", a.reattach != b.reattach),
        ("control.socket", c.socket != d.socket),
        (
            "control.state_directory",
            c.state_directory != d.state_directory,
        ),
    ];
    let mut keys: Vec<&str> = keys
        .into_iter()
        .filter(|key| key.1)
        .map(|key| key.0)
        .collect();
    // A key that a later version adds must not slip through unnamed.
    if a != b && !keys.iter().any(|key| key.starts_with("data_plane")) {
        keys.push("data_plane");
    }
    if c != d && !keys.iter().any(|key| key.starts_with("control")) {
        keys.push("control");
    }
    keys
}

/// What differs in the services. A service is known by its name, a backend by
/// its service, address and port.
pub(crate) fn diff(old: &Config, new: &Config) -> Diff {
    let mut diff = Diff::default();
    for service in &new.services {
        match old.services.iter().find(|s| s.name == service.name) {
            None => diff.added.push(service.name.clone()),
            Some(former) => compare(former, service, &mut diff),
        }
    }
    for service in &old.services {
        if !new.services.iter().any(|s| s.name == service.name) {
            diff.removed.push(service.name.clone());
        }
    }
    diff
}

fn compare(old: &Service, new: &Service, diff: &mut Diff) {
    let mut note = |name: &str, key, from: String, to: String| {
        if from != to {
            diff.changed.push(Change {
                name: name.to_owned(),
                key,
                from,
                to,
            });
        }
    };
    for (key, from, to) in keys(old)
        .into_iter()
        .zip(keys(new))
        .map(|(a, b)| (a.0, a.1, b.1))
    {
        note(&new.name, key, from, to);
    }
    for (key, from, to) in sections(old, new) {
        note(&new.name, key, from, to);
    }
    let common = |these: &Service, others: &Service| -> Vec<String> {
        let known = |b: &&Backend| others.backends.iter().any(|other| same(b, other));
        these.backends.iter().filter(known).map(endpoint).collect()
    };
    let (from, to) = (common(old, new).join(", "), common(new, old).join(", "));
    note(&new.name, "order of backends", from, to);
    for backend in &new.backends {
        let label = format!("{}/{}", new.name, backend.name);
        match old.backends.iter().find(|other| same(backend, other)) {
            None => diff.added.push(label),
            Some(former) => {
                let mut note = |key, from: String, to: String| {
                    if from != to {
                        diff.changed.push(Change {
                            name: label.clone(),
                            key,
                            from,
                            to,
                        });
                    }
                };
                note("name", former.name.clone(), backend.name.clone());
                note(
                    "weight",
                    former.weight.to_string(),
                    backend.weight.to_string(),
                );
            }
        }
    }
    for backend in &old.backends {
        if !new.backends.iter().any(|other| same(backend, other)) {
            diff.removed.push(format!("{}/{}", old.name, backend.name));
        }
    }
}

fn same(a: &Backend, b: &Backend) -> bool {
    (a.address, a.port) == (b.address, b.port)
}

fn endpoint(backend: &Backend) -> String {
    SocketAddr::new(backend.address, backend.port).to_string()
}

/// What two services say about sources from outside, where that differs. The
/// text is for people and holds no secrets.
fn sections(old: &Service, new: &Service) -> Vec<(&'static str, String, String)> {
    fn section<T: PartialEq>(
        key: &'static str,
        (old, new): (&Option<T>, &Option<T>),
        kind: impl Fn(&T) -> &'static str,
    ) -> Option<(&'static str, String, String)> {
        let text = |section: &Option<T>| match section {
            None => "absent".to_owned(),
            Some(section) => kind(section).to_owned(),
        };
        let (from, mut to) = (text(old), text(new));
        if from == to {
            to.push_str(", changed");
        }
        (old != new).then_some((key, from, to))
    }
    [
        section("probe", (&old.probe, &new.probe), |probe| {
            probe.kind.as_str()
        }),
        section("agent", (&old.agent, &new.agent), |_| "present"),
        section("dfp", (&old.dfp, &new.dfp), |_| "present"),
        section("capacity", (&old.capacity, &new.capacity), |capacity| {
            capacity.kind.as_str()
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Every key of a service but its backends.
fn keys(service: &Service) -> Vec<(&'static str, String)> {
    // Taken apart, so that a new key does not compile until it is here.
    let Service {
        name: _,
        address,
        port,
        protocol,
        forwarding,
        algorithm,
        measure,
        announce,
        gue_port,
        drain_timeout,
        drain_reset,
        aca,
        ramp,
        inband_health,
        // Sections of their own, see `sections`.
        probe: _,
        agent: _,
        dfp: _,
        capacity: _,
        fail_detect,
        syn_guard,
        backends: _,
    } = service;
    let crate::config::Aca {
        load_step,
        dynamic_step,
        load_threshold,
        teardown_interval,
        ageout,
        pick,
        smoothing,
        short_flow_bytes,
        calculation,
        absolute_sensitivity,
        variance,
        curve,
    } = aca;
    let crate::config::InbandHealth {
        check,
        failures,
        reset_time,
        resume_service,
        syn_timeout,
        max_ejected_percent,
    } = inband_health;
    let crate::config::FailDetect {
        connections,
        clients,
        reassign,
        retry,
    } = fail_detect;
    let crate::config::SynGuard {
        unanswered,
        interval,
    } = syn_guard;
    vec![
        ("address", address.to_string()),
        ("port", port.to_string()),
        ("protocol", protocol.to_string()),
        ("forwarding", forwarding.to_string()),
        ("algorithm", algorithm.to_string()),
        ("measure", measure.to_string()),
        ("announce", announce.to_string()),
        ("gue_port", gue_port.to_string()),
        ("drain_timeout", format_duration(*drain_timeout)),
        ("drain_reset", drain_reset.to_string()),
        ("aca.load_step", format_duration(*load_step)),
        ("aca.dynamic_step", dynamic_step.to_string()),
        ("aca.load_threshold", load_threshold.to_string()),
        ("aca.teardown_interval", format_duration(*teardown_interval)),
        ("aca.ageout", format_duration(*ageout)),
        ("aca.pick", pick.to_string()),
        ("aca.smoothing", smoothing.to_string()),
        ("aca.short_flow_bytes", short_flow_bytes.to_string()),
        ("aca.calculation", calculation.to_string()),
        ("aca.absolute_sensitivity", absolute_sensitivity.to_string()),
        ("aca.variance", variance.to_string()),
        ("aca.curve", curve.to_string()),
        ("slow_start.ramp", ramp_text(ramp)),
        ("inband_health.check", check.to_string()),
        ("inband_health.failures", failures.to_string()),
        ("inband_health.reset_time", format_duration(*reset_time)),
        (
            "inband_health.resume_service",
            format_duration(*resume_service),
        ),
        ("inband_health.syn_timeout", format_duration(*syn_timeout)),
        (
            "inband_health.max_ejected_percent",
            max_ejected_percent.to_string(),
        ),
        ("fail_detect.connections", connections.to_string()),
        ("fail_detect.clients", clients.to_string()),
        ("fail_detect.reassign", reassign.to_string()),
        ("fail_detect.retry", format_duration(*retry)),
        ("syn_guard.unanswered", unanswered.to_string()),
        ("syn_guard.interval", format_duration(*interval)),
    ]
}

/// A ramp as the file writes it.
fn ramp_text(ramp: &Ramp) -> String {
    match ramp {
        Ramp::Default => "default".into(),
        Ramp::Off => "off".into(),
        Ramp::List(RampList {
            rate1,
            interval1_s,
            rate2,
            interval2_s,
            maximum,
        }) => format!(
            "{{ rate1 = {rate1}, interval1 = \"{interval1_s}s\", rate2 = {rate2}, interval2 = \
             \"{interval2_s}s\", maximum = {maximum} }}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = r#"
[data_plane]
interfaces = ["eth0"]
[control]
socket = "/run/a.sock"
[[service]]
name = "web"
address = "192.0.2.10"
port = 80
algorithm = "weighted-round-robin"
[[service.backend]]
name = "w1"
address = "10.0.0.1"
weight = 3
[[service.backend]]
name = "w2"
address = "10.0.0.2"
[[service]]
name = "mail"
address = "192.0.2.10"
port = 25
[[service.backend]]
name = "m1"
address = "10.0.0.9"
"#;

    fn parse(text: &str) -> Config {
        Config::parse(text, Path::new("steerline.toml")).unwrap().0
    }

    /// The file with one text replaced by another, which must be there.
    fn edited(from: &str, to: &str) -> Config {
        assert!(FILE.contains(from), "{from}");
        parse(&FILE.replace(from, to))
    }

    #[test]
    fn what_needs_a_restart() {
        let rows: [(&str, &str, &[&str]); 10] = [
            ("weight = 3", "weight = 4", &[]),
            ("[\"eth0\"]", "[\"eth1\"]", &["data_plane.interfaces"]),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\nmode = \"generic\"",
                &["data_plane.mode"],
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\ntunnel_source = [\"10.0.0.9\"]",
                &["data_plane.tunnel_source"],
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\nsource_pool = [\"10.0.0.8\"]",
                &["data_plane.source_pool"],
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\nflow_table = { ipv4 = 2_000 }",
                &["data_plane.flow_table"],
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\npin_directory = \"/sys/fs/bpf/b\"",
                &["data_plane.pin_directory"],
            ),
            (
                "[\"eth0\"]",
                "[\"eth0\"]\nreattach = false",
                &["data_plane.reattach"],
            ),
            ("/run/a.sock", "/run/b.sock", &["control.socket"]),
            (
                "[\"eth0\"]\n[control]",
                "[\"eth1\"]\n[control]\nstate_directory = \"/var/b\"",
                &["data_plane.interfaces", "control.state_directory"],
            ),
        ];
        for (from, to, keys) in rows {
            assert_eq!(fixed(&parse(FILE), &edited(from, to)), keys, "{to}");
        }
    }

    #[test]
    fn what_changes() {
        let w2 = "[[service.backend]]\nname = \"w2\"\naddress = \"10.0.0.2\"\n";
        let mail = &FILE[FILE.find("[[service]]\nname = \"mail\"").unwrap()..];
        // From, to; added, removed, changed as name, key, from, to.
        type Row<'a> = (
            &'a str,
            &'a str,
            &'a [&'a str],
            &'a [&'a str],
            &'a [[&'a str; 4]],
        );
        let rows: &[Row<'_>] = &[
            ("", "", &[], &[], &[]),
            (
                "weight = 3",
                "weight = 0",
                &[],
                &[],
                &[["web/w1", "weight", "3", "0"]],
            ),
            (
                "weight = 3",
                "",
                &[],
                &[],
                &[["web/w1", "weight", "3", "8"]],
            ),
            (w2, "", &[], &["web/w2"], &[]),
            (
                "\"10.0.0.2\"",
                "\"10.0.0.3\"",
                &["web/w2"],
                &["web/w2"],
                &[],
            ),
            (
                "\"10.0.0.2\"",
                "\"10.0.0.2\"\nport = 81",
                &["web/w2"],
                &["web/w2"],
                &[],
            ),
            (
                "\"w2\"",
                "\"x2\"",
                &[],
                &[],
                &[["web/x2", "name", "w2", "x2"]],
            ),
            (mail, "", &[], &["mail"], &[]),
            ("\"mail\"", "\"post\"", &["post"], &["mail"], &[]),
            (
                "port = 25",
                "port = 26\ndrain_timeout = \"5s\"",
                &["mail/m1"],
                &["mail/m1"],
                &[
                    ["mail", "port", "25", "26"],
                    ["mail", "drain_timeout", "1m", "5s"],
                ],
            ),
            (
                "weighted-round-robin",
                "aca",
                &[],
                &[],
                &[["web", "algorithm", "weighted-round-robin", "aca"]],
            ),
        ];
        for (from, to, added, removed, changed) in rows {
            let got = diff(&parse(FILE), &edited(from, to));
            assert_eq!(got.added, *added, "{to}");
            assert_eq!(got.removed, *removed, "{to}");
            let got: Vec<[&str; 4]> = got
                .changed
                .iter()
                .map(|c| [&c.name[..], c.key, &c.from, &c.to])
                .collect();
            assert_eq!(got, *changed, "{to}");
        }
        let w1 = "[[service.backend]]\nname = \"w1\"\naddress = \"10.0.0.1\"\nweight = 3\n";
        let got = diff(
            &parse(FILE),
            &edited(&format!("{w1}{w2}"), &format!("{w2}{w1}")),
        );
        let keys: Vec<&str> = got.changed.iter().map(|change| change.key).collect();
        assert_eq!(
            (keys, got.added.len(), got.removed.len()),
            (vec!["order of backends"], 0, 0)
        );
        assert!(diff(&parse(FILE), &parse(FILE)).is_empty());
    }
}
