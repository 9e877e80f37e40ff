//! Names, sizes and kinds of the pinned maps, and what to do when they differ.

use aya::maps::{MapData, MapType};
use lb_common::abi;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// What a map must be: compared before a pin is adopted, since aya reuses
/// pinned maps without looking.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    map_type: MapType,
    key: u32,
    value: usize,
    entries: u32,
    mmapable: bool,
}

/// Sizes that come from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Buckets of the IPv4 flow table; a power of two.
    pub buckets4: u32,
    /// Entries of the IPv4 spill.
    pub spill4: u32,
    /// Buckets of the IPv6 flow table; a power of two.
    pub buckets6: u32,
    /// Entries of the IPv6 spill.
    pub spill6: u32,
    /// Addresses that stand for clients, at most [`abi::MAX_POOLS`].
    pub pools: u32,
}

impl Sizes {
    /// For so many live flows of each family. At most half of the ways are taken
    /// then, where the spill needs room for 0.34 % of the flows (measured; design
    /// 3.1); it has 1.6 %.
    pub const fn for_flows(flows4: u32, flows6: u32) -> Self {
        Self {
            buckets4: Self::buckets(flows4),
            spill4: Self::spill(flows4),
            buckets6: Self::buckets(flows6),
            spill6: Self::spill(flows6),
            pools: 0,
        }
    }

    /// Cells of `POOL_PORTS`: a map has at least one element.
    pub(crate) const fn pool_cells(&self) -> u32 {
        match self.pools {
            0 => 1,
            pools => pools * abi::POOL_CELLS,
        }
    }

    const fn buckets(flows: u32) -> u32 {
        flows.div_ceil(abi::WAYS as u32 / 2).next_power_of_two()
    }

    const fn spill(flows: u32) -> u32 {
        let spill = flows / 64;
        if spill < 1_024 { 1_024 } else { spill }
    }
}

impl Kind {
    /// Every pinned map.
    pub(crate) fn all(sizes: Sizes) -> Vec<Self> {
        let array = |name, value, entries| Self {
            name,
            map_type: MapType::Array,
            key: 4,
            value,
            entries,
            mmapable: true,
        };
        let per_cpu = |name, value, entries| Self {
            name,
            map_type: MapType::PerCpuArray,
            key: 4,
            value,
            entries,
            mmapable: false,
        };
        let hash = |name, key: usize, value, entries| Self {
            name,
            map_type: MapType::Hash,
            key: key as u32,
            value,
            entries,
            mmapable: false,
        };
        vec![
            array("SETTINGS", size_of::<abi::Settings>(), 1),
            array("FILTER", 8, abi::FILTER_WORDS),
            hash(
                "SERVICES",
                size_of::<abi::ServiceKey>(),
                4,
                4 * abi::MAX_SERVICES,
            ),
            array(
                "SERVICE_TABLE",
                size_of::<abi::Service>(),
                abi::MAX_SERVICES,
            ),
            array("SERVICE_NAMES", size_of::<abi::Name>(), abi::MAX_SERVICES),
            array("CURSORS", size_of::<abi::Cursor>(), abi::MAX_SERVICES),
            per_cpu("TRAFFIC", size_of::<abi::Traffic>(), abi::MAX_SERVICES),
            array("MEMBERS", size_of::<abi::Member>(), abi::MEMBER_SLOTS),
            array("RINGS", 8, abi::RING_CHUNKS),
            array("BACKENDS", size_of::<abi::Backend>(), abi::MAX_BACKENDS),
            array("BACKEND_NAMES", size_of::<abi::Name>(), abi::MAX_BACKENDS),
            array("LIVE", size_of::<abi::Live>(), abi::MAX_BACKENDS),
            array("BUDGETS", size_of::<abi::Budget>(), abi::MAX_BACKENDS),
            Self {
                name: "FAILURES",
                map_type: MapType::RingBuf,
                key: 0,
                value: 0,
                entries: 262_144,
                mmapable: false,
            },
            array("SYN_GUARDS", size_of::<abi::SynGuard>(), abi::MAX_SERVICES),
            per_cpu("REPORTS", size_of::<abi::Report>(), abi::MAX_BACKENDS),
            array("HOPS", size_of::<abi::Hop>(), abi::MAX_HOPS),
            hash("HOP_INDEX", size_of::<abi::HopKey>(), 4, abi::MAX_HOPS),
            Self {
                name: "WANTED",
                map_type: MapType::RingBuf,
                key: 0,
                value: 0,
                entries: 65_536,
                mmapable: false,
            },
            per_cpu("REASONS", 8, lb_common::reason::REASONS),
            array("FLOWS4", size_of::<abi::Bucket4>(), sizes.buckets4),
            array("COLD4", size_of::<abi::ColdBucket>(), sizes.buckets4),
            hash(
                "SPILL4",
                size_of::<abi::SpillKey>(),
                size_of::<abi::Spilled4>(),
                sizes.spill4,
            ),
            array("POOLS", size_of::<abi::PoolAddress>(), abi::MAX_POOLS + 1),
            array("POOL_PORTS", 8, sizes.pool_cells()),
            array("FLOWS6", size_of::<abi::Bucket6>(), sizes.buckets6),
            array("COLD6", size_of::<abi::ColdBucket>(), sizes.buckets6),
            hash(
                "SPILL6",
                size_of::<abi::SpillKey>(),
                size_of::<abi::Spilled6>(),
                sizes.spill6,
            ),
        ]
    }

