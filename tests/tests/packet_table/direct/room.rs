//! Full buckets: half-open and unanswered flows go first, then those of which
//! only a handshake was seen; assured ones never.

use super::{TALK, fin, in_place_of};
use lb_common::{reason::Reason, tcp::State};
use steerline_tests::packets::{
    Counter, Endpoint, Group, Lab, Row, Step, Talk,
    flag::{ACK, SYN},
    moves::{because, becomes_active, once},
    scene::{CLIENT, DIRECT, DIRECT_A, DIRECT_B, DIRECT_DNS, DIRECT_DNS_A, DIRECT_DNS_B, Server},
};

use crate::full::{fill_spill, one_bucket};

/// The flow of a port: servers alternate.
const fn flow(number: u16) -> Talk {
    let server = if number.is_multiple_of(2) {
        DIRECT_A
    } else {
        DIRECT_B
    };
    Talk::new(1_000 + number, DIRECT, server)
}

const fn client(number: u16) -> Endpoint {
    (CLIENT.0, 1_000 + number)
}

/// Handshakes without more.
fn unassured(numbers: std::ops::Range<u16>) -> Vec<Step> {
    numbers.flat_map(|number| flow(number).begun()).collect()
}

/// Data a tick after the handshake.
fn assure(row: Row, numbers: std::ops::Range<u16>) -> Row {
    numbers.fold(row, |row, number| {
        row.change(move |lab| lab.age(client(number), 1))
            .send(flow(number).request(5))
    })
}

fn full() -> Row {
    Row::new("").change(one_bucket)
}

/// A new flow in place of one that is not over.
fn evicts(step: Step, old: State, counter: Counter) -> Step {
    in_place_of(step, old)
        .also(because(Reason::EvictedHalfOpen))
        .also(once(counter))
}

fn aged(number: u16, ticks: u32) -> impl Fn(&mut Lab) {
    move |lab| lab.age(client(number), ticks)
}

/// The unanswered SYN of the first server that is silent for its time.
fn silent(row: Row, blamed: bool) -> Row {
    let step =
        in_place_of(flow(4).syn(), State::HalfOpen).also(once(Counter::HalfClosed(DIRECT_A.index)));
    row.sends(unassured(1..4))
        .change(aged(0, 19))
        .send(if blamed {
            step.also(once(Counter::SynTimeouts(DIRECT_A.index)))
        } else {
            step
        })
}

