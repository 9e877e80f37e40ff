//! The daemon: one task owns the engine and the maps, and everything else is
//! an event that reaches it.
//!
//! Every [`TICK`] it reads the counters, feeds the engine, carries out what the
//! engine decides, and sweeps a part of the flow table. Between ticks it
//! answers the control socket and follows routes and neighbours. It is not on
//! the way of any packet: killed, traffic goes on by what is in the maps.

mod addresses;
mod client;
mod clock;
mod control;
mod diff;
mod failures;
mod hooks;
mod journal;
mod network;
mod orders;
mod outside;
mod prepare;
mod privileges;
mod protocol;
mod reload;
mod retired;
mod state_file;
mod watch;
mod watchdog;

pub use client::{Followed, Reply, ask, follow};
pub(crate) use clock::{micros, tick};
pub use network::detach;
pub(crate) use prepare::ip_address;
pub use protocol::{Refusal, Request};

use crate::{
    config::{Config, check::Finding},
    dataplane::{Attached, Books, Loaded, Maps, Pass, PinState, Pins, Publisher, Sweeper},
    net::{Netlink, watch::Watch},
    outside::Outside,
    status::{self, Status},
};
use anyhow::{Context as _, Result};
use control::ControlSocket;
use failures::Failures;
use journal::{Happening, Journal};
use lb_common::{
    abi::{self, Backend, Live, Settings, backend_flags, budget_flags},
    control::{Budget, Command, Engine, Event, Order, Sample, State},
    flow::LiveWords,
};
use network::Network;
use prepare::Placed;
use protocol::{Asked, Response};
use retired::Retired;
use state_file::StateFile;
use std::{collections::BTreeMap, mem::offset_of, path::PathBuf, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::MissedTickBehavior,
};

/// Pace of the loop.
const TICK: Duration = Duration::from_millis(100);
/// A pass over the flow table takes this many ticks.
const TICKS_PER_PASS: u32 = 10;
/// Longest wait for the backends' next hops before the program is attached.
const RESOLVE: Duration = Duration::from_secs(2);
/// The hooks are looked at every so many ticks.
const TICKS_PER_LOOK: u64 = 10;

/// What the packet path was last told of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Desired {
    flags: u32,
    weight: u32,
    relative: u32,
}

/// Runs until SIGTERM, SIGINT or a `detach` request. Traffic goes on after the
/// first two. `file` is where `config` was read from; SIGHUP and `reload` read
/// it again.
///
/// # Errors
/// Whatever forbids starting; nothing is changed then. Later: what the kernel
/// refuses of what was granted before.
pub async fn run(config: Config, file: PathBuf) -> Result<()> {
    privileges::check()?;
    let socket = ControlSocket::claim(&config.control.socket)?;
    let mut daemon = Daemon::start(config, file).await?;
    let (ask, mut asked) = mpsc::channel::<Asked>(16);
    let ended = tokio::select! {
        ended = daemon.serve(&mut asked) => ended,
        () = socket.serve(ask) => Ok(Ended::Signal),
    };
    match ended? {
        Ended::Signal => tracing::info!(
            "stopped; traffic goes on with the last weights. `steerline run` takes over again, \
             `steerline detach` ends it"
        ),
        Ended::Detached => tracing::info!("detached; traffic has ended"),
    }
    Ok(())
}

/// What this machine says to a configuration: the checks of `run`, without
/// changing anything.
pub async fn findings(config: &Config) -> Vec<Finding> {
    network::findings(config).await
}

/// A full arena must not stop the daemon. The packet path goes on with the
/// former list, and obeys flags and weights as they are now all the same.
fn keeps_former_list(service: u16, error: &anyhow::Error) {
    tracing::error!("service {service} keeps its former list of backends: {error:#}");
}

enum Ended {
    Signal,
    Detached,
}