    fn compare(&self, map: &MapData) -> Result<(), String> {
        const BPF_F_MMAPABLE: u32 = 0x400;
        let info = map
            .info()
            .map_err(|error| format!("cannot be inspected: {error}"))?;
        let map_type = info.map_type().map_err(|error| error.to_string())?;
        let found = |what: &str, found: &dyn fmt::Display, wanted: &dyn fmt::Display| {
            Err(format!("{what} is {found}, this version wants {wanted}"))
        };
        if map_type as u32 != self.map_type as u32 {
            let (found_type, wanted) = (format!("{map_type:?}"), format!("{:?}", self.map_type));
            return found("map type", &found_type, &wanted);
        }
        if info.key_size() != self.key {
            return found("key size", &info.key_size(), &self.key);
        }
        if info.value_size() as usize != self.value {
            return found("value size", &info.value_size(), &self.value);
        }
        if info.max_entries() != self.entries {
            return found("number of entries", &info.max_entries(), &self.entries);
        }
        if (info.map_flags() & BPF_F_MMAPABLE != 0) != self.mmapable {
            return found(
                "map flags",
                &info.map_flags(),
                &(u32::from(self.mmapable) * 0x400),
            );
        }
        Ok(())
    }
}

/// The directory of pins.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
}

/// What lies in the directory of pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinState {
    /// Nothing: a first start.
    Absent,
    /// A complete set that this version can carry on with.
    Ours,
}

/// Why pins cannot be used. Nothing was changed.
#[derive(Debug)]
pub enum PinError {
    /// The directory is not on a bpf file system.
    NotBpffs {
        /// The directory, or its nearest parent that exists.
        directory: PathBuf,
    },
    /// Files that this program did not make, or an incomplete set.
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A map of another version or size.
    Mismatch {
        /// Path of the pin.
        pin: PathBuf,
        /// How it differs.
        detail: String,
    },
    /// The file system answered an error.
    Io {
        /// Path.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBpffs { directory } => write!(
                f,
                "{}: not on a bpf file system; mount one with `mount -t bpf bpf /sys/fs/bpf`, or \
                 set data_plane.pin_directory to a directory on one",
                directory.display()
            ),
            Self::Foreign { directory, detail } => write!(
                f,
                "{}: {detail}; nothing was changed. Choose another data_plane.pin_directory, or \
                 remove the directory if nothing uses it",
                directory.display()
            ),
            Self::Mismatch { pin, detail } => write!(
                f,
                "{}: {detail}; nothing was changed. Start the version and the `flow_table` \
                 numbers that made it, or end its traffic with `steerline detach` and start again",
                pin.display()
            ),
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for PinError {}

impl Pins {
    /// The pins below `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Directory of the maps.
    pub fn maps(&self) -> PathBuf {
        self.directory.join("maps")
    }

    /// Path of a map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Directory of the links.
    pub fn links(&self) -> PathBuf {
        self.directory.join("links")
    }

