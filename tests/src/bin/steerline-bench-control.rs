//! What it costs the daemon to ask a thousand backends: `cargo xtask bench
//! control` starts it. Needs root; everything it makes is its own and removed
//! at the end, also when interrupted.
//!
//! The backends are addresses of one server in a namespace, all behind one next
//! hop, so that what is measured is the daemon and not the neighbour table. CPU
//! time is the daemon's own as the kernel accounts it, user and system, which
//! includes the kernel's work for its sockets but not the server's. The first
//! row asks nobody: what is above it is the asking.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use serde::Serialize;
use steerline_tests::world::{
    Balancer, BalancerConfig, NginxOptions, Server, Topology, World, topology, wait_until,
};

/// The network of the backends' addresses, behind the server.
const BACKENDS: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 0);
/// Share of a core that asking may take.
const TARGET_PERCENT: f64 = 10.0;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(about = "CPU time of a daemon that probes many backends")]
struct Arguments {
    /// Backends of one service
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    backends: u16,
    /// Seconds between two probes of a backend
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    interval: u32,
    /// How long each row is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// A row of the result.
#[derive(Serialize)]
struct Row {
    probe: &'static str,
    probes: u64,
    seconds: f64,
    cpu_seconds: f64,
    percent_of_a_core: f64,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(rows)
            if rows
                .iter()
                .all(|row| row.percent_of_a_core < TARGET_PERCENT) =>
        {
            ExitCode::SUCCESS
        }
        Ok(_) => {
            eprintln!("a row is above {TARGET_PERCENT} % of a core");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Vec<Row>> {
    let interrupts = interrupts()?;
    let world = World::new(&Topology::two_armed(1))?;
    let server = world.server(1)?;
    server.ip(&format!("route add local {BACKENDS}/16 dev lo"))?;
    let gateway = World::server_address(1);
    let balancer = world.balancer();
    balancer.ip(&format!("route add {BACKENDS}/16 via {gateway}"))?;
    let nginx = Server::nginx(server, NginxOptions::new("web", Ipv4Addr::UNSPECIFIED))?;

    let mut rows = Vec::new();
    for probe in ["none", "tcp", "http", "icmp"] {
        let config = BalancerConfig::new(&service(arguments, probe));
        let daemon = Balancer::start(balancer, &config)?;
        let row = measure(arguments, &world, &daemon, probe, &interrupts)?;
        if !arguments.json {
            println!(
                "{:>5}: {:>7} probes in {:.1} s, {:>6.3} s of CPU, {:>5.2} % of a core",
                row.probe, row.probes, row.seconds, row.cpu_seconds, row.percent_of_a_core
            );
        }
        rows.push(row);
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&rows)?);
    }
    drop(nginx);
    Ok(rows)
}

fn service(arguments: &Arguments, probe: &str) -> String {
    let mut text = format!(
        "\n[[service]]\nname = \"web\"\naddress = \"{}\"\nport = 80\nannounce = \"none\"\n",
        topology::VIP
    );
    if probe != "none" {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[service.probe]\ntype = \"{probe}\"\ninterval = \"{}s\"\n",
            arguments.interval
        );
    }
    for number in 1..=arguments.backends {
        let [high, low] = number.to_be_bytes();
        let _ = write!(
            text,
            "[[service.backend]]\nname = \"b{number}\"\naddress = \"10.3.{high}.{low}\"\n"
        );
    }
    text
}

fn measure(
    arguments: &Arguments,
    world: &World,
    daemon: &Balancer,
    probe: &'static str,
    interrupts: &Receiver<()>,
) -> Result<Row> {
    if probe != "none" {
        let mut down = String::new();
        wait_until("every backend was probed and is up", PATIENCE, || {
            let status = daemon.status()?;
            let backends = status["services"][0]["backends"].as_array();
            let backends = backends.context("no backends")?;
            let first = backends
                .iter()
                .find(|backend| backend["outside"]["probe"]["state"] != "up");
            down = first.map_or_else(String::new, ToString::to_string);
            Ok(first.is_none().then_some(()))
        })
        .with_context(|| format!("{down}\n{}", daemon.log()))?;
    }
    let id = daemon.process_id().context("the daemon does not run")?;
    let (cpu, answered, start) = (cpu_seconds(id)?, served(world, probe)?, Instant::now());
    match interrupts.recv_timeout(Duration::from_secs(arguments.seconds.into())) {
        Err(RecvTimeoutError::Timeout) => {}
        Ok(()) | Err(RecvTimeoutError::Disconnected) => bail!("interrupted"),
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds(id)? - cpu;
    let probes = served(world, probe)? - answered;
    if probe != "none" {
        let due = f64::from(arguments.backends) * seconds / f64::from(arguments.interval);
        ensure!(
            probes as f64 > due * 0.9,
            "{probes} probes of {due:.0} that were due: nothing was measured"
        );
    }
    Ok(Row {
        probe,
        probes,
        seconds,
        cpu_seconds,
        percent_of_a_core: 100.0 * cpu_seconds / seconds,
    })
}

/// User and system time of a process: fields 14 and 15 of `/proc/PID/stat`, in
/// ticks of which there are 100 a second on every Linux.
fn cpu_seconds(id: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    let (_, fields) = text.rsplit_once(") ").context("an odd /proc/PID/stat")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let field = |number: usize| -> Result<f64> {
        let text = fields.get(number - 3).context("a short /proc/PID/stat")?;
        Ok(text.parse::<f64>()?)
    };
    Ok((field(14)? + field(15)?) / 100.0)
}

/// Connections accepted, or echo requests answered, in the server's namespace.
fn served(world: &World, probe: &str) -> Result<u64> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
    let text = world.server(1)?.enter(read)??;
    let (table, column) = if probe == "icmp" {
        ("Icmp:", "OutEchoReps")
    } else {
        ("Tcp:", "PassiveOpens")
    };
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, values) = (lines.next(), lines.next());
    let (names, values) = names.zip(values).context("an odd /proc/net/snmp")?;
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, value) = pairs
        .find(|(name, _)| *name == column)
        .with_context(|| format!("no {column} in /proc/net/snmp"))?;
    Ok(value.parse()?)
}

/// Hears of SIGINT and SIGTERM, so that guards run all the same.
fn interrupts() -> Result<Receiver<()>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = sender.send(());
        }
    });
    Ok(receiver)
}
