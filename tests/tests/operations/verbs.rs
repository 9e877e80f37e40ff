//! The verbs that look: `flows`, `events`, `completions`.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;
use steerline_tests::world::{Balancer, Process, Scratch, Topology, World, wait_until};

use crate::hosts::{self, Host, Manner};
use crate::site::{self, PATIENCE, Service, Status, number};
use crate::turn;

const ECHO: &str = "echo";
const PORT: u16 = 9_000;
const FLOWS: usize = 6;

struct Scene {
    balancer: Balancer,
    kept: Vec<TcpStream>,
    _hosts: Vec<Host>,
    _world: World,
}

impl Scene {
    /// Two servers with three connections each.
    fn new(drain_timeout: &str) -> Result<Self> {
        let world = World::new(&Topology::two_armed(2))?;
        let hosts = world
            .servers()
            .iter()
            .map(|server| Host::start(server, PORT, Manner::Obedient))
            .collect::<Result<_>>()?;
        let service = Service::nat(ECHO, PORT)
            .line("drain_timeout", drain_timeout)
            .round_robin()
            .over(&[1, 1]);
        let other = Service::nat("other", PORT + 1).over(&[1]);
        let config = site::config(&[&service, &other]);
        let balancer = Balancer::start(world.balancer(), &config)?;
        let sources = world.fresh_clients(FLOWS as u16)?;
        let kept = world.client().enter(|| {
            let sources = sources.iter();
            sources
                .map(|source| hosts::open(*source, service.target()))
                .collect::<Result<Vec<_>>>()
        })??;
        Status::wait(&balancer, "all are established", |status| {
            Ok(status.each(ECHO, "/active_flows")? == [3, 3])
        })?;
        Ok(Self {
            balancer,
            kept,
            _hosts: hosts,
            _world: world,
        })
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    value[name]
        .as_array()
        .with_context(|| format!("no list {name} in {value}"))
}

#[test]
fn flows_are_listed_with_and_without_a_daemon() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let mut scene = Scene::new("60s")?;
    for dead in [false, true] {
        if dead {
            scene.balancer.kill()?;
        }
        let answer = scene.balancer.json(&["flows", "--service", ECHO])?;
        assert_eq!(answer["total"], FLOWS, "{answer}");
        assert_eq!(answer["more"], false, "{answer}");
        let flows = list(&answer, "flows")?;
        assert_eq!(flows.len(), FLOWS, "{answer}");
        for kept in &scene.kept {
            let client = kept.local_addr()?.to_string();
            let mut found = flows
                .iter()
                .filter(|flow| flow["client"] == client.as_str());
            let flow = found
                .next()
                .with_context(|| format!("{client} is missing"))?;
            assert!(found.next().is_none(), "{client} is there twice");
            let backend = flow["backend"].as_str().context("no name")?;
            let server: u8 = backend.trim_start_matches("web-").parse()?;
            let server = format!("{}:{PORT}", World::server_address(server));
            for (key, expected) in [
                ("service", ECHO),
                ("protocol", "tcp"),
                ("virtual", &kept.peer_addr()?.to_string()),
                ("server", &server),
                ("state", "established"),
            ] {
                assert_eq!(flow[key], expected, "{flow}");
            }
            assert!(flow["age_seconds"].as_f64().is_some_and(|age| age >= 0.0));
            assert_eq!(
                (&flow["long"], &flow["spilled"]),
                (&false.into(), &false.into())
            );
        }
        let answer = scene.balancer.json(&["flows", "--limit", "2"])?;
        assert_eq!(list(&answer, "flows")?.len(), 2, "{answer}");
        assert_eq!(
            (&answer["total"], &answer["more"]),
            (&FLOWS.into(), &true.into())
        );
        let answer = scene.balancer.json(&["flows", "--service", "other"])?;
        assert_eq!(answer["total"], 0, "{answer}");
        let unknown = scene
            .balancer
            .command(&["flows", "--service", "nobody"])
            .output()?;
        assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    }
    let events = scene.balancer.command(&["events"]).output()?;
    assert_eq!(events.status.code(), Some(3), "no daemon: {events:?}");
    Ok(())
}

