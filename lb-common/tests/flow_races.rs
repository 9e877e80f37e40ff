//! Racing threads over the same few buckets: packets of two CPUs, the sweep and
//! a reader. Threads stand for CPUs; unlike a CPU in the packet path they lose
//! the processor in the middle, which makes every window wider.
//!
//! cilium/cilium#17729: an entry that was read while it changed hands sent to a
//! wrong backend. cilium/cilium#47900: exact counting across CPUs and expiry is
//! hard; here the books are compared with the table at the end.

#[path = "table/drive.rs"]
mod drive;
#[path = "table/random.rs"]
mod random;
#[path = "table/scan.rs"]
mod scan;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use drive::{Flow, Moment, Outcome, backend_endpoint, bare, find, open, send};
use lb_common::abi::TICK_MASK;
use lb_common::flow::{Found, Table as _, expire, meta};
use lb_common::hash::Home;
use lb_common::tcp::Side::{self, Client, Server};
use lb_common::tcp::State;
use lb_common::tcp::flags::{ACK, FIN, RST, SYN};
use random::Random;
use table::{Host, TIMEOUTS};

const BACKENDS: u16 = 8;
const CLIENTS: u64 = 24;
const VIPS: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(15);

/// Every client's flows have one of two homes; both share bucket 1.
fn flow(client: u64, vip: u64) -> Flow {
    let home = if client.is_multiple_of(2) {
        Home {
            primary: 0,
            secondary: 1,
        }
    } else {
        Home {
            primary: 1,
            secondary: 2,
        }
    };
    Flow::of(drive::TCP, home, client as u32, vip as u16)
}

/// The two backends of a flow: a checksum of client and VIP, so that words of
/// two flows never fit together.
fn backends(client: u64, vip: u64) -> [u16; 2] {
    let first = 2 * ((client + 2 * vip) % 4) as u16;
    [first, first + 1]
}

/// Whether the words of a flow that was found belong together.
fn assert_consistent(found: &Found, flow: Flow, client: u64, vip: u64) {
    let backend = found.backend();
    assert!(
        backends(client, vip).contains(&backend),
        "client {client}, VIP {vip}: {found:?}"
    );
    assert_eq!(found.client, flow.client);
    assert_eq!(
        found.virtual_endpoint(),
        flow.vip,
        "client {client}, VIP {vip}: {found:?}"
    );
    assert_eq!(
        found.backend_endpoint(),
        backend_endpoint(backend),
        "{found:?}"
    );
}

/// What the threads share.
struct Shared {
    host: Host,
    tick: AtomicU32,
    done: AtomicBool,
    reports: AtomicU64,
    found: AtomicU64,
}

impl Shared {
    fn at(&self) -> Moment {
        let tick = self.tick.load(Relaxed);
        Moment {
            tick: tick & TICK_MASK,
            micros: u64::from(tick) << 18,
        }
    }

    /// A random packet of a random flow.
    fn packet(&self, random: &mut Random) {
        let (client, vip) = (random.below(CLIENTS), random.below(VIPS));
        let flow = flow(client, vip);
        let backends = backends(client, vip);
        let (side, bits) = match random.below(16) {
            0..5 => (Client, SYN),
            5..8 => (Server, SYN | ACK),
            8..11 => (Client, ACK),
            11 => (Server, ACK),
            12 => (Client, FIN | ACK),
            13 => (Server, FIN | ACK),
            14 => (Client, RST),
            _ => (Server, RST),
        };
        let backend = backends[random.below(2) as usize];
        let found = find(&self.host, flow, side, backend);
        if let Some(found) = &found {
            assert_consistent(found, flow, client, vip);
        }
        match found {
            Some(found) if !(bits == SYN && found.state().is_ended()) => {
                let tracked = send(&self.host, &found, &bare(side, bits), self.at(), 1);
                self.reports
                    .fetch_add(u64::from(tracked.ended.is_some()), Relaxed);
            }
            _ if bits == SYN => {
                let outcome = open(
                    &self.host,
                    flow,
                    self.at(),
                    false,
                    |_| false,
                    |_, _| Some(backend),
                );
                if let Outcome::Existing(named) = outcome {
                    assert!(
                        backends.contains(&named),
                        "client {client}, VIP {vip}: {named}"
                    );
                }
            }
            _ => {}
        }
    }

    fn sweep(&self) {
        let now = self.tick.load(Relaxed) & TICK_MASK;
        let live = |backend| self.host.live(backend);
        self.host.each_flow(|way| {
            expire(way, now, |state| TIMEOUTS[state as usize], live, || 0);
        });
    }

