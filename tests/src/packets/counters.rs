//! Everything that the program counts, as one table.

use lb_common::{
    abi::{ClassSums, HISTOGRAM_BUCKETS, Live, Report},
    flow::meta,
    reason::{REASONS, Reason},
    tcp::State,
};
use std::{collections::BTreeMap, fmt, net::IpAddr};
use steerline::dataplane::Maps;

use super::scene;

/// A size class of a teardown report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Below the service's `short_flow_bytes`.
    Short,
    /// From there on.
    Long,
}

/// One number that the program moves. Numbers in tuples are the indices of
/// services and backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// Packets by reason.
    Reason(Reason),
    /// A slot of the map of reasons that no reason has.
    NoReason(u32),
    /// Packets of a service.
    Packets(u32),
    /// Bytes of a service.
    Bytes(u32),
    /// [`Live::half_opened`].
    HalfOpened(u16),
    /// [`Live::half_closed`].
    HalfClosed(u16),
    /// [`Live::opened`].
    Opened(u16),
    /// [`Live::closed`].
    Closed(u16),
    /// [`Live::resets`].
    Resets(u16),
    /// [`Live::syn_timeouts`].
    SynTimeouts(u16),
    /// [`Live::forgiven`].
    Forgiven(u16),
    /// [`Live::trial`].
    Trial(u16),
    /// Measured ends of a backend.
    Measured(u16, Class),
    /// Failed ends of a backend.
    Failed(u16, Class),
    /// Entries of the histogram of a backend.
    Histogram(u16),
    /// Ways in a state, the spill's included.
    Flows(StateOf),
    /// Entries of the spill.
    Spilled,
    /// Next hops that the packet path asked for.
    Wanted(IpAddr),
}

/// A state, ordered by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateOf(u8);

impl fmt::Debug for StateOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        State::from_number(self.0).fmt(f)
    }
}

impl Counter {
    /// Flows of the table in `state`.
    pub const fn flows(state: State) -> Self {
        Self::Flows(StateOf(state as u8))
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reason(reason) => f.write_str(reason.name()),
            Self::Wanted(address) => write!(f, "Wanted({address})"),
            other => fmt::Debug::fmt(other, f),
        }
    }
}

/// How counters moved, or are to move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved(BTreeMap<Counter, i64>);

impl Moved {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a movement.
    pub fn add(&mut self, counter: Counter, by: i64) {
        let value = self.0.entry(counter).or_default();
        *value += by;
        if *value == 0 {
            self.0.remove(&counter);
        }
    }

    /// By how much a counter moved.
    pub fn of(&self, counter: Counter) -> i64 {
        self.0.get(&counter).copied().unwrap_or(0)
    }

    /// What differs, a line each: the counter, wanted, got.
    pub fn difference(&self, got: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut all: Vec<&Counter> = self.0.keys().chain(got.0.keys()).collect();
        all.sort();
        all.dedup();
        for counter in all {
            let (wanted, was) = (self.of(*counter), got.of(*counter));
            if wanted != was {
                lines.push(format!("{counter}: expected {wanted:+}, got {was:+}"));
            }
        }
        lines
    }
}

/// The value of every counter at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    values: BTreeMap<Counter, u64>,
    reports: BTreeMap<u16, Report>,
}

impl Snapshot {
    /// Reads all counters of the scene's services and backends.
    ///
    /// # Panics
    /// If the kernel refuses to answer.
    pub fn take(maps: &Maps) -> Self {
        let mut snapshot = Self::default();
        let values = &mut snapshot.values;
        for number in 0..REASONS {
            let counts = maps.reasons.get(&number, 0).expect("reading a reason");
            let reason = Reason::ALL.get(number as usize);
            let counter = reason.map_or(Counter::NoReason(number), |r| Counter::Reason(*r));
            values.insert(counter, counts.iter().sum());
        }
        for service in 0..scene::SERVICES_READ {
            let traffic = maps
                .service_traffic(service)
                .expect("reading a service's traffic");
            values.insert(Counter::Packets(service), traffic.packets);
            values.insert(Counter::Bytes(service), traffic.bytes);
        }
        for backend in 0..scene::BACKENDS_READ {
            let live = maps.live.read(backend.into());
            values.extend(books(backend, &live));
            let report = maps.report(backend.into()).expect("reading a report");
            values.extend(ends(backend, &report));
            snapshot.reports.insert(backend, report);
        }
        let mut flow = |word: u64| {
            if meta::state(word) != State::Free {
                *values.entry(Counter::flows(meta::state(word))).or_default() += 1;
            }
        };
        for position in 0..maps.bucket_count() {
            let bucket = maps.bucket(position);
            bucket
                .words
                .ways
                .iter()
                .for_each(|way| flow(way.meta.load()));
        }
        let mut spilled = 0;
        for id in maps.spill_ids().expect("reading the spills") {
            let entry = maps.spilled(&id).expect("nobody removes it");
            flow(entry.spilled.way.meta);
            spilled += 1;
        }
        values.insert(Counter::Spilled, spilled);
        snapshot
    }

    /// What moved between this snapshot and a `later` one.
    pub fn moved(&self, later: &Self) -> Moved {
        let mut moved = Moved::new();
        for (counter, value) in &later.values {
            let before = self.values.get(counter).copied().unwrap_or(0);
            moved.add(*counter, value.wrapping_sub(before).cast_signed());
        }
        for (counter, value) in &self.values {
            if !later.values.contains_key(counter) {
                moved.add(*counter, -value.cast_signed());
            }
        }
        moved
    }

