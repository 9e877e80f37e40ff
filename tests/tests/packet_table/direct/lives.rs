//! Ends that may be forged, and flows that share servers with others.

use super::{CLIENT_START, OTHER, TALK, fin, fin_of, in_place_of};
use lb_common::{abi::ticks_between, flow::meta, reason::Reason, tcp::State};
use steerline_tests::packets::{
    Class::{self, Long, Short},
    Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, FIN, PSH, RST, SYN},
    moves::{because, ends, goes, once, opens, reports, restores},
    now,
    scene::{A, CLIENT, DIRECT, DIRECT_A, DIRECT_B, DIRECT_DNS, DIRECT_DNS_A, DNS, DNS_A, WEB},
    v4,
};

/// The client's segment of data from `first` on.
fn data(first: u32, length: usize) -> Step {
    TALK.client(ACK | PSH)
        .payload(length)
        .with(|f| f.sequence = first)
}

fn restored(step: Step, from: State) -> Step {
    step.also(restores(DIRECT_A.index, from))
}

fn fin_at(sequence: u32, class: Class) -> Step {
    fin_of(class).with(|f| f.sequence = sequence)
}

fn rst() -> Step {
    TALK.client(RST)
        .also(ends(DIRECT_A.index, State::Established, State::Reset))
        .also(reports(DIRECT_A.index, Short))
}

/// The flow was noted at most so many ticks ago.
fn heard_lately(lab: &mut Lab) -> Result<(), String> {
    let mut noted = None;
    lab.edit(CLIENT, |way, _| noted = Some(meta::tick(way.meta)));
    let now = now();
    match noted {
        Some(tick) if ticks_between(tick, now) < 10 => Ok(()),
        other => Err(format!("noted at {other:?}, now {now}")),
    }
}

/// A server that two services share: one sees itself, the other the service.
fn shared() -> Vec<Row> {
    let pairs = [
        (
            "TCP",
            Talk::new(CLIENT.1, WEB, A),
            Talk::new(CLIENT.1, DIRECT, DIRECT_A),
        ),
        (
            "UDP",
            Talk::new(CLIENT.1, DNS, DNS_A),
            Talk::new(CLIENT.1, DIRECT_DNS, DIRECT_DNS_A),
        ),
    ];
    let rows = pairs.into_iter().map(|(name, nat, direct)| {
        [("nat first", nat, direct), ("direct first", direct, nat)].map(|(order, first, second)| {
            Row::new(format!(
                "one client endpoint and one server, nat and direct at once: {name}, {order}"
            ))
            .sends(first.begun())
            .sends(second.begun())
            .send(nat.request(5))
            .send(nat.response(5))
            .send(direct.response(5))
            .send(nat.response(6))
        })
    });
    rows.flatten().collect()
}

