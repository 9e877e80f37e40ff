//! The `steerline` command.

mod verbs;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use std::process::ExitCode;
use steerline::{
    cli::{Cli, Exit, Output, Verb},
    config::{Config, LoadError, check},
    daemon::{self, Reply, Request},
    dataplane::{Maps, Pins},
    status,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("steerline: {error:#}");
            Exit::Failed.into()
        }
    }
}

fn run(cli: &Cli) -> Result<Exit> {
    let output = match &cli.verb {
        Verb::Run => Output { json: false },
        Verb::Completions { shell } => {
            verbs::completions(*shell)?;
            return Ok(Exit::Done);
        }
        Verb::Check(output)
        | Verb::Status(output)
        | Verb::Stats(output)
        | Verb::Reload(output)
        | Verb::Detach(output) => *output,
        Verb::Flows(flows) => flows.output,
        Verb::Events(events) => events.output,
        Verb::Explain(explain) => explain.output,
        Verb::Drain(target) | Verb::Disable(target) | Verb::Enable(target) => target.output,
        Verb::Weight(weight) => weight.output,
    };
    let (config, warnings) = match Config::load(&cli.config) {
        Ok(loaded) => loaded,
        Err(error) => {
            report_load_error(&error, output)?;
            return Ok(Exit::Usage);
        }
    };
    match cli.verb.clone() {
        Verb::Run => {
            start_log();
            for warning in &warnings {
                tracing::warn!("{}: {warning}", cli.config.display());
            }
            let file = std::path::absolute(&cli.config)
                .with_context(|| format!("{}: cannot be made absolute", cli.config.display()))?;
            runtime()?.block_on(daemon::run(config, file))?;
            Ok(Exit::Done)
        }
        Verb::Check(output) => {
            let cpus = u32::try_from(cpus()?)?;
            let findings = runtime()?.block_on(daemon::findings(&config));
            let report = check::report(&config, warnings, findings, cpus);
            print(output, &report, || report.to_string())?;
            Ok(if report.failed() {
                Exit::Failed
            } else {
                Exit::Done
            })
        }
        Verb::Status(output) => match daemon::ask(&config.control.socket, &Request::Status {})? {
            Reply::Answer(status) => {
                print(output, &status, || status::render(&status))?;
                Ok(Exit::Done)
            }
            Reply::Refused(refusal) => verbs::refused(&refusal, output),
            Reply::NotRunning => {
                eprintln!(
                    "steerline: no daemon listens on {}; start it with `steerline run`, or \
                         see `steerline stats` for the counters in the pinned maps",
                    config.control.socket.display()
                );
                Ok(Exit::NotRunning)
            }
        },
        Verb::Stats(output) => {
            let pins = Pins::new(&config.data_plane.pin_directory);
            if !pins.maps().exists() {
                eprintln!(
                    "steerline: nothing is pinned in {}; start with `steerline run`",
                    pins.directory().display()
                );
                return Ok(Exit::Failed);
            }
            let stats = status::read_stats(&Maps::open(&pins)?)?;
            print(output, &stats, || status::render_stats(&stats))?;
            Ok(Exit::Done)
        }
        Verb::Detach(output) => {
            let detached = match daemon::ask(&config.control.socket, &Request::Detach {})? {
                Reply::Answer(_) => true,
                Reply::Refused(refusal) => return verbs::refused(&refusal, output),
                Reply::NotRunning => runtime()?.block_on(daemon::detach(&config))?,
            };
            let result = serde_json::json!({ "detached": detached });
            print(output, &result, || {
                if detached {
                    "detached; traffic has ended\n"
                } else {
                    "nothing was attached\n"
                }
                .into()
            })?;
            Ok(Exit::Done)
        }
        Verb::Flows(flows) => verbs::flows(&config, &flows),
        Verb::Events(events) => verbs::events(&config, events),
        Verb::Drain(target) => verbs::order(&config, "drain", &target),
        Verb::Disable(target) => verbs::order(&config, "disable", &target),
        Verb::Enable(target) => verbs::order(&config, "enable", &target),
        Verb::Weight(weight) => verbs::weight(&config, &weight),
        Verb::Reload(output) => verbs::reload(&config, output),
        Verb::Explain(explain) => verbs::explain(&config, explain),
        // Answered before the configuration was read.
        Verb::Completions { .. } => Ok(Exit::Done),
    }
}

fn report_load_error(error: &LoadError, output: Output) -> Result<()> {
    match error {
        LoadError::Mistakes(mistakes) if output.json => {
            println!("{}", serde_json::to_string(mistakes)?);
        }
        error => eprintln!("{error}"),
    }
    Ok(())
}

fn print<T: serde::Serialize>(
    output: Output,
    value: &T,
    text: impl FnOnce() -> String,
) -> Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let text = if output.json {
        serde_json::to_string(value)? + "\n"
    } else {
        text()
    };
    // A reader that has seen enough (`| head`) is not an error.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

fn cpus() -> Result<usize> {
    aya::util::nr_cpus()
        .map_err(|(path, error)| anyhow::Error::from(error).context(path.to_string()))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    // One thread: it is also the one that is in the right network namespace.
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("STEERLINE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
