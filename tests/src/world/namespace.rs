//! Network namespaces: making one, entering it, running programs in it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{panic, thread};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::process::run;
use super::scratch;

/// Where `ip netns` keeps its names.
const DIRECTORY: &str = "/run/netns";

/// A named network namespace. Clones refer to the same one; the last of them
/// to be dropped deletes it.
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    file: File,
}

impl Namespace {
    /// Makes a namespace with loopback up and without IPv6 addresses that
    /// nobody asked for. `role` ends its name, for people who look.
    pub(crate) fn new(role: &str) -> Result<Self> {
        let name = format!("{}-{role}", scratch::unique_name());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let path = Self::path_of(&name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) => {
                delete(&name);
                return Err(error).with_context(|| format!("cannot open {path:?}"));
            }
        };
        let namespace = Self {
            inner: Arc::new(Inner { name, file }),
        };
        // No link-local addresses, no duplicate detection and no router
        // solicitations: frames that no test sent would be counted by some.
        namespace.sysctl("net/ipv6/conf/default/addr_gen_mode", "1")?;
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        namespace.sysctl("net/ipv6/conf/default/router_solicitations", "0")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    fn path_of(name: &str) -> PathBuf {
        Path::new(DIRECTORY).join(name)
    }

    /// Runs `body` on a fresh thread inside the namespace and returns what it
    /// returns. Sockets it opens belong to the namespace for good. A panic of
    /// `body` goes on in the caller.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        let result = thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.join_this_thread()?;
                    Ok(body())
                })
                .join()
        });
        match result {
            Ok(value) => value,
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// Moves the calling thread into the namespace for the rest of its life.
    pub(crate) fn join_this_thread(&self) -> Result<()> {
        setns(self.inner.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter namespace {}", self.name()))
    }

    /// A command that will run inside the namespace and see the same files as
    /// we do, bpffs included, which `ip netns exec` would hide.
    ///
    /// The child is in a process group of its own, so that an interrupt from
    /// the terminal reaches only us, who then clean up in order; and the kernel
    /// kills it if the thread that started it ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let namespace = Arc::clone(&self.inner);
        let mut command = Command::new(program);
        command.process_group(0);
        let prepare = move || {
            setns(namespace.file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // A parent that waits for signals has them blocked.
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe things may
        // happen. `prepare` makes three system calls and allocates nothing:
        // the descriptor is open, and errors are plain numbers.
        unsafe { command.pre_exec(prepare) };
        command
    }

    /// Runs `ip` inside the namespace; `arguments` are separated by spaces.
    pub fn ip(&self, arguments: &str) -> Result<()> {
        run(self.command("ip").args(arguments.split_whitespace()))
            .with_context(|| format!("in namespace {}", self.name()))?;
        Ok(())
    }

    /// Sets offload features of `device` and checks that they took.
    pub fn offloads(&self, device: &str, settings: &[(Offload, bool)]) -> Result<()> {
        let mut change = self.command(ethtool());
        change.args(["-K", device]);
        for (offload, on) in settings {
            change.args([offload.short(), if *on { "on" } else { "off" }]);
        }
        run(&mut change).with_context(|| format!("in namespace {}", self.name()))?;
        let shown = run(self.command(ethtool()).args(["-k", device]))?;
        let shown = String::from_utf8_lossy(&shown.stdout);
        for (offload, on) in settings {
            let wanted = format!("{}: {}", offload.long(), if *on { "on" } else { "off" });
            if !shown.lines().any(|line| line.starts_with(&wanted)) {
                bail!(
                    "{device} in {} does not have `{wanted}` after setting it:\n{shown}",
                    self.name()
                );
            }
        }
        Ok(())
    }

    /// Writes a setting, named by its path under `/proc/sys`.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        // The kernel picks the namespace of the thread that opens the file.
        self.enter(|| fs::write(Path::new("/proc/sys").join(path), value))?
            .with_context(|| format!("cannot set {path} to {value} in {}", self.name()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        delete(&self.name);
    }
}

fn delete(name: &str) {
    if let Err(error) = run(Command::new("ip").args(["netns", "delete", name])) {
        eprintln!("cannot delete namespace {name}: {error:#}");
    }
}

/// Deletes the namespaces of processes that were killed before they could.
pub(crate) fn delete_orphans() {
    for name in scratch::orphans(Path::new(DIRECTORY)) {
        // Another process may be at the same: who comes second fails.
        let _ = run(Command::new("ip").args(["netns", "delete", &name]));
    }
}

/// `ethtool` lives where only root's PATH looks.
fn ethtool() -> &'static Path {
    let path = Path::new("/usr/sbin/ethtool");
    if path.exists() {
        path
    } else {
        Path::new("ethtool")
    }
}

/// A feature that `ethtool -K` switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of sent frames are left to the device.
    TransmitChecksum,
    /// Segmentation is left to the device.
    TcpSegmentation,
    /// Segmentation is left to the last moment before the device.
    GenericSegmentation,
    /// Received frames are merged; on veth this also turns NAPI on.
    GenericReceive,
}

impl Offload {
    fn short(self) -> &'static str {
        match self {
            Offload::TransmitChecksum => "tx",
            Offload::TcpSegmentation => "tso",
            Offload::GenericSegmentation => "gso",
            Offload::GenericReceive => "gro",
        }
    }

    fn long(self) -> &'static str {
        match self {
            Offload::TransmitChecksum => "tx-checksumming",
            Offload::TcpSegmentation => "tcp-segmentation-offload",
            Offload::GenericSegmentation => "generic-segmentation-offload",
            Offload::GenericReceive => "generic-receive-offload",
        }
    }
}