/// Everything about too little room.
pub(crate) fn group() -> Group {
    let named = |name: &str, row: Row| row.named(name);
    let dns = |port: u16, server: Server| Talk::new(port, DIRECT_DNS, server);
    let conversing = |step: Step, server: Server| {
        step.also(becomes_active(
            server.index,
            State::Datagram,
            State::Conversing,
        ))
    };
    Group::new(
        "direct, full",
        vec![
            named(
                "of unassured flows the oldest goes",
                full()
                    .sends(unassured(0..4))
                    .change(fill_spill)
                    .change(aged(1, 2))
                    .change(aged(2, 3))
                    .send(evicts(
                        flow(4).syn(),
                        State::Established,
                        Counter::Closed(DIRECT_A.index),
                    ))
                    .send(flow(2).client(ACK).dropped(Reason::NoFlow)),
            ),
            named(
                "a half-open flow goes before an older unassured one",
                full()
                    .sends(unassured(0..3))
                    .send(flow(3).syn())
                    .change(fill_spill)
                    .change(aged(0, 9))
                    .send(evicts(
                        flow(4).syn(),
                        State::HalfOpen,
                        Counter::HalfClosed(DIRECT_B.index),
                    )),
            ),
            named(
                "an unanswered datagram goes before an older unassured flow",
                full()
                    .sends(unassured(0..3))
                    .send(dns(1_500, DIRECT_DNS_A).first())
                    .change(fill_spill)
                    .change(aged(0, 9))
                    .send(evicts(
                        flow(3).syn(),
                        State::Datagram,
                        Counter::HalfClosed(DIRECT_DNS_A.index),
                    )),
            ),
            assure(
                named("assured flows never go", full().sends(unassured(0..4))),
                0..4,
            )
            .change(fill_spill)
            .send(flow(4).client(SYN).dropped(Reason::TableFull))
            .sends((0..4).map(|number| flow(number).request(3))),
            assure(
                named(
                    "the one unassured flow goes, whatever its age",
                    full().sends(unassured(0..4)),
                ),
                0..3,
            )
            .change(fill_spill)
            .change(aged(0, 99))
            .send(evicts(
                flow(4).syn(),
                State::Established,
                Counter::Closed(DIRECT_B.index),
            )),
            named(
                "data within the handshake's tick assures nothing",
                full()
                    .change(|_| steerline_tests::packets::early_in_a_tick())
                    .sends(flow(0).begun())
                    .send(flow(0).request(9))
                    .check(|lab| unassured_flag(lab, true)),
            ),
            assure(
                named("data a tick later does", full().sends(unassured(0..1))),
                0..1,
            )
            .check(|lab| unassured_flag(lab, false)),
            named(
                "a bare ACK a tick later does not",
                full()
                    .sends(flow(0).begun())
                    .change(aged(0, 1))
                    .send(flow(0).client(ACK))
                    .check(|lab| unassured_flag(lab, true)),
            ),
            named(
                "the spill before an unassured flow",
                full().sends(unassured(0..4)).send(
                    flow(4)
                        .syn()
                        .also(because(Reason::Spilled))
                        .also(once(Counter::Spilled)),
                ),
            ),
            named(
                "conversations of datagrams never go",
                [DIRECT_DNS_A, DIRECT_DNS_B, DIRECT_DNS_A, DIRECT_DNS_B]
                    .into_iter()
                    .zip(1_500..)
                    .fold(full(), |row, (server, port)| {
                        row.send(dns(port, server).first())
                            .change(move |lab| lab.age((CLIENT.0, port), 1))
                            .send(conversing(dns(port, server).request(5), server))
                    })
                    .change(fill_spill)
                    .send(flow(4).client(SYN).dropped(Reason::TableFull)),
            ),
            // The row's usual client in one bucket with three others.
            assure(
                named(
                    "whoever may still receive stays, half-closed",
                    full()
                        .sends(TALK.begun())
                        .change(|lab| lab.age(CLIENT, 1))
                        .send(TALK.request(5))
                        .send(fin())
                        .sends(unassured(1..4)),
                ),
                1..4,
            )
            .change(fill_spill)
            .send(flow(4).client(SYN).dropped(Reason::TableFull))
            .send(TALK.client(ACK))
            .change(|lab| lab.age(CLIENT, 5))
            .send(in_place_of(flow(4).at(DIRECT_B).syn(), State::Closed)),
            named(
                "an unassured flow that ended gives its place at once",
                full()
                    .sends(TALK.begun())
                    .send(fin())
                    .sends(unassured(1..4))
                    .send(in_place_of(flow(4).syn(), State::Closed)),
            ),
            silent(
                named(
                    "a SYN of which nothing more was heard blames nobody",
                    full().send(flow(0).syn()),
                ),
                false,
            )
            .from("whether the server answered is not seen"),
            silent(
                named(
                    "a SYN that was repeated in vain blames the server",
                    full()
                        .send(flow(0).syn())
                        .send(flow(0).client(SYN).also(because(Reason::SynRepeated))),
                ),
                true,
            ),
        ],
    )
}

fn unassured_flag(lab: &mut Lab, wanted: bool) -> Result<(), String> {
    let mut flags = Vec::new();
    lab.edit(client(0), |way, _| {
        flags.push(way.meta & lb_common::flow::meta::UNASSURED != 0);
    });
    if flags == [wanted] {
        Ok(())
    } else {
        Err(format!("unassured: {flags:?}, expected {wanted}"))
    }
}