    /// Whether every measurement that a report gained is in the histogram's
    /// right bucket; what is wrong otherwise. Sums are in microseconds of the
    /// run and cannot be rows, but they and the histogram must agree.
    pub fn measurements_agree(&self, later: &Self) -> Result<(), String> {
        for (backend, report) in &later.reports {
            let before = self.reports.get(backend).copied().unwrap_or_default();
            let gained = |sums: fn(&Report) -> ClassSums| {
                let (old, new) = (sums(&before), sums(report));
                (new.count - old.count, new.total_us - old.total_us)
            };
            let (short, long) = (gained(|r| r.short), gained(|r| r.long));
            let (count, total) = (short.0 + long.0, short.1 + long.1);
            let buckets: Vec<usize> = (0..HISTOGRAM_BUCKETS)
                .filter(|bucket| report.histogram[*bucket] != before.histogram[*bucket])
                .collect();
            match (count, buckets.as_slice()) {
                (0, []) if total == 0 => {}
                (1, [bucket]) => {
                    let right = total.checked_ilog2().unwrap_or(0) as usize;
                    let right = right.min(HISTOGRAM_BUCKETS - 1);
                    if *bucket != right {
                        return Err(format!(
                            "backend {backend}: {total} us counted in bucket {bucket}, not {right}"
                        ));
                    }
                }
                _ => {
                    return Err(format!(
                        "backend {backend}: {count} measurements of {total} us in all moved the \
                         buckets {buckets:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The report of a backend.
    pub fn report(&self, backend: u16) -> Report {
        self.reports.get(&backend).copied().unwrap_or_default()
    }
}

fn books(backend: u16, live: &Live) -> [(Counter, u64); 8] {
    [
        (Counter::HalfOpened(backend), live.half_opened),
        (Counter::HalfClosed(backend), live.half_closed),
        (Counter::Opened(backend), live.opened),
        (Counter::Closed(backend), live.closed),
        (Counter::Resets(backend), live.resets),
        (Counter::SynTimeouts(backend), live.syn_timeouts),
        (Counter::Forgiven(backend), live.forgiven),
        (Counter::Trial(backend), live.trial),
    ]
}

fn ends(backend: u16, report: &Report) -> [(Counter, u64); 5] {
    [
        (Counter::Measured(backend, Class::Short), report.short.count),
        (Counter::Measured(backend, Class::Long), report.long.count),
        (
            Counter::Failed(backend, Class::Short),
            report.short.failures,
        ),
        (Counter::Failed(backend, Class::Long), report.long.failures),
        (Counter::Histogram(backend), report.histogram.iter().sum()),
    ]
}

/// What a frame moves when it is dropped, passed or does something to a flow.
pub mod moves {
    use super::{Class, Counter};
    use lb_common::{reason::Reason, tcp::State};

    /// A flow to `backend` was opened.
    pub fn opens(backend: u16) -> Vec<(Counter, i64)> {
        vec![
            (Counter::Reason(Reason::NewFlow), 1),
            (Counter::HalfOpened(backend), 1),
            (Counter::flows(State::HalfOpen), 1),
        ]
    }

    /// A flow to `backend` was opened by a datagram.
    pub fn opens_datagram(backend: u16) -> Vec<(Counter, i64)> {
        vec![
            (Counter::Reason(Reason::NewFlow), 1),
            (Counter::HalfOpened(backend), 1),
            (Counter::flows(State::Datagram), 1),
        ]
    }

    /// The server's first datagram: measured, and from then on a conversation.
    pub fn answers(backend: u16) -> Vec<(Counter, i64)> {
        let mut all = becomes_active(backend, State::Datagram, State::Conversing);
        all.extend(reports(backend, Class::Short));
        all
    }

    /// A flow leaves the handshake for a state that counts as active.
    pub fn becomes_active(backend: u16, from: State, to: State) -> Vec<(Counter, i64)> {
        let mut all = goes(from, to);
        all.extend([
            (Counter::HalfClosed(backend), 1),
            (Counter::Opened(backend), 1),
        ]);
        all
    }

    /// An active flow ends.
    pub fn ends(backend: u16, from: State, to: State) -> Vec<(Counter, i64)> {
        let mut all = goes(from, to);
        all.push((Counter::Closed(backend), 1));
        all
    }

    /// A flow that seemed over goes on.
    pub fn restores(backend: u16, from: State) -> Vec<(Counter, i64)> {
        let mut all = goes(from, State::Established);
        all.push((Counter::Opened(backend), 1));
        all.push((Counter::Reason(Reason::Restored), 1));
        all
    }

    /// A flow went from one state to another.
    pub fn goes(from: State, to: State) -> Vec<(Counter, i64)> {
        vec![(Counter::flows(from), -1), (Counter::flows(to), 1)]
    }

    /// A handshake was completed.
    pub fn establishes(backend: u16) -> Vec<(Counter, i64)> {
        becomes_active(backend, State::Answered, State::Established)
    }

    /// A flow's measurement was reported.
    pub fn reports(backend: u16, class: Class) -> Vec<(Counter, i64)> {
        vec![
            (Counter::Measured(backend, class), 1),
            (Counter::Histogram(backend), 1),
        ]
    }

    /// A failure was reported and booked.
    pub fn fails(backend: u16, class: Class) -> Vec<(Counter, i64)> {
        vec![
            (Counter::Failed(backend, class), 1),
            (Counter::Resets(backend), 1),
        ]
    }

    /// One packet with that reason.
    pub fn because(reason: Reason) -> Vec<(Counter, i64)> {
        vec![(Counter::Reason(reason), 1)]
    }

    /// One movement.
    pub fn once(counter: Counter) -> Vec<(Counter, i64)> {
        vec![(counter, 1)]
    }
}
