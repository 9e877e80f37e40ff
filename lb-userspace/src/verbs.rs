//! The operator's verbs: asks the daemon, or reads the pinned maps, and prints
//! what comes back.

use crate::print;
use anyhow::{Result, bail};
use clap::CommandFactory as _;
use clap_complete::Shell;
use serde_json::Value;
use std::{fmt::Write as _, io::Write as _};
use steerline::{
    cli::{Cli, Events, Exit, Explain, Flows, GivenWeight, Output, Target, Weight},
    config::Config,
    daemon::{self, Followed, Refusal, Reply, Request},
    dataplane::{Maps, Pins},
    status,
};

/// `drain`, `disable` and `enable`.
pub(crate) fn order(config: &Config, verb: &str, target: &Target) -> Result<Exit> {
    let service = target.backend.service.clone();
    let backend = target.backend.backend.clone();
    let request = match verb {
        "drain" => Request::Drain { service, backend },
        "disable" => Request::Disable { service, backend },
        _ => Request::Enable { service, backend },
    };
    ask(config, &request, target.output, ordered)
}

/// `weight`.
pub(crate) fn weight(config: &Config, weight: &Weight) -> Result<Exit> {
    let request = Request::Weight {
        service: weight.backend.service.clone(),
        backend: weight.backend.backend.clone(),
        weight: match weight.weight {
            GivenWeight::Is(weight) => Some(weight),
            GivenWeight::Default => None,
        },
    };
    ask(config, &request, weight.output, ordered)
}

/// `reload`.
pub(crate) fn reload(config: &Config, output: Output) -> Result<Exit> {
    ask(config, &Request::Reload {}, output, reloaded)
}

/// `explain`.
pub(crate) fn explain(config: &Config, explain: Explain) -> Result<Exit> {
    let request = Request::Explain {
        service: explain.service,
    };
    ask(config, &request, explain.output, status::render_explanation)
}

fn ask(
    config: &Config,
    request: &Request,
    output: Output,
    render: fn(&Value) -> String,
) -> Result<Exit> {
    match daemon::ask(&config.control.socket, request)? {
        Reply::Answer(answer) => {
            print(output, &answer, || render(&answer))?;
            if !output.json {
                for warning in strings(&answer["warnings"]) {
                    eprintln!("steerline: warning: {warning}");
                }
            }
            Ok(Exit::Done)
        }
        Reply::Refused(refusal) => refused(&refusal, output),
        Reply::NotRunning => Ok(not_running(config)),
    }
}

/// Says why nothing was done.
pub(crate) fn refused(refusal: &Refusal, output: Output) -> Result<Exit> {
    match (&refusal.mistakes, output.json) {
        (Some(mistakes), true) => println!("{mistakes}"),
        (None, true) => println!("{}", serde_json::to_string(refusal)?),
        (Some(_), false) => eprintln!("{}", refusal.message),
        (None, false) => eprintln!("steerline: {}", refusal.message),
    }
    Ok(Exit::Usage)
}

fn not_running(config: &Config) -> Exit {
    eprintln!(
        "steerline: no daemon listens on {}; start it with `steerline run`",
        config.control.socket.display()
    );
    Exit::NotRunning
}

fn strings(value: &Value) -> Vec<String> {
    let one = |value: &Value| match value {
        Value::String(text) => text.clone(),
        // A warning about the file, with its place.
        other => match (other["line"].as_u64(), other["message"].as_str()) {
            (Some(line), Some(message)) => format!("line {line}: {message}"),
            _ => other.to_string(),
        },
    };
    value
        .as_array()
        .map(|list| list.iter().map(one).collect())
        .unwrap_or_default()
}

fn ordered(answer: &Value) -> String {
    let text = |key: &str| answer[key].as_str().unwrap_or("-").to_owned();
    let number = |key: &str| answer[key].as_u64().unwrap_or(0);
    let mut out = format!(
        "{}/{}: {}, {}; weight {} of {}; {} active, {} half-open\n",
        text("service"),
        text("backend"),
        text("state"),
        text("reason"),
        number("effective_weight"),
        number("weight"),
        number("active_flows"),
        number("half_open"),
    );
    if answer["changed"] == false {
        out += "nothing changed: it was so before\n";
    }
    out
}

fn reloaded(answer: &Value) -> String {
    let mut out = String::new();
    for (mark, key) in [("+", "added"), ("-", "removed")] {
        for name in strings(&answer[key]) {
            let _ = writeln!(out, "{mark} {name}");
        }
    }
    for change in answer["changed"].as_array().into_iter().flatten() {
        let text = |key: &str| change[key].as_str().unwrap_or("-").to_owned();
        let _ = writeln!(
            out,
            "~ {}: {} {} -> {}",
            text("name"),
            text("key"),
            text("from"),
            text("to")
        );
    }
    for ended in strings(&answer["ended_overrides"]) {
        let _ = writeln!(out, "{ended}");
    }
    if out.is_empty() {
        out += "nothing has changed\n";
    }
    out
}

/// `flows`.
pub(crate) fn flows(config: &Config, flows: &Flows) -> Result<Exit> {
    let pins = Pins::new(&config.data_plane.pin_directory);
    if !pins.maps().exists() {
        bail!(
            "nothing is pinned in {}; start with `steerline run`",
            pins.directory().display()
        );
    }
    let filter = status::Filter {
        service: flows.service.clone(),
        limit: (flows.limit > 0).then_some(flows.limit),
    };
    match status::read_flows(&Maps::open(&pins)?, &filter) {
        Ok(found) => {
            print(flows.output, &found, || status::render_flows(&found))?;
            Ok(Exit::Done)
        }
        Err(unknown) => {
            eprintln!("steerline: {unknown}");
            Ok(Exit::Usage)
        }
    }
}

/// `events`.
pub(crate) fn events(config: &Config, events: Events) -> Result<Exit> {
    if !events.follow {
        return ask(
            config,
            &Request::Events { follow: false },
            events.output,
            past,
        );
    }
    let json = events.output.json;
    let there = daemon::follow(&config.control.socket, |followed| {
        let text = match (followed, json) {
            (Followed::Past(answer), false) => past(&answer),
            (Followed::Past(answer), true) => {
                let lost = answer["dropped"].as_u64().unwrap_or(0);
                let events = answer["events"].as_array().into_iter().flatten();
                let gap = (lost > 0).then(|| format!("{{\"lost\":{lost}}}\n"));
                gap.into_iter()
                    .chain(events.map(|event| format!("{event}\n")))
                    .collect()
            }
            (Followed::Event(event), false) => happened(&event),
            (Followed::Event(event), true) => format!("{event}\n"),
            (Followed::Lost(lost), false) => lost_text(lost),
            (Followed::Lost(lost), true) => format!("{{\"lost\":{lost}}}\n"),
        };
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            // Whoever read it has seen enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error.into()),
        }
    })?;
    Ok(if there {
        Exit::Done
    } else {
        not_running(config)
    })
}

fn lost_text(lost: u64) -> String {
    format!("… {lost} events are not shown …\n")
}

fn past(answer: &Value) -> String {
    let mut out = match answer["dropped"].as_u64() {
        None | Some(0) => String::new(),
        Some(dropped) => lost_text(dropped),
    };
    for event in answer["events"].as_array().into_iter().flatten() {
        out += &happened(event);
    }
    out
}

fn happened(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or("-").to_owned();
    format!(
        "{} {:<16} {}\n",
        text("time"),
        text("event"),
        text("message")
    )
}

/// `completions`.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "steerline", &mut script);
    match std::io::stdout().lock().write_all(&script) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
