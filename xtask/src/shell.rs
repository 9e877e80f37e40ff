//! Running other programs: echoed, with an environment that we chose.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Directories that hold system tools but are missing from many users' PATH.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable when it runs us; the compiled-in value serves
    // someone who starts the binary by hand.
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    match Path::new(&manifest).parent() {
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::from("."),
    }
}

/// The cargo that runs us, else the one on PATH.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // What `cargo run` set for this program says nothing about the next one.
    for (name, _) in env::vars_os() {
        if describes_this_package(&name) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_this_package(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
        || ["CARGO_BIN_NAME", "CARGO_CRATE_NAME", "LD_LIBRARY_PATH"].contains(&name)
}

/// Removes everything that would change how another toolchain compiles: flags,
/// wrappers, a target directory, rustup's choice of toolchain. What tells cargo
/// where its home and its registries are stays.
pub(crate) fn clear_compiler_environment(command: &mut Command) {
    const KEPT: [&str; 5] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_TERM_",
    ];
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let compiler = text == "CARGO"
            || text == "LD_LIBRARY_PATH"
            || text == "RUSTFLAGS"
            || text == "RUSTUP_TOOLCHAIN"
            || text.starts_with("RUSTC")
            || (text.starts_with("CARGO_") && !KEPT.iter().any(|kept| text.starts_with(kept)));
        if compiler {
            command.env_remove(&name);
        }
    }
}

/// Runs `command` to its end with its output shown; anything but success is an
/// error that repeats the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = display(command);
    eprintln!("$ {line}");
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Standard output of a question put to another program, or `None` if it is
/// missing or says no.
pub(crate) fn ask(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Program and arguments as one would type them.
pub(crate) fn display(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Where `program` is, looking also where root's tools live.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether this process may do what only root may.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Whether this run is CI's, where nothing may be skipped or changed silently.
pub(crate) fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}
