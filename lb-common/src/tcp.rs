//! What one packet does to a flow: a pure transition, spelled out arm by arm.
//!
//! Most of it is TCP. Datagrams know two states only: the client alone was
//! heard, or both. In direct return nothing of the server is seen, and the
//! client's own segments must do ([`Side::ClientAlone`]).
//!
//! A balancer that forwards both directions sees every segment but must not
//! believe all of them. A reset can be forged by anyone who guesses the tuple
//! (RFC 5961), so [`State::Reset`] only *permits* the flow's replacement after
//! a linger; a later segment from the side that seemed to send the reset
//! brings the flow back. Two FINs need sequence numbers of both sides to be
//! forged and are final.

/// TCP flag bits as on the wire (RFC 9293, section 3.1).
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push the data to the application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
}

/// Where a flow stands. The numbers are bits 0..4 of a way's meta word and
/// index [`crate::abi::Settings::timeouts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No flow.
    Free = 0,
    /// Being written by the CPU that swapped this in.
    Busy = 1,
    /// The client's SYN was forwarded.
    HalfOpen = 2,
    /// The server answered with SYN-ACK.
    Answered = 3,
    /// The client acknowledged.
    Established = 4,
    /// The client sent FIN.
    ClientFin = 5,
    /// The server sent FIN.
    ServerFin = 6,
    /// Both sent FIN. Lingers for stragglers (IOS SLB `delay`).
    Closed = 7,
    /// One side sent a reset. Lingers, and comes back if that side speaks.
    Reset = 8,
    /// Datagrams of the client were forwarded. Counts as half-open.
    Datagram = 9,
    /// The server answered them, or the client went on. Counts as active.
    Conversing = 10,
}

impl State {
    /// The state with this number; numbers that are none read as [`State::Busy`],
    /// which every reader skips and nobody replaces.
    #[inline(always)]
    pub const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Free,
            2 => Self::HalfOpen,
            3 => Self::Answered,
            4 => Self::Established,
            5 => Self::ClientFin,
            6 => Self::ServerFin,
            7 => Self::Closed,
            8 => Self::Reset,
            9 => Self::Datagram,
            10 => Self::Conversing,
            _ => Self::Busy,
        }
    }

    /// Counted in `half_opened − half_closed`.
    #[inline(always)]
    pub const fn is_half_open(self) -> bool {
        matches!(self, Self::HalfOpen | Self::Answered | Self::Datagram)
    }

    /// Counted in `opened − closed`: past the handshake, closing included.
    #[inline(always)]
    pub const fn is_active(self) -> bool {
        matches!(
            self,
            Self::Established | Self::ClientFin | Self::ServerFin | Self::Conversing
        )
    }

    /// Over, lingering.
    #[inline(always)]
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Closed | Self::Reset)
    }
}

/// Who sent a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that sent the SYN.
    Client,
    /// The backend.
    Server,
    /// The client, in a flow whose server answers it directly.
    ClientAlone,
}

/// What a transition needs of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Who sent it.
    pub side: Side,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Carries at least one byte of data.
    pub has_payload: bool,
}

/// What of a flow's past a transition depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The flow's end was reported; it is reported once.
    pub reported: bool,
    /// The reset that led to [`State::Reset`] came from the client.
    pub reset_by_client: bool,
}

/// How a flow's end is to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Not over, or already reported, or over without a report.
    None,
    /// A regular end: its measurement counts.
    Regular,
    /// The server reset it before the client was done: a failure.
    ServerReset,
}

/// The result of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state after it.
    pub state: State,
    /// Whether the flow is to be reported now.
    pub end: End,
    /// New value of [`Past::reset_by_client`].
    pub reset_by_client: bool,
}

/// Bit per [`State`] that is in the handshake.
const HALF_OPEN_STATES: u64 =
    1 << State::HalfOpen as u64 | 1 << State::Answered as u64 | 1 << State::Datagram as u64;
