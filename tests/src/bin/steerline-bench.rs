//! Measures the packet path beside floors built for the purpose: `cargo xtask
//! bench packet` starts it. Needs root; everything it makes is its own and
//! removed at the end, also when interrupted.

use anyhow::{Context as _, Result};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use steerline_tests::bench::{self, Audience, Options, Size};

#[derive(Parser)]
#[command(about = "Nanoseconds per packet by test run, beside floors")]
struct Arguments {
    /// Also write everything that was measured to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Rounds; in each, every program runs once
    #[arg(long, default_value_t = 11)]
    runs: u32,
    /// Flows that take turns: powers of two, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,1024,65536,524288")]
    flows: Vec<u32>,
    /// Flows in the tables, which have room for twice as many; a power of two
    #[arg(long, default_value_t = Size::FULL.live)]
    live: u32,
    /// Measure only what has this in its name; if repeated, all of these
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// One round with few flows: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
}

impl Arguments {
    fn options(&self) -> Options {
        if self.quick {
            return Options {
                size: Size::QUICK,
                runs: 1,
                flows: vec![1, 1_024],
                only: self.only.clone(),
            };
        }
        Options {
            size: Size {
                live: self.live,
                ..Size::FULL
            },
            runs: self.runs,
            flows: self.flows.clone(),
            only: self.only.clone(),
        }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Someone at a terminal.
struct Terminal;

impl Audience for Terminal {
    fn tell(&self, what: &str) {
        eprintln!("{what}");
    }

    fn has_left(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }
}

/// Has signals that end a program noted instead, so that pins and namespaces
/// are removed.
fn note_interrupts() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Threads started from now on leave them to the one that waits.
    signals.thread_block().context("cannot block signals")?;
    thread::spawn(move || {
        if signals.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

fn run(arguments: &Arguments) -> Result<()> {
    // First of all, so that every thread is on the right side of it.
    note_interrupts()?;
    bench::pin_to_one_cpu()?;
    let report = bench::run(&arguments.options(), &Terminal)?;
    print!("{report}");
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report.json())?;
        std::fs::write(file, text + "\n")
            .with_context(|| format!("{}: cannot write", file.display()))?;
    }
    Ok(())
}
