//! What must not start says why and changes nothing.
//!
//! The rules: katran#110 (somebody else's program on the hook), xdp-tools#364
//! (pins on something that is no bpffs), calico#8684 and #9651 (pinned maps of
//! another size).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::offset_of;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::abi::Settings;
use serde_json::Value;
use steerline::dataplane::{Maps, Pins};
use steerline_tests::world::{BalancerConfig, Load, Scratch, run};

use crate::ending;
use crate::lab::{self, Lab, Service, vip};
use crate::links::{self, Programs};
use crate::turn;

/// All that a start could change outside its own files.
#[derive(Debug, PartialEq)]
struct Scene {
    programs: Programs,
    /// Every pin and directory of the bpf file system that is of this test.
    pins: BTreeSet<PathBuf>,
    links: BTreeMap<PathBuf, u32>,
    addresses: Value,
    /// What each interface says of forwarding.
    forwarding: BTreeMap<String, String>,
}

impl Scene {
    /// `places` are directories of pins, there or not.
    fn of(lab: &Lab, places: &[&Path]) -> Result<Self> {
        let namespace = lab.world.balancer();
        let mut pins = BTreeSet::new();
        for place in places {
            collect(place, &mut pins)?;
        }
        let directory = lab.balancer.pin_directory().join("links");
        let links = pins
            .iter()
            .filter(|path| path.parent() == Some(directory.as_path()))
            .map(|path| Ok((path.clone(), links::link_id(path)?)))
            .collect::<Result<_>>()?;
        let addresses = run(namespace.command("ip").args(["-j", "address"]))?;
        Ok(Self {
            programs: links::programs(namespace)?,
            pins,
            links,
            addresses: serde_json::from_slice(&addresses.stdout)?,
            forwarding: namespace.enter(forwarding)??,
        })
    }
}

fn forwarding() -> Result<BTreeMap<String, String>> {
    fs::read_dir("/proc/sys/net/ipv4/conf")?
        .map(|entry| {
            let entry = entry?;
            let value = fs::read_to_string(entry.path().join("forwarding"))?;
            Ok((entry.file_name().to_string_lossy().into_owned(), value))
        })
        .collect()
}

fn collect(path: &Path, into: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    into.insert(path.to_owned());
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            collect(&entry?.path(), into)?;
        }
    }
    Ok(())
}

/// A configuration file in the making, beside that of a laboratory.
#[derive(Clone)]
struct Draft {
    interfaces: &'static str,
    pins: PathBuf,
    socket: PathBuf,
    data_plane: String,
}

