//! Rounds of measurements.

use super::{
    case::{Case, Site, Subject},
    floors::Contender,
    report::{Report, Row},
    world::World,
};
use anyhow::{Context as _, Result, ensure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use std::collections::BTreeMap;

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Flows in the table, a power of two: half of what it is for.
    pub live: u32,
    /// New flows of one run, a power of two; few beside [`Size::live`].
    pub new: u32,
    /// Repeats of one run, at least; every flow has two.
    pub repeats: u32,
}

impl Size {
    /// As measured: 524,288 flows of 1,048,576.
    pub const FULL: Self = Self {
        live: 524_288,
        new: 32_768,
        repeats: 524_288,
    };
    /// Enough to see that everything works.
    pub const QUICK: Self = Self {
        live: 2_048,
        new: 256,
        repeats: 4_096,
    };

    /// Flows that the table is for.
    pub const fn capacity(self) -> u32 {
        2 * self.live
    }
}

impl Case {
    /// Packets of one timed run.
    pub fn repeats(self, size: Size) -> u32 {
        match self.subject {
            Subject::New(_) => size.new,
            _ => size.repeats.max(2 * self.flows),
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of tables and runs.
    pub size: Size,
    /// Rounds.
    pub runs: u32,
    /// How many flows take turns: powers of two, at most [`Size::live`].
    pub flows: Vec<u32>,
    /// Only cases whose name has all of these in it.
    pub only: Vec<String>,
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(
            self.size.live.is_power_of_two() && self.size.live >= self.size.new,
            "{} flows cannot fill a table: it must be a power of two, at least {}",
            self.size.live,
            self.size.new
        );
        for flows in &self.flows {
            ensure!(
                flows.is_power_of_two() && *flows <= self.size.live,
                "{flows} flows cannot take turns: it must be a power of two, at most {}",
                self.size.live
            );
        }
        Ok(())
    }

    fn cases(&self, site: Site) -> Vec<Case> {
        let mut cases = site.cases(&self.flows);
        cases.retain(|case| case.is_named(&self.only));
        cases
    }
}

/// Keeps this thread, and those that it starts, on one CPU: the last that it
/// may use, since the first takes most interrupts.
///
/// # Errors
/// If the kernel refuses.
pub fn pin_to_one_cpu() -> Result<usize> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("asking for this process's CPUs")?;
    let cpu = (0..CpuSet::count()).rfind(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let cpu = cpu.context("no CPU is allowed")?;
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(this, &set).context("staying on one CPU")?;
    Ok(cpu)
}

/// Whoever waits for the result.
pub trait Audience: Sync {
    /// Is told what comes next.
    fn tell(&self, what: &str);
    /// Whether the result is not wanted any more: asked before each run.
    fn has_left(&self) -> bool;
}

/// Measures everything.
///
/// # Errors
/// What forbids it; the first run whose packets were not all treated as they
/// should be.
pub fn run(options: &Options, audience: &impl Audience) -> Result<Report> {
    options.check()?;
    let mut report = Report::new(options);
    for site in Site::all() {
        let cases = options.cases(site);
        if cases.is_empty() {
            continue;
        }
        // A thread for each: a laboratory takes its thread into its namespace.
        let rows = std::thread::scope(|scope| {
            let thread = scope.spawn(|| measure(site, &cases, options, audience));
            thread.join().expect("a measurement does not panic")
        })?;
        report.rows.extend(rows);
    }
    ensure!(
        !report.rows.is_empty(),
        "nothing has all of these words in its name: {}",
        options.only.join(" ")
    );
    Ok(report)
}

fn measure(
    site: Site,
    cases: &[Case],
    options: &Options,
    audience: &impl Audience,
) -> Result<Vec<Row>> {
    audience.tell(&format!(
        "{site}: opening {} flows through each program",
        options.size.live
    ));
    let mut world = World::new(site, options.size)?;
    let mut rows: Vec<Row> = cases
        .iter()
        .map(|case| Row {
            case: *case,
            repeats: case.repeats(options.size),
            samples: BTreeMap::new(),
        })
        .collect();
    for round in 0..options.runs {
        audience.tell(&format!("{site}: round {} of {}", round + 1, options.runs));
        for row in &mut rows {
            let mut contenders = Contender::ALL.to_vec();
            if matches!(row.case.subject, Subject::NotOurs | Subject::NoService) {
                contenders.retain(|c| !matches!(c, Contender::Hash | Contender::Lru));
            }
            let turn = round as usize % contenders.len();
            contenders.rotate_left(turn);
            for contender in contenders {
                ensure!(!audience.has_left(), "interrupted");
                let time = world.measure(contender, row.case)?;
                row.samples.entry(contender).or_default().push(time);
            }
        }
    }
    Ok(rows)
}
