//! The controller's pass over the flow table: expires what timed out, finds
//! who still holds an index, and reconciles the books.

use super::{Maps, flow_tables::SpillId};
use anyhow::Result;
use lb_common::{
    abi::{Cold, Live, MAX_BACKENDS, MAX_HOPS, backend_flags, ticks_between},
    flow::{self, LiveWords, Way, meta},
    tcp::State,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a complete pass found.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Flows past the handshake.
    pub active: u64,
    /// Flows in the handshake.
    pub half_open: u64,
    /// Flows of which the table or the spill holds a way, lingering included,
    /// by backend index.
    pub held: Vec<bool>,
    /// Next hops that a flow names, by index.
    pub hops: Vec<bool>,
    /// Flows in the spill.
    pub spilled: u64,
    /// Counts that were wrong in two passes although nothing moved, and were
    /// corrected. Zero unless something is broken.
    pub reconciled: u64,
    /// Flows ended on request ([`Sweeper::end_flows`]), by backend index.
    pub ended: BTreeMap<u32, u64>,
}

/// Counts of one backend's flows as a pass met them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    half_open: u64,
    active: u64,
}

/// A flow whose SYN its server did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut {
    /// Index of the backend.
    pub backend: u16,
    /// See [`flow::client_word`].
    pub client: u64,
    /// How often the client repeated its SYN.
    pub repeats: u32,
}

/// A pass over the table, in steps of a bounded number of buckets.
pub struct Sweeper {
    position: u32,
    tallies: Vec<Tally>,
    books: Vec<Live>,
    /// By how much the books were off in the last pass, and for which books.
    suspects: Vec<Option<(Tally, Live)>>,
    pass: Pass,
    /// Spill entries that were free in the last pass; free again, they go.
    empty_spills: Vec<SpillId>,
    quiet_spill_passes: u32,
    /// Backends whose flows are to be ended.
    ending: BTreeSet<u32>,
    /// How many more this step may end.
    budget: u32,
    /// SYN timeouts since they were last asked for.
    timed_out: Vec<TimedOut>,
}

/// Most SYN timeouts that are told of one by one; all of them are counted.
const MOST_TOLD: usize = 4_096;

/// Most flows that one step ends on request; the rest wait for later passes.
/// Ten steps a second make 80,000 flows a second, each a swap of one word and
/// an addition, a few milliseconds in all.
const MOST_ENDED: u32 = 8_192;

/// The meta word of a flow that is ended on request. One that both sides may
/// believe in is told by resets, if its service wants that; a half-open one is
/// not: its client's next SYN goes to another backend and succeeds.
fn after_end(maps: &Maps, word: u64, backend: u32, now: u32) -> u64 {
    let connected = matches!(
        meta::state(word),
        State::Answered | State::Established | State::ClientFin | State::ServerFin
    );
    let flags = maps.backends.read(backend).flags;
    if connected && flags & backend_flags::RESET_FLOWS != 0 {
        meta::refused(word, now)
    } else {
        meta::successor(word, State::Free)
    }
}

fn empty_pass() -> Pass {
    Pass {
        active: 0,
        half_open: 0,
        held: vec![false; MAX_BACKENDS as usize],
        hops: vec![false; MAX_HOPS as usize],
        spilled: 0,
        reconciled: 0,
        ended: BTreeMap::new(),
    }
}

impl Sweeper {
    /// At the beginning of a pass.
    pub fn new(maps: &Maps) -> Self {
        let mut sweeper = Self {
            position: 0,
            tallies: Vec::new(),
            books: Vec::new(),
            suspects: vec![None; MAX_BACKENDS as usize],
            pass: empty_pass(),
            empty_spills: Vec::new(),
            quiet_spill_passes: 0,
            ending: BTreeSet::new(),
            budget: 0,
            timed_out: Vec::new(),
        };
        sweeper.begin(maps);
        sweeper
    }

    fn begin(&mut self, maps: &Maps) {
        self.position = 0;
        self.tallies = vec![Tally::default(); MAX_BACKENDS as usize];
        self.books = (0..MAX_BACKENDS)
            .map(|index| maps.live.read(index))
            .collect();
        self.pass = empty_pass();
    }

    /// Whether to end the flows of a backend, from the next step on, as each is
    /// met. Those that linger after their end are left to.
    pub fn end_flows(&mut self, backend: u32, end: bool) {
        if end {
            self.ending.insert(backend);
        } else {
            self.ending.remove(&backend);
        }
    }

