//! The whole loop in simulated time: clients, servers, the packet path's pick
//! of `aca` with `pick = "connections"` (design 3.3), and the engine, for the
//! promises of design 7. Every run is set by its seed.
#![cfg(feature = "control")]

mod control_world;
#[path = "control_world/random.rs"]
mod random;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use control_world::{Maps, World};
use lb_common::control::{
    AcaParameters, Algorithm, BackendConfig, Engine, EngineConfig, HealthParameters, Pick, Ramp,
    ServiceConfig,
};
use random::Random;

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
/// Defaults of design 5.
const INTERVAL: u64 = 2 * S;
const SAMPLE: u64 = 100 * MS;

impl Random {
    fn exponential(&mut self, mean_us: f64) -> u64 {
        // In (0, 1].
        let uniform = (self.bits() + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * mean_us) as u64
    }
}

/// How a server treats flows.
#[derive(Clone, Copy)]
enum Server {
    /// So many workers, each busy for an exponential time of this mean.
    Works { workers: usize, mean_us: f64 },
    /// Answers every SYN by a reset.
    Resets,
}

/// Flows that wait for a worker of one server, and how many work.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<u64>,
    busy: usize,
}

struct Simulation {
    random: Random,
    world: World,
    servers: Vec<Server>,
    queues: Vec<Queue>,
    /// Time of the end, server, time of the SYN.
    ends: BinaryHeap<Reverse<(u64, usize, u64)>>,
    arrivals_mean_us: f64,
    now_us: u64,
    next_arrival_us: u64,
    next_sample_us: u64,
}

impl Simulation {
    /// Clients open `rate` flows a second; backend n + 1 is server n.
    fn new(seed: u64, servers: &[Server], rate: f64) -> Self {
        let backends = (1..=servers.len() as u16).map(|index| BackendConfig {
            index,
            identity: format!("web 10.0.0.{index}:80"),
            server: format!("10.0.0.{index}"),
            weight: 8,
        });
        let config = EngineConfig {
            services: vec![ServiceConfig {
                index: 1,
                algorithm: Algorithm::Aca {
                    pick: Pick::Connections,
                },
                aca: AcaParameters::default(),
                teardown_interval_us: INTERVAL,
                syn_timeout_us: 5 * S,
                drain_timeout_us: 60 * S,
                outside: lb_common::control::OutsideSources::default(),
                ramp: Ramp::default(),
                health: HealthParameters::default(),
                backends: backends.collect(),
            }],
        };
        let indices = 1..=servers.len() as u16;
        Self {
            random: Random(seed),
            world: World::new(Engine::new(config, None, 0), indices),
            servers: servers.to_vec(),
            queues: servers.iter().map(|_| Queue::default()).collect(),
            ends: BinaryHeap::new(),
            arrivals_mean_us: S as f64 / rate,
            now_us: 0,
            next_arrival_us: 0,
            next_sample_us: 0,
        }
    }

    fn maps(&mut self, server: usize) -> &mut Maps {
        self.world.backend(server as u16 + 1)
    }

    /// Runs for `duration_us`; the fraction of new flows each server got.
    fn run(&mut self, duration_us: u64) -> Vec<f64> {
        let until_us = self.now_us + duration_us;
        let mut flows = vec![0u64; self.servers.len()];
        loop {
            let end_us = self.ends.peek().map_or(u64::MAX, |Reverse(end)| end.0);
            let timer_us = self.world.engine.poll_timeout().unwrap_or(u64::MAX);
            let now_us = end_us
                .min(timer_us)
                .min(self.next_arrival_us)
                .min(self.next_sample_us);
            if now_us >= until_us {
                break;
            }
            self.now_us = now_us;
            if now_us == timer_us {
                self.world.handle_timeout(now_us);
            } else if now_us == self.next_sample_us {
                self.world.sample(now_us);
                self.next_sample_us += SAMPLE;
            } else if now_us == end_us {
                self.end();
            } else {
                let server = self.pick();
                flows[server] += 1;
                self.arrive(server);
                let gap_us = self.random.exponential(self.arrivals_mean_us);
                self.next_arrival_us = now_us + gap_us.max(1);
            }
        }
        self.now_us = until_us;
        let sum: u64 = flows.iter().sum();
        flows.iter().map(|&n| n as f64 / sum as f64).collect()
    }

    /// The packet path's pick: a trial first, else the lowest (live + 1) ×
    /// relative ÷ weight, ties by higher weight, then order (design 3.3).
    fn pick(&mut self) -> usize {
        let usable = |maps: &Maps| maps.up && maps.weight > 0;
        let metric = |maps: &Maps| {
            let live = &maps.live;
            let half_open = live.half_opened - live.half_closed;
            let active = live.opened - live.closed;
            let held = maps.failures() - live.forgiven;
            (half_open + active + held + 1) * u64::from(maps.relative)
        };
        let candidates = || self.world.maps.iter().filter(|(_, maps)| usable(maps));
        let trial = candidates().find(|(_, maps)| maps.live.trial != 0);
        let picked = trial.or_else(|| {
            candidates().min_by(|(_, a), (_, b)| {
                let (left, right) = (
                    metric(a) * u64::from(b.weight),
                    metric(b) * u64::from(a.weight),
                );
                left.cmp(&right).then(b.weight.cmp(&a.weight))
            })
        });
        let index = picked.map_or(1, |(&index, _)| index);
        self.world.backend(index).live.trial = 0;
        usize::from(index) - 1
    }

