//! Child processes: run to the end, or kept until their guard is dropped.

use std::process::{Child, Command, ExitStatus, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a condition is looked at while waiting for it.
const POLL: Duration = Duration::from_millis(10);

/// Runs a command to its end and returns its output; anything but success is
/// an error that holds command line, exit status and both outputs.
pub fn run(command: &mut Command) -> Result<Output> {
    let line = display(command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!(
            "`{line}` failed ({})\n--- stdout\n{}--- stderr\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// Program and arguments as one would type them.
pub(crate) fn display(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Looks every 10 ms until `condition` gives a value, for at most `limit`.
/// An error of the condition ends the wait at once.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().with_context(|| format!("while waiting until {what}"))? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain until {what}");
        }
        thread::sleep(POLL);
    }
}

/// A running child that does not outlive its guard.
///
/// The kernel ends it too if the *thread* that started it ends: start what
/// must last from a thread that lasts as long.
#[derive(Debug)]
pub struct Process {
    child: Child,
    line: String,
}

impl Process {
    /// Starts `command`, whose streams the caller has directed somewhere.
    pub fn start(command: &mut Command) -> Result<Self> {
        let line = display(command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        Ok(Self { child, line })
    }

    /// The process id, for looking at it; [`Self::signal`] is safer to act.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its streams.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("cannot wait for `{}`", self.line))
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Until it is waited for, its id belongs to no other process.
        if self.ended()?.is_some() {
            return Ok(());
        }
        let id = i32::try_from(self.child.id()).context("a process id beyond 31 bits")?;
        kill(Pid::from_raw(id), signal)
            .with_context(|| format!("cannot send {signal} to `{}`", self.line))
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("`{}` ended", self.line);
        wait_until(&what, limit, || self.ended())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails only for a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
