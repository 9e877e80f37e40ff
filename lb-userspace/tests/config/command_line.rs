//! What an operator types.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use steerline::cli::{BackendName, Cli, Events, Flows, GivenWeight, Output, Target, Verb, Weight};

#[test]
fn command_line() {
    Cli::command().debug_assert();
    let json = Output { json: true };
    let plain = Output { json: false };
    for (line, verb, config) in [
        ("run", Verb::Run, "/etc/steerline/steerline.toml"),
        ("--config a.toml run", Verb::Run, "a.toml"),
        ("run --config a.toml", Verb::Run, "a.toml"),
        ("check --config=a.toml --json", Verb::Check(json), "a.toml"),
        ("--config a.toml status", Verb::Status(plain), "a.toml"),
        (
            "stats --json",
            Verb::Stats(json),
            "/etc/steerline/steerline.toml",
        ),
        ("detach --json -c a.toml", Verb::Detach(json), "a.toml"),
        ("reload -c a.toml", Verb::Reload(plain), "a.toml"),
    ] {
        let words = std::iter::once("steerline").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).expect(line);
        assert_eq!(cli.verb, verb, "{line}");
        assert_eq!(cli.config, PathBuf::from(config), "{line}");
    }
    for (line, code) in [
        ("", 2),
        ("walk", 2),
        ("run --json", 2),
        ("--json status", 2),
        ("run --config", 2),
        ("drain", 2),
        ("drain web", 2),
        ("drain web/", 2),
        ("drain /web-1", 2),
        ("drain web/web-1/x", 2),
        ("disable web/web-1 web/web-2", 2),
        ("weight web/web-1", 2),
        ("weight web/web-1 -1", 2),
        ("weight web/web-1 65536", 2),
        ("weight web/web-1 8.5", 2),
        ("weight web/web-1 Default", 2),
        ("flows --limit many", 2),
        ("flows web", 2),
        ("events --follow=no", 2),
        ("completions", 2),
        ("completions cobol", 2),
        ("reload web", 2),
        ("--version", 0),
        ("--help", 0),
    ] {
        let words = std::iter::once("steerline").chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).expect_err(line);
        assert_eq!(error.exit_code(), code, "{line}: {error}");
    }
}

#[test]
fn operators_verbs() {
    let output = |json| Output { json };
    let target = |service: &str, backend: &str, json| Target {
        backend: BackendName {
            service: service.into(),
            backend: backend.into(),
        },
        output: output(json),
    };
    let weight = |weight, json| {
        let target = target("web", "web-1", json);
        Verb::Weight(Weight {
            backend: target.backend,
            weight,
            output: target.output,
        })
    };
    let flows = |service: Option<&str>, limit, json| {
        Verb::Flows(Flows {
            service: service.map(str::to_owned),
            limit,
            output: output(json),
        })
    };
    let events = |follow, json| {
        Verb::Events(Events {
            follow,
            output: output(json),
        })
    };
    let rows: [(&[&str], Verb); 16] = [
        (
            &["drain", "web/web-1"],
            Verb::Drain(target("web", "web-1", false)),
        ),
        (
            &["drain", "--json", "my web/server 1"],
            Verb::Drain(target("my web", "server 1", true)),
        ),
        (
            &["disable", "web/web-1"],
            Verb::Disable(target("web", "web-1", false)),
        ),
        (
            &["enable", "web/web-1", "--json"],
            Verb::Enable(target("web", "web-1", true)),
        ),
        (
            &["weight", "web/web-1", "0"],
            weight(GivenWeight::Is(0), false),
        ),
        (
            &["weight", "web/web-1", "65535", "--json"],
            weight(GivenWeight::Is(65_535), true),
        ),
        (
            &["weight", "web/web-1", "default"],
            weight(GivenWeight::Default, false),
        ),
        (&["reload"], Verb::Reload(output(false))),
        (&["reload", "--json"], Verb::Reload(output(true))),
        (&["flows"], flows(None, 1_000, false)),
        (
            &["flows", "--service", "web", "--limit", "0"],
            flows(Some("web"), 0, false),
        ),
        (&["flows", "--limit=5", "--json"], flows(None, 5, true)),
        (&["events"], events(false, false)),
        (&["events", "--json"], events(false, true)),
        (&["events", "--follow", "--json"], events(true, true)),
        (
            &["completions", "bash"],
            Verb::Completions {
                shell: clap_complete::Shell::Bash,
            },
        ),
    ];
    for (words, verb) in rows {
        let all = std::iter::once(&"steerline").chain(words);
        let cli = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert_eq!(cli.verb, verb, "{words:?}");
    }
}
