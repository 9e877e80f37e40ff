//! `cargo xtask test`: formatting, rules, lints and every test, with one sum.
//!
//! The last line is `N passed, N failed`, with `, N skipped` if tests found
//! that they cannot run here. A test that needs root says so through a file
//! that we name; its runner would count it as passed. In CI nothing may be
//! skipped, so such a test fails there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Args;

use crate::{bpf, host, setup, shell, tidy};

#[derive(Args)]
pub(crate) struct Options {
    /// Show the names of the tests, and without FILTER every case of the packet
    /// table and its matrix, instead of running them
    #[arg(long)]
    list: bool,
    /// Leave out formatting, rules and lints
    #[arg(long)]
    no_lint: bool,
    /// Run only tests whose name contains one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::everything()?;
    let object = bpf::build()?;
    let floors = bpf::build_floors()?;
    if !options.no_lint && !options.list {
        lint(&object)?;
    }
    // Everything at once, so that features are united in one way and each
    // crate is built once; the daemon is among it, for the tests that start it.
    let mut build = host::cargo(&object);
    build.args(["build", "--workspace"]);
    shell::run(host::locked(&mut build))?;

    let mut command = host::cargo(&object);
    command.args(["test", "--workspace", "--no-fail-fast"]);
    host::locked(&mut command);
    command.arg("--").args(&options.filters);
    if options.list {
        command.arg("--list");
        shell::run(&mut command)?;
        if options.filters.is_empty() {
            print!("{}", packet_table(&object)?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let skips = shell::root().join("target/skipped-tests");
    if skips.exists() {
        fs::remove_file(&skips).context("cannot remove the last run's list of skips")?;
    }
    command
        .env("STEERLINE_BIN", host::binary("steerline"))
        .env("STEERLINE_FLOORS_OBJECT", floors)
        .env("STEERLINE_SKIP_LOG", &skips);
    if shell::is_ci() {
        command.env("STEERLINE_REQUIRE_ROOT", "1");
    }
    let (mut sum, success) = run_and_sum(&mut command)?;
    let skipped = fs::read_to_string(&skips).unwrap_or_default();
    if !skipped.is_empty() {
        println!("skipped:");
        skipped.lines().for_each(|line| println!("    {line}"));
    }
    let verdict = sum.conclude(success, skipped.lines().count() as u64);
    println!("{sum}");
    if let Err(reason) = verdict {
        eprintln!("error: {reason}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The cases of the packet table, which are rows and no tests of their own: a
/// test of its binary writes them to the file that we name.
fn packet_table(object: &Path) -> Result<String> {
    let path = shell::root().join("target/packet-table");
    let mut command = host::cargo(object);
    command
        .args(["test", "--quiet", "--workspace", "--test", "packet_table"])
        .env("STEERLINE_CASE_LIST", &path);
    host::locked(&mut command).args(["--", "--exact", "every_case_has_a_name_of_its_own"]);
    command.stdout(Stdio::null());
    shell::run(&mut command)?;
    fs::read_to_string(&path).context("the packet table wrote no list of its cases")
}

fn lint(object: &Path) -> Result<()> {
    shell::run(shell::cargo().args(["fmt", "--all", "--check"]))?;
    tidy::run()?;
    let mut clippy = host::cargo(object);
    clippy.args(["clippy", "--workspace", "--all-targets"]);
    host::locked(&mut clippy).args(["--", "-D", "warnings"]);
    shell::run(&mut clippy)
}

/// Runs cargo's test runner, repeats what it prints and adds up its totals.
fn run_and_sum(command: &mut Command) -> Result<(Sum, bool)> {
    let line = shell::display(command);
    eprintln!("$ {line}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let stdout = child.stdout.take().context("no standard output")?;
    let mut sum = Sum::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read what the tests print")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        sum.add(&line);
    }
    let status = child.wait().context("cannot wait for the tests")?;
    Ok((sum, status.success()))
}

/// Totals over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Sum {
    /// Adds a line like
    /// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn add(&mut self, line: &str) {
        let Some(totals) = line.strip_prefix("test result: ") else {
            return;
        };
        for part in totals.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what), None) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Corrects the totals by what the runner does not count, and judges.
    fn conclude(&mut self, success: bool, skips: u64) -> Result<(), &'static str> {
        let skips = skips.min(self.passed);
        self.passed -= skips;
        self.skipped += skips;
        if !success && self.failed == 0 {
            // A binary that did not compile, or died before its totals.
            self.failed = 1;
        }
        if self.failed > 0 {
            Err("tests failed")
        } else if self.passed + self.skipped == 0 {
            Err("no test ran: nothing has that name")
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; \
                        2 filtered out; finished in 0.00s";
    const BAD: &str = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; \
                       0 filtered out; finished in 1.52s";

    #[test]
    fn totals_are_added_corrected_and_judged() {
        // Lines, success of the runner, skips → closing line, verdict.
        type Row = (
            &'static [&'static str],
            bool,
            u64,
            &'static str,
            Result<(), &'static str>,
        );
        let rows: [Row; 6] = [
            (&[GOOD], true, 0, "5 passed, 0 failed, 1 skipped", Ok(())),
            (
                &[GOOD, "other"],
                true,
                2,
                "3 passed, 0 failed, 3 skipped",
                Ok(()),
            ),
            (
                &[GOOD, BAD],
                false,
                0,
                "8 passed, 2 failed, 1 skipped",
                Err("tests failed"),
            ),
            (
                &[GOOD],
                false,
                0,
                "5 passed, 1 failed, 1 skipped",
                Err("tests failed"),
            ),
            (
                &[],
                true,
                0,
                "0 passed, 0 failed",
                Err("no test ran: nothing has that name"),
            ),
            (&[BAD], true, 0, "3 passed, 2 failed", Err("tests failed")),
        ];
        for (lines, success, skips, closing, expected) in rows {
            let mut sum = Sum::default();
            lines.iter().for_each(|line| sum.add(line));
            assert_eq!(sum.conclude(success, skips), expected, "{lines:?}");
            assert_eq!(sum.to_string(), closing, "{lines:?}");
        }
    }
}
