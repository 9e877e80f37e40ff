//! `cargo xtask bench`: builds what a benchmark needs and becomes it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};

use crate::{bpf, host, setup, shell};

#[derive(Subcommand)]
pub(crate) enum Subject {
    /// Nanoseconds per packet by test run, beside floors built for the purpose
    Packet(Packet),
    /// CPU time of the daemon while it probes many backends
    Control(Control),
}

#[derive(Args)]
pub(crate) struct Packet {
    /// Also write everything that was measured to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds; in each, every program runs once
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Flows that take turns: powers of two, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,1024,65536,524288")]
    flows: Vec<u32>,
    /// Flows in the tables, which have room for twice as many; a power of two
    #[arg(long, default_value_t = 524_288)]
    live: u32,
    /// Measure only what has this in its name; if repeated, all of these
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// One round with few flows: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
pub(crate) struct Control {
    /// Backends of one service
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    backends: u16,
    /// Seconds between two probes of a backend
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    interval: u32,
    /// How long each kind of probe is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(subject: &Subject) -> Result<()> {
    match subject {
        Subject::Packet(options) => packet(options),
        Subject::Control(options) => control(options),
    }
}

/// The daemon is built as a package would have it: what it costs is the question.
fn control(options: &Control) -> Result<()> {
    ensure!(
        shell::is_root(),
        "the bench makes network namespaces and loads an XDP program, which needs root"
    );
    setup::everything()?;
    let object = bpf::build()?;
    host::build_daemon(&object, true)?;
    let mut build = host::cargo(&object);
    build.args(["build", "--package", "steerline-tests", "--bins"]);
    shell::run(host::locked(&mut build))?;

    let program = host::binary("steerline-bench-control");
    let mut command = Command::new(&program);
    command
        .args(["--backends", &options.backends.to_string()])
        .args(["--interval", &options.interval.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .env("STEERLINE_BIN", host::release_binary("steerline"));
    if options.json {
        command.arg("--json");
    }
    // It takes our place, so that signals reach it and its exit code is ours.
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}

fn packet(options: &Packet) -> Result<()> {
    ensure!(
        shell::is_root(),
        "the bench loads XDP programs and makes a network namespace, which needs root"
    );
    setup::everything()?;
    let object = bpf::build()?;
    let floors = bpf::build_floors()?;
    let mut build = host::cargo(&object);
    build.args(["build", "--package", "steerline-tests", "--bins"]);
    shell::run(host::locked(&mut build))?;

    let program = host::binary("steerline-bench");
    let mut command = Command::new(&program);
    command
        .args(["--runs", &options.runs.to_string()])
        .args(["--live", &options.live.to_string()])
        .arg("--flows")
        .arg(
            options
                .flows
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(","),
        )
        .env("STEERLINE_FLOORS_OBJECT", floors);
    for word in &options.only {
        command.args(["--only", word]);
    }
    if let Some(file) = &options.json {
        command.arg("--json").arg(file);
    }
    if options.quick {
        command.arg("--quick");
    }
    // It takes our place, so that signals reach it and its exit code is ours.
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}
