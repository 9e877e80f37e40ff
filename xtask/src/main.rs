//! `cargo xtask VERB`: everything that people and CI do with this repository.
//!
//! There is one entry point so that a green run here means a green run in CI,
//! and one set of flags and environment so that cargo does not rebuild back
//! and forth between the verbs. The crate depends on little and builds in
//! seconds; what it runs is echoed to standard error.

mod bench;
mod bpf;
mod demo;
mod host;
mod setup;
mod shell;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Builds, tests and demonstrates Steerline"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Find or install what builds and tests need; silent when nothing is missing
    Setup,
    /// Build the packet path and the `steerline` binary that embeds it
    Build {
        /// Optimise fully, as a package would
        #[arg(long)]
        release: bool,
    },
    /// Build the packet path alone and print where the object is
    Bpf,
    /// Check formatting, lints and the rules of the house, then run every test
    Test(test::Options),
    /// Balance real traffic over three servers, one of them slow
    Demo(demo::Options),
    /// Measure the packet path, or what the daemon costs
    #[command(subcommand)]
    Bench(bench::Subject),
    /// Check the rules of ARCHITECTURE.md and CONTRIBUTING.md
    Tidy,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Setup => setup::everything()?,
        Verb::Build { release } => {
            let object = bpf::build()?;
            host::build_daemon(&object, release)?;
        }
        Verb::Bpf => println!("{}", bpf::build()?.display()),
        Verb::Test(options) => return test::run(&options),
        Verb::Demo(options) => demo::run(&options)?,
        Verb::Bench(subject) => bench::run(&subject)?,
        Verb::Tidy => tidy::run()?,
    }
    Ok(ExitCode::SUCCESS)
}
