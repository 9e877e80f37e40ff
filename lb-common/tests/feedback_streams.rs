//! In-band health, failure detection, SynGuard and the ramps against slow
//! reference models, over 10^5 random streams of events. The models keep every
//! event and count anew each time.
#![cfg(feature = "control")]

#[path = "control_world/random.rs"]
mod random;

use lb_common::atomic::Word;
use lb_common::control::fail_detect::Phase;
use lb_common::control::slow_start::{deal, dummies_left, server_ceiling};
use lb_common::control::{
    Check, FailDetect, FailDetectParameters, Inband, InbandParameters, Ramp, RampList,
};
use lb_common::syn_guard::{Guarded, Limit};
use random::Random;

/// Streams of each kind; four kinds, 10^5 together.
const STREAMS: u64 = 25_000;

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        (self.bits() >> 22) % bound
    }
}

/// In-band health told slowly: every failure since OPERATIONAL, with the length
/// of a window as it was then.
#[derive(Default)]
struct SlowInband {
    failures: Vec<(u64, u64)>,
    /// Out of service, until when if it ends by itself.
    out: Option<Option<u64>>,
    /// How often it came to be OPERATIONAL.
    life: u64,
    /// Life and beginning of the windows that were logged.
    logged: Vec<(u64, u64)>,
}

impl SlowInband {
    /// Beginning of the window that the last failure is in, and its failures.
    fn window(&self) -> (u64, usize) {
        let (mut begin, mut count) = (u64::MAX, 0);
        for &(at, length) in &self.failures {
            if begin == u64::MAX || at - begin >= length {
                (begin, count) = (at, 0);
            }
            count += 1;
        }
        (begin, count)
    }

    fn activate(&mut self) {
        self.out = None;
        self.life += 1;
        self.failures.clear();
    }

    fn clock(&mut self, now: u64) {
        if self
            .out
            .is_some_and(|until| until.is_some_and(|at| at <= now))
        {
            self.activate();
        }
    }
}

#[test]
fn inband() {
    let (mut removals, mut logs) = (0u64, 0u64);
    for seed in 0..STREAMS {
        let mut random = Random(seed);
        let mut parameters = InbandParameters {
            check: [Check::Count, Check::Log, Check::Remove, Check::Remove]
                [random.below(4) as usize],
            failures: 1 + random.below(5) as u32,
            reset_time_us: 1 + random.below(40),
            resume_service_us: random.below(2) * random.below(200),
        };
        let mut inband = Inband::default();
        inband.reconfigure(&parameters, 0);
        let mut slow = SlowInband::default();
        let (mut now, mut total) = (0, 0);
        for _ in 0..60 {
            now += random.below(20);
            slow.clock(now);
            match random.below(16) {
                0 => parameters.failures = 1 + random.below(5) as u32,
                1 => parameters.reset_time_us = 1 + random.below(40),
                2 if slow.out.is_some() => {
                    inband.activate();
                    slow.activate();
                }
                3 => {
                    let old = parameters.resume_service_us;
                    let new = random.below(2) * random.below(200);
                    parameters.resume_service_us = new;
                    if slow.out.is_some() && new > 0 && (old == 0 || new < old) {
                        slow.activate();
                    }
                }
                _ => {
                    total += 1;
                    let verdict = inband.failure(&parameters, true, now);
                    let mut expected = (false, false);
                    if parameters.check != Check::Count && slow.out.is_none() {
                        slow.failures.push((now, parameters.reset_time_us));
                        let (begin, count) = slow.window();
                        let reached = count >= parameters.failures as usize;
                        expected.0 = reached && !slow.logged.contains(&(slow.life, begin));
                        expected.1 = reached && parameters.check == Check::Remove;
                        if expected.0 {
                            slow.logged.push((slow.life, begin));
                        }
                    }
                    assert_eq!(verdict.log, expected.0, "seed {seed} at {now}");
                    assert_eq!(verdict.remove, expected.1, "seed {seed} at {now}");
                    logs += u64::from(verdict.log);
                    if verdict.remove {
                        removals += 1;
                        inband.remove(&parameters, 0, now);
                        let resume = parameters.resume_service_us;
                        slow.out = Some((resume > 0).then_some(now + resume));
                    }
                }
            }
            inband.reconfigure(&parameters, now);
            slow.clock(now);
            let failed = inband.outage().is_some();
            assert_eq!(failed, slow.out.is_some(), "seed {seed} at {now}");
            assert_eq!(inband.total, total, "no failure is lost or undone");
        }
    }
    assert!(removals > 10_000 && logs > 10_000, "{removals} {logs}");
}