    fn arrive(&mut self, server: usize) {
        match self.servers[server] {
            Server::Resets => self.maps(server).reset(),
            Server::Works { workers, .. } => {
                self.maps(server).open();
                if self.queues[server].busy < workers {
                    self.queues[server].busy += 1;
                    self.start(server, self.now_us);
                } else {
                    self.queues[server].waiting.push_back(self.now_us);
                }
            }
        }
    }

    /// A worker takes up the flow of the given SYN.
    fn start(&mut self, server: usize, syn_us: u64) {
        if let Server::Works { mean_us, .. } = self.servers[server] {
            let end_us = self.now_us + self.random.exponential(mean_us);
            self.ends.push(Reverse((end_us, server, syn_us)));
        }
    }

    fn end(&mut self) {
        if let Some(Reverse((now_us, server, syn_us))) = self.ends.pop() {
            self.maps(server).close(now_us - syn_us);
            match self.queues[server].waiting.pop_front() {
                Some(waiting_us) => self.start(server, waiting_us),
                None => self.queues[server].busy -= 1,
            }
        }
    }
}

/// A server that is never full.
fn unlimited(mean_us: u64) -> Server {
    Server::Works {
        workers: usize::MAX,
        mean_us: mean_us as f64,
    }
}

/// A server of 8 workers.
fn eight_workers(mean_us: u64) -> Server {
    Server::Works {
        workers: 8,
        mean_us: mean_us as f64,
    }
}

/// Flows a second that three servers of eight workers and 20 ms can do.
const CAPACITY: f64 = 3.0 * 8.0 * 50.0;
const FAIR: f64 = 1.0 / 3.0;

#[test]
fn instant_resets_attract_under_one_per_cent() {
    // Live connections a server, seed.
    for (live, seed) in [(10.0, 1), (10.0, 2), (10.0, 3), (300.0, 4), (2_000.0, 5)] {
        let good = unlimited(500 * MS);
        let rate = 3.0 * live / 0.5;
        let mut simulation = Simulation::new(seed, &[good, good, Server::Resets, good], rate);
        let first = simulation.run(60 * S)[2];
        let later = simulation.run(60 * S)[2];
        assert!(
            first < 0.01,
            "{live} live, seed {seed}: {first} from the start"
        );
        assert!(
            later < 0.005,
            "{live} live, seed {seed}: {later} after warm-up"
        );
    }
}

#[test]
fn instant_resets_do_not_attract_where_flows_outlast_the_ageout() {
    // Flows of 100 s, ageout 60 s: a failure is held for less time than a flow
    // lasts, but its charge still tells the failing server apart. With the
    // charge capped at the ageout too it gets 35 %.
    let good = unlimited(100 * S);
    let mut simulation = Simulation::new(6, &[good, good, Server::Resets, good], 9.0);
    simulation.run(600 * S);
    let share = simulation.run(1_800 * S)[2];
    assert!(share < 0.1, "{share}");
}

/// The return hangs on what one trial flow happens to measure. Of 300 seeds at
/// a load of 0.2, 285 are back within four intervals and all within five; at
/// 0.5 all are within four.
#[test]
fn a_slow_server_is_avoided_and_comes_back() {
    for (load, seed) in (1..=5).flat_map(|seed| [(0.2, seed), (0.5, seed)]) {
        let (good, slow) = (eight_workers(20 * MS), eight_workers(200 * MS));
        let mut simulation = Simulation::new(seed, &[good, good, good], load * CAPACITY);
        simulation.run(20 * S);
        simulation.servers[2] = slow;
        let falling: Vec<f64> = (0..3).map(|_| simulation.run(INTERVAL)[2]).collect();
        assert!(
            falling[2] < FAIR / 5.0,
            "load {load}, seed {seed}: {falling:.3?}"
        );
        let low = simulation.run(40 * S)[2];
        assert!(low < FAIR / 5.0, "load {load}, seed {seed}: {low:.3}");
        simulation.servers[2] = good;
        let rising: Vec<f64> = (0..4).map(|_| simulation.run(INTERVAL)[2]).collect();
        assert!(
            rising[3] > FAIR * 0.75,
            "load {load}, seed {seed}: {rising:.3?}"
        );
    }
}

#[test]
fn a_server_that_stops_resetting_comes_back() {
    let good = eight_workers(20 * MS);
    let mut simulation = Simulation::new(7, &[good, good, Server::Resets], 0.4 * CAPACITY);
    simulation.run(60 * S);
    simulation.servers[2] = good;
    // The last failure is held for 5 s, then come a trial and its report.
    simulation.run(5 * S + 3 * INTERVAL);
    let share = simulation.run(INTERVAL)[2];
    assert!(share > FAIR * 0.75, "{share:.3}");
}

#[test]
fn nobody_of_equals_starves() {
    for (load, seed) in [(0.2, 1), (0.5, 2), (0.8, 3)] {
        let good = eight_workers(20 * MS);
        let mut simulation = Simulation::new(seed, &[good, good, good], load * CAPACITY);
        simulation.run(10 * S);
        for _ in 0..30 {
            let shares = simulation.run(INTERVAL);
            let least = shares.iter().copied().fold(1.0, f64::min);
            assert!(least > FAIR / 2.0, "load {load}: {shares:.3?}");
        }
        let shares = simulation.run(60 * S);
        assert!(
            shares.iter().all(|share| (share - FAIR).abs() < 0.05),
            "load {load}: {shares:.3?}"
        );
    }
}