/// Bit per [`State`] that counts as active.
const ACTIVE_STATES: u64 = 1 << State::Established as u64
    | 1 << State::ClientFin as u64
    | 1 << State::ServerFin as u64
    | 1 << State::Conversing as u64;
/// Bit per [`State`] of datagrams.
const DATAGRAM_STATES: u64 = 1 << State::Datagram as u64 | 1 << State::Conversing as u64;
/// Bit per [`State`] that lingers.
const ENDED_STATES: u64 = 1 << State::Closed as u64 | 1 << State::Reset as u64;

/// A state by its number, as it stands in a meta word. The packet path asks
/// these questions instead of matching on [`State`]: a mask and a shift, where
/// a match is a branch per arm that the BPF verifier follows to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub u64);

impl Number {
    /// See [`State::is_half_open`].
    #[inline(always)]
    pub const fn is_half_open(self) -> bool {
        HALF_OPEN_STATES >> self.0 & 1 != 0
    }

    /// See [`State::is_active`].
    #[inline(always)]
    pub const fn is_active(self) -> bool {
        ACTIVE_STATES >> self.0 & 1 != 0
    }

    /// See [`State::is_ended`].
    #[inline(always)]
    pub const fn is_ended(self) -> bool {
        ENDED_STATES >> self.0 & 1 != 0
    }

    /// A state of datagrams.
    #[inline(always)]
    pub const fn is_datagram(self) -> bool {
        DATAGRAM_STATES >> self.0 & 1 != 0
    }

    /// Whether it is this state.
    #[inline(always)]
    pub const fn is(self, state: State) -> bool {
        self.0 == state as u64
    }
}

/// A transition in numbers, looked up in a table made of [`step`] at compile
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition(u64);

impl Transition {
    /// Position in the table of the transition of a flow in state `state` whose
    /// reset, if it had one, came from the client or not.
    #[inline(always)]
    pub fn index(state: Number, reset_by_client: bool, segment: Segment) -> u64 {
        table_index(
            state.0 as usize & 0xf,
            reset_by_client,
            segment.side as usize,
            segment.flags,
            segment.has_payload,
        ) as u64
    }

    /// The transition at a position.
    #[inline(always)]
    pub fn at(index: u64) -> Self {
        Self(STEPS[index as usize & (TABLE - 1)] as u64)
    }

    /// Its number.
    #[inline(always)]
    pub const fn packed(self) -> u64 {
        self.0
    }

    /// The transition that was [`Transition::packed`].
    #[inline(always)]
    pub const fn again(packed: u64) -> Self {
        Self(packed)
    }

    /// The state after it.
    #[inline(always)]
    pub const fn state(self) -> Number {
        Number(self.0 & 0xf)
    }

    /// Whether the flow ends by it, if it was not reported before.
    #[inline(always)]
    pub const fn ends(self) -> bool {
        self.0 & 0x30 != 0
    }

    /// Whether that end is a failure of the server.
    #[inline(always)]
    pub const fn fails(self) -> bool {
        self.0 & 0x20 != 0
    }

    /// 1 if the reset came from the client, else 0.
    #[inline(always)]
    pub const fn reset_by_client(self) -> u64 {
        self.0 >> 6 & 1
    }
}

/// Entries of [`STEPS`]: 16 states, 2 origins of a reset, 4 sides (one of them
/// unused), 16 combinations of FIN, SYN, RST and ACK, with payload or without.
const TABLE: usize = 16 * 2 * 4 * 16 * 2;

#[inline(always)]
const fn table_index(
    state: usize,
    reset_by_client: bool,
    side: usize,
    bits: u8,
    has_payload: bool,
) -> usize {
    // FIN, SYN, RST are bits 0 to 2; ACK is bit 4.
    let bits = (bits & 7 | (bits & flags::ACK) >> 1) as usize;
    state << 8 | (reset_by_client as usize) << 7 | side << 5 | bits << 1 | has_payload as usize
}