/// Events of failure detection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Failure(Option<u64>, u32),
    Success,
    Assigned,
    Clock(u64),
}

#[test]
fn fail_detection() {
    let (mut outages, mut returns) = (0u64, 0u64);
    for seed in 0..STREAMS {
        let mut random = Random(seed);
        let parameters = FailDetectParameters {
            connections: random.below(5) as u32,
            clients: 1 + random.below(3) as u32,
            retry_us: random.below(3) * 10,
            test_us: 40,
        };
        let mut detect = FailDetect::default();
        // The model: every event since it came into its phase.
        let (mut phase, mut since, mut past) = ("in", 0, Vec::new());
        let mut now = 0;
        for _ in 0..80 {
            now += random.below(8);
            let client = (random.below(4) > 0).then(|| random.below(3));
            let event = match random.below(16) {
                0..=8 => Event::Failure(client, random.below(2) as u32),
                9 | 10 => Event::Success,
                11..=13 => Event::Assigned,
                _ => Event::Clock(now),
            };
            past.push(event);
            let before = phase;
            let failures = |events: &[Event]| {
                let failure = |event: &Event| match event {
                    Event::Failure(client, repeats) => Some((*client, *repeats)),
                    _ => None,
                };
                events.iter().filter_map(failure).collect::<Vec<_>>()
            };
            phase = match (phase, event) {
                ("in", Event::Failure(..)) => {
                    let last = past.iter().rposition(|event| *event == Event::Success);
                    let run = failures(&past[last.map_or(0, |at| at + 1)..]);
                    let mut clients: Vec<u64> = run.iter().filter_map(|(c, _)| *c).collect();
                    clients.sort_unstable();
                    clients.dedup();
                    let many = run.len() >= parameters.connections as usize
                        && clients.len() >= parameters.clients as usize;
                    if parameters.connections > 0 && many {
                        "failed"
                    } else {
                        "in"
                    }
                }
                ("failed", Event::Clock(_))
                    if parameters.retry_us > 0 && now - since >= parameters.retry_us =>
                {
                    "ready"
                }
                ("testing", Event::Clock(_)) if now - since >= parameters.test_us => "ready",
                ("ready", Event::Assigned) => "testing",
                ("testing", Event::Success) => "in",
                ("testing", Event::Failure(..)) => {
                    let run = failures(&past);
                    let retried = run.last().is_some_and(|(_, repeats)| *repeats > 0);
                    if retried || run.len() > 1 {
                        "failed"
                    } else {
                        "testing"
                    }
                }
                _ => phase,
            };
            match event {
                Event::Failure(client, repeats) => {
                    if detect.failure(&parameters, client, repeats) {
                        detect.fail(&parameters, 0, now);
                    }
                }
                Event::Success => {
                    detect.success();
                }
                Event::Assigned => {
                    detect.assigned(now);
                }
                Event::Clock(now) => {
                    detect.expire(&parameters, now);
                }
            }
            let found = match detect.phase() {
                Phase::InService => "in",
                Phase::Failed { .. } => "failed",
                Phase::ReadyToTest => "ready",
                Phase::Testing { .. } => "testing",
            };
            assert_eq!(
                found, phase,
                "seed {seed} at {now}: {event:?} after {before}"
            );
            if phase != before {
                // No probation is skipped.
                assert!(!(before == "failed" && phase == "in"), "seed {seed}");
                outages += u64::from(phase == "failed");
                returns += u64::from(before == "testing" && phase == "in");
                since = now;
                past.clear();
            }
        }
    }
    assert!(outages > 10_000 && returns > 1_000, "{outages} {returns}");
}

