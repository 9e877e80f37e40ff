//! The configuration file: from text to a [`Config`] in which everything is
//! resolved, or to the list of every mistake in it.
//!
//! Two stages. `read` walks the parsed TOML and checks each value by itself:
//! spelling, type, range, unit. `resolve` checks values against each other and
//! builds the typed form. A value that failed the first stage is `Bad` and
//! takes no part in the second, so that one slip of the pen is one message.
//!
//! The format is complete and final; this version implements part of it. What
//! it lacks is refused by name with the remedy, never ignored: a file that
//! loads does what it says. The typed form holds only what exists, so nothing
//! downstream can depend on a key that has no effect.

pub mod check;
mod duration;
mod fields;
mod format;
mod memory;
mod mistakes;
mod near;
mod outside;
mod read;
mod read_features;
mod read_outside;
mod read_probe;
mod resolve;
mod source;
mod types;

use std::path::Path;

use toml::de::DeTable;

pub use self::duration::format as format_duration;
pub use self::memory::{Memory, MemoryLine};
pub use self::mistakes::{LoadError, Mistake, Mistakes, Warning};
pub use self::outside::{
    Agent, Capacity, CapacityKind, Dfp, DnsProbe, HttpProbe, Object, Oid, Probe, ProbeKind,
    TlsProbe,
};
pub use self::types::{
    Aca, Algorithm, Announce, Backend, Calculation, Check, Config, Control, Curve, DataPlane,
    FailDetect, FlowTable, Forwarding, InbandHealth, Measure, Mode, Pick, Protocol, Service,
    SynGuard, TunnelSource,
};

impl Config {
    /// Reads a configuration. `file_name` is only for messages.
    ///
    /// Every mistake is found in one go; a configuration with any mistake is
    /// refused as a whole.
    pub fn parse(text: &str, file_name: &Path) -> Result<(Self, Vec<Warning>), Mistakes> {
        let source = source::Source::new(text);
        let mut out = mistakes::Collector::default();
        let config = source.readable.as_deref().and_then(|readable| {
            let (root, _) = DeTable::parse_recoverable(readable);
            let raw = read::file(root.get_ref(), &mut out);
            resolve::config(raw, &mut out)
        });
        let (mistakes, warnings) = out.finish(&source);
        match config {
            Some(config) if mistakes.is_empty() => Ok((config, warnings)),
            _ => Err(Mistakes {
                file: file_name.to_path_buf(),
                mistakes,
            }),
        }
    }

    /// Reads the configuration file at `path`.
    pub fn load(path: &Path) -> Result<(Self, Vec<Warning>), LoadError> {
        let bytes = std::fs::read(path).map_err(|error| LoadError::Unreadable {
            path: path.to_path_buf(),
            error,
        })?;
        let text = String::from_utf8(bytes).map_err(|error| LoadError::NotText {
            path: path.to_path_buf(),
            offset: error.utf8_error().valid_up_to(),
        })?;
        Ok(Self::parse(&text, path)?)
    }
}