/// Everything about a flow's course.
pub(crate) fn group() -> Group {
    let mut rows = shared();
    rows.extend([
        Row::new("a FIN that carries the first request ends it as well")
            .sends(TALK.begun())
            .send(fin().payload(40))
            .send(TALK.client(FIN | ACK).payload(40)),
        Row::new("FIN of a handshake whose ACK was lost before us")
            .send(TALK.syn())
            .send(
                TALK.client(FIN | ACK)
                    .also(goes(State::HalfOpen, State::Closed))
                    .also(once(Counter::HalfClosed(DIRECT_A.index)))
                    .also(reports(DIRECT_A.index, Short)),
            ),
        Row::new("the first data completes the handshake as well")
            .send(TALK.syn())
            .send(TALK.direct_ack().payload(30)),
        Row::new("SYN-ACK and bare segments of the client complete nothing")
            .send(TALK.syn())
            .send(TALK.client(SYN | ACK))
            .send(TALK.client(0))
            .send(TALK.client(PSH).payload(3)),
        Row::new("a blind FIN: data beyond it brings the flow back")
            .from("RFC 5961 section 3, for FIN")
            .sends(TALK.begun())
            .send(fin())
            .send(restored(data(CLIENT_START, 9), State::Closed))
            .send(data(CLIENT_START + 9, 9)),
        Row::new("a blind RST: data beyond it brings the flow back")
            .from("RFC 5961 section 3")
            .sends(TALK.begun())
            .send(rst())
            .send(restored(data(CLIENT_START, 9), State::Reset)),
        Row::new("data up to the end is old data")
            .sends(TALK.begun())
            .send(fin_at(CLIENT_START + 100, Short))
            .send(data(CLIENT_START, 100))
            .send(data(CLIENT_START + 99, 1))
            .send(restored(data(CLIENT_START + 99, 2), State::Closed)),
        Row::new("data of a window before the end is old data")
            .sends(TALK.begun())
            .send(fin_at(CLIENT_START.wrapping_add(1 << 30), Long))
            .send(data(CLIENT_START, 9)),
        Row::new("a blind FIN further ahead than any window")
            .from("RFC 7323 section 2.3: no window is larger than 2^30")
            .sends(TALK.begun())
            .send(fin_at(CLIENT_START.wrapping_add((1 << 30) + 10), Long))
            .send(restored(data(CLIENT_START, 9), State::Closed)),
        Row::new("a blind FIN far behind")
            .sends(TALK.begun())
            .send(fin_at(CLIENT_START.wrapping_sub(1 << 30), Short))
            .send(restored(data(CLIENT_START, 9), State::Closed)),
        Row::new("a blind RST half way around the sequence space")
            .sends(TALK.begun())
            .send(rst().with(|f| f.sequence = CLIENT_START.wrapping_add(1 << 31)))
            .send(restored(data(CLIENT_START, 9), State::Reset)),
        Row::new("the end lies across the end of the sequence space")
            .sends(TALK.begun())
            .send(fin_at(u32::MAX, Short).payload(2))
            .send(data(u32::MAX, 2))
            .send(restored(data(u32::MAX, 3), State::Closed)),
        Row::new("neither ACK, FIN, RST nor a SYN in place of data brings it back")
            .sends(TALK.begun())
            .send(fin())
            .send(TALK.client(ACK))
            .send(TALK.client(FIN | ACK).payload(9))
            .send(TALK.client(RST | ACK).payload(9))
            .send(TALK.client(PSH).payload(9)),
        Row::new("what came back is not reported again, and ends again")
            .sends(TALK.begun())
            .send(fin())
            .send(restored(data(CLIENT_START, 9), State::Closed))
            .send(
                TALK.client(FIN | ACK)
                    .with(|f| f.sequence = CLIENT_START + 9)
                    .also(ends(DIRECT_A.index, State::Established, State::Closed)),
            )
            .send(data(CLIENT_START, 9))
            .send(restored(data(CLIENT_START + 9, 1), State::Closed)),
        Row::new("a client that gave up and then sends data: an unassured flow")
            .send(TALK.syn())
            .send(
                TALK.client(RST)
                    .also(goes(State::HalfOpen, State::Closed))
                    .also(once(Counter::HalfClosed(DIRECT_A.index))),
            )
            .send(restored(data(CLIENT_START, 9), State::Closed)),
        Row::new("whoever still receives prolongs the linger")
            .from("half-closed connections: the server goes on after the client's FIN")
            .sends(TALK.begun())
            .send(fin())
            .change(|lab| lab.age(CLIENT, 30))
            .send(TALK.client(ACK))
            .check(heard_lately),
        Row::new("the same after a reset")
            .sends(TALK.begun())
            .send(rst())
            .change(|lab| lab.age(CLIENT, 30))
            .send(TALK.client(ACK))
            .check(heard_lately),
        Row::new("SYN on a flow that was reset begins a new one")
            .from("kubernetes#81775, cilium#20407")
            .sends(TALK.begun())
            .send(rst())
            .send(in_place_of(
                OTHER.client(SYN).also(opens(DIRECT_B.index)),
                State::Reset,
            )),
        Row::new("SYN on a closed flow of a server that is down goes to another")
            .from("cilium#20407")
            .sends(TALK.begun())
            .send(fin())
            .change(|lab| lab.down(&[DIRECT_A]))
            .send(in_place_of(OTHER.syn(), State::Closed)),
        Row::new("an unanswered SYN of a server of weight 0 picks again")
            .from("cilium#32472")
            .send(TALK.syn())
            .change(|lab| lab.backend(DIRECT_A, |a| a.weight = 0))
            .send(
                in_place_of(OTHER.syn(), State::HalfOpen)
                    .also(once(Counter::HalfClosed(DIRECT_A.index))),
            ),
        Row::new("SYN repeated is counted")
            .send(TALK.syn())
            .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
            .send(TALK.direct_ack())
            .send(TALK.client(SYN)),
        Row::new("no packet of nobody's endpoint is a server's")
            .from("the filter has false positives: 0.0.0.0 may look like one of ours")
            .change(|lab| {
                let word = lab.maps.filter.read(0);
                lab.maps.filter.write(0, word | 1);
            })
            .sends(TALK.begun())
            .send(
                TALK.server(ACK)
                    .with(|f| f.source = (v4([0; 4]), 0))
                    .passed(Reason::PassedNoService),
            ),
    ]);
    Group::new("direct", rows)
}
