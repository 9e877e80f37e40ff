//! Builds of everything that runs in user space.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::shell;

/// The variable by which `lb-userspace/build.rs` learns what to embed.
const OBJECT: &str = "STEERLINE_BPF_OBJECT";

/// Cargo with the environment that every verb shares: a difference between two
/// of them would rebuild the daemon each time one follows the other.
pub(crate) fn cargo(object: &Path) -> Command {
    let mut command = shell::cargo();
    command.env(OBJECT, object);
    command
}

/// Adds `--locked` in CI, where a changed Cargo.lock is a mistake.
pub(crate) fn locked(command: &mut Command) -> &mut Command {
    if shell::is_ci() {
        command.arg("--locked");
    }
    command
}

/// Builds the `steerline` binary.
pub(crate) fn build_daemon(object: &Path, release: bool) -> Result<()> {
    let mut command = cargo(object);
    command.args(["build", "--package", "lb-userspace"]);
    if release {
        command.arg("--release");
    }
    shell::run(locked(&mut command))
}

/// Where cargo puts a binary of the development profile.
pub(crate) fn binary(name: &str) -> PathBuf {
    built("debug", name)
}

/// Where cargo puts a binary of the release profile.
pub(crate) fn release_binary(name: &str) -> PathBuf {
    built("release", name)
}

fn built(profile: &str, name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    shell::root().join(target).join(profile).join(name)
}
