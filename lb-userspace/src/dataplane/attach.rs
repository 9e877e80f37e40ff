//! Loading the program, and its links to interfaces.

use super::{Maps, OBJECT, PinState, Pins, Sizes, maps};
use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::ProgramArray,
    programs::{
        ProgramError, TestRun as _, TestRunOptions, Xdp, XdpMode,
        links::{FdLink, PinnedLink},
        xdp::XdpLink,
    },
};
use lb_common::abi::{ClockReading, Jiffies, Jump, Settings};
use std::{fmt, mem::offset_of, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

/// The entry program; those that it jumps to are in [`Jump::ALL`].
const ENTRY: &str = "steerline";
/// The program that reads the kernel's clocks.
const CLOCK: &str = "steerline_clock";
/// Time between its two runs: enough for a jiffy of doubt not to hide which of
/// the possible frequencies the kernel has.
const CLOCK_RUNS_APART: Duration = Duration::from_millis(120);

/// An interface that is to carry traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name.
    pub interface: String,
    /// Index in this network namespace.
    pub ifindex: u32,
    /// Program that is attached now, by id.
    pub program: Option<u32>,
}

/// Who has an interface's XDP hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    /// Nobody.
    Free,
    /// A program of ours, by a pinned link.
    Ours,
}

/// An interface that carries traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Name.
    pub interface: String,
    /// Path of the pinned link.
    pub link: PathBuf,
    /// Id of the attached program.
    pub program_id: u32,
}

/// The inode of this network namespace.
///
/// # Errors
/// If /proc is not mounted.
pub(crate) fn network_namespace() -> Result<u64> {
    let path = "/proc/thread-self/ns/net";
    Ok(std::fs::metadata(path)
        .with_context(|| format!("{path}: is /proc mounted?"))?
        .ino())
}

impl Hook {
    /// Looks who has the hook. Changes nothing.
    ///
    /// # Errors
    /// A program that is not attached by a link of ours.
    pub fn check(&self, pins: &Pins) -> Result<HookState> {
        let path = pins.link(&self.interface, network_namespace()?);
        let ours = match path.exists() {
            false => None,
            true => {
                let link = PinnedLink::from_pin(&path)
                    .with_context(|| format!("{}: not a BPF link", path.display()))?;
                Some(FdLink::from(link).info()?.program_id())
            }
        };
        match (self.program, ours) {
            (None, None) => Ok(HookState::Free),
            (Some(attached), Some(ours)) if attached == ours => Ok(HookState::Ours),
            (Some(attached), _) => bail!(
                "{interface}: XDP program {attached} is attached already, and it is not ours; \
                 nothing was changed. See what it is with `bpftool prog show id {attached}`, and \
                 detach it with `ip link set dev {interface} xdp off` (or `bpftool link`) if \
                 nothing needs it",
                interface = self.interface
            ),
            // The interface was made anew: its old link is detached for good.
            (None, Some(_)) => Ok(HookState::Free),
        }
    }
}

/// The program in the kernel, its maps pinned; not necessarily attached.
pub struct Loaded {
    ebpf: Ebpf,
    pins: Pins,
    /// Whether the maps were there already.
    pub adopted: bool,
}

