//! What a packet of a known flow changes.

use super::{ColdWay, Found, LiveWords, Table, at, meta};
use crate::abi::{TICK_MASK, measure};
use crate::tcp::{Number, Segment, Side, State, Transition, bytes_seen, flags};

/// A TCP segment of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Who sent it.
    pub side: Side,
    /// Bits of [`crate::tcp::flags`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// ACK number; means nothing without the ACK bit.
    pub acknowledgement: u32,
    /// Bytes of payload.
    pub payload: u32,
}

/// What a service measures.
#[derive(Clone, Copy, Debug)]
pub struct Measures {
    /// One of [`crate::abi::measure`].
    pub measure: u8,
    /// Bytes from which a flow is long.
    pub short_flow_bytes: u32,
}

/// The end of a flow, for the teardown report of its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Index of the backend.
    pub backend: u16,
    /// Carried at least `short_flow_bytes`.
    pub long: bool,
    /// A failure: the server reset it.
    pub failed: bool,
    /// The measurement in microseconds, if the flow got far enough to have one.
    pub sample_us: Option<u64>,
}

/// What [`track`] found worth telling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// The flow ended by this segment, and was not reported before.
    pub ended: Option<Ended>,
    /// The server answered a request: its time, in the form of a report. The flow
    /// goes on.
    pub turn: Option<Ended>,
    /// The client repeated its SYN and the server has not answered.
    pub repeated_syn: bool,
    /// A flow that seemed reset goes on.
    pub restored: bool,
    /// The server answered the SYN, as far as is seen.
    pub answered: bool,
}

/// Attempts to swap a meta word that other CPUs change too. A loser's packet
/// is forwarded all the same; after this many its transition is left to the
/// next packet or the sweep.
const ATTEMPTS: usize = 3;

/// Whether a segment changes nothing of a flow whose meta word is `word`: then
/// [`track`] need not be called.
#[inline(always)]
pub fn is_quiet(word: u64, arrival: &Arrival, tick: u32) -> bool {
    let plain = arrival.flags & (flags::SYN | flags::FIN | flags::RST) == 0;
    let telling = arrival.payload > 0 || word & meta::ONE_SIDED != 0;
    let measured = word & meta::FIRST_RESPONSE != 0 && word & meta::RESPONDED == 0 && telling;
    let measured = measured || turns(word, arrival);
    let number = meta::number(word);
    let waiting = number.is(State::Datagram) && !matches!(arrival.side, Side::Server);
    let since = tick.wrapping_sub(meta::tick(word)) & TICK_MASK;
    // Until its client has sent data a tick after opening, a flow of direct
    // return must not miss it.
    let noted = since == 0 || since < NOTED_EVERY && word & meta::UNASSURED == 0;
    (number.is_active() && plain && !measured || waiting) && noted
}

/// Ticks between two looks at a flow that goes on: 2 s. With half a million flows
/// every look misses the cache twice, and one at every tick made the mean packet
/// twice as dear (530 against 244 ns in `dsr`, `cargo xtask bench packet`). Idle
/// times are minutes and more, so they lose nothing.
const NOTED_EVERY: u32 = 8;

/// Whether a segment may begin or answer a request of a flow whose every turn is
/// measured.
#[inline(always)]
fn turns(word: u64, arrival: &Arrival) -> bool {
    let asked = word & meta::REQUESTED != 0;
    word & meta::TURNS != 0
        && match arrival.side {
            Side::Client => arrival.payload > 0 && !asked,
            Side::Server => arrival.payload > 0 && asked,
            // What answers there is an ACK number.
            Side::ClientAlone => arrival.payload > 0 || asked,
        }
}

/// Takes a segment into account. `service` answers what the flow's service
/// measures; `micros` reads the fine clock and is called only for packets that
/// begin or end something.
///
/// An established data packet returns without a write unless the coarse clock
/// ticked.
#[inline(always)]
pub fn track<T: Table>(
    table: &T,
    found: &Found,
    arrival: &Arrival,
    tick: u32,
    service: impl Fn(u32) -> Option<Measures>,
    micros: impl Fn() -> u64,
) -> Tracked {
    if is_quiet(found.meta, arrival, tick) {
        return Tracked::default();
    }
    note(table, found, arrival, tick, service, micros)
}