struct Daemon {
    config: Config,
    /// Where `config` is read from again.
    file: PathBuf,
    maps: Maps,
    books: Books,
    publisher: Publisher,
    sweeper: Sweeper,
    engine: Engine,
    network: Network,
    /// Ends with the daemon, and is made anew by a reload.
    outside: Outside,
    failures: Failures,
    placed: Vec<Placed>,
    desired: BTreeMap<u16, Desired>,
    /// As last told.
    states: BTreeMap<u16, State>,
    attached: Vec<Attached>,
    watchdog: watchdog::Watchdog,
    loaded: Loaded,
    journal: Journal,
    retired: Retired,
    /// The present pass over the flow table began before something was retired.
    pass_is_late: bool,
    ended_flows: u64,
    state_file: StateFile,
    started: std::time::Instant,
    sequence: u64,
    ticks: u64,
    snapshot: Option<Status>,
    mismatches: u64,
    save_failed: bool,
    /// Words came from outside that a restart must know.
    unsaved: bool,
}

impl Daemon {
    async fn start(config: Config, file: PathBuf) -> Result<Self> {
        // The watch first: what changes while the present is read must not be
        // missed.
        let watch = Watch::open()?;
        let netlink = Netlink::open()?;
        let plan = prepare::plan(&config, netlink.handle()).await?;
        let fresh = plan.state == PinState::Absent;
        let pins = plan.pins.clone();
        let started = Self::take_over(config, file, plan, watch, netlink).await;
        if started.is_err() && fresh {
            // Nothing was there before: leave nothing behind.
            let _ = pins.remove();
        }
        started
    }

    async fn take_over(
        config: Config,
        file: PathBuf,
        plan: prepare::Plan,
        watch: Watch,
        netlink: Netlink,
    ) -> Result<Self> {
        let loaded = Loaded::new(&plan.pins, plan.state, plan.sizes)?;
        let mut maps = loaded.maps()?;
        let mut books = Books::new();
        let placed = prepare::fill(&config, &mut maps, &mut books)?;
        let settings = maps.settings.read(0);
        let state_file = StateFile::new(&config.control.state_directory, settings.instance)?;
        let saved = state_file.load(clock::micros());
        let engine = Engine::new(
            prepare::engine_config(&config, &placed)?,
            saved.learned.as_ref(),
            clock::micros(),
        );
        let failures = Failures::open(&plan.pins)?;
        let network = Network::start(&maps, &plan, &config, watch, netlink).await?;
        let outside = outside::start(&config, &placed, &engine)?;
        let mut daemon = Self {
            publisher: Publisher::new(&maps),
            sweeper: Sweeper::new(&maps),
            maps,
            books,
            engine,
            network,
            outside,
            failures,
            placed,
            desired: BTreeMap::new(),
            states: BTreeMap::new(),
            attached: Vec::new(),
            watchdog: watchdog::Watchdog::default(),
            journal: Journal::default(),
            retired: Retired::default(),
            pass_is_late: false,
            ended_flows: 0,
            file,
            loaded,
            state_file,
            started: std::time::Instant::now(),
            sequence: 0,
            ticks: 0,
            snapshot: None,
            mismatches: 0,
            save_failed: false,
            unsaved: false,
            config,
        };
        daemon.update_retired(&daemon.drain_timeouts(), &saved.retired);
        daemon.sample()?;
        daemon.carry_out()?;
        daemon.network.settle(&mut daemon.maps, RESOLVE).await?;
        daemon.attach(&plan)?;
        daemon.network.announce(&daemon.config).await?;
        daemon.watchdog = watchdog::Watchdog::new(&daemon.attached);
        tracing::info!(
            services = daemon.config.services.len(),
            backends = daemon.desired.len(),
            adopted = daemon.loaded.adopted,
            "running"
        );
        daemon.journal.record(&Happening::Started {
            services: daemon.config.services.len(),
            backends: daemon.desired.len(),
            adopted: daemon.loaded.adopted,
        });
        daemon.note_ended();
        daemon.note_states();
        Ok(daemon)
    }

