//! Names and directories that belong to one world.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// What every name made here starts with, followed by the process id.
pub(crate) const PREFIX: &str = "steerline-test";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A name no other call returns, in this process or any other that runs.
pub(crate) fn unique_name() -> String {
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}-{}-{number}", std::process::id())
}

/// The process that made a name of [`unique_name`], if it is gone.
pub(crate) fn is_orphan(name: &str) -> bool {
    let owner = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.split('-').next())
        .and_then(|id| id.parse::<u32>().ok());
    owner.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists())
}

/// Names of `directory` whose process is gone.
pub(crate) fn orphans(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_orphan(name))
        .collect()
}

/// A directory for configuration, logs and sockets, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty directory with a unique name under the system's
    /// directory for temporary files.
    pub fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(unique_name());
        // Left by a killed process that had our id.
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {path:?}"))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot make {path:?}"))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` inside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {:?}: {error}", self.path);
        }
    }
}
