//! Rules about what may know what: crates, stages, and purity.

use super::Finding;
use super::code::lines_with;
use super::source::{File, has_word};

/// The direct dependencies a crate may have. Optional ones must stay so.
struct Layer {
    manifest: &'static str,
    allowed: Allowed,
}

enum Allowed {
    /// These alone.
    Only {
        always: &'static [&'static str],
        optional: &'static [&'static str],
    },
    /// All but these.
    Except(&'static [&'static str]),
}

const LAYERS: [Layer; 5] = [
    Layer {
        manifest: "lb-common/Cargo.toml",
        allowed: Allowed::Only {
            always: &["bytemuck", "network-types"],
            optional: &["aya", "md-5", "serde"],
        },
    },
    Layer {
        manifest: "lb-ebpf/Cargo.toml",
        allowed: Allowed::Only {
            always: &["aya-ebpf", "lb-common", "network-types"],
            optional: &["aya-log-ebpf"],
        },
    },
    Layer {
        manifest: "lb-userspace/Cargo.toml",
        allowed: Allowed::Except(&["lb-ebpf", "aya-ebpf", "steerline-tests", "xtask"]),
    },
    Layer {
        manifest: "tests/Cargo.toml",
        allowed: Allowed::Except(&["lb-ebpf", "aya-ebpf", "xtask"]),
    },
    Layer {
        manifest: "xtask/Cargo.toml",
        allowed: Allowed::Only {
            always: &["anyhow", "clap", "serde_json"],
            optional: &[],
        },
    },
];

/// Crates depend in one direction, and the shared one on next to nothing.
pub(super) fn dependencies(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layer in &LAYERS {
        let Some(file) = files.iter().find(|file| file.path == layer.manifest) else {
            continue;
        };
        for (line, name, optional) in declared(&file.text) {
            let message = match &layer.allowed {
                Allowed::Only {
                    always,
                    optional: only_optional,
                } => {
                    if always.contains(&name) || (optional && only_optional.contains(&name)) {
                        continue;
                    }
                    if only_optional.contains(&name) {
                        format!("dependency `{name}` must be optional")
                    } else {
                        format!("this crate may not depend on `{name}`")
                    }
                }
                Allowed::Except(forbidden) => {
                    if !forbidden.contains(&name) {
                        continue;
                    }
                    format!("this crate may not depend on `{name}`")
                }
            };
            findings.push(Finding::new(file, line, message));
        }
    }
    findings
}

/// Line, name and optionality of each dependency but those of tests, as one
/// line each, which is how the manifests here are written.
fn declared(manifest: &str) -> Vec<(usize, &str, bool)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(manifest.lines()) {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section == "dependencies"
                || section.ends_with(".dependencies")
                || section.ends_with("build-dependencies");
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
            found.push((number, name, line.contains("optional = true")));
        }
    }
    found
}

/// Raw packet pointers are in one module of each program.
pub(super) fn packet_pointers(files: &[File]) -> Vec<Finding> {
    only_in(files, "packet", &["data_end"], "packet pointers")
}

/// Map statics are in one module of each program.
pub(super) fn map_statics(files: &[File]) -> Vec<Finding> {
    only_in(files, "maps", &["btf_map", "map"], "map statics")
}

/// The directories of the packet path and of what it is compared with.
const PROGRAMS: [&str; 2] = ["lb-ebpf/src/", "lb-ebpf/src/floors/"];