impl Loaded {
    /// Loads the program upon the pinned maps, making those that are missing.
    /// If it fails, pins made here are removed again.
    ///
    /// # Errors
    /// A build without the BPF object; what the kernel refuses, the verifier's
    /// log included.
    pub fn new(pins: &Pins, state: PinState, sizes: Sizes) -> Result<Self> {
        if OBJECT.is_empty() {
            bail!(
                "this binary was built without the packet program; build it with `cargo xtask \
                 build`"
            );
        }
        for directory in [pins.directory().to_path_buf(), pins.maps(), pins.links()] {
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("{}: cannot create", directory.display()))?;
        }
        let loaded = Self::load(pins, state, sizes);
        if loaded.is_err() && state == PinState::Absent {
            // Nothing was attached yet: what is pinned is this attempt's.
            let _ = pins.remove();
        }
        loaded
    }

    fn load(pins: &Pins, state: PinState, sizes: Sizes) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        loader
            .map_max_entries("FLOWS4", sizes.buckets4)
            .map_max_entries("COLD4", sizes.buckets4)
            .map_max_entries("SPILL4", sizes.spill4)
            .map_max_entries("FLOWS6", sizes.buckets6)
            .map_max_entries("COLD6", sizes.buckets6)
            .map_max_entries("SPILL6", sizes.spill6)
            .map_max_entries("POOL_PORTS", sizes.pool_cells());
        for name in maps::names(sizes) {
            loader.map_pin_path(name, pins.map(name));
        }
        let mut ebpf = loader
            .load(OBJECT)
            .context("loading the packet program's maps")?;
        let jumps = Jump::ALL.map(|(_, name)| name);
        for name in jumps.into_iter().chain([ENTRY, CLOCK]) {
            let program: &mut Xdp = ebpf
                .program_mut(name)
                .with_context(|| format!("the BPF object has no program `{name}`"))?
                .try_into()?;
            load_patiently(program)
                .with_context(|| format!("the kernel refused the program `{name}`"))?;
        }
        let mut table = ProgramArray::try_from(
            ebpf.take_map("PROGRAMS")
                .context("the BPF object has no map `PROGRAMS`")?,
        )?;
        for (jump, name) in Jump::ALL {
            let next = ebpf
                .program(name)
                .context("program vanished")?
                .fd()?
                .try_clone()?;
            table
                .set(jump as u32, &next, 0)
                .with_context(|| format!("linking the program `{name}`"))?;
        }
        // The kernel empties a table of tail calls when no process and no pin
        // holds it: it must outlive this daemon as its program does.
        let id = Self::program_id_of(&ebpf)?;
        table
            .pin(pins.program_table(id))
            .context("pinning the table of tail calls")?;
        let loaded = Self {
            ebpf,
            pins: pins.clone(),
            adopted: state == PinState::Ours,
        };
        loaded.set_clock()?;
        Ok(loaded)
    }

    /// Tells the packet path how its clock, of jiffies, relates to
    /// `CLOCK_MONOTONIC`. Maps that know are left alone: as long as the kernel
    /// runs, it does not change.
    fn set_clock(&self) -> Result<()> {
        let maps = self.maps()?;
        if maps.settings.read(0).jiffy_nanoseconds != 0 {
            return Ok(());
        }
        let program: &Xdp = self
            .ebpf
            .program(CLOCK)
            .context("program vanished")?
            .try_into()?;
        let read = || -> Result<ClockReading> {
            // The kernel refuses frames that are shorter.
            let options = TestRunOptions {
                data_in: Some(&[0; 64]),
                ..TestRunOptions::new()
            };
            program.test_run(options).context("reading the clocks")?;
            Ok(maps.settings.read(0).reading)
        };
        let first = read()?;
        std::thread::sleep(CLOCK_RUNS_APART);
        let second = read()?;
        let jiffies = Jiffies::from_readings(first, second).with_context(|| {
            format!(
                "the kernel's timer has none of the known frequencies: {first:?}, then {second:?}"
            )
        })?;
        maps.settings
            .write_word(0, offset_of!(Settings, jiffies_offset), jiffies.offset);
        maps.settings.write_word(
            0,
            offset_of!(Settings, jiffy_nanoseconds),
            jiffies.nanoseconds,
        );
        Ok(())
    }

    fn program_id_of(ebpf: &Ebpf) -> Result<u32> {
        let program = ebpf.program(ENTRY).context("program vanished")?;
        Ok(program.info()?.id())
    }

    /// Id of the entry program.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn program_id(&self) -> Result<u32> {
        Self::program_id_of(&self.ebpf)
    }

    /// The entry program, for test runs.
    ///
    /// # Errors
    /// None in practice: it was loaded.
    pub fn entry(&self) -> Result<&Xdp> {
        Ok(self
            .ebpf
            .program(ENTRY)
            .context("program vanished")?
            .try_into()?)
    }

    /// Opens the maps.
    ///
    /// # Errors
    /// As [`Maps::open`].
    pub fn maps(&self) -> Result<Maps> {
        Maps::open(&self.pins)
    }

    /// Attaches to a free hook, or replaces the program behind our link in one
    /// step: no packet meets an interface without a program.
    ///
    /// # Errors
    /// What the driver refuses, with what to do about it.
    pub fn attach(&mut self, hook: &Hook, state: HookState, mode: Mode) -> Result<Attached> {
        let path = self.pins.link(&hook.interface, network_namespace()?);
        let program: &mut Xdp = self
            .ebpf
            .program_mut(ENTRY)
            .context("program vanished")?
            .try_into()?;
        match state {
            HookState::Ours => {
                let link = PinnedLink::from_pin(&path)
                    .with_context(|| format!("{}: cannot open our link", path.display()))?;
                let link = XdpLink::try_from(FdLink::from(link))?;
                let id = program
                    .attach_to_link(link)
                    .with_context(|| format!("{}: replacing the program", hook.interface))?;
                // The pin holds the link; this handle must not detach it.
                drop(program.take_link(id)?);
            }
            HookState::Free => {
                if path.exists() {
                    std::fs::remove_file(&path)
                        .with_context(|| format!("{}: removing a dead link", path.display()))?;
                }
                let taken = Self::attach_new(program, hook, mode)?;
                let link = FdLink::try_from(program.take_link(taken)?).map_err(|_| {
                    anyhow::anyhow!(
                        "{}: the kernel only offers the old netlink attachment, which dies with \
                         the daemon; Steerline needs BPF links (Linux 5.9)",
                        hook.interface
                    )
                })?;
                link.pin(&path)
                    .with_context(|| format!("{}: pinning the link", path.display()))?;
            }
        }
        Ok(Attached {
            interface: hook.interface.clone(),
            link: path,
            program_id: self.program_id()?,
        })
    }

    fn attach_new(
        program: &mut Xdp,
        hook: &Hook,
        mode: Mode,
    ) -> Result<aya::programs::xdp::XdpLinkId> {
        let hook_of_mode = match mode {
            Mode::Native => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        program
            .attach_to_if_index(hook.ifindex, hook_of_mode)
            .map_err(|error| {
                let advice = attach_advice(&error, mode);
                anyhow::Error::from(error).context(format!(
                    "{}: cannot attach in {mode} mode: {advice}",
                    hook.interface
                ))
            })
    }

    /// Removes the tables of tail calls of programs that are attached no more.
    pub fn drop_former_programs(&self) -> Result<()> {
        let own = self.pins.program_table(self.program_id()?);
        for table in self.pins.program_tables() {
            if table != own {
                std::fs::remove_file(&table)
                    .with_context(|| format!("{}: cannot remove", table.display()))?;
            }
        }
        Ok(())
    }
}