    /// Path of the link to an interface of this network namespace. The
    /// namespace is in the name because one bpf file system may serve several
    /// (xdp-project/xdp-tools issue 287). A bpf file system refuses dots, and
    /// an interface's name cannot hold a colon.
    pub fn link(&self, interface: &str, namespace: u64) -> PathBuf {
        self.links()
            .join(format!("{}-{namespace}", interface.replace('.', ":")))
    }

    /// Paths of the tables of tail calls, of whatever program.
    pub fn program_tables(&self) -> Vec<PathBuf> {
        self.entries(&self.directory)
            .into_iter()
            .filter(|path| {
                path.file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(|name| name.starts_with("programs-"))
            })
            .collect()
    }

    /// Path of the table of tail calls of one load.
    pub fn program_table(&self, load: u32) -> PathBuf {
        self.directory.join(format!("programs-{load}"))
    }

    pub(crate) fn entries(&self, directory: &Path) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(directory) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }

    /// Whether the directory is, or would be made, on a bpf file system.
    ///
    /// # Errors
    /// [`PinError::NotBpffs`].
    pub fn check_file_system(&self) -> Result<(), PinError> {
        let mut existing = self.directory.as_path();
        while !existing.exists() {
            match existing.parent() {
                Some(parent) => existing = parent,
                None => break,
            }
        }
        let kind = statfs(existing)
            .map_err(|error| PinError::Io {
                path: existing.into(),
                error: error.into(),
            })?
            .filesystem_type();
        if kind == BPF_FS_MAGIC {
            Ok(())
        } else {
            Err(PinError::NotBpffs {
                directory: existing.into(),
            })
        }
    }

    /// Compares the pinned maps with what this version wants. Changes nothing.
    ///
    /// # Errors
    /// Every [`PinError`].
    pub fn check(&self, sizes: Sizes) -> Result<PinState, PinError> {
        self.check_file_system()?;
        if !self.directory.exists() {
            return Ok(PinState::Absent);
        }
        let foreign = |detail: String| PinError::Foreign {
            directory: self.directory.clone(),
            detail,
        };
        for path in self.entries(&self.directory) {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name != "maps" && name != "links" && !name.starts_with("programs-") {
                return Err(foreign(format!(
                    "holds `{name}`, which Steerline did not make"
                )));
            }
        }
        let kinds = Kind::all(sizes);
        let present = self.entries(&self.maps());
        for path in &present {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !kinds.iter().any(|kind| kind.name == name) {
                return Err(foreign(format!(
                    "holds the map `{name}`, which this version does not know"
                )));
            }
        }
        if present.is_empty() {
            return match self.entries(&self.links()).is_empty() {
                true => Ok(PinState::Absent),
                false => Err(foreign("holds links but no maps".into())),
            };
        }
        for kind in &kinds {
            let pin = self.map(kind.name);
            if !pin.exists() {
                return Err(foreign(format!("has no map `{}`", kind.name)));
            }
            let map = MapData::from_pin(&pin).map_err(|error| PinError::Mismatch {
                pin: pin.clone(),
                detail: format!("is not a BPF map ({error})"),
            })?;
            kind.compare(&map)
                .map_err(|detail| PinError::Mismatch { pin, detail })?;
        }
        Ok(PinState::Ours)
    }

    /// Detaches the program of a pinned link, at once, and removes the pin.
    ///
    /// # Errors
    /// A pin that could not be removed.
    pub fn remove_link(link: &Path) -> std::io::Result<()> {
        if let Err(error) = super::detach::detach(link) {
            // Then the program goes with the pin, a moment later.
            tracing::debug!("{}: {error}", link.display());
        }
        std::fs::remove_file(link)
    }

    /// Detaches the programs of all pinned links, at once, and removes everything
    /// that this program pinned.
    ///
    /// # Errors
    /// The first file that could not be removed.
    pub fn remove(&self) -> Result<(), PinError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |error| PinError::Io { path, error }
        };
        for link in self.entries(&self.links()) {
            Self::remove_link(&link).map_err(io(&link))?;
        }
        let mut files = self.program_tables();
        files.extend(self.entries(&self.maps()));
        for file in &files {
            std::fs::remove_file(file).map_err(io(file))?;
        }
        for directory in [self.links(), self.maps(), self.directory.clone()] {
            if directory.exists() {
                std::fs::remove_dir(&directory).map_err(io(&directory))?;
            }
        }
        Ok(())
    }
}