/// Bits 0..4: the state, 4..6: the end if it was not reported (0 none, 1
/// regular, 2 server reset), 6: the reset came from the client.
static STEPS: [u8; TABLE] = {
    let mut table = [0; TABLE];
    let mut index = 0;
    while index < TABLE {
        let bits = (index >> 1 & 0xf) as u8;
        let past = Past {
            reported: false,
            reset_by_client: index >> 7 & 1 != 0,
        };
        let segment = Segment {
            side: match index >> 5 & 3 {
                0 => Side::Client,
                1 => Side::Server,
                _ => Side::ClientAlone,
            },
            flags: bits & 7 | (bits & 8) << 1,
            has_payload: index & 1 != 0,
        };
        let step = step(State::from_number((index >> 8) as u8), past, segment);
        let end = match step.end {
            End::None => 0,
            End::Regular => 1,
            End::ServerReset => 2,
        };
        table[index] = step.state as u8 | end << 4 | (step.reset_by_client as u8) << 6;
        index += 1;
    }
    table
};

const fn has(segment: Segment, bit: u8) -> bool {
    segment.flags & bit != 0
}

const fn to(past: Past, state: State) -> Step {
    Step {
        state,
        end: End::None,
        reset_by_client: past.reset_by_client,
    }
}

const fn ended(past: Past, segment: Segment, state: State, end: End) -> Step {
    Step {
        state,
        end: if past.reported { End::None } else { end },
        reset_by_client: !matches!(segment.side, Side::Server),
    }
}

/// The transition in direct return, where the server's segments are not seen.
/// The client's FIN ends the flow: whichever side closes first, the client has
/// little more to say then. What it still says is forwarded, and prolongs the
/// linger. Data beyond that end shows that the FIN or reset was not the
/// client's; the caller passes `has_payload` for such data only.
const fn step_alone(state: State, past: Past, segment: Segment) -> Step {
    let stay = to(past, state);
    match state {
        State::Free | State::Busy => stay,
        State::HalfOpen => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Closed, End::None)
            } else if has(segment, flags::SYN) || !has(segment, flags::ACK) {
                stay
            } else if has(segment, flags::FIN) {
                ended(past, segment, State::Closed, End::Regular)
            } else {
                to(past, State::Established)
            }
        }
        // Not states of such a flow; spelled out for the sake of the table.
        State::Answered | State::ClientFin | State::ServerFin => stay,
        State::Established => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::Regular)
            } else if has(segment, flags::FIN) {
                ended(past, segment, State::Closed, End::Regular)
            } else {
                stay
            }
        }
        State::Closed | State::Reset => {
            let live = segment.has_payload && has(segment, flags::ACK);
            if live && !has(segment, flags::RST) && !has(segment, flags::SYN) {
                if has(segment, flags::FIN) {
                    stay
                } else {
                    to(past, State::Established)
                }
            } else {
                stay
            }
        }
        // A second datagram a while later: the client found something there.
        State::Datagram => {
            if segment.has_payload {
                to(past, State::Conversing)
            } else {
                stay
            }
        }
        State::Conversing => stay,
    }
}