    /// The SYN timeouts since the last call.
    pub fn take_timed_out(&mut self) -> Vec<TimedOut> {
        std::mem::take(&mut self.timed_out)
    }

    /// Backends whose flows are being ended.
    pub fn ending(&self) -> impl Iterator<Item = u32> + '_ {
        self.ending.iter().copied()
    }

    /// Goes over `buckets` buckets. At the end of a pass, what it found.
    ///
    /// # Errors
    /// What the kernel answers about the spill.
    pub fn step(&mut self, maps: &mut Maps, now: u32, buckets: u32) -> Result<Option<Pass>> {
        self.budget = MOST_ENDED;
        let timeouts = maps.settings.read(0).timeouts;
        let all = maps.bucket_count();
        let end = all.min(self.position.saturating_add(buckets));
        while self.position < end {
            let bucket = maps.bucket(self.position);
            for (way, cold) in bucket.words.ways.iter().zip(&bucket.cold.ways) {
                self.visit(maps, way, now, &timeouts, || cold.syn_repeats.load());
            }
            self.position += 1;
        }
        if self.position < all {
            return Ok(None);
        }
        self.sweep_spill(maps, now, &timeouts)?;
        self.reconcile(maps);
        let pass = std::mem::replace(&mut self.pass, empty_pass());
        self.begin(maps);
        Ok(Some(pass))
    }

    fn visit(
        &mut self,
        maps: &Maps,
        way: &Way,
        now: u32,
        timeouts: &[u32],
        repeats: impl Fn() -> u32,
    ) {
        if !meta::is_flow(way.meta.load()) {
            return;
        }
        let live = |backend: u16| {
            (u32::from(backend) < MAX_BACKENDS).then(|| maps.live.view::<LiveWords>(backend.into()))
        };
        let timeout = |state: State| timeouts[state as usize];
        if let Some(expired) = flow::expire(way, now, timeout, live, repeats) {
            if expired.syn_timeout && self.timed_out.len() < MOST_TOLD {
                self.timed_out.push(TimedOut {
                    backend: expired.backend,
                    client: expired.client,
                    repeats: expired.repeats,
                });
            }
            return;
        }
        if self.end(maps, way, now) {
            return;
        }
        let word = way.meta.load();
        if meta::is_flow(word) {
            self.tally(word, way.virtual_end.load() as u16);
        }
    }

    /// Ends the flow of a way whose backend's are to be; whether it did and the
    /// way is free. One that a packet changes at this moment is left to the next
    /// pass.
    fn end(&mut self, maps: &Maps, way: &Way, now: u32) -> bool {
        if self.ending.is_empty() {
            return false;
        }
        let word = way.meta.load();
        let backend = u32::from(way.virtual_end.load() as u16);
        // The generation in `word` vouches for the backend that was read.
        if !self.may_end(word, backend) {
            return false;
        }
        let end = after_end(maps, word, backend, now);
        if !way.meta.replace(word, end) {
            return false;
        }
        self.count_ended(maps, word, backend);
        !meta::is_flow(end)
    }

    fn may_end(&self, word: u64, backend: u32) -> bool {
        let state = meta::state(word);
        self.budget > 0
            && self.ending.contains(&backend)
            && backend < MAX_BACKENDS
            && (state.is_half_open() || state.is_active())
    }

    /// An end that is not the backend's failure, whatever state the flow was
    /// in.
    fn count_ended(&mut self, maps: &Maps, word: u64, backend: u32) {
        let live: &LiveWords = maps.live.view(backend);
        if meta::state(word).is_half_open() {
            live.half_closed.add(1);
        } else {
            live.closed.add(1);
        }
        self.budget -= 1;
        *self.pass.ended.entry(backend).or_default() += 1;
    }

    fn tally(&mut self, word: u64, backend: u16) {
        let state = meta::state(word);
        let index = usize::from(backend);
        if let Some(held) = self.pass.held.get_mut(index) {
            *held = true;
        }
        if let Some(hop) = self.pass.hops.get_mut(usize::from(meta::hop(word))) {
            *hop = true;
        }
        let Some(tally) = self.tallies.get_mut(index) else {
            return;
        };
        if state.is_half_open() {
            tally.half_open += 1;
            self.pass.half_open += 1;
        } else if state.is_active() {
            tally.active += 1;
            self.pass.active += 1;
        }
    }

    /// The spill is a kernel hash without a memory mapping: entries are read by
    /// copy. One that timed out is expired by replacing its value, one that was
    /// free for a whole pass is removed.
    fn sweep_spill(&mut self, maps: &mut Maps, now: u32, timeouts: &[u32]) -> Result<()> {
        let keys = maps.spill_ids()?;
        let mut empty = Vec::new();
        for key in &keys {
            let Some(mut whole) = maps.spilled(key) else {
                continue;
            };
            let entry = &mut whole.spilled;
            let word = entry.way.meta;
            if meta::is_flow(word) {
                let state = flow::patience(word);
                let repeats = entry.cold.syn_repeats;
                let backend = entry.way.virtual_end as u16;
                if ticks_between(meta::tick(word), now) < timeouts[state as usize] {
                    if self.may_end(word, backend.into()) {
                        // A packet that changes it at this very moment is lost
                        // with the old value; `reconcile` mends the books.
                        let end = after_end(maps, word, backend.into(), now);
                        entry.way.meta = end;
                        if !meta::is_flow(end) {
                            entry.cold = Cold::default();
                            empty.push(*key);
                        }
                        maps.set_spilled(key, &whole)?;
                        self.count_ended(maps, word, backend.into());
                        if meta::is_flow(end) {
                            self.pass.spilled += 1;
                            self.tally(end, backend);
                        }
                        continue;
                    }
                    self.pass.spilled += 1;
                    self.tally(word, backend);
                    continue;
                }
                // Silent for its whole timeout: no packet is about to touch it.
                entry.way.meta = meta::successor(word, State::Free);
                entry.cold = Cold::default();
                maps.set_spilled(key, &whole)?;
                if u32::from(backend) < MAX_BACKENDS {
                    let live = maps.live.view::<LiveWords>(backend.into());
                    flow::count_expired(live, word, repeats);
                }
            }
            if self.empty_spills.contains(key) {
                maps.remove_spilled(key)?;
            } else {
                empty.push(*key);
            }
        }
        self.empty_spills = empty;
        self.quiet_spill_passes = if keys.is_empty() {
            self.quiet_spill_passes + 1
        } else {
            0
        };
        if self.quiet_spill_passes == 2 {
            // Nobody spilled for two passes: buckets need not look there. One
            // that spills at this very moment marks its bucket again with the
            // next flow; its own packets find the mark set after the insert.
            self.unmark(maps);
        }
        Ok(())
    }

    fn unmark(&self, maps: &Maps) {
        for position in 0..maps.bucket_count() {
            let bucket = maps.bucket(position);
            let marked = &bucket.words.ways[0].meta;
            let word = marked.load();
            if word & meta::SPILLED == 0 {
                continue;
            }
            marked.replace(word, word & !meta::SPILLED);
            if !maps.spill_is_empty(bucket.family) {
                marked.set_bits(meta::SPILLED);
                return;
            }
        }
    }

    /// Corrects books that were off by the same amount in two passes during
    /// which they did not move. Differences are added, never a count stored: a
    /// packet may open or close a flow at this very moment.
    fn reconcile(&mut self, maps: &Maps) {
        for index in 1..MAX_BACKENDS {
            let at = index as usize;
            let now = maps.live.read(index);
            let moved = |a: &Live, b: &Live| {
                (a.half_opened, a.half_closed, a.opened, a.closed)
                    != (b.half_opened, b.half_closed, b.opened, b.closed)
            };
            let tally = self.tallies[at];
            let booked = Tally {
                half_open: now.half_opened.wrapping_sub(now.half_closed),
                active: now.opened.wrapping_sub(now.closed),
            };
            if moved(&self.books[at], &now) || booked == tally {
                self.suspects[at] = None;
                continue;
            }
            match self.suspects[at] {
                Some((before, books)) if before == tally && !moved(&books, &now) => {
                    let live: &LiveWords = maps.live.view(index);
                    live.half_closed
                        .add(booked.half_open.wrapping_sub(tally.half_open));
                    live.closed.add(booked.active.wrapping_sub(tally.active));
                    self.pass.reconciled += 1;
                    self.suspects[at] = None;
                    tracing::warn!(
                        backend = index,
                        ?booked,
                        ?tally,
                        "the counts of a backend did not match the flow table and were corrected"
                    );
                }
                _ => self.suspects[at] = Some((tally, now)),
            }
        }
    }
}
