//! Programs that are expected to end by themselves, with an error.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use steerline_tests::world::wait_until;

use crate::lab::PATIENCE;

/// Exit code of a program and all that it said. One that does not end is killed.
pub(crate) fn of(mut command: Command) -> Result<(Option<i32>, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    // What it says fits into its pipes.
    let ended = wait_until("the program ends", PATIENCE, || Ok(child.try_wait()?));
    if ended.is_err() {
        child.kill()?;
    }
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let message = String::from_utf8_lossy(&said).into_owned();
    let status = ended.with_context(|| message.clone())?;
    Ok((status.code(), message))
}