fn only_in(files: &[File], home: &str, attributes: &[&str], what: &str) -> Vec<Finding> {
    let is_home = |path: &str| {
        PROGRAMS.iter().any(|program| {
            let rest = path.strip_prefix(program);
            let rest = rest.and_then(|rest| rest.strip_prefix(home));
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    // A map is declared by an attribute, a pointer is a plain word.
    let broken = |line: &str| {
        attributes.iter().any(|word| {
            line.contains(&format!("#[{word}]"))
                || line.contains(&format!("#[{word}("))
                || (*word == "data_end" && has_word(line, word))
        })
    };
    files
        .iter()
        .filter(|file| file.path.starts_with("lb-ebpf/src/") && !is_home(&file.path))
        .flat_map(|file| {
            lines_with(file, broken).map(|line| {
                Finding::new(file, line, format!("{what} belong in {home}.rs or {home}/"))
            })
        })
        .collect()
}

/// Stages do not call one another: the pipeline alone knows them. A stage may
/// name a type that another one returns.
pub(super) fn stages(files: &[File]) -> Vec<Finding> {
    const DIRECTORY: &str = "lb-ebpf/src/stages/";
    let names: Vec<&str> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix(DIRECTORY)?.strip_suffix(".rs"))
        .filter(|name| *name != "mod")
        .collect();
    let mut findings = Vec::new();
    for file in files {
        let Some(inner) = file.path.strip_prefix("lb-ebpf/src/") else {
            continue;
        };
        let is_stage = file.path.starts_with(DIRECTORY);
        if inner == "pipeline.rs" || inner == "stages/mod.rs" {
            continue;
        }
        for (number, line) in file.code_lines() {
            let declares = line.trim_end().ends_with("mod stages;");
            if has_word(line, "stages") && !declares {
                findings.push(Finding::new(
                    file,
                    number,
                    "only pipeline.rs knows the stages",
                ));
            }
            if is_stage && calls_stage(line, &names) {
                findings.push(Finding::new(
                    file,
                    number,
                    "a stage may use another one's types, but not call it",
                ));
            }
        }
    }
    findings
}

/// Whether the line takes anything but types from a sibling.
fn calls_stage(line: &str, names: &[&str]) -> bool {
    line.match_indices("super::").any(|(start, found)| {
        let rest = &line[start + found.len()..];
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        if !names.contains(&&rest[..end]) {
            return rest.starts_with(['{', '*']);
        }
        let Some(item) = rest[end..].strip_prefix("::") else {
            return true;
        };
        let items = item.strip_prefix('{').unwrap_or(item);
        let items = items.split([';', '}', '(']).next().unwrap_or(items);
        items
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .any(|item| !item.starts_with(|c: char| c.is_ascii_uppercase()))
    })
}

/// What decides reads no clock, draws nothing and does no I/O.
pub(super) fn pure_common(files: &[File]) -> Vec<Finding> {
    const IMPURE: [&str; 13] = [
        "Instant::now",
        "SystemTime",
        "rand::",
        "getrandom",
        "std::net",
        "std::io",
        "std::fs",
        "std::env",
        "std::process",
        "std::time",
        "println!",
        "print!",
        "eprintln!",
    ];
    let mut findings = Vec::new();
    for file in files {
        if !file.path.starts_with("lb-common/src/") {
            continue;
        }
        let first_test = file.first_test_line();
        for (number, line) in file.code_lines().take_while(|(n, _)| *n < first_test) {
            if let Some(word) = IMPURE.iter().find(|word| line.contains(**word)) {
                findings.push(Finding::new(
                    file,
                    number,
                    format!("`{word}` in the pure crate; pass it in as an argument"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::expect;
    use super::*;

    #[test]
    fn dependencies_are_judged_by_crate() {
        let common = "lb-common/Cargo.toml";
        let rows: [(&str, &str, &[&str]); 8] = [
            (common, "[dependencies]\nbytemuck.workspace = true\n", &[]),
            (
                common,
                "[dependencies]\nrand = \"1\"\n",
                &["lb-common/Cargo.toml:2"],
            ),
            (
                common,
                "[dependencies]\naya.workspace = true\n",
                &["lb-common/Cargo.toml:2"],
            ),
            (
                common,
                "[target.'cfg(not(x))'.dependencies]\naya = { workspace = true, optional = true }\n",
                &[],
            ),
            (common, "[dev-dependencies]\nserde_json = \"1\"\n", &[]),
            (
                "lb-userspace/Cargo.toml",
                "[dependencies]\nlb-ebpf = \"1\"\n",
                &["lb-userspace/Cargo.toml:2"],
            ),
            (
                "lb-userspace/Cargo.toml",
                "[dependencies]\ntokio = \"1\"\n",
                &[],
            ),
            (
                "xtask/Cargo.toml",
                "[build-dependencies]\ncc = \"1\"\n",
                &["xtask/Cargo.toml:2"],
            ),
        ];
        for (path, text, expected) in rows {
            expect(dependencies, &[(path, text)], expected);
        }
    }

    #[test]
    fn pointers_and_maps_have_a_home() {
        let pointer = "let end = ctx.data_end();";
        expect(
            packet_pointers,
            &[("lb-ebpf/src/packet/mod.rs", pointer)],
            &[],
        );
        expect(
            packet_pointers,
            &[
                ("lb-ebpf/src/floors/packet.rs", pointer),
                ("lb-ebpf/src/stages/packet.rs", pointer),
            ],
            &["lb-ebpf/src/stages/packet.rs:1"],
        );
        expect(
            packet_pointers,
            &[("lb-ebpf/src/stages/emit.rs", pointer)],
            &["lb-ebpf/src/stages/emit.rs:1"],
        );
        expect(packet_pointers, &[("tests/src/a.rs", pointer)], &[]);
        let map = "#[btf_map]\nstatic A: Array<u32, 1> = Array::new();";
        expect(map_statics, &[("lb-ebpf/src/maps.rs", map)], &[]);
        expect(
            map_statics,
            &[("lb-ebpf/src/clock.rs", map)],
            &["lb-ebpf/src/clock.rs:1"],
        );
        expect(map_statics, &[("lb-ebpf/src/clock.rs", "x.map(f)")], &[]);
    }

    #[test]
    fn stages_share_types_only() {
        let other = ("lb-ebpf/src/stages/find.rs", "//! Finds.\n");
        let rows: [(&str, &str, bool); 9] = [
            ("stages/emit.rs", "use super::find::Flow;", true),
            ("stages/emit.rs", "use super::find::{Flow, Found};", true),
            ("stages/emit.rs", "use super::find::run;", false),
            ("stages/emit.rs", "use super::find;", false),
            ("stages/emit.rs", "super::find::run(ctx)", false),
            ("stages/emit.rs", "use super::{find, open};", false),
            ("stages/emit.rs", "use crate::stages::find::Flow;", false),
            ("maps.rs", "use crate::stages::find;", false),
            ("main.rs", "mod stages;", true),
        ];
        for (path, text, good) in rows {
            let path = format!("lb-ebpf/src/{path}");
            let finding = format!("{path}:1");
            let expected: &[&str] = if good { &[] } else { &[&finding] };
            expect(stages, &[(&path, text), other], expected);
        }
        let pipeline = (
            "lb-ebpf/src/pipeline.rs",
            "use crate::stages::{find, emit};",
        );
        expect(stages, &[pipeline, other], &[]);
    }

    #[test]
    fn impurities_are_found_outside_of_tests() {
        let rows: [(&str, &str, &[&str]); 5] = [
            (
                "lb-common/src/a.rs",
                "let now = Instant::now();",
                &["lb-common/src/a.rs:1"],
            ),
            ("lb-common/src/a.rs", "// Instant::now", &[]),
            ("lb-common/src/a.rs", "use core::net::Ipv4Addr;", &[]),
            (
                "lb-common/src/a.rs",
                "#[cfg(test)]\nuse std::time::Instant;",
                &[],
            ),
            ("lb-userspace/src/a.rs", "println!()", &[]),
        ];
        for (path, text, expected) in rows {
            expect(pure_common, &[(path, text)], expected);
        }
    }
}