/// [`track`] for a segment that is not quiet, where the caller knows that already.
#[inline(always)]
pub fn note<T: Table>(
    table: &T,
    found: &Found,
    arrival: &Arrival,
    tick: u32,
    service: impl Fn(u32) -> Option<Measures>,
    micros: impl Fn() -> u64,
) -> Tracked {
    let mut tracked = Tracked::default();
    let Some((way, cold)) = at(table, found.slot, found.client) else {
        return tracked;
    };
    let mut word = found.meta;
    for _ in 0..ATTEMPTS {
        let index = Transition::index(
            meta::number(word),
            word & meta::RESET_BY_CLIENT != 0,
            segment(cold, arrival, word, tick),
        );
        let step = Transition::at(table.opaque(index));
        let new = successor(cold, arrival, word, step, tick, &service);
        let new = table.forget(new);
        if new != word && !way.meta.replace(word, new) {
            let now = way.meta.load();
            if (now ^ word) & meta::GENERATION != 0 || !meta::is_flow(now) {
                return tracked;
            }
            word = now;
            continue;
        }
        // From here on this CPU owns the transition.
        let step = Transition::again(table.forget(step.packed()));
        let change = Change { word, new, step };
        if let Some(live) = table.live(found.backend()) {
            change.count(live);
        }
        tracked.repeated_syn = change.repeats_syn(arrival);
        tracked.answered = change.answers_syn();
        tracked.restored = change.old().is_ended() && change.state().is_active();
        if change.turns() {
            tracked.turn = change.turn(found.backend(), cold, arrival, &micros);
        }
        change.note(cold, arrival, &micros);
        if change.gains(meta::REPORTED)
            && let Some(measures) = service(cold.service.load())
        {
            tracked.ended = Some(change.end(found.backend(), cold, measures.measure, &micros));
        }
        return tracked;
    }
    tracked
}

/// A packet as the transitions see it.
#[inline(always)]
fn segment(cold: &ColdWay, arrival: &Arrival, word: u64, tick: u32) -> Segment {
    let blind = meta::number(word).is(State::Answered) && !proves_handshake(cold, arrival);
    Segment {
        side: arrival.side,
        flags: if blind { 0 } else { arrival.flags },
        has_payload: tells(cold, arrival, word, tick),
    }
}

/// The meta word after a transition.
#[inline(always)]
fn successor(
    cold: &ColdWay,
    arrival: &Arrival,
    word: u64,
    step: Transition,
    tick: u32,
    service: &impl Fn(u32) -> Option<Measures>,
) -> u64 {
    let old = meta::number(word);
    let ends = step.ends() && word & meta::REPORTED == 0;
    let mut new = meta::with_number(word & !meta::RESET_BY_CLIENT, step.state())
        | step.reset_by_client() << meta::RESET_BY_CLIENT_SHIFT;
    if ends {
        new |= meta::REPORTED;
    }
    // A repeated SYN or SYN-ACK does not prolong the handshake, stragglers do
    // not prolong the linger (IOS SLB `delay`). In direct return they do: the
    // server may go on after the client's FIN.
    let prolongs = step.state().0 != old.0
        || old.is_active()
        || old.is(State::Datagram)
        || word & meta::ONE_SIDED != 0 && old.is_ended();
    if arrival.payload > 0 && old.is_active() && meta::tick(word) != tick {
        new &= !meta::UNASSURED;
    }
    if prolongs {
        new = meta::with_tick(new, tick);
    }
    if word & meta::FIRST_RESPONSE != 0 {
        let requested = word & meta::REQUESTED != 0;
        // A datagram without data is a request or an answer like any other.
        let carries = arrival.payload > 0 || old.is_datagram();
        let (asks, answers) = match arrival.side {
            Side::Client => (carries, false),
            Side::Server => (false, carries),
            Side::ClientAlone => (carries, acknowledges_data(cold, arrival)),
        };
        if asks {
            new |= meta::REQUESTED;
        }
        if answers && requested {
            new |= meta::RESPONDED;
        }
    }
    if turns(word, arrival) && step.state().is_active() {
        let asked = word & meta::REQUESTED != 0;
        let answers = match arrival.side {
            Side::Client => false,
            Side::Server => asked,
            Side::ClientAlone => asked && acknowledges_data(cold, arrival),
        };
        if answers {
            new = new & !meta::REQUESTED ^ meta::TURNED;
        }
        if arrival.payload > 0 && !matches!(arrival.side, Side::Server) {
            new |= meta::REQUESTED;
        }
    }
    if (step.state().is_active() || ends)
        && let Some(measures) = service(cold.service.load())
        && is_long(cold, arrival, measures.short_flow_bytes)
    {
        new |= meta::LONG;
    }
    new
}

/// A transition that this CPU won. Everything is asked of the two meta words
/// anew: a value carried over from before the swap would be one more path of
/// the program for the BPF verifier.
struct Change {
    word: u64,
    new: u64,
    step: Transition,
}

impl Change {
    #[inline(always)]
    fn old(&self) -> Number {
        meta::number(self.word)
    }

