//! Balances real traffic over three web servers, one of them slow, and shows
//! how the slow one loses its share.
//!
//! Network, servers and clients are those of the tests; the balancer is the
//! `steerline` binary, asked by its own `status --json`. Needs root and cleans
//! up after itself, also when interrupted.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use serde::Serialize;
use serde_json::Value;
use steerline_tests::world::{
    Balancer, BalancerConfig, Load, NginxOptions, RunningLoad, Server, Topology, Until, World,
    topology,
};

/// Delay of a server before every answer. The third is slow.
const DELAYS: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(20),
    Duration::from_millis(200),
];
const WORKERS: usize = 8;
/// Below what the machine can do, so that the servers' delays decide.
const RATE: u32 = 300;
const CLIENTS: u16 = 64;
const SERVICE: &str = "web";

#[derive(Parser)]
#[command(about = "Balances traffic over three servers, one of them slow")]
struct Arguments {
    /// How long traffic runs
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Print one line of JSON at the end instead of a table
    #[arg(long)]
    json: bool,
}

/// The line of `--json`.
#[derive(Serialize)]
struct Summary<'a> {
    seconds: u64,
    requests: usize,
    failed_requests: u64,
    /// As `steerline status --json` has them.
    backends: &'a Value,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns how many requests failed.
fn run(arguments: &Arguments) -> Result<u64> {
    // First of all, so that every thread and guard is on the right side of it.
    let interrupts = interrupts()?;
    let show = |text: &str| {
        if !arguments.json {
            println!("{text}");
        }
    };
    show(&plan(arguments.seconds));

    let world = World::new(&Topology::two_armed(DELAYS.len() as u8))?;
    let servers = (1..)
        .zip(DELAYS)
        .map(|(number, delay)| {
            let name = format!("web-{number}");
            let options = NginxOptions::new(&name, World::server_address(number)).delay(delay);
            Server::nginx(world.server(number)?, options)
        })
        .collect::<Result<Vec<_>>>()?;
    let balancer = Balancer::start(world.balancer(), &BalancerConfig::new(&service(&servers)))
        .context("cannot start Steerline")?;

    let start = Instant::now();
    let load = Load {
        target: SocketAddr::new(topology::VIP.into(), 80),
        path: "/".to_owned(),
        workers: WORKERS,
        sources: world.fresh_clients(CLIENTS)?,
        rate: Some(RATE),
        // Stopped before: this only makes sure that it ends.
        until: Until::Time(Duration::from_secs(u64::from(arguments.seconds) + 60)),
        limit: Duration::from_secs(5),
    }
    .start(world.client())?;

    for second in 1..=arguments.seconds {
        let interrupted = wait(&interrupts, start + Duration::from_secs(second.into()));
        if !arguments.json {
            println!("{}", table(&balancer.status()?, start, &load)?);
        }
        if interrupted {
            break;
        }
    }
    // Before the load stops, so that what it says is about traffic.
    let backends = backends(&balancer.status()?)?.clone();
    let seconds = start.elapsed().as_secs();
    let report = load.stop()?;
    let failed = report.failures().count() as u64;
    if arguments.json {
        let summary = Summary {
            seconds,
            requests: report.outcomes.len(),
            failed_requests: failed,
            backends: &backends,
        };
        println!("{}", serde_json::to_string(&summary)?);
        return Ok(failed);
    }
    let requests = report.outcomes.len();
    println!("{requests} requests in {seconds} s, {failed} failed. Answered by:");
    for (server, count) in report.by_server() {
        println!(
            "  {server}: {count} ({:.1} %)",
            100.0 * report.share(server)
        );
    }
    if let Err(error) = report.expect_success() {
        println!("{error:#}");
    }
    Ok(failed)
}

fn plan(seconds: u32) -> String {
    let slow = DELAYS[2].as_millis();
    let usual = DELAYS[0].as_millis();
    format!(
        "In network namespaces of its own: {WORKERS} clients → Steerline ({}:80, aca) → 3 × \
         nginx.\nTwo servers wait {usual} ms before an answer, web-3 waits {slow} ms. For \
         {seconds} s: up to {RATE} requests a\nsecond, a new connection each. Watch web-3's load \
         rise and its share fall.\n",
        topology::VIP
    )
}

fn service(servers: &[Server]) -> String {
    let mut text = format!(
        "[[service]]\nname = \"{SERVICE}\"\naddress = \"{}\"\nport = 80\nprotocol = \"tcp\"\n\
         forwarding = \"nat\"\nalgorithm = \"aca\"\nannounce = \"none\"\n",
        topology::VIP
    );
    for server in servers {
        let address = server.address();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n[[service.backend]]\nname = \"{}\"\naddress = \"{}\"\nport = {}\n",
            server.name(),
            address.ip(),
            address.port()
        );
    }
    text
}

/// Tells when the user or a service manager wants the end.
fn interrupts() -> Result<Receiver<()>> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    // Threads started from now on leave them to the one that waits.
    signals.thread_block().context("cannot block signals")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(
        move || {
            while signals.wait().is_ok() && sender.send(()).is_ok() {}
        },
    );
    Ok(receiver)
}

/// Waits until `instant`, or returns true when the end is wanted before.
fn wait(interrupts: &Receiver<()>, instant: Instant) -> bool {
    let left = instant.saturating_duration_since(Instant::now());
    !matches!(
        interrupts.recv_timeout(left),
        Err(RecvTimeoutError::Timeout)
    )
}

/// The list of backends in `status --json`.
fn backends(status: &Value) -> Result<&Value> {
    let services = status["services"].as_array();
    services
        .and_then(|services| services.iter().find(|service| service["name"] == SERVICE))
        .map(|service| &service["backends"])
        .with_context(|| format!("`status --json` does not list the service: {status}"))
}

fn table(status: &Value, start: Instant, load: &RunningLoad) -> Result<String> {
    let mut text = format!(
        "{:>3} s  {:<8} {:<12} {:>6} {:>7} {:>6} {:>6} {:>6} {:>7} {:>9} {:>9} {:>9}\n",
        start.elapsed().as_secs(),
        "backend",
        "state",
        "weight",
        "share",
        "short",
        "long",
        "load",
        "active",
        "new flows",
        "short ms",
        "long ms",
    );
    let list = backends(status)?
        .as_array()
        .context("`backends` is not a list")?;
    for backend in list {
        let word = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            Value::Number(number) => match number.as_f64() {
                Some(float) if !number.is_u64() => format!("{float:.1}"),
                _ => number.to_string(),
            },
            other => other.to_string(),
        };
        let share = backend["share"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        writeln!(
            text,
            "       {:<8} {:<12} {:>6} {:>7} {:>6} {:>6} {:>6} {:>7} {:>9} {:>9} {:>9}",
            word(&backend["name"]),
            word(&backend["state"]),
            word(&backend["effective_weight"]),
            share,
            word(&backend["load"]["short"]),
            word(&backend["load"]["long"]),
            word(&backend["load"]["average"]),
            word(&backend["active_flows"]),
            word(&backend["new_flows"]),
            word(&backend["response_ms"]["short"]),
            word(&backend["response_ms"]["long"]),
        )?;
    }
    writeln!(
        text,
        "       {} requests, {} failed",
        load.completed(),
        load.failed()
    )?;
    Ok(text)
}
