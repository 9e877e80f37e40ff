//! Steerline itself, as its user starts it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::Namespace;
use super::process::{Process, run, wait_until};
use super::scratch::{self, Scratch};
use super::topology::{BACK_DEVICE, FRONT_DEVICE};

/// Long enough for a cold start on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// What the configuration file says. Paths are not in it: each balancer has
/// its own, and the harness writes them.
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// Interfaces to attach to.
    pub interfaces: Vec<String>,
    /// More lines for `[data_plane]`.
    pub data_plane: String,
    /// More lines for `[control]`.
    pub control: String,
    /// The rest of the file: the `[[service]]` sections.
    pub services: String,
}

impl BalancerConfig {
    /// Both interfaces of the balancer in native mode, a small flow table, and
    /// these services.
    pub fn new(services: &str) -> Self {
        Self {
            interfaces: vec![FRONT_DEVICE.to_owned(), BACK_DEVICE.to_owned()],
            data_plane: "mode = \"native\"\nflow_table = { ipv4 = 65_536, ipv6 = 16_384 }\n"
                .to_owned(),
            control: String::new(),
            services: services.to_owned(),
        }
    }
}

/// One Steerline with its own pins, socket and state, from first start to
/// removal. The daemon in it may be killed and started again.
#[derive(Debug)]
pub struct Balancer {
    /// None between a stop and the next start.
    daemon: Option<Process>,
    namespace: Namespace,
    binary: PathBuf,
    pins: PathBuf,
    scratch: Scratch,
}

impl Balancer {
    /// Starts the daemon in `namespace` and returns once it answers.
    pub fn start(namespace: &Namespace, config: &BalancerConfig) -> Result<Self> {
        let mut balancer = Self {
            daemon: None,
            namespace: namespace.clone(),
            binary: binary()?,
            pins: Path::new("/sys/fs/bpf").join(scratch::unique_name()),
            scratch: Scratch::new()?,
        };
        balancer.write_config(config)?;
        balancer.start_again()?;
        Ok(balancer)
    }

    /// Starts the daemon once more, with the configuration file as it is and
    /// the pins that the one before left.
    pub fn start_again(&mut self) -> Result<()> {
        if self.daemon.is_some() {
            bail!("the daemon runs already");
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = self.command(&["run"]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut daemon = Process::start(&mut command)?;
        let mut answer = String::new();
        wait_until("the daemon answers `status`", LIMIT, || {
            if let Some(status) = daemon.ended()? {
                bail!("the daemon ended ({status})");
            }
            let output = self.command(&["status", "--json"]).output()?;
            answer = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok(output.status.success().then_some(()))
        })
        .with_context(|| format!("`status` says: {answer}its log:\n{}", self.log()))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Replaces the configuration file; `reload` or a new start reads it.
    pub fn write_config(&self, config: &BalancerConfig) -> Result<()> {
        let mut text = String::new();
        writeln!(text, "[data_plane]")?;
        writeln!(text, "interfaces = {:?}", config.interfaces)?;
        writeln!(text, "pin_directory = {:?}", self.pins)?;
        writeln!(text, "{}", config.data_plane)?;
        writeln!(text, "[control]")?;
        writeln!(text, "socket = {:?}", self.scratch.file("control.sock"))?;
        writeln!(text, "state_directory = {:?}", self.scratch.file("state"))?;
        writeln!(text, "{}", config.control)?;
        text.push_str(&config.services);
        fs::write(self.config_path(), text).context("cannot write the configuration")
    }

    /// `steerline --config FILE ARGUMENTS…`, ready to run inside the namespace.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.command(&self.binary);
        command
            .arg("--config")
            .arg(self.config_path())
            .args(arguments);
        command
    }

    /// Runs a verb that must succeed.
    pub fn verb(&self, arguments: &[&str]) -> Result<Output> {
        run(&mut self.command(arguments))
            .with_context(|| format!("the daemon's log:\n{}", self.log()))
    }

    /// Runs a verb with `--json` and reads its answer.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let output = run(self.command(arguments).arg("--json"))
            .with_context(|| format!("the daemon's log:\n{}", self.log()))?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "{arguments:?} printed no JSON: {}",
                String::from_utf8_lossy(&output.stdout)
            )
        })
    }

    /// What `status --json` says.
    pub fn status(&self) -> Result<Value> {
        self.json(&["status"])
    }

    /// The object of one backend in `status --json`.
    pub fn backend(&self, service: &str, backend: &str) -> Result<Value> {
        let status = self.status()?;
        named(&status["services"], service)
            .and_then(|service| named(&service["backends"], backend))
            .cloned()
            .with_context(|| format!("no {service}/{backend} in {status}"))
    }

    /// Kills the daemon as a crash would. Traffic should not notice.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL)
    }

    /// Stops the daemon as its service manager would.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::SIGTERM)
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        let mut daemon = self.daemon.take().context("the daemon does not run")?;
        daemon.signal(signal)?;
        let status = daemon
            .wait(LIMIT)
            .with_context(|| format!("its log:\n{}", self.log()))?;
        if signal == Signal::SIGTERM && !status.success() {
            bail!("the daemon ended ({status}), its log:\n{}", self.log());
        }
        Ok(())
    }

    /// Runs `steerline detach`, which ends the balancing of traffic.
    pub fn detach(&self) -> Result<()> {
        self.verb(&["detach"]).map(drop)
    }

    /// The daemon's process id while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Process::id)
    }

    /// Where it pins maps and links.
    pub fn pin_directory(&self) -> &Path {
        &self.pins
    }

    /// Its configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.scratch.file("steerline.toml")
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.file("daemon.log")
    }

    /// All that the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // The daemon first, so that it pins nothing anew; its links go with
        // their pins.
        self.daemon = None;
        if self.pins.exists()
            && let Err(error) = fs::remove_dir_all(&self.pins)
        {
            eprintln!("cannot remove {:?}: {error}", self.pins);
        }
    }
}

/// The element of a list whose `name` is this.
fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|item| item["name"] == name)
}

/// `STEERLINE_BIN`, else the binary that cargo built beside this one.
fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("STEERLINE_BIN") {
        return Ok(path.into());
    }
    let this = env::current_exe().context("cannot find this program")?;
    // Tests are in `deps`, one below where binaries are.
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("steerline"))
        .find(|candidate| candidate.is_file())
        .with_context(|| {
            format!("no `steerline` beside {this:?}: build it, or name it by STEERLINE_BIN")
        })
}
