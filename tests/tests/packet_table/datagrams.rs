//! UDP through `nat`: what the matrix does not say.

use lb_common::{
    abi::{backend_flags, measure},
    reason::Reason,
    tcp::State,
};
use steerline_tests::packets::{
    Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, SYN},
    moves::{answers, because, goes, once, opens_datagram},
    scene::{A, B, CLIENT, DNS, DNS_A, DNS_B, WEB},
    v4,
};

use crate::full::{fill_spill, one_bucket};

const TALK: Talk = Talk::new(CLIENT.1, DNS, DNS_A);
const OTHER: Talk = TALK.at(DNS_B);

fn remove_first(lab: &mut Lab) {
    lab.backend(DNS_A, |b| {
        b.flags = backend_flags::PRESENT | backend_flags::REMOVED;
    });
}

/// A datagram that opens a flow in place of a former one to the first server.
fn in_place(step: Step, state: State) -> Step {
    let left = if state == State::Datagram {
        Counter::HalfClosed(DNS_A.index)
    } else {
        Counter::Closed(DNS_A.index)
    };
    step.also([(Counter::flows(state), -1), (left, 1)])
}

/// Four answered flows: a full bucket that gives nothing.
fn four() -> Vec<Step> {
    (0..4)
        .flat_map(|number: u16| {
            let server = if number.is_multiple_of(2) {
                DNS_A
            } else {
                DNS_B
            };
            Talk::new(1_001 + number, DNS, server).begun()
        })
        .collect()
}

