//! Many requests at once, each over its own connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::Namespace;
use super::client::{self, Failure, Response};

/// Most workers of one load: each is a thread.
const MOST_WORKERS: usize = 256;

/// When a load ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this many requests.
    Count(u64),
    /// When this time is over; requests under way are completed.
    Time(Duration),
}

/// What to ask, from where and how often.
#[derive(Clone, Debug)]
pub struct Load {
    /// Who is asked.
    pub target: SocketAddr,
    /// For what.
    pub path: String,
    /// Requests under way at the same time, at most.
    pub workers: usize,
    /// Client addresses, taken in turn; empty for the route's choice.
    pub sources: Vec<IpAddr>,
    /// Requests a second over all workers; none for as fast as answers come.
    pub rate: Option<u32>,
    /// When to end.
    pub until: Until,
    /// Limit for one request.
    pub limit: Duration,
}

impl Load {
    /// `count` requests for `/`, one after the other, from the route's choice
    /// of address.
    pub fn sequential(target: SocketAddr, count: u64) -> Self {
        Self {
            target,
            path: "/".to_owned(),
            workers: 1,
            sources: Vec::new(),
            rate: None,
            until: Until::Count(count),
            limit: Duration::from_secs(10),
        }
    }

    /// Runs the load to its end from inside `namespace`.
    pub fn run(self, namespace: &Namespace) -> Result<Report> {
        self.start(namespace)?.join()
    }

    /// Starts the load and returns while it runs.
    pub fn start(self, namespace: &Namespace) -> Result<RunningLoad> {
        ensure!(
            (1..=MOST_WORKERS).contains(&self.workers),
            "between 1 and {MOST_WORKERS} workers"
        );
        ensure!(self.rate != Some(0), "a rate of 0 would never end");
        let workers = self.workers;
        let shared = Arc::new(Shared {
            load: self,
            start: Instant::now(),
            stop: AtomicBool::new(false),
            next: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            outcomes: Mutex::new(Vec::new()),
        });
        let mut running = RunningLoad {
            shared: Arc::clone(&shared),
            workers: Vec::with_capacity(workers),
        };
        for number in 0..workers {
            let shared = Arc::clone(&shared);
            let namespace = namespace.clone();
            let worker = thread::Builder::new()
                .name(format!("client-{number}"))
                .spawn(move || {
                    namespace.join_this_thread()?;
                    shared.work();
                    Ok(())
                })
                .context("cannot start a worker")?;
            running.workers.push(worker);
        }
        Ok(running)
    }
}

/// What became of one request.
#[derive(Debug)]
pub struct Outcome {
    /// When it began, from the start of the load.
    pub started: Duration,
    /// How long it took to the last byte or to the failure.
    pub took: Duration,
    /// The answer, or why there is none.
    pub result: Result<Response, Failure>,
}

impl Outcome {
    /// Whether the client did not get what it asked for.
    pub fn failed(&self) -> bool {
        !matches!(&self.result, Ok(response) if response.status == 200)
    }

    /// Who answered.
    pub fn server(&self) -> Option<&str> {
        self.result.as_ref().ok()?.server.as_deref()
    }
}

/// All outcomes of a load, in the order in which the requests ended.
#[derive(Debug, Default)]
pub struct Report {
    /// One for each request.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// What did not succeed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.failed())
    }

    /// Answers of each server.
    pub fn by_server(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for server in self.outcomes.iter().filter_map(Outcome::server) {
            *counts.entry(server).or_insert(0) += 1;
        }
        counts
    }

    /// The part of all requests that `server` answered, from 0 to 1.
    pub fn share(&self, server: &str) -> f64 {
        let answered = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.server() == Some(server))
            .count();
        answered as f64 / self.outcomes.len().max(1) as f64
    }

    /// An error that names the first failures, if there are any.
    pub fn expect_success(&self) -> Result<()> {
        let texts: Vec<String> = self
            .failures()
            .map(|outcome| match &outcome.result {
                Ok(response) => format!("status {}", response.status),
                Err(failure) => failure.to_string(),
            })
            .collect();
        ensure!(
            texts.is_empty(),
            "{} of {} requests failed, first: {:?}",
            texts.len(),
            self.outcomes.len(),
            &texts[..texts.len().min(5)]
        );
        Ok(())
    }
}

#[derive(Debug)]
struct Shared {
    load: Load,
    start: Instant,
    stop: AtomicBool,
    next: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    outcomes: Mutex<Vec<Outcome>>,
}

impl Shared {
    fn work(&self) {
        while let Some(number) = self.take() {
            let sources = &self.load.sources;
            let source =
                (!sources.is_empty()).then(|| sources[(number % sources.len() as u64) as usize]);
            let started = self.start.elapsed();
            let result =
                client::request(source, self.load.target, &self.load.path, self.load.limit);
            let outcome = Outcome {
                started,
                took: self.start.elapsed() - started,
                result,
            };
            if outcome.failed() {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            self.completed.fetch_add(1, Ordering::Relaxed);
            let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push(outcome);
        }
    }

    /// The number of the next request once it is due, or none at the end.
    fn take(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if matches!(self.load.until, Until::Count(count) if number >= count) {
            return None;
        }
        let due = self.load.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_micros(number.saturating_mul(1_000_000) / u64::from(rate))
        });
        loop {
            let now = self.start.elapsed();
            let over = matches!(self.load.until, Until::Time(time) if now >= time);
            if over || self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if now >= due {
                return Some(number);
            }
            thread::sleep((due - now).min(Duration::from_millis(50)));
        }
    }
}

/// A load under way. Dropping it stops it.
#[derive(Debug)]
pub struct RunningLoad {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<Result<()>>>,
}

impl RunningLoad {
    /// Requests that have ended, one way or the other.
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Those of them that failed.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Lets requests under way complete, begins no other and reports.
    pub fn stop(self) -> Result<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits for the end that the load sets itself and reports.
    pub fn join(mut self) -> Result<Report> {
        for worker in self.workers.drain(..) {
            worker.join().map_err(|_| anyhow!("a worker panicked"))??;
        }
        let mut outcomes = self
            .shared
            .outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(Report {
            outcomes: std::mem::take(&mut outcomes),
        })
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            // Its error, if any, matters less than what led here.
            let _ = worker.join();
        }
    }
}
