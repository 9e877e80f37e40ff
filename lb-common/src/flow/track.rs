//! What a packet of a known flow changes.

use super::{ColdWay, Found, LiveWords, Table, at, meta};
use crate::abi::measure;
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
    /// The client repeated its SYN and the server has not answered.
    pub repeated_syn: bool,
    /// A flow that seemed reset goes on.
    pub restored: bool,
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
    let measured =
        word & meta::FIRST_RESPONSE != 0 && word & meta::RESPONDED == 0 && arrival.payload > 0;
    meta::number(word).is_active() && plain && !measured && meta::tick(word) == tick
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
    let mut tracked = Tracked::default();
    if is_quiet(found.meta, arrival, tick) {
        return tracked;
    }
    let Some((way, cold)) = at(table, found.slot, found.client) else {
        return tracked;
    };
    let mut word = found.meta;
    for _ in 0..ATTEMPTS {
        let old = meta::number(word);
        let segment = Segment {
            side: arrival.side,
            flags: if old.is(State::Answered) && !proves_handshake(cold, arrival) {
                0
            } else {
                arrival.flags
            },
            has_payload: arrival.payload > 0,
        };
        let index = Transition::index(old, word & meta::RESET_BY_CLIENT != 0, segment);
        let step = Transition::at(table.opaque(index));
        let ends = step.ends() && word & meta::REPORTED == 0;
        let mut new = meta::with_number(word & !meta::RESET_BY_CLIENT, step.state())
            | step.reset_by_client() << meta::RESET_BY_CLIENT_SHIFT;
        if ends {
            new |= meta::REPORTED;
        }
        // A repeated SYN or SYN-ACK does not prolong the handshake, stragglers
        // do not prolong the linger (IOS SLB `delay`).
        let prolongs = step.state().0 != old.0 || old.is_active();
        if prolongs {
            new = meta::with_tick(new, tick);
        }
        let mut request = false;
        let mut response = false;
        if word & meta::FIRST_RESPONSE != 0 && arrival.payload > 0 {
            match arrival.side {
                Side::Client => request = word & meta::REQUESTED == 0,
                Side::Server => {
                    response = word & meta::REQUESTED != 0 && word & meta::RESPONDED == 0;
                }
            }
            if request {
                new |= meta::REQUESTED;
            }
            if response {
                new |= meta::RESPONDED;
            }
        }
        if step.state().is_active() || ends {
            let measures = service(cold.service.load());
            if let Some(measures) = measures
                && is_long(cold, arrival, measures.short_flow_bytes)
            {
                new |= meta::LONG;
            }
        }

        if new != word && !way.meta.replace(word, new) {
            let now = way.meta.load();
            if (now ^ word) & meta::GENERATION != 0 || !meta::is_flow(now) {
                return tracked;
            }
            word = now;
            continue;
        }

        // From here on this CPU owns the transition.
        if let Some(live) = table.live(found.backend()) {
            count(live, old, step.state(), ends && step.fails());
        }
        if old.is(State::HalfOpen) {
            if matches!(arrival.side, Side::Client) && arrival.flags & flags::SYN != 0 {
                cold.syn_repeats
                    .store(cold.syn_repeats.load().saturating_add(1));
                cold.client_start.store(arrival.sequence.wrapping_add(1));
                tracked.repeated_syn = true;
            }
            if step.state().is(State::Answered) {
                cold.server_start.store(arrival.sequence.wrapping_add(1));
                cold.syn_ack_us.store(elapsed(cold, micros()));
            }
        }
        if request {
            cold.request_us.store(elapsed(cold, micros()));
        }
        if response {
            cold.response_us.store(elapsed(cold, micros()));
        }
        tracked.restored = old.is_ended() && step.state().is_active();
        if !ends {
            return tracked;
        }
        let Some(measures) = service(cold.service.load()) else {
            return tracked;
        };
        let failed = step.fails();
        let sample_us = if failed {
            None
        } else {
            sample(cold, measures.measure, micros())
        };
        tracked.ended = Some(Ended {
            backend: found.backend(),
            long: new & meta::LONG != 0,
            failed,
            sample_us,
        });
        return tracked;
    }
    tracked
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
    if matches!(arrival.side, Side::Server) || arrival.flags & flags::RST != 0 {
        return true;
    }
    let start = cold.server_start.load();
    // The other CPU has published the answer, but not yet its number.
    start == 0 || arrival.acknowledgement.wrapping_sub(start) < INITIAL_WINDOW
}

/// Books a transition. Entering is counted before leaving, so that no reader
/// sees a flow in neither.
#[inline(always)]
fn count(live: &LiveWords, old: Number, new: Number, failed: bool) {
    if !old.is_active() && new.is_active() {
        live.opened.add(1);
    }
    if failed {
        live.resets.add(1);
    }
    if old.is_half_open() && !new.is_half_open() {
        live.half_closed.add(1);
    }
    if old.is_active() && !new.is_active() {
        live.closed.add(1);
    }
}

#[inline(always)]
fn is_long(cold: &ColdWay, arrival: &Arrival, short_flow_bytes: u32) -> bool {
    let (own, other) = match arrival.side {
        Side::Client => (cold.client_start.load(), cold.server_start.load()),
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
fn sample(cold: &ColdWay, what: u8, now: u64) -> Option<u64> {
    match what {
        measure::SYN_TO_SYN_ACK => {
            let micros = cold.syn_ack_us.load();
            (micros > 0).then_some(micros as u64)
        }
        measure::FIRST_RESPONSE => {
            let (request, response) = (cold.request_us.load(), cold.response_us.load());
            (request > 0 && response >= request).then(|| (response - request) as u64)
        }
        _ => Some(now.saturating_sub(cold.syn_us.load())),
    }
}