    async fn serve(&mut self, asked: &mut mpsc::Receiver<Asked>) -> Result<Ended> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tick().await?,
                event = self.network.event() => {
                    self.network.handle(event?, &mut self.maps).await?;
                }
                heard = self.outside.next() => self.hear(heard)?,
                ready = self.failures.readable() => {
                    ready?;
                    self.take_failures();
                    self.carry_out()?;
                    self.note_states();
                }
                Some((request, answer)) = asked.recv() => {
                    let ends = request == Request::Detach {};
                    let response = self.answer_to(request).await;
                    let done = matches!(&response, Response::Answer(protocol::Line::Ok(_)));
                    let _ = answer.send(response);
                    if ends && done {
                        // Let the answer reach the client.
                        tokio::time::sleep(TICK).await;
                        return Ok(Ended::Detached);
                    }
                }
                _ = hangup.recv() => drop(self.reload().await),
                _ = terminate.recv() => return Ok(Ended::Signal),
                _ = interrupt.recv() => return Ok(Ended::Signal),
            }
        }
    }

    async fn answer_to(&mut self, request: Request) -> Response {
        match request {
            Request::Status {} => Response::result(self.status().await),
            Request::Detach {} => {
                Response::result(self.detach().await.map(|()| serde_json::Value::Null))
            }
            Request::Drain { service, backend } => self.order(&service, &backend, Order::Drain),
            Request::Disable { service, backend } => self.order(&service, &backend, Order::Disable),
            Request::Enable { service, backend } => self.order(&service, &backend, Order::Enable),
            Request::Weight {
                service,
                backend,
                weight,
            } => {
                let order = weight.map_or(Order::DefaultWeight, |w| Order::Weight(w.into()));
                self.order(&service, &backend, order)
            }
            Request::Reload {} => self.reload().await,
            Request::Explain { service } => self.explain(&service),
            Request::Events { follow: false } => Response::ok(self.journal.past()),
            Request::Events { follow: true } => match self.journal.follow() {
                Ok(rest) => Response::Follow(protocol::Line::Ok(self.journal.past()), rest),
                Err(message) => Response::refused(message),
            },
        }
    }

    /// What was shown is no longer true.
    fn changed(&mut self) {
        self.sequence += 1;
        self.snapshot = None;
    }

    async fn tick(&mut self) -> Result<()> {
        self.maps
            .settings
            .write_word(0, offset_of!(Settings, heartbeat), clock::tick());
        self.changed();
        self.ticks += 1;
        self.reconcile();
        // Whatever a wake-up left, and before the counts that it is in.
        self.take_failures();
        self.sample()?;
        self.carry_out()?;
        self.note_states();
        self.end_retired();
        if self.ticks.is_multiple_of(TICKS_PER_LOOK) {
            self.watch_hooks().await?;
            if std::mem::take(&mut self.unsaved) {
                self.save();
            }
        }
        self.journal.tick();
        self.network.tick(&mut self.maps).await?;
        let buckets = self.maps.bucket_count().div_ceil(TICKS_PER_PASS).max(1);
        if let Some(pass) = self.sweeper.step(&mut self.maps, clock::tick(), buckets)? {
            self.after_pass(&pass).await?;
        }
        let now = clock::micros();
        let timed_out = self.sweeper.take_timed_out();
        for found in &timed_out {
            let failure = failures::timed_out(found);
            self.engine.handle(Event::Failure(failure), now);
        }
        if !timed_out.is_empty() {
            self.carry_out()?;
            self.note_states();
        }
        self.publisher.collect(clock::micros());
        Ok(())
    }

    async fn after_pass(&mut self, pass: &Pass) -> Result<()> {
        self.note_ended_flows(pass);
        if std::mem::take(&mut self.pass_is_late) {
            // A flow may have come to what is now retired behind this pass.
            return self.network.after_pass(pass, &mut self.maps).await;
        }
        let held = |backend: u32| pass.held.get(backend as usize) == Some(&true);
        let leaving = self.names_of(self.retired.deadlines().keys().copied());
        for backend in self.books.free_unheld(&self.maps, held) {
            self.network.forget_backend(backend);
            self.forget_retired(backend, &leaving);
        }
        self.network
            .withdraw_unused(&self.config, &self.maps)
            .await?;
        prepare::write_filter(&self.maps);
        self.network.after_pass(pass, &mut self.maps).await
    }

    /// Every steered backend's counters, as the engine wants them.
    fn sample(&mut self) -> Result<()> {
        let mut samples = Vec::new();
        for index in self.placed.iter().flat_map(|placed| &placed.backends) {
            samples.push(Sample {
                backend: u16::try_from(*index)?,
                report: self.maps.report(*index)?,
                live: self.maps.live.read(*index),
            });
        }
        let trials = samples.iter().any(|sample| sample.live.trial != 0);
        self.note_trials(trials);
        let now = clock::micros();
        self.engine.handle(Event::Sample(samples), now);
        if self.engine.poll_timeout().is_some_and(|due| due <= now) {
            self.engine.handle_timeout(now);
        }
        Ok(())
    }

    /// Tells the engine of the failures in the ring.
    fn take_failures(&mut self) {
        let now = clock::micros();
        for (failure, at_us) in self.failures.take() {
            self.engine.handle(Event::Failure(failure), at_us.min(now));
        }
    }

    fn note_trials(&self, any: bool) {
        self.maps
            .settings
            .write_word(0, offset_of!(Settings, trials), u32::from(any));
    }

    fn carry_out(&mut self) -> Result<()> {
        while let Some(command) = self.engine.next_command() {
            match command {
                Command::WriteBackend {
                    backend,
                    weight,
                    up,
                    relative,
                } => {
                    let up = if up { backend_flags::UP } else { 0 };
                    let desired = Desired {
                        flags: backend_flags::PRESENT | up | self.configured_flags(backend),
                        weight,
                        relative,
                    };
                    self.desired.insert(backend, desired);
                    self.write_backend(backend, desired);
                }
                Command::PublishMembers { service, members } => {
                    let now = clock::micros();
                    let maps = &self.maps;
                    self.publisher
                        .publish_members(maps, service.into(), &members, now)
                        .unwrap_or_else(|error| keeps_former_list(service, &error));
                }
                Command::PublishRing { service, slots } => {
                    let now = clock::micros();
                    let maps = &self.maps;
                    self.publisher
                        .publish_ring(maps, service.into(), &slots, now)
                        .unwrap_or_else(|error| keeps_former_list(service, &error));
                }
                Command::Forgive { backend, total } => {
                    self.maps
                        .live
                        .write_word(backend.into(), offset_of!(Live, forgiven), total);
                }
                Command::GrantTrial { backend } => {
                    self.maps
                        .live
                        .view::<LiveWords>(backend.into())
                        .trial
                        .store(1);
                    self.note_trials(true);
                }
                Command::EndFlows { backend, end } => self.end_flows(backend, end),
                Command::WriteBudget {
                    backend,
                    budget,
                    expires_us,
                } => self.write_budget(backend, &budget, expires_us),
                Command::Tell { backend, notice } => self.tell(backend, notice),
                Command::SaveLearned => self.save(),
            }
        }
        Ok(())
    }

    /// A full disk must not stop the loop; it is said when it begins and ends.
    fn save(&mut self) {
        match self
            .state_file
            .save(self.engine.learned(), self.retired.deadlines())
        {
            Ok(()) if self.save_failed => {
                self.save_failed = false;
                tracing::info!("what was learned can be saved again");
            }
            Ok(()) => {}
            Err(error) if !self.save_failed => {
                self.save_failed = true;
                tracing::error!("{error:#}; trying again at every report");
            }
            Err(_) => {}
        }
    }

    /// The flags that a backend has by its service's configuration.
    fn configured_flags(&self, backend: u16) -> u32 {
        let backend = u32::from(backend);
        let mut placed = self.placed.iter();
        placed
            .find(|placed| placed.backends.contains(&backend))
            .map_or(0, |placed| placed.flags)
    }

    fn write_backend(&self, backend: u16, desired: Desired) {
        let index = u32::from(backend);
        let write = |offset, value| self.maps.backends.write_word::<u32>(index, offset, value);
        write(offset_of!(Backend, relative), desired.relative);
        write(offset_of!(Backend, weight), desired.weight);
        write(offset_of!(Backend, flags), desired.flags);
    }

    /// Values before the flags that say which of them hold.
    fn write_budget(&self, backend: u16, budget: &Budget, expires_us: u64) {
        let limits = [
            (budget.begun.is_some(), budget_flags::BEGUN),
            (budget.ceiling.is_some(), budget_flags::CEILING),
            (budget.maximum.is_some(), budget_flags::MAXIMUM),
        ];
        let flags: u32 = limits
            .into_iter()
            .filter_map(|(holds, flag)| holds.then_some(flag))
            .sum();
        let index = u32::from(backend);
        let word = |offset, value: Option<u32>| {
            let value = value.unwrap_or(0);
            self.maps.budgets.write_word(index, offset, value);
        };
        let begun = budget.begun.unwrap_or(0);
        self.maps
            .budgets
            .write_word(index, offset_of!(abi::Budget, begun), begun);
        word(offset_of!(abi::Budget, ceiling), budget.ceiling);
        word(offset_of!(abi::Budget, maximum), budget.maximum);
        word(offset_of!(abi::Budget, dummies), Some(budget.dummies));
        let expiry = clock::tick_at(expires_us);
        word(offset_of!(abi::Budget, expiry), Some(expiry));
        word(offset_of!(abi::Budget, flags), Some(flags));
    }

    /// Compares the maps with what they were told; somebody else may have
    /// written to them (keepalived issue 871).
    fn reconcile(&mut self) {
        let mut wrong = Vec::new();
        for (backend, desired) in &self.desired {
            let found = self.maps.backends.read((*backend).into());
            let found = Desired {
                flags: found.flags,
                weight: found.weight,
                relative: found.relative,
            };
            if found != *desired {
                self.mismatches += 1;
                tracing::warn!(
                    backend,
                    ?found,
                    ?desired,
                    "a backend's entry was changed by others"
                );
                self.write_backend(*backend, *desired);
                wrong.push(u32::from(*backend));
            }
        }
        for (service, backend) in self.names_of(wrong.into_iter()).into_values() {
            self.journal
                .record(&Happening::Mismatch { service, backend });
        }
    }

    async fn status(&mut self) -> Result<serde_json::Value> {
        if self.snapshot.is_none() {
            let losses = self.watchdog.losses();
            let interfaces = self.network.interfaces(&self.attached, losses).await?;
            self.snapshot = Some(status::build(&status::Sources {
                config: &self.config,
                maps: &self.maps,
                engine: &self.engine,
                placed: &self
                    .placed
                    .iter()
                    .map(|p| (p.index, p.backends.clone()))
                    .collect::<Vec<_>>(),
                interfaces,
                uptime: self.started.elapsed(),
                sequence: self.sequence,
                mismatches: self.mismatches,
                ended_flows: self.ended_flows,
                now_us: clock::micros(),
            })?);
        }
        let snapshot = self.snapshot.as_ref().context("no snapshot")?;
        Ok(serde_json::to_value(snapshot)?)
    }

    async fn detach(&mut self) -> Result<()> {
        self.network.withdraw(&self.config).await?;
        Pins::new(&self.config.data_plane.pin_directory).remove()?;
        Ok(())
    }
}
