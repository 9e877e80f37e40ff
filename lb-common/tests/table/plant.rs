//! Flows that are there before a test begins.

use lb_common::abi::TICK_MASK;
use lb_common::flow::{Arrival, Slot};
use lb_common::hash::Home;
use lb_common::tcp::{Side, State, flags};

use crate::drive::{self, Flow, Kind, Moment, Outcome};
use crate::table::Host;

/// UDP through us.
const DATAGRAMS: Kind = Kind {
    protocol: 17,
    datagrams: true,
    ..drive::TCP
};

/// The segments after the SYN that lead to a state.
fn segments(state: State) -> &'static [(Side, u8)] {
    use Side::{Client, Server};
    const SYN_ACK: u8 = flags::SYN | flags::ACK;
    const FIN: u8 = flags::FIN | flags::ACK;
    match state {
        State::Free | State::Busy | State::HalfOpen => &[],
        // Neither is a state of TCP; see `advance`.
        State::Datagram | State::Conversing => &[],
        State::Answered => &[(Server, SYN_ACK)],
        State::Established => &[(Server, SYN_ACK), (Client, flags::ACK)],
        State::ClientFin => &[(Server, SYN_ACK), (Client, flags::ACK), (Client, FIN)],
        State::ServerFin => &[(Server, SYN_ACK), (Client, flags::ACK), (Server, FIN)],
        State::Closed => &[
            (Server, SYN_ACK),
            (Client, flags::ACK),
            (Client, FIN),
            (Server, FIN),
        ],
        State::Reset => &[
            (Server, SYN_ACK),
            (Client, flags::ACK),
            (Server, flags::RST),
        ],
    }
}

/// A time of which only the tick matters.
pub(crate) fn moment(tick: u32) -> Moment {
    Moment {
        tick: tick & TICK_MASK,
        micros: u64::from(tick) << 18,
    }
}

/// Moves an open flow of `backend` on to a state.
pub(crate) fn advance(table: &Host, flow: Flow, backend: u16, state: State, tick: u32) {
    let at = moment(tick);
    if state == State::Conversing {
        let found = drive::find(table, flow, Side::Server, backend).expect("the flow is there");
        let answer = Arrival {
            sequence: 0,
            acknowledgement: 0,
            payload: 9,
            ..drive::bare(Side::Server, 0)
        };
        drive::send(table, &found, &answer, at, 1);
    }
    for &(side, bits) in segments(state) {
        let found = drive::find(table, flow, side, backend).expect("the flow is there");
        drive::send(table, &found, &drive::bare(side, bits), at, 1);
    }
    let found = drive::find(table, flow, Side::Client, backend).expect("the flow is there");
    assert_eq!(found.state(), state);
}

/// Opens a flow with `backend` and moves it on to a state, all at one tick.
pub(crate) fn plant(table: &Host, flow: Flow, backend: u16, state: State, tick: u32) -> Slot {
    let opened = drive::open(
        table,
        flow,
        moment(tick),
        false,
        |_| false,
        |_, _| Some(backend),
    );
    let Outcome::Opened { slot, .. } = opened else {
        panic!("not planted: {opened:?}")
    };
    advance(table, flow, backend, state, tick);
    slot
}

/// Plants one flow per row into a bucket that has room, from way 0 on. Clients
/// are numbered from `client` on, all on VIP 1.
pub(crate) fn fill(table: &Host, bucket: u32, client: u32, backend: u16, rows: &[(State, u32)]) {
    for (number, &(state, tick)) in rows.iter().enumerate() {
        let home = Home {
            primary: bucket,
            secondary: bucket,
        };
        let kind = match state {
            State::Datagram | State::Conversing => DATAGRAMS,
            _ => drive::TCP,
        };
        let slot = plant(
            table,
            Flow::of(kind, home, client + number as u32, 1),
            backend,
            state,
            tick,
        );
        assert_eq!(slot, Slot::way(bucket, number as u32));
    }
}
