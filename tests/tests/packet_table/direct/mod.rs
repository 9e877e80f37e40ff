//! Direct return: what the matrix does not say.

mod lives;
mod reports;
mod room;

pub(crate) use lives::group as lives;
pub(crate) use reports::group as reports;
pub(crate) use room::group as room;

use lb_common::tcp::State;
use steerline_tests::packets::{
    Class::{self, Short},
    Counter, Step, Talk,
    flag::{ACK, FIN},
    moves::{ends, reports as measured},
    scene::{CLIENT, DIRECT, DIRECT_A, DIRECT_B},
};

const TALK: Talk = Talk::new(CLIENT.1, DIRECT, DIRECT_A);
const OTHER: Talk = TALK.at(DIRECT_B);
/// First byte of the client's data, and of the server's.
const CLIENT_START: u32 = 1_001;
const SERVER_START: u32 = 50_001;

/// The client's FIN, reported.
fn fin_of(class: Class) -> Step {
    TALK.client(FIN | ACK)
        .also(ends(DIRECT_A.index, State::Established, State::Closed))
        .also(measured(DIRECT_A.index, class))
}

fn fin() -> Step {
    fin_of(Short)
}

/// A new flow in place of an old one, without anything else.
fn in_place_of(step: Step, old: State) -> Step {
    step.also([(Counter::flows(old), -1)])
}