    #[inline(always)]
    fn state(&self) -> Number {
        meta::number(self.new)
    }

    /// Whether the flow got this flag now.
    #[inline(always)]
    fn gains(&self, flag: u64) -> bool {
        self.new & !self.word & flag != 0
    }

    /// Books it. Entering is counted before leaving, so that no reader sees a
    /// flow in neither.
    #[inline(always)]
    fn count(&self, live: &LiveWords) {
        let (old, new) = (self.old(), self.state());
        if !old.is_active() && new.is_active() {
            live.opened.add(1);
        }
        if self.gains(meta::REPORTED) && self.step.fails() {
            live.resets.add(1);
        }
        if old.is_half_open() && !new.is_half_open() {
            live.half_closed.add(1);
        }
        if old.is_active() && !new.is_active() {
            live.closed.add(1);
        }
    }

    /// The SYN-ACK; in direct return what completes the handshake.
    #[inline(always)]
    fn answers_syn(&self) -> bool {
        let new = self.state();
        self.old().is(State::HalfOpen) && (new.is(State::Answered) || new.is_active())
    }

    #[inline(always)]
    fn repeats_syn(&self, arrival: &Arrival) -> bool {
        self.old().is(State::HalfOpen)
            && !matches!(arrival.side, Side::Server)
            && arrival.flags & (flags::SYN | flags::ACK | flags::FIN | flags::RST) == flags::SYN
    }

    /// Keeps what the end of the flow will need.
    #[inline(always)]
    fn note(&self, cold: &ColdWay, arrival: &Arrival, micros: &impl Fn() -> u64) {
        if self.repeats_syn(arrival) {
            cold.syn_repeats
                .store(cold.syn_repeats.load().saturating_add(1));
            cold.client_start.store(arrival.sequence.wrapping_add(1));
        }
        if self.old().is(State::HalfOpen) {
            if self.state().is(State::Answered) {
                cold.server_start.store(arrival.sequence.wrapping_add(1));
                cold.syn_ack_us.store(elapsed(cold, micros()));
            } else if self.state().is_active() {
                // Direct return: what the client acknowledges first is the
                // server's SYN.
                cold.server_start.store(arrival.acknowledgement);
                cold.syn_ack_us.store(elapsed(cold, micros()));
            }
        }
        if self.word & meta::ONE_SIDED != 0 && !self.old().is_ended() && self.state().is_ended() {
            cold.client_end
                .store(arrival.sequence.wrapping_add(arrival.payload));
        }
        if self.gains(meta::REQUESTED) && self.word & meta::TURNS == 0 {
            cold.request_us.store(elapsed(cold, micros()));
            if self.word & meta::ONE_SIDED != 0 && !self.state().is_ended() {
                cold.client_end.store(arrival.acknowledgement);
            }
        }
        if self.gains(meta::RESPONDED) {
            cold.response_us.store(elapsed(cold, micros()));
        }
    }

    /// A request begins, or was answered.
    #[inline(always)]
    fn turns(&self) -> bool {
        self.word & meta::TURNS != 0 && (self.gains(meta::REQUESTED) || self.is_answered())
    }

    #[inline(always)]
    fn is_answered(&self) -> bool {
        (self.word ^ self.new) & meta::TURNED != 0
    }

    /// The time of the request that was answered; a new one begins. Times are the
    /// lower 32 bits of the clock, which tell spans of up to 71 minutes.
    #[inline(always)]
    fn turn(
        &self,
        backend: u16,
        cold: &ColdWay,
        arrival: &Arrival,
        micros: &impl Fn() -> u64,
    ) -> Option<Ended> {
        let now = micros() as u32;
        let began = cold.request_us.load();
        let one_sided = self.word & meta::ONE_SIDED != 0;
        if self.new & meta::REQUESTED != 0 {
            // 0: none yet.
            cold.request_us.store(if now == 0 { 1 } else { now });
            if one_sided {
                cold.client_end.store(arrival.acknowledgement);
            }
        }
        if !self.is_answered() || began == 0 {
            return None;
        }
        let took = now.wrapping_sub(began);
        // There the ACK of the answer has gone the client's whole round trip, as
        // the handshake did.
        let trip = if one_sided { cold.syn_ack_us.load() } else { 0 };
        Some(Ended {
            backend,
            long: self.new & meta::LONG != 0,
            failed: false,
            sample_us: Some(if took > trip { took - trip } else { 1 } as u64),
        })
    }

