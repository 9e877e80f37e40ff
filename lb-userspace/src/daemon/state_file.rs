//! What the controller has learned, on disk: written at every report, never
//! only at exit, so that it survives a SIGKILL.

use anyhow::{Context as _, Result};
use lb_common::control::Learned;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

/// Version of the file. Another one is not read.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    /// Of the pinned maps: counters and times mean nothing without them.
    instance: u64,
    learned: Learned,
    /// When the flows of removed backends are ended, by index.
    #[serde(default)]
    retired: BTreeMap<u32, u64>,
}

/// What a state file held.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) learned: Option<Learned>,
    pub(crate) retired: BTreeMap<u32, u64>,
}

/// The file of one instance.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    instance: u64,
}

impl StateFile {
    /// The file in `directory`, for the maps of `instance`.
    ///
    /// # Errors
    /// A directory that cannot be made.
    pub(crate) fn new(directory: &Path, instance: u64) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| {
            format!(
                "{}: cannot make control.state_directory; create it or choose another",
                directory.display()
            )
        })?;
        Ok(Self {
            path: directory.join("learned.json"),
            instance,
        })
    }

    /// What was learned, if the file is of these maps; of other maps, what
    /// operators said. A file that cannot be read costs what it held, said once,
    /// and nothing else.
    pub(crate) fn load(&self, now_us: u64) -> Saved {
        let Some(file) = self.read() else {
            return Saved::default();
        };
        if file.instance == self.instance {
            return Saved {
                learned: Some(file.learned),
                retired: file.retired,
            };
        }
        // Made before the maps were: their counters start anew.
        Saved {
            learned: Some(file.learned.overrides_only(now_us)),
            retired: BTreeMap::new(),
        }
    }

    fn read(&self) -> Option<File> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(
                    "{}: {error}; starting without what was learned",
                    self.path.display()
                );
                return None;
            }
        };
        match serde_json::from_str::<File>(&text) {
            Ok(file) if file.format != FORMAT => {
                tracing::warn!(
                    "{}: format {} is not {FORMAT}; starting without what was learned",
                    self.path.display(),
                    file.format
                );
                None
            }
            Ok(file) => Some(file),
            Err(error) => {
                tracing::warn!(
                    "{}: {error}; starting without what was learned",
                    self.path.display()
                );
                None
            }
        }
    }

    /// Replaces the file in one step.
    ///
    /// # Errors
    /// A directory that cannot be written to, a full disk.
    pub(crate) fn save(&self, learned: Learned, retired: &BTreeMap<u32, u64>) -> Result<()> {
        let temporary = self.path.with_extension("new");
        let file = File {
            format: FORMAT,
            instance: self.instance,
            learned,
            retired: retired.clone(),
        };
        let write = || -> Result<()> {
            let mut output = fs::File::create(&temporary)?;
            output.write_all(&serde_json::to_vec(&file)?)?;
            fs::rename(&temporary, &self.path)?;
            Ok(())
        };
        write().with_context(|| format!("{}: cannot save what was learned", self.path.display()))
    }
}