impl Draft {
    fn write(&self, scratch: &Scratch) -> Result<PathBuf> {
        let Self {
            interfaces,
            pins,
            socket,
            data_plane,
        } = self;
        let text = format!(
            "[data_plane]\ninterfaces = {interfaces}\npin_directory = {pins:?}\n{data_plane}\n\
             [control]\nsocket = {socket:?}\nstate_directory = {:?}\n{}",
            scratch.file("state"),
            Service::round_robin(&[1, 1]).text(),
        );
        let path = scratch.file("other.toml");
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// `steerline --config FILE VERB` where the balancer is.
fn steerline(lab: &Lab, config: &Path, verb: &str) -> Command {
    let ready = lab.balancer.command(&[]);
    let mut command = lab.world.balancer().command(ready.get_program());
    command.arg("--config").arg(config).arg(verb);
    command
}

/// Directories of pins that a test makes, removed in the end.
struct PinsOfTest(PathBuf);

impl Drop for PinsOfTest {
    fn drop(&mut self) {
        // Not there if nothing was made, as it should be.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_served(lab: &Lab) -> Result<()> {
    Load::sequential(vip(), 4)
        .run(lab.world.client())?
        .expect_success()
}

#[test]
fn beside_a_running_daemon() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let lab = Lab::new(2, &[Service::round_robin(&[1, 1])])?;
    // An interface that is free, so that half a start would show.
    lab.world
        .balancer()
        .ip("link add spare type veth peer name spare-peer")?;
    let scratch = Scratch::new()?;
    let suffixed = |suffix: &str| {
        let mut name = lab.balancer.pin_directory().as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let [fresh, foreign, mixed] = ["-fresh", "-foreign", "-mixed"].map(suffixed);
    let _removed = [&fresh, &foreign, &mixed].map(|path| PinsOfTest(path.clone()));
    fs::create_dir_all(foreign.join("somebody"))?;
    fs::create_dir_all(mixed.join("maps"))?;
    let own = Pins::new(lab.balancer.pin_directory());
    MapData::from_pin(own.map("SETTINGS"))?.pin(mixed.join("maps/SOMEBODY"))?;

    let draft = Draft {
        interfaces: r#"["spare", "back"]"#,
        pins: fresh.clone(),
        socket: scratch.file("control.sock"),
        data_plane: String::new(),
    };
    let with_pins = |pins: &Path| Draft {
        pins: pins.to_owned(),
        ..draft.clone()
    };
    let programs = links::programs(lab.world.balancer())?;
    let program = format!("XDP program {} is attached already", programs["back"]);
    let taken = scratch.file("taken.sock");
    let _listener = UnixListener::bind(&taken)?;
    let file = scratch.file("file.sock");
    fs::write(&file, "not a socket")?;
    let rows: [(&str, Draft, &[&str]); 8] = [
        (
            "an interface that there is not",
            Draft {
                interfaces: r#"["spare", "frnt"]"#,
                ..draft.clone()
            },
            &["frnt: no such interface", "front", "back", "spare"],
        ),
        (
            "the socket of another daemon",
            Draft {
                interfaces: r#"["spare"]"#,
                socket: lab.balancer.config_path().with_file_name("control.sock"),
                ..draft.clone()
            },
            &["control.sock", "another steerline daemon is running"],
        ),
        (
            "the socket of another program",
            Draft {
                interfaces: r#"["spare"]"#,
                socket: taken,
                ..draft.clone()
            },
            &["taken.sock", "another program is listening"],
        ),
        (
            "a file where the socket should be",
            Draft {
                interfaces: r#"["spare"]"#,
                socket: file.clone(),
                ..draft.clone()
            },
            &["file.sock", "is not a socket"],
        ),
        (
            "a hook that is taken",
            draft.clone(),
            &[
                "back: ",
                &program,
                "nothing was changed",
                "bpftool prog show id",
            ],
        ),
        (
            "pins outside a bpf file system",
            with_pins(&scratch.file("pins")),
            &["not on a bpf file system", "mount -t bpf"],
        ),
        (
            "a foreign directory among the pins",
            with_pins(&foreign),
            &[
                "holds `somebody`, which Steerline did not make",
                "nothing was changed",
            ],
        ),
        (
            "a foreign map among the pins",
            with_pins(&mixed),
            &["the map `SOMEBODY`", "nothing was changed"],
        ),
    ];
    let places = [lab.balancer.pin_directory(), &fresh, &foreign, &mixed];
    let before = Scene::of(&lab, &places)?;
    let daemon = lab.balancer.process_id();
    for (name, draft, words) in rows {
        let config = draft.write(&scratch)?;
        // `check` says what `run` would, but asks nobody for the socket.
        let verbs = if draft.socket == scratch.file("control.sock") {
            &["check", "run"][..]
        } else {
            &["run"]
        };
        for verb in verbs {
            let (code, message) = ending::of(steerline(&lab, &config, verb))?;
            println!("{name}, {verb}: {message}");
            assert_eq!(code, Some(1), "{name}, {verb}: {message}");
            for word in words {
                assert!(
                    message.contains(word),
                    "{name}, {verb}: no {word:?} in {message}"
                );
            }
        }
        assert_eq!(Scene::of(&lab, &places)?, before, "{name}");
        assert_served(&lab)?;
        lab.status()
            .with_context(|| format!("{name}: the other daemon"))?;
        assert_eq!(lab.balancer.process_id(), daemon, "{name}");
    }
    assert_eq!(fs::read_to_string(&file)?, "not a socket");
    Ok(())
}

#[test]
fn over_pins_that_do_not_fit() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let services = [Service::round_robin(&[1, 1])];
    let mut lab = Lab::new(2, &services)?;
    lab.balancer.kill()?;
    let run_refused = |lab: &Lab, words: &[&str]| -> Result<()> {
        let (code, message) = ending::of(lab.balancer.command(&["run"]))?;
        println!("{message}");
        assert_eq!(code, Some(1), "{message}");
        for word in words {
            assert!(message.contains(word), "no {word:?} in {message}");
        }
        Ok(())
    };
    let pins = lab.balancer.pin_directory().to_owned();
    let before = Scene::of(&lab, &[&pins])?;

    // As when the operator asks for a larger table and restarts.
    let larger = BalancerConfig {
        data_plane: "flow_table = { ipv4 = 262_144, ipv6 = 0 }\n".to_owned(),
        ..lab::config(&services)
    };
    lab.balancer.write_config(&larger)?;
    run_refused(
        &lab,
        &[
            "FLOWS4",
            "number of entries",
            "`flow_table`",
            "nothing was changed",
        ],
    )?;
    assert_eq!(Scene::of(&lab, &[&pins])?, before);
    assert_served(&lab)?;

    // As when another version made the maps.
    lab.balancer.write_config(&lab::config(&services))?;
    let maps = Maps::open(&Pins::new(&pins))?;
    let layout = maps.settings.read(0).layout;
    let write = |value: u32| {
        maps.settings
            .write_word(0, offset_of!(Settings, layout), value)
    };
    write(layout + 1);
    let words = [
        format!("layout {}", layout + 1),
        "nothing was changed".to_owned(),
    ];
    run_refused(&lab, &[&words[0], &words[1], "steerline detach"])?;
    assert_eq!(
        maps.settings.read(0).layout,
        layout + 1,
        "somebody wrote to the maps"
    );
    assert_eq!(Scene::of(&lab, &[&pins])?, before);
    write(layout);
    assert_served(&lab)?;

    lab.balancer.start_again()?;
    assert_served(&lab)?;
    assert_eq!(lab.status()?.number("/services/0/new_flows")?, 12);
    Ok(())
}

/// Twelve mistakes, each in a line of its own.
const TWELVE_MISTAKES: &str = r#"[data_plane]
interfaces = []
mode = "fast"
flow_table = { ipv4 = 12 }
pin_directory = "pins"
[[service]]
name = "web"
address = "192.0.2.300"
port = 65_536
forwarding = "transparent"
algorithm = "fastest"
drain_timeout = 60
[service.aca]
load_treshold = 200
[[service.backend]]
name = "a/b"
address = "10.0.0.1"
weight = 70_000
"#;

#[test]
fn a_configuration_that_is_wrong_or_missing() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let lab = Lab::new(2, &[Service::round_robin(&[1, 1])])?;
    let scratch = Scratch::new()?;
    let (wrong, missing) = (scratch.file("wrong.toml"), scratch.file("missing.toml"));
    fs::write(&wrong, TWELVE_MISTAKES)?;
    let pins = lab.balancer.pin_directory();
    let before = Scene::of(&lab, &[pins])?;
    for verb in ["run", "check", "status", "stats", "detach"] {
        let (code, message) = ending::of(steerline(&lab, &wrong, verb))?;
        assert_eq!(code, Some(2), "{verb}: {message}");
        let places: Vec<&str> = message
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{}:", wrong.display())))
            .filter_map(|line| line.split(':').next())
            .collect();
        assert_eq!(
            places,
            [
                "2", "3", "4", "5", "8", "9", "10", "11", "12", "14", "16", "18"
            ],
            "{verb}: {message}"
        );
        assert_eq!(message.lines().count(), places.len(), "{verb}: {message}");

        let (code, message) = ending::of(steerline(&lab, &missing, verb))?;
        assert_eq!(code, Some(2), "{verb}: {message}");
        assert!(
            message.contains("cannot read the configuration"),
            "{message}"
        );
        assert!(message.contains("missing.toml"), "{message}");
    }
    assert_eq!(Scene::of(&lab, &[pins])?, before);
    assert_served(&lab)
}