/// Everything that only datagrams do.
pub(crate) fn group() -> Group {
    Group::new(
        "datagrams",
        vec![
            Row::new("one report a flow, at the server's first datagram")
                .sends(TALK.begun())
                .sends((1..5).map(|length| TALK.response(length)))
                .sends((1..5).map(|length| TALK.request(length)))
                .change(|lab| lab.age(CLIENT, 1))
                .send(TALK.response(1))
                .send(TALK.request(1)),
            Row::new("first-response is reported as soon, once")
                .change(|lab| lab.service(DNS, |s| s.measure = measure::FIRST_RESPONSE))
                .sends(TALK.begun())
                .send(TALK.response(30))
                .send(TALK.request(30))
                .change(|lab| lab.age(CLIENT, 1))
                .send(TALK.response(30)),
            Row::new("first-response: an answer without data is one")
                .change(|lab| lab.service(DNS, |s| s.measure = measure::FIRST_RESPONSE))
                .send(TALK.first().payload(0))
                .send(TALK.answer().payload(0))
                .send(TALK.response(30)),
            Row::new("the server's datagram before the client's next")
                .send(TALK.first())
                .send(TALK.request(20))
                .change(|lab| lab.age(CLIENT, 3))
                .send(TALK.request(20))
                .send(TALK.answer()),
            Row::new("another port of the server belongs to no flow")
                .sends(TALK.begun())
                .send(
                    TALK.response(9)
                        .with(|f| f.source.1 += 1)
                        .passed(Reason::PassedNoService),
                ),
            Row::new("another server's datagram belongs to no flow")
                .sends(TALK.begun())
                .send(OTHER.response(9).passed(Reason::PassedNoService)),
            Row::new("one client endpoint with TCP and UDP")
                .sends(Talk::web(CLIENT.1, A).handshake())
                .sends(TALK.begun())
                .send(Talk::web(CLIENT.1, A).client(ACK).payload(5))
                .send(TALK.request(5))
                .send(Talk::web(CLIENT.1, A).server(ACK).payload(5))
                .send(TALK.response(5)),
            Row::new("a datagram to a TCP service's port is the kernel's").send(
                TALK.to(WEB.endpoint)
                    .request(5)
                    .passed(Reason::PassedNoService),
            ),
            Row::new("a SYN to a UDP service's port is the kernel's").send(
                Talk::web(CLIENT.1, A)
                    .to(DNS.endpoint)
                    .client(SYN)
                    .passed(Reason::PassedNoService),
            ),
            Row::new("source port 0 is a port")
                .from("RFC 768: the source port is optional")
                .sends(TALK.from((CLIENT.0, 0)).begun()),
            Row::new("an unanswered flow leaves its removed server")
                .from("kubernetes#76664")
                .send(TALK.first())
                .change(remove_first)
                .send(in_place(OTHER.first(), State::Datagram))
                .send(OTHER.answer()),
            Row::new("after the move, the new server's answer is reported too")
                .from("kubernetes#76664, kubernetes#71514")
                .sends(TALK.begun())
                .change(remove_first)
                .send(in_place(OTHER.first(), State::Conversing))
                .send(OTHER.answer())
                .send(OTHER.response(9)),
            Row::new("a server that is taken back keeps what it has")
                .sends(TALK.begun())
                .change(remove_first)
                .change(|lab| lab.backend(DNS_A, |b| b.flags = 3))
                .send(TALK.request(7))
                .send(TALK.response(7)),
            Row::new("an index that is not in use is left like a removed one")
                .sends(TALK.begun())
                .change(|lab| lab.backend(DNS_A, |b| b.flags = 0))
                .send(in_place(OTHER.first(), State::Conversing)),
            Row::new("a TCP flow of a removed server goes on, its neighbour's datagrams do not")
                .sends(Talk::web(CLIENT.1, A).handshake())
                .sends(TALK.begun())
                .change(remove_first)
                .change(|lab| {
                    lab.backend(A, |b| {
                        b.flags = backend_flags::PRESENT | backend_flags::REMOVED;
                    });
                })
                .send(Talk::web(CLIENT.1, A).client(ACK).payload(5))
                .send(Talk::web(CLIENT.1, A).server(ACK).payload(5))
                .send(in_place(OTHER.first(), State::Conversing)),
            Row::new("an unanswered flow goes when everything is full")
                .change(one_bucket)
                .send(Talk::new(1_001, DNS, DNS_A).first())
                .sends(four().into_iter().skip(2))
                .change(fill_spill)
                .send(
                    in_place(Talk::new(1_005, DNS, DNS_A).first(), State::Datagram)
                        .also(because(Reason::EvictedHalfOpen)),
                ),
            Row::new("answered ones do not")
                .change(one_bucket)
                .sends(four())
                .change(fill_spill)
                .send(
                    Talk::new(1_005, DNS, DNS_A)
                        .request(20)
                        .dropped(Reason::TableFull),
                )
                .send(Talk::new(1_001, DNS, DNS_A).request(2)),
            Row::new("the oldest of half-open TCP and unanswered UDP goes first")
                .change(one_bucket)
                .send(Talk::web(1_011, A).syn())
                .send(Talk::new(1_001, DNS, DNS_A).first())
                .sends(Talk::new(1_003, DNS, DNS_B).begun())
                .sends(Talk::new(1_004, DNS, DNS_A).begun())
                .change(fill_spill)
                .change(|lab| {
                    lab.age((CLIENT.0, 1_011), 2);
                    lab.age((CLIENT.0, 1_001), 3);
                })
                .send(
                    in_place(Talk::web(1_012, B).syn(), State::Datagram)
                        .also(because(Reason::EvictedHalfOpen)),
                ),
            Row::new("unanswered in time: its place is free, and it is no failure")
                .from("UDP has no handshake to fail")
                .change(one_bucket)
                .send(Talk::new(1_001, DNS, DNS_A).first())
                .sends(four().into_iter().skip(2))
                .change(|lab| lab.age((CLIENT.0, 1_001), 113))
                .send(in_place(
                    Talk::new(1_005, DNS, DNS_A).first(),
                    State::Datagram,
                )),
            Row::new("silent after the answer for two minutes: its place is free")
                .change(one_bucket)
                .sends(four())
                .change(|lab| lab.age((CLIENT.0, 1_001), 449))
                .send(in_place(
                    Talk::new(1_005, DNS, DNS_A).first(),
                    State::Conversing,
                )),
            Row::new("the fifth flow is served from the spill")
                .change(one_bucket)
                .sends(four())
                .send(
                    Talk::new(1_005, DNS, DNS_A)
                        .first()
                        .also(because(Reason::Spilled))
                        .also(once(Counter::Spilled)),
                )
                .send(Talk::new(1_005, DNS, DNS_A).answer())
                .send(Talk::new(1_005, DNS, DNS_A).request(9)),
            Row::new("datagrams prolong an unanswered flow, and count as one")
                .send(TALK.first())
                .change(|lab| lab.age(CLIENT, 100))
                .send(TALK.request(1))
                .check(|lab| {
                    let mut age = None;
                    lab.edit(CLIENT, |way, _| {
                        age = Some(lb_common::flow::meta::tick(way.meta));
                    });
                    let now = steerline_tests::packets::now();
                    match age {
                        Some(tick) if lb_common::abi::ticks_between(tick, now) < 50 => Ok(()),
                        other => Err(format!("noted at {other:?}, now {now}")),
                    }
                }),
            Row::new("the answer while two backends share no endpoint with TCP")
                .send(TALK.first())
                .send(
                    TALK.response(60)
                        .also(goes(State::Datagram, State::Conversing))
                        .also(answers(DNS_A.index).into_iter().skip(2)),
                ),
            Row::new("two clients in turn")
                .send(TALK.first())
                .send(OTHER.from((v4([192, 168, 1, 2]), CLIENT.1)).first())
                .send(
                    TALK.from((v4([192, 168, 1, 3]), CLIENT.1))
                        .request(20)
                        .also(opens_datagram(DNS_A.index)),
                ),
        ],
    )
}