    fn read(&self, random: &mut Random) {
        let (client, vip) = (random.below(CLIENTS), random.below(VIPS));
        let flow = flow(client, vip);
        let backend = backends(client, vip)[random.below(2) as usize];
        for side in [Client, Server] {
            if let Some(found) = find(&self.host, flow, side, backend) {
                assert_consistent(&found, flow, client, vip);
                self.found.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Live copies of a flow.
fn copies(host: &Host, flow: Flow) -> usize {
    let mut copies = 0;
    host.each_flow(|way| {
        let same = way.client.load() == flow.client && way.virtual_end.load() >> 16 == flow.vip;
        copies += usize::from(same && !meta::state(way.meta.load()).is_ended());
    });
    copies
}

/// Two CPUs with packets of equal and of different flows, the sweep, and a
/// reader, over three buckets and a spill of the row's size.
#[test]
fn packets_sweep_and_reader() {
    for (spill, packets) in [(0, 1_200_000), (3, 1_200_000), (64, 1_200_000)] {
        let shared = Shared {
            host: Host::new(3, spill, usize::from(BACKENDS)),
            tick: AtomicU32::new(0),
            done: AtomicBool::new(false),
            reports: AtomicU64::new(0),
            found: AtomicU64::new(0),
        };
        let began = Instant::now();
        std::thread::scope(|scope| {
            let cpus: Vec<_> = [1, 2]
                .map(|seed| {
                    let shared = &shared;
                    scope.spawn(move || {
                        let mut random = Random::new(seed);
                        for number in 0..packets {
                            shared.packet(&mut random);
                            if number & 63 == 0 {
                                shared.tick.fetch_add(1, Relaxed);
                                if began.elapsed() > PATIENCE {
                                    break;
                                }
                            }
                        }
                    })
                })
                .into();
            scope.spawn(|| {
                while !shared.done.load(Relaxed) {
                    shared.sweep();
                }
            });
            scope.spawn(|| {
                let mut random = Random::new(3);
                while !shared.done.load(Relaxed) {
                    shared.read(&mut random);
                }
            });
            // Unwinding, too, must end the others.
            let results: Vec<_> = cpus.into_iter().map(|cpu| cpu.join()).collect();
            shared.done.store(true, SeqCst);
            for result in results {
                result.expect("the assertions of a CPU hold");
            }
        });
        let host = &shared.host;
        let (mut opened, mut half_opened) = (0, 0);
        for backend in 0..BACKENDS {
            assert_eq!(
                host.booked(backend),
                host.scan(backend),
                "backend {backend}, spill {spill}"
            );
            let live = &host.live[usize::from(backend)];
            opened += live.opened.load();
            half_opened += live.half_opened.load();
            assert!(live.closed.load() <= live.opened.load());
            assert!(live.half_closed.load() <= live.half_opened.load());
        }
        for client in 0..CLIENTS {
            for vip in 0..VIPS {
                assert!(
                    copies(host, flow(client, vip)) <= 1,
                    "client {client}, VIP {vip}"
                );
            }
        }
        let reports = shared.reports.load(Relaxed);
        assert!(
            reports <= half_opened,
            "{reports} reports of {half_opened} flows"
        );
        let found = shared.found.load(Relaxed);
        assert!(
            opened > 10_000 && reports > 10_000 && found > 10_000,
            "{opened} opened, {reports} reports, {found} found"
        );
    }
}

/// One way that changes hands as fast as a CPU can do it, between two clients of
/// one VIP: whoever finds one of them finds its own backend.
#[test]
fn a_way_that_changes_hands_is_read_whole_or_not_at_all() {
    const CHANGES: u32 = 400_000;
    let host = Host::new(1, 0, 4);
    let home = Home {
        primary: 0,
        secondary: 0,
    };
    let (one, two) = (
        Flow::of(drive::TCP, home, 1, 1),
        Flow::of(drive::TCP, home, 2, 1),
    );
    let at = Moment { tick: 0, micros: 0 };
    let done = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut found = 0u64;
            while !done.load(Relaxed) {
                for (flow, backend) in [(one, 1), (two, 2)] {
                    if let Some(read) = find(&host, flow, Client, 0) {
                        assert_eq!(read.backend(), backend, "{read:?}");
                        assert_eq!(read.backend_endpoint(), backend_endpoint(backend));
                        found += 1;
                    }
                }
            }
            found
        });
        for _ in 0..CHANGES {
            for (flow, backend) in [(one, 1), (two, 2)] {
                open(&host, flow, at, false, |_| false, |_, _| Some(backend));
                let way = &host.buckets[0].ways[0];
                expire(way, 0, |_| 0, |backend| host.live(backend), || 0).expect("it is there");
            }
        }
        done.store(true, SeqCst);
        reader.join().expect("the reader's assertions hold")
    });
    assert!(found > 1_000, "only {found} reads met a flow");
}

