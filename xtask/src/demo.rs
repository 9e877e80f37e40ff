//! `cargo xtask demo`: builds what the demonstration needs and becomes it.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{bpf, host, setup, shell};

#[derive(Args)]
pub(crate) struct Options {
    /// How long traffic runs
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Print one line of JSON at the end instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        shell::is_root(),
        "the demo makes network namespaces and loads an XDP program, which needs root"
    );
    setup::everything()?;
    let object = bpf::build()?;
    let mut build = host::cargo(&object);
    build.args(["build", "--package", "lb-userspace"]);
    build.args(["--package", "steerline-tests", "--bins"]);
    shell::run(host::locked(&mut build))?;

    let program = host::binary("steerline-demo");
    let mut command = Command::new(&program);
    command
        .arg("--seconds")
        .arg(options.seconds.to_string())
        .env("STEERLINE_BIN", host::binary("steerline"));
    if options.json {
        command.arg("--json");
    }
    // It takes our place, so that signals reach it and its exit code is ours.
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}