#[test]
fn syn_guard() {
    let (mut passed, mut dropped) = (0u64, 0u64);
    for seed in 0..STREAMS {
        let mut random = Random(seed);
        let limit = Limit {
            unanswered: random.below(6) as u32,
            interval_us: 1 + random.below(50) as u32,
        };
        let guarded = Guarded {
            origin_us: Word::new(0),
            window: Word::new(0),
        };
        // Every event that counted: time, and whether it was a SYN.
        let mut events: Vec<(u64, bool)> = Vec::new();
        let first = 1 + random.below(1_000);
        let (mut now, mut origin) = (first, None);
        for _ in 0..80 {
            now += random.below(15);
            let syn = random.below(3) > 0;
            let begin = *origin.get_or_insert(now);
            let interval = |at: u64| (at - begin) / u64::from(limit.interval_us);
            let mut count = 0u32;
            for &(at, syn) in &events {
                if interval(at) == interval(now) {
                    count = if syn {
                        count + 1
                    } else {
                        count.saturating_sub(1)
                    };
                }
            }
            if syn {
                let passes = limit.unanswered == 0 || count < limit.unanswered;
                assert_eq!(
                    guarded.admits_syn(&limit, now),
                    passes,
                    "seed {seed} at {now}"
                );
                if passes {
                    events.push((now, true));
                    passed += 1;
                } else {
                    dropped += 1;
                }
            } else {
                guarded.answered(&limit, now);
                events.push((now, false));
            }
        }
    }
    assert!(passed > 100_000 && dropped > 100_000, "{passed} {dropped}");
}

/// A ramp never falls, ends, and is the sum of its rates; what a server may
/// take is dealt out without remainder or excess.
#[test]
fn ramps() {
    for seed in 0..STREAMS {
        let mut random = Random(seed);
        let mut up_to = |bound| 1 + random.below(bound) as u32;
        let ramp = match seed % 5 {
            0 => Ramp::Default,
            _ => Ramp::List(RampList {
                rate1: up_to(50),
                interval1_s: up_to(20),
                rate2: up_to(50),
                interval2_s: up_to(20),
                maximum: up_to(2_000),
            }),
        };
        let most = ramp.maximum().unwrap_or(u32::MAX);
        let (mut sum, mut server) = (0, 0);
        for second in 1..=ramp.seconds() {
            let limits = ramp.limits(second).expect("within the ramp");
            sum += limits.rate;
            assert_eq!(limits.ceiling, sum.min(most), "{ramp:?} second {second}");
            assert!(limits.rate > 0 && limits.ceiling > 0, "nobody is starved");
            let whole = server_ceiling(second).unwrap_or(u32::MAX);
            assert!(whole >= server, "second {second}");
            server = whole;
        }
        assert_eq!(ramp.limits(ramp.seconds() + 1), None);
        assert_eq!(ramp.limits(0), None);

        let active: Vec<u32> = (0..random.below(6))
            .map(|_| random.below(90) as u32)
            .collect();
        let ceiling = random.below(300) as u32;
        let dealt = deal(ceiling, &active);
        assert!(
            dealt
                .iter()
                .zip(&active)
                .all(|(dealt, active)| dealt >= active)
        );
        if !active.is_empty() {
            let held: u32 = active.iter().sum();
            assert_eq!(dealt.iter().sum::<u32>(), ceiling.max(held), "{active:?}");
        }
        let initial = random.below(1 << 32) as u32;
        let left: Vec<u32> = (0..40)
            .map(|s| dummies_left(initial, s * 1_000_000))
            .collect();
        assert!(left.is_sorted_by(|a, b| a >= b) && left[0] == initial && left[30] == 0);
    }
}
