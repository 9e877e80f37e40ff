//! Asks others about the backends and tells the engine what they said.
//!
//! One task for each question: a backend's probe, a backend's agent, a DFP
//! agent, a backend's SNMP poll. They share nothing with the daemon's loop but
//! one channel, so a peer that hangs, floods or lies costs its own task and
//! nothing else. Each read is bounded in bytes and in time. What a peer does
//! wrong is told once, when it begins, and once when it is well again.
//!
//! The tasks have no state worth keeping: the engine's record of a backend is
//! given to them when they start and every change comes back as an absolute
//! word. A reload ends all of them and starts those of the new configuration.

mod agent;
mod connect;
mod dfp;
mod probes;
mod snmp;
mod teller;
#[cfg(test)]
mod tests;

pub(crate) use teller::Heard;

use crate::config::{Agent, Capacity, Dfp, Probe, Protocol};
use lb_common::control::OutsideRecord;
use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};
use teller::Teller;
use tokio::{sync::mpsc, task::JoinSet};

/// Words that wait for the daemon's loop, which takes them between ticks. A
/// task that finds no room waits.
const QUEUE: usize = 1_024;
/// Most words taken between two looks at everything else.
const BATCH: usize = 256;

/// A backend that is asked about.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Index into the backend maps.
    pub(crate) index: u16,
    /// `service/backend`.
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Configured weight.
    pub(crate) weight: u32,
    /// What is known already.
    pub(crate) record: OutsideRecord,
}

/// A service and its sources.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// IP protocol number.
    pub(crate) protocol: u8,
    pub(crate) probe: Option<Probe>,
    pub(crate) agent: Option<Agent>,
    pub(crate) dfp: Option<Dfp>,
    pub(crate) capacity: Option<Capacity>,
    pub(crate) targets: Vec<Target>,
}

/// The running questions. Dropping it ends them.
pub(crate) struct Outside {
    tasks: JoinSet<()>,
    heard: mpsc::Receiver<Heard>,
}

impl Outside {
    /// Starts asking. Must be called in the runtime.
    pub(crate) fn start(services: Vec<Watched>) -> Self {
        let (sender, heard) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        for service in services {
            spawn(service, &sender, &mut tasks);
        }
        Self { tasks, heard }
    }

    /// What was heard since the last call, oldest first, at least one thing and
    /// at most [`BATCH`]; never without a source. Nothing is lost when the call
    /// is given up.
    pub(crate) async fn next(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        loop {
            tokio::select! {
                count = self.heard.recv_many(&mut heard, BATCH) => if count > 0 {
                    return heard;
                } else {
                    // No task is left, nor will there be one.
                    std::future::pending::<()>().await;
                },
                Some(Err(error)) = self.tasks.join_next() => {
                    // A defect of ours. What the task told last stands, and
                    // somebody must know that it will not tell more.
                    return vec![Heard::Peer {
                        source: "steerline",
                        peer: "a task that asks others".to_owned(),
                        trouble: Some(format!("{error}; reload starts it again")),
                    }];
                },
            }
        }
    }
}

fn spawn(service: Watched, sender: &mpsc::Sender<Heard>, tasks: &mut JoinSet<()>) {
    let teller = |source, peer: String| Teller::new(sender.clone(), source, peer);
    if let Some(probe) = service.probe {
        let prober = Arc::new(probes::Prober::new(probe));
        for target in &service.targets {
            let teller = teller("probe", target.name.clone());
            tasks.spawn(probes::run(Arc::clone(&prober), target.clone(), teller));
        }
    }
    if let Some(agent) = service.agent {
        let agent = Arc::new(agent);
        for target in &service.targets {
            let teller = teller("agent", target.name.clone());
            tasks.spawn(agent::run(Arc::clone(&agent), target.clone(), teller));
        }
    }
    if let Some(dfp) = service.dfp {
        let farm = Arc::new(dfp::Farm {
            dfp,
            protocol: service.protocol,
            targets: service.targets.clone(),
        });
        for &address in &farm.dfp.agents {
            let teller = teller("dfp", address.to_string());
            tasks.spawn(dfp::run(Arc::clone(&farm), address, teller));
        }
    }
    if let Some(capacity) = service.capacity {
        let poller = Arc::new(snmp::Poller::new(capacity, &service.targets));
        for (position, target) in service.targets.into_iter().enumerate() {
            let teller = teller("capacity", target.name.clone());
            tasks.spawn(snmp::run(Arc::clone(&poller), position, target, teller));
        }
    }
}

/// IP protocol number of a service.
pub(crate) const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

/// Random bits, by the keys that std draws from the kernel.
fn random_bits() -> u32 {
    // A new state has new keys, so its hash of nothing is random.
    (RandomState::new().build_hasher().finish() >> 32) as u32
}

/// Waits until a time of the engine's clock.
async fn sleep_until(due_us: u64) {
    let now_us = crate::daemon::micros();
    if due_us > now_us {
        tokio::time::sleep(Duration::from_micros(due_us - now_us)).await;
    }
}

/// A configured duration in the engine's unit.
fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A random part of a time.
fn part(whole_us: u64, random: u32) -> u64 {
    u64::try_from((u128::from(whole_us) * u128::from(random)) >> 32).unwrap_or(whole_us)
}