/// Loads a program. The kernel breaks off a verification while the thread has a
/// signal pending (`bpf_check`: `EAGAIN`); libbpf asks five times too.
fn load_patiently(program: &mut Xdp) -> Result<(), ProgramError> {
    const ATTEMPTS: usize = 5;
    for _ in 1..ATTEMPTS {
        match program.load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == std::io::ErrorKind::WouldBlock => {}
            answer => return answer,
        }
    }
    program.load()
}

/// How to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, or not at all.
    Native,
    /// In the kernel's stack.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// The cause of a refused attachment, and the next step. Each row answers one
/// of the reports quoted in the table of `docs/troubleshooting.md`.
fn attach_advice(error: &aya::programs::ProgramError, mode: Mode) -> String {
    let code = match error {
        aya::programs::ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    };
    match code {
        Some(libc::EOPNOTSUPP) => {
            "the driver has no native XDP, or an offload such as LRO forbids it. Try `ethtool -K \
             DEV lro off`, or set data_plane.mode = \"generic\" (slower)"
                .into()
        }
        Some(libc::EBUSY | libc::EEXIST) => {
            "another XDP program holds the hook. `ip link show` names it".into()
        }
        Some(libc::ENOMEM) => {
            "the driver wants more queues than there are: XDP takes a transmit queue per CPU. See \
             `ethtool -l DEV`"
                .into()
        }
        Some(libc::ERANGE) => {
            "the MTU is larger than the driver's XDP limit. Lower it with `ip link set DEV mtu \
             1500`"
                .into()
        }
        Some(libc::EPERM) => "run as root, or with CAP_NET_ADMIN and CAP_BPF".into(),
        Some(libc::ENODEV) => "the interface is gone".into(),
        _ => format!("see the kernel log for what the driver says about {mode} XDP"),
    }
}
