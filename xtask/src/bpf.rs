//! Builds the XDP program into one object file.
//!
//! Stable toolchains of rustup ship no `core` for BPF, so there are two ways
//! to get one, and [`Route::find`] chooses: the user never does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup;
use crate::shell;

const TARGET: &str = "bpfel-unknown-none";
/// Debian's compiler, whose `core` for BPF is a package of its own.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Packages of [`Route::Debian`].
pub(crate) const DEBIAN_COMPILER: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

/// A compiler that can produce BPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Rustup's nightly builds `core` from its `rust-src` component.
    Nightly,
    /// Debian's compiler uses the `core` that Debian built.
    Debian,
}

impl Route {
    /// The first route that is usable as things are.
    pub(crate) fn find() -> Option<Self> {
        if nightly_has_sources() {
            match llvm_of(Command::new("rustc").arg("+nightly")) {
                Some(version) if version <= setup::LLVM_MAJOR => return Some(Route::Nightly),
                Some(version) => eprintln!(
                    "passing over rustup's nightly: it writes bitcode of LLVM {version}, and \
                     bpf-linker is built with LLVM {}",
                    setup::LLVM_MAJOR
                ),
                None => {}
            }
        }
        debian_has_core().then_some(Route::Debian)
    }

    /// The compile command with all that differs between the routes.
    fn cargo(self) -> Command {
        match self {
            Route::Nightly => {
                // A rustup proxy is needed here: only it understands `+nightly`.
                let mut command = Command::new("cargo");
                command.current_dir(shell::root());
                shell::clear_compiler_environment(&mut command);
                command.args(["+nightly", "build", "-Z", "build-std=core"]);
                command
            }
            Route::Debian => {
                let mut command = shell::cargo();
                shell::clear_compiler_environment(&mut command);
                // The crate uses core intrinsics; for this crate alone a
                // release compiler is asked to allow them.
                command
                    .arg("build")
                    .env("RUSTC", DEBIAN_RUSTC)
                    .env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

fn nightly_has_sources() -> bool {
    // Asking for a toolchain must not download one.
    let sysroot = shell::ask(
        Command::new("rustc")
            .args(["+nightly", "--print", "sysroot"])
            .env("RUSTUP_AUTO_INSTALL", "0"),
    );
    sysroot.is_some_and(|sysroot| {
        Path::new(&sysroot)
            .join("lib/rustlib/src/rust/library/core/Cargo.toml")
            .exists()
    })
}

fn debian_has_core() -> bool {
    let libraries = shell::ask(Command::new(DEBIAN_RUSTC).args([
        "--print",
        "target-libdir",
        "--target",
        TARGET,
    ]));
    let Some(Ok(entries)) = libraries.map(fs::read_dir) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

fn llvm_of(rustc: &mut Command) -> Option<u32> {
    llvm_major(&shell::ask(rustc.arg("-vV"))?)
}

/// The major version in the line `LLVM version: 22.1.2` of `rustc -vV`.
fn llvm_major(verbose_version: &str) -> Option<u32> {
    verbose_version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?
        .split('.')
        .next()?
        .parse()
        .ok()
}

/// Builds the object, installing first what that needs, and returns its path.
///
/// The path never changes, and the file is replaced only when its bytes do, so
/// that the daemon, which embeds it, is not rebuilt for nothing.
pub(crate) fn build() -> Result<PathBuf> {
    build_binary("steerline-xdp")
}

/// Builds what benchmarks compare the packet path with, in the same way.
pub(crate) fn build_floors() -> Result<PathBuf> {
    build_binary("steerline-floors")
}

fn build_binary(name: &str) -> Result<PathBuf> {
    let (route, linker) = setup::for_build()?;
    let directory = shell::root().join("target/bpf");
    let flags = [
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Clinker={}", linker.display()),
        // bpf-linker takes its `--cpu` from this; naming it twice is an error.
        "-Ctarget-cpu=v3".to_owned(),
    ];
    let mut command = route.cargo();
    command
        .args(["--package", "lb-ebpf", "--bin", name])
        .args(["--release", "--target", TARGET])
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    if shell::is_ci() {
        command.arg("--locked");
    }
    shell::run(&mut command).context("cannot build the packet path")?;

    let built = directory.join(TARGET).join("release").join(name);
    let object = directory.join(format!("{name}.o"));
    replace_if_different(&built, &object)?;
    Ok(object)
}

fn replace_if_different(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    // By rename: a build that runs beside us sees the old file or the new one.
    let staging = to.with_extension("new");
    fs::write(&staging, new)
        .and_then(|()| fs::rename(&staging, to))
        .with_context(|| format!("cannot write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_version_is_read_from_rustc() {
        let rows = [
            ("rustc 1.96.0\nhost: x\nLLVM version: 22.1.2\n", Some(22)),
            ("LLVM version: 9", Some(9)),
            ("rustc 1.96.0\n", None),
            ("LLVM version: new\n", None),
        ];
        for (text, expected) in rows {
            assert_eq!(llvm_major(text), expected, "{text:?}");
        }
    }
}