/// Events in a file that `events --follow --json` writes to.
fn read_events(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path)?;
    // The last line may be under way.
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let lines = complete.lines();
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
        .collect()
}

/// Flows that events say were ended.
fn ended(events: &[Value]) -> u64 {
    events
        .iter()
        .filter(|event| event["event"] == "flows-ended")
        .filter_map(|event| event["flows"].as_u64())
        .sum()
}

/// A drain is told from the order to the last connection, and a drain that
/// takes too long ends what is left (kubernetes#71514, rancher#10593: a drain
/// is explicit, shown, and has an age).
#[test]
fn a_drain_is_followed_by_its_events() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new("1s")?;
    let scratch = Scratch::new()?;
    let path = scratch.file("events");
    let mut command = scene.balancer.command(&["events", "--follow", "--json"]);
    command
        .stdin(Stdio::null())
        .stdout(File::create(&path)?)
        .stderr(Stdio::null());
    let _follower = Process::start(&mut command)?;
    wait_until("the past is told", PATIENCE, || {
        let events = read_events(&path)?;
        Ok((!events.is_empty()).then_some(()))
    })?;
    scene.balancer.verb(&["drain", "echo/web-1"])?;
    let events = wait_until("the drain is over", PATIENCE, || {
        let events = read_events(&path)?;
        let over = events
            .iter()
            .any(|event| event["event"] == "state" && event["to"] == "drained");
        // The table is passed over in steps: the flows that a pass in progress
        // and the next one end are told each when that pass is complete.
        Ok((over && ended(&events) == 3).then_some(events))
    })?;

    // In order, each with its number, time and words.
    assert_eq!(events[0]["event"], "started");
    for (before, after) in events.iter().zip(&events[1..]) {
        let (before, after) = (number(before, "/sequence")?, number(after, "/sequence")?);
        assert_eq!(after, before + 1);
    }
    for event in &events {
        assert!(
            event["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z'))
        );
        assert!(event["message"].is_string(), "{event}");
    }
    let of_backend: Vec<&Value> = events
        .iter()
        .filter(|event| event["backend"] == "web-1" && event["service"] == ECHO)
        .collect();
    let position = |name: &str, key: &str, value: Value| {
        of_backend
            .iter()
            .position(|event| event["event"] == name && event[key] == value)
            .with_context(|| format!("no {name} with {key} {value} in {of_backend:?}"))
    };
    let story = [
        position("override", "verb", "drain".into())?,
        position("state", "to", "draining".into())?,
        position("drain-deadline", "flows", 3.into())?,
        position("state", "to", "drained".into())?,
    ];
    assert!(story.is_sorted(), "{of_backend:?}");
    // Before or after the last, but not before the deadline.
    let first = of_backend
        .iter()
        .position(|event| event["event"] == "flows-ended");
    assert!(first > Some(story[2]), "{of_backend:?}");
    let draining = of_backend[story[1]]["reason"].as_str();
    let reason = draining.context("no reason")?;
    assert!(reason.contains("3 flows are left"), "{reason}");
    assert!(
        events.iter().all(|event| event["backend"] != "web-2"),
        "{events:?}"
    );

    // Who asks later gets the same.
    let answer = scene.balancer.json(&["events"])?;
    assert_eq!(answer["dropped"], 0, "{answer}");
    assert_eq!(list(&answer, "events")?[..events.len()], events);
    let status = Status::now(&scene.balancer)?;
    assert_eq!(status.each(ECHO, "/active_flows")?, [0, 3]);
    assert_eq!(status.number("/ended_flows")?, 3);
    Ok(())
}

#[test]
fn completions_know_every_verb() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new("60s")?;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = scene.balancer.verb(&["completions", shell])?;
        let script = String::from_utf8(output.stdout)?;
        for verb in [
            "drain", "enable", "disable", "weight", "reload", "flows", "events",
        ] {
            assert!(script.contains(verb), "{shell} does not know {verb}");
        }
    }
    Ok(())
}