/// A gate for two: both leave at nearly the same instant, round after round.
struct Gate(AtomicU64);

impl Gate {
    fn pass(&self, round: u64) {
        self.0.fetch_add(1, SeqCst);
        let mut spins = 0u32;
        while self.0.load(SeqCst) < 2 * (round + 1) {
            spins += 1;
            if spins.is_multiple_of(1_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Two CPUs get the same SYN at the same time, each preferring another backend.
/// A neighbour whose linger is over by one CPU's clock alone makes them choose
/// different ways.
#[test]
fn both_cpus_name_the_same_backend() {
    const ROUNDS: u64 = 60_000;
    let reset = TIMEOUTS[State::Reset as usize];
    let host = Host::new(2, 8, 4);
    let home = Home {
        primary: 0,
        secondary: 1,
    };
    let named = [AtomicU32::new(0), AtomicU32::new(0)];
    let (before, after) = (Gate(AtomicU64::new(0)), Gate(AtomicU64::new(0)));
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    let mut raced = 0u64;

    let prepare = |round: u64| {
        // Everything of the last round goes.
        host.each_flow(|way| {
            expire(way, 0, |_| 0, |backend| host.live(backend), || 0).expect("nobody else is here");
        });
        let tick = 1_000 + round as u32 * 100;
        let at = |tick: u32| Moment {
            tick: tick & TICK_MASK,
            micros: 0,
        };
        // A flow that was reset, over for one CPU only; then some live ones.
        for number in 0..1 + round % 8 {
            let other = Flow::of(drive::TCP, home, 1_000 + number as u32, 1);
            let began = if number == 0 { tick - reset } else { tick };
            let outcome = open(&host, other, at(began), false, |_| false, |_, _| Some(3));
            assert!(matches!(outcome, Outcome::Opened { .. }));
            let kill: &[(Side, u8)] = if number == 0 {
                &[(Server, RST)]
            } else {
                &[(Server, SYN | ACK), (Client, ACK)]
            };
            for &(side, bits) in kill {
                let found = find(&host, other, side, 3).expect("it was opened");
                send(&host, &found, &bare(side, bits), at(began), 1);
            }
        }
        tick
    };
    let syn = |round: u64, tick: u32, cpu: usize| {
        let tick = (tick - (round as u32 / 8 + cpu as u32) % 2) & TICK_MASK;
        let own = cpu as u16 + 1;
        let at = Moment { tick, micros: 0 };
        let flow = Flow::of(drive::TCP, home, 7, 1);
        let backend = match open(&host, flow, at, false, |_| false, |_, _| Some(own)) {
            Outcome::Opened { .. } => own,
            Outcome::Existing(backend) => backend,
            // Three surveys were not enough: this SYN is dropped, and repeated.
            Outcome::Full => 0,
            other @ Outcome::Collision => panic!("{other:?}"),
        };
        named[cpu].store(u32::from(backend), SeqCst);
    };
    let tick_now = AtomicU32::new(prepare(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                before.pass(round);
                if stop.load(SeqCst) {
                    break;
                }
                syn(round, tick_now.load(SeqCst), 1);
                after.pass(round);
            }
        });
        let finish = Finish {
            stop: &stop,
            gates: [&before, &after],
        };
        for round in 0..ROUNDS {
            if began.elapsed() > PATIENCE {
                break;
            }
            before.pass(round);
            syn(round, tick_now.load(SeqCst), 0);
            after.pass(round);
            let [mine, theirs] = [0, 1].map(|cpu| named[cpu].load(SeqCst));
            assert_eq!(
                copies(&host, Flow::of(drive::TCP, home, 7, 1)),
                1,
                "round {round}: {mine}, {theirs}"
            );
            assert_eq!(mine, theirs, "round {round}");
            for backend in 0..4 {
                assert_eq!(host.booked(backend), host.scan(backend), "round {round}");
            }
            raced += u64::from(mine == 2);
            tick_now.store(prepare(round + 1), SeqCst);
        }
        drop(finish);
    });
    assert!(raced > 0, "the other CPU never came first: nothing raced");
}

/// Lets the other thread go, however this one ends.
struct Finish<'a> {
    stop: &'a AtomicBool,
    gates: [&'a Gate; 2],
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        for gate in self.gates {
            gate.0.fetch_add(1 << 32, SeqCst);
        }
    }
}