/// The transition of `state` by `segment`. `Free` and `Busy` are not states of
/// a flow and stay what they are.
pub const fn step(state: State, past: Past, segment: Segment) -> Step {
    let stay = to(past, state);
    match (state, segment.side) {
        (_, Side::ClientAlone) => step_alone(state, past, segment),
        (State::Free | State::Busy, _) => stay,

        (State::Datagram, Side::Client) => stay,
        (State::Datagram, Side::Server) => ended(past, segment, State::Conversing, End::Regular),
        (State::Conversing, _) => stay,

        (State::HalfOpen, Side::Client) => {
            if has(segment, flags::RST) {
                // The client gave up before any answer: says nothing of the
                // server, a timeout would. Final: no server packet was seen, and
                // nothing a client sends alone may make a lasting flow.
                ended(past, segment, State::Closed, End::None)
            } else {
                stay
            }
        }
        (State::HalfOpen, Side::Server) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::ServerReset)
            } else if has(segment, flags::SYN) && has(segment, flags::ACK) {
                to(past, State::Answered)
            } else {
                stay
            }
        }

        (State::Answered, Side::Client) => {
            if has(segment, flags::RST) {
                // Final too: whoever forged the SYN could forge what follows.
                ended(past, segment, State::Closed, End::None)
            } else if has(segment, flags::SYN) || !has(segment, flags::ACK) {
                stay
            } else if has(segment, flags::FIN) {
                to(past, State::ClientFin)
            } else {
                to(past, State::Established)
            }
        }
        (State::Answered, Side::Server) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::ServerReset)
            } else if has(segment, flags::FIN) {
                // The server can only close what the client completed: the
                // client's ACK went another way or was lost before us.
                ended(past, segment, State::ServerFin, End::Regular)
            } else if has(segment, flags::SYN) {
                stay
            } else if segment.has_payload {
                to(past, State::Established)
            } else {
                stay
            }
        }

        (State::Established, Side::Client) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::Regular)
            } else if has(segment, flags::FIN) {
                to(past, State::ClientFin)
            } else {
                stay
            }
        }
        (State::Established, Side::Server) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::ServerReset)
            } else if has(segment, flags::FIN) {
                ended(past, segment, State::ServerFin, End::Regular)
            } else {
                stay
            }
        }

        (State::ClientFin, Side::Client) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::Regular)
            } else {
                stay
            }
        }
        (State::ClientFin, Side::Server) => {
            if has(segment, flags::RST) {
                // After the client's own FIN a reset is the server's way of
                // closing, not a failure.
                ended(past, segment, State::Reset, End::Regular)
            } else if has(segment, flags::FIN) {
                ended(past, segment, State::Closed, End::Regular)
            } else {
                stay
            }
        }

        (State::ServerFin, Side::Client) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::Regular)
            } else if has(segment, flags::FIN) {
                ended(past, segment, State::Closed, End::Regular)
            } else {
                stay
            }
        }
        (State::ServerFin, Side::Server) => {
            if has(segment, flags::RST) {
                ended(past, segment, State::Reset, End::Regular)
            } else {
                stay
            }
        }

        (State::Closed, _) => stay,

        (State::Reset, side) => {
            let same_side = past.reset_by_client as u8 == !matches!(side, Side::Server) as u8;
            if same_side
                && has(segment, flags::ACK)
                && !has(segment, flags::RST)
                && !has(segment, flags::SYN)
            {
                if has(segment, flags::FIN) {
                    match side {
                        Side::ClientAlone | Side::Client => to(past, State::ClientFin),
                        Side::Server => ended(past, segment, State::ServerFin, End::Regular),
                    }
                } else {
                    to(past, State::Established)
                }
            } else {
                stay
            }
        }
    }
}

/// Bytes of TCP payload that an acknowledging segment proves, both directions:
/// what its sender sent up to its end plus what it has of the other side,
/// counted from where each side's data began, modulo 2^32.
///
/// A number up to half the sequence space before the start proves nothing: a
/// repeated SYN-ACK and a keep-alive probe lie one before it. A FIN counts one
/// number in the sequence space, which is why results may be one or two too
/// high: the class boundary is 15,360, and exactness there is not worth a state.
#[inline(always)]
pub const fn bytes_seen(
    own_end: u32,
    own_start: u32,
    acknowledged: Option<u32>,
    other_start: u32,
) -> u64 {
    let own = bytes_since(own_start, own_end);
    match acknowledged {
        Some(number) => own + bytes_since(other_start, number),
        None => own,
    }
}

#[inline(always)]
const fn bytes_since(start: u32, end: u32) -> u64 {
    let bytes = end.wrapping_sub(start);
    if bytes > u32::MAX / 2 {
        0
    } else {
        bytes as u64
    }
}

#[cfg(test)]
mod tests;
