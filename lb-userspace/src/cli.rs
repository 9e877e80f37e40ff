//! The command line: what an operator types, and how the program exits.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Where the configuration is unless `--config` says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/steerline/steerline.toml";

/// A layer-4 load balancer that listens to its servers.
///
/// Connections are forwarded by an XDP program in the kernel; the daemon
/// times them and steers new ones to the servers that answer best. Stopping
/// the daemon leaves traffic running; `detach` ends it.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "steerline",
    version,
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    after_help = "Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 the daemon is \
                  not running."
)]
pub struct Cli {
    /// Configuration file; socket and pinned maps are found through it
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        default_value = DEFAULT_CONFIG
    )]
    pub config: PathBuf,

    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What the program is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Verb {
    /// Run the daemon in the foreground
    ///
    /// Loads the packet program, attaches it to the configured interfaces and
    /// steers until SIGTERM or SIGINT. Takes over pinned maps and links of an
    /// earlier run, whose connections go on. Traffic keeps flowing after the
    /// daemon has stopped; use `detach` to end it.
    Run,

    /// Check the configuration and whether this machine can run it
    ///
    /// Prints every mistake with its line and column, or else the services,
    /// the memory that the maps will take, and what looks wrong. Changes
    /// nothing and needs no running daemon.
    Check(Output),

    /// Show what the running daemon knows and does
    ///
    /// Interfaces, counters, flow table, and every service with the state,
    /// weight, load, response time and connections of its backends.
    Status(Output),

    /// Show counters from the pinned maps, with or without a daemon
    ///
    /// Packets, bytes and connections of every service and backend, and the
    /// reason of every packet that was dropped or passed on. Works after the
    /// daemon has stopped or crashed.
    Stats(Output),

    /// List connections from the pinned maps, with or without a daemon
    ///
    /// Client, virtual address, backend, state, and seconds since the last
    /// packet of every connection in the flow table, in no order. Connections
    /// that have ended linger for ten seconds.
    Flows(Flows),

    /// Tell what happened: changes of state, orders, reloads, lost hooks
    ///
    /// The daemon keeps the last 4,096 events, which its log has too. With
    /// --follow it goes on with what happens until interrupted; --json prints
    /// one object a line then.
    Events(Events),

    /// Say why the backends of a service are what they are
    ///
    /// Per backend: what the file, operators, the adaptive load, slow start and
    /// failures say of it, what that comes to, and what will change next by
    /// itself, and when. A backend in slow start comes with its whole ramp.
    Explain(Explain),

    /// Let a backend's connections run out: no new ones, the open ones have
    /// `drain_timeout`
    ///
    /// Whatever is open when `drain_timeout` of the service has passed is ended.
    /// Survives restart and reload; `enable` ends it.
    Drain(Target),

    /// Take a backend out of service: no new connections
    ///
    /// Open connections go on for as long as they last. Survives restart and
    /// reload; `enable` ends it.
    Disable(Target),

    /// Put a drained or disabled backend back into service
    Enable(Target),

    /// Give a backend another weight than the file's
    ///
    /// Survives restart and reload; ends with `default`, or when the file's
    /// weight of this backend changes.
    Weight(Weight),

    /// Read the configuration file again
    ///
    /// What differs is applied whole or not at all: a file with any mistake
    /// changes nothing. Connections of removed backends have `drain_timeout`.
    /// `[data_plane]` and `[control]` cannot change while the daemon runs.
    /// SIGHUP does the same.
    Reload(Output),

    /// End load balancing: take the packet program off the interfaces
    ///
    /// Removes the pinned links and maps. Connections that went through them
    /// end. Stop the daemon first.
    Detach(Output),

    /// Print a completion script for a shell
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// `flows` and what it lists.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Flows {
    /// Only connections of this service
    #[arg(long, value_name = "SERVICE")]
    pub service: Option<String>,

    /// List at most so many; 0: all
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub limit: usize,

    /// How it prints.
    #[command(flatten)]
    pub output: Output,
}

/// `events` and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Events {
    /// Go on with what happens
    #[arg(long, short)]
    pub follow: bool,

    /// How it prints.
    #[command(flatten)]
    pub output: Output,
}

/// `explain` and which service.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Explain {
    /// Name of the service, as in the configuration file
    #[arg(value_name = "SERVICE")]
    pub service: String,

    /// How it prints.
    #[command(flatten)]
    pub output: Output,
}

/// A backend that something is to happen to.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Target {
    /// Names of service and backend, as in the configuration file
    #[arg(value_name = "SERVICE/BACKEND")]
    pub backend: BackendName,

    /// How it prints.
    #[command(flatten)]
    pub output: Output,
}

/// A backend and its new weight.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Weight {
    /// Names of service and backend, as in the configuration file
    #[arg(value_name = "SERVICE/BACKEND")]
    pub backend: BackendName,

    /// 0 (no new connections) to 65535, or `default` for the file's
    #[arg(value_name = "N|default")]
    pub weight: GivenWeight,

    /// How it prints.
    #[command(flatten)]
    pub output: Output,
}

/// `SERVICE/BACKEND`. Names hold no slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendName {
    /// Name of the service.
    pub service: String,
    /// Name of the backend.
    pub backend: String,
}

impl FromStr for BackendName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((service, backend))
                if !service.is_empty() && !backend.is_empty() && !backend.contains('/') =>
            {
                Ok(Self {
                    service: service.to_owned(),
                    backend: backend.to_owned(),
                })
            }
            _ => Err("write SERVICE/BACKEND, such as web/web-1"),
        }
    }
}

/// A weight, or the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenWeight {
    /// This one.
    Is(u16),
    /// The file's.
    Default,
}

impl FromStr for GivenWeight {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "default" => Ok(Self::Default),
            text => text
                .parse()
                .map(Self::Is)
                .map_err(|_| "write 0 to 65535, or `default`"),
        }
    }
}

/// How a verb prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct Output {
    /// Print JSON with stable names
    #[arg(long)]
    pub json: bool,
}

/// How the program exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What was asked has been done.
    Done = 0,
    /// It has failed.
    Failed = 1,
    /// The command line or the configuration is wrong. The command line
    /// parser exits with the same code.
    Usage = 2,
    /// The verb needs a running daemon and there is none.
    NotRunning = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