    #[inline(always)]
    fn end(&self, backend: u16, cold: &ColdWay, measure: u8, micros: &impl Fn() -> u64) -> Ended {
        let failed = self.step.fails();
        let one_sided = self.word & meta::ONE_SIDED != 0;
        Ended {
            backend,
            long: self.new & meta::LONG != 0,
            failed,
            sample_us: if failed {
                None
            } else {
                sample(cold, measure, one_sided, micros())
            },
        }
    }
}

/// What of a packet's payload a transition may believe. Of datagrams in direct
/// return: that the client goes on a while after the first. Of segments on a
/// flow that is over there: that they go beyond its end, or lie so far before it
/// that the end was not the client's.
#[inline(always)]
fn tells(cold: &ColdWay, arrival: &Arrival, word: u64, tick: u32) -> bool {
    let number = meta::number(word);
    if number.is_datagram() {
        return meta::tick(word) != tick;
    }
    if word & meta::ONE_SIDED != 0 && number.is_ended() {
        let end = arrival.sequence.wrapping_add(arrival.payload);
        let beyond = end.wrapping_sub(cold.client_end.load());
        return arrival.payload > 0 && beyond != 0 && beyond <= u32::MAX - LARGEST_WINDOW;
    }
    arrival.payload > 0
}

/// The largest window (RFC 7323, section 2.3): no repeated segment lies further
/// behind.
const LARGEST_WINDOW: u32 = 1 << 30;

/// Whether a client's segment acknowledges data of a server that is not seen:
/// more than its first request did, since a greeting answers nothing.
#[inline(always)]
fn acknowledges_data(cold: &ColdWay, arrival: &Arrival) -> bool {
    let before = cold.client_end.load();
    let advance = arrival.acknowledgement.wrapping_sub(before);
    // Zero: another CPU has published the request, but not yet its number.
    arrival.flags & flags::ACK != 0 && before != 0 && advance != 0 && advance < 1 << 31
}

/// Bytes that a server may have sent before the client acknowledged anything:
/// ten segments (RFC 6928) of jumbo size, rounded up.
const INITIAL_WINDOW: u32 = 1 << 17;

/// Whether a segment of an answered flow may complete its handshake: a client's
/// must acknowledge the server's sequence number, which one who forged the SYN
/// cannot know. Otherwise anybody could fill the table with flows that live for
/// an hour and are never evicted.
#[inline(always)]
fn proves_handshake(cold: &ColdWay, arrival: &Arrival) -> bool {
    if !matches!(arrival.side, Side::Client) || arrival.flags & flags::RST != 0 {
        return true;
    }
    let start = cold.server_start.load();
    // The other CPU has published the answer, but not yet its number.
    start == 0 || arrival.acknowledgement.wrapping_sub(start) < INITIAL_WINDOW
}

#[inline(always)]
fn is_long(cold: &ColdWay, arrival: &Arrival, short_flow_bytes: u32) -> bool {
    let (own, other) = match arrival.side {
        Side::Client | Side::ClientAlone => (cold.client_start.load(), cold.server_start.load()),
        Side::Server => (cold.server_start.load(), cold.client_start.load()),
    };
    // Before the SYN-ACK nothing is known of the server's numbers.
    if cold.server_start.load() == 0 {
        return false;
    }
    let acknowledged = (arrival.flags & flags::ACK != 0).then_some(arrival.acknowledgement);
    let end = arrival.sequence.wrapping_add(arrival.payload);
    bytes_seen(end, own, acknowledged, other) >= short_flow_bytes as u64
}

/// Microseconds since the flow's SYN, at least 1 (0 means "not yet") and at
/// most an hour and eleven minutes.
#[inline(always)]
fn elapsed(cold: &ColdWay, now: u64) -> u32 {
    let micros = now.saturating_sub(cold.syn_us.load());
    if micros == 0 {
        1
    } else if micros > u32::MAX as u64 {
        u32::MAX
    } else {
        micros as u32
    }
}

#[inline(always)]
fn sample(cold: &ColdWay, what: u8, one_sided: bool, now: u64) -> Option<u64> {
    match what {
        measure::SYN_TO_SYN_ACK => {
            let micros = cold.syn_ack_us.load();
            (micros > 0).then_some(micros as u64)
        }
        measure::FIRST_RESPONSE => {
            let (request, response) = (cold.request_us.load(), cold.response_us.load());
            if request == 0 || response < request {
                return None;
            }
            let took = response - request;
            // There the ACK of the answer has gone the client's whole round
            // trip, as the handshake did.
            let trip = if one_sided { cold.syn_ack_us.load() } else { 0 };
            Some(if took > trip { took - trip } else { 1 } as u64)
        }
        // Reported turn by turn.
        measure::REQUEST_TO_RESPONSE => None,
        _ => Some(now.saturating_sub(cold.syn_us.load())),
    }
}
