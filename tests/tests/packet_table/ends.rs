//! How flows end, and come back.

use lb_common::{reason::Reason, tcp::State};
use steerline_tests::packets::{
    Class::Short,
    Counter, Group, Row, Step, Talk,
    flag::{ACK, FIN, PSH, RST, SYN},
    moves::{because, fails, goes, once, reports},
    scene::{A, CLIENT},
};

const TALK: Talk = Talk::web(CLIENT.1, A);

fn client_fin() -> Step {
    TALK.client(FIN | ACK)
        .also(goes(State::Established, State::ClientFin))
}

fn server_fin() -> Step {
    TALK.server(FIN | ACK)
        .also(goes(State::Established, State::ServerFin))
        .also(reports(A.index, Short))
}

/// The second FIN: the client's.
fn client_closes() -> Step {
    TALK.client(FIN | ACK)
        .also(goes(State::ServerFin, State::Closed))
        .also(once(Counter::Closed(A.index)))
}

/// The second FIN: the server's.
fn server_closes() -> Step {
    TALK.server(FIN | ACK)
        .also(goes(State::ClientFin, State::Closed))
        .also(once(Counter::Closed(A.index)))
        .also(reports(A.index, Short))
}

/// A reset on a flow past its handshake.
fn reset(step: Step, from: State) -> Step {
    step.also(goes(from, State::Reset))
        .also(once(Counter::Closed(A.index)))
}

/// A reset of a handshake.
fn refusal(step: Step, from: State) -> Step {
    step.also(goes(from, State::Reset))
        .also(once(Counter::HalfClosed(A.index)))
}

/// A client's reset before the handshake's end: over for good, since nothing
/// that a client sends alone may make a lasting flow.
fn given_up(step: Step, from: State) -> Step {
    step.also(goes(from, State::Closed))
        .also(once(Counter::HalfClosed(A.index)))
}

fn restored(step: Step, to: State) -> Step {
    step.also(goes(State::Reset, to))
        .also(because(Reason::Restored))
        .also(once(Counter::Opened(A.index)))
}

/// Every end of a flow.
pub(crate) fn group() -> Group {
    let server_reset =
        || reset(TALK.server(RST | ACK), State::Established).also(fails(A.index, Short));
    let client_reset =
        || reset(TALK.client(RST | ACK), State::Established).also(reports(A.index, Short));
    Group::new(
        "ends",
        vec![
            Row::new("the client closes first")
                .sends(TALK.handshake())
                .send(client_fin())
                .send(TALK.server(ACK))
                .send(TALK.server(ACK | PSH).payload(500))
                .send(TALK.client(ACK))
                .send(server_closes())
                .send(TALK.client(ACK)),
            Row::new("the server closes first")
                .sends(TALK.handshake())
                .send(server_fin())
                .send(TALK.client(ACK))
                .send(TALK.client(ACK | PSH).payload(500))
                .send(TALK.server(ACK))
                .send(client_closes())
                .send(TALK.server(ACK)),
            Row::new("FINs repeated are forwarded and count nothing")
                .sends(TALK.handshake())
                .send(client_fin())
                .send(TALK.client(FIN | ACK))
                .send(server_closes())
                .send(TALK.server(FIN | ACK))
                .send(TALK.client(FIN | ACK)),
            Row::new("the last FIN carries data")
                .sends(TALK.handshake())
                .send(server_fin().payload(300))
                .send(client_closes().payload(3)),
            Row::new("FIN completes the handshake of a client that sends nothing else")
                .sends(TALK.answered())
                .send(
                    TALK.client(FIN | ACK)
                        .also(goes(State::Answered, State::ClientFin))
                        .also([
                            (Counter::HalfClosed(A.index), 1),
                            (Counter::Opened(A.index), 1),
                        ]),
                )
                .send(server_closes()),
            Row::new("the server refuses")
                .send(TALK.syn())
                .send(refusal(TALK.server(RST | ACK), State::HalfOpen).also(fails(A.index, Short))),
            Row::new("the server refuses after its answer")
                .sends(TALK.answered())
                .send(refusal(TALK.server(RST), State::Answered).also(fails(A.index, Short))),
            Row::new("the client gives up before any answer: says nothing of the server")
                .send(TALK.syn())
                .send(given_up(TALK.client(RST), State::HalfOpen)),
            Row::new("the client gives up after the answer")
                .sends(TALK.answered())
                .send(given_up(TALK.client(RST), State::Answered)),
            Row::new("the server resets a flow: a failure")
                .sends(TALK.handshake())
                .send(server_reset()),
            Row::new("the client resets a flow: an end")
                .sends(TALK.handshake())
                .send(client_reset()),
            Row::new("RST without ACK resets as well")
                .sends(TALK.handshake())
                .send(reset(TALK.server(RST), State::Established).also(fails(A.index, Short))),
            Row::new("a failure is counted once")
                .sends(TALK.handshake())
                .send(server_reset())
                .send(TALK.server(RST | ACK))
                .send(TALK.server(RST)),
            Row::new("a reset after the client's FIN is no failure")
                .sends(TALK.handshake())
                .send(client_fin())
                .send(
                    reset(TALK.server(RST | ACK), State::ClientFin).also(reports(A.index, Short)),
                ),
            Row::new("a reset after the server's own FIN was reported already")
                .sends(TALK.handshake())
                .send(server_fin())
                .send(reset(TALK.server(RST), State::ServerFin)),
            Row::new("the client resets after the server's FIN")
                .sends(TALK.handshake())
                .send(server_fin())
                .send(reset(TALK.client(RST), State::ServerFin)),
            Row::new("the client resets after its own FIN")
                .sends(TALK.handshake())
                .send(client_fin())
                .send(reset(TALK.client(RST), State::ClientFin).also(reports(A.index, Short))),
            Row::new("a reset seemingly of the server: its data brings the flow back")
                .from("RFC 5961 section 3")
                .sends(TALK.handshake())
                .send(server_reset())
                .send(restored(TALK.server(ACK).payload(9), State::Established))
                .send(TALK.client(ACK))
                .send(TALK.client(ACK).payload(4)),
            Row::new("a reset seemingly of the client: its data brings the flow back")
                .from("RFC 5961 section 3")
                .sends(TALK.handshake())
                .send(client_reset())
                .send(restored(TALK.client(ACK).payload(9), State::Established))
                .send(TALK.server(ACK)),
            Row::new("a bare ACK of the same side brings it back as well")
                .sends(TALK.handshake())
                .send(client_reset())
                .send(restored(TALK.client(ACK), State::Established)),
            Row::new("FIN of the same side brings it back, closing")
                .sends(TALK.handshake())
                .send(client_reset())
                .send(restored(TALK.client(FIN | ACK), State::ClientFin)),
            Row::new("what came back is not reported again")
                .sends(TALK.handshake())
                .send(server_reset())
                .send(restored(TALK.server(ACK), State::Established))
                .send(client_fin())
                .send(
                    TALK.server(FIN | ACK)
                        .also(goes(State::ClientFin, State::Closed))
                        .also(once(Counter::Closed(A.index))),
                ),
            Row::new("a second reset of what came back is booked, reported no more")
                .sends(TALK.handshake())
                .send(server_reset())
                .send(restored(TALK.server(ACK), State::Established))
                .send(reset(TALK.server(RST), State::Established)),
            Row::new("data towards the side that reset brings nothing back")
                .sends(TALK.handshake())
                .send(server_reset())
                .send(TALK.client(ACK).payload(9))
                .send(TALK.client(FIN | ACK)),
            Row::new("data from the server after the client's reset brings nothing back")
                .sends(TALK.handshake())
                .send(client_reset())
                .send(TALK.server(ACK).payload(9)),
            Row::new("what a client sends after giving up restores nothing")
                .from("RFC 5961: a forged SYN, RST and ACK made a flow of an hour")
                .send(TALK.syn())
                .send(given_up(TALK.client(RST), State::HalfOpen))
                .send(TALK.client(ACK))
                .send(TALK.client(ACK).payload(7)),
            Row::new("a blind ACK completes no handshake")
                .from("RFC 5961: who forged the SYN does not see the server's number")
                .sends(TALK.answered())
                .send(
                    TALK.client(ACK)
                        .with(|frame| frame.acknowledgement = 0x4000_0000),
                )
                .send(TALK.ack()),
            Row::new("SYN-ACK of a client that gave up is forwarded, the flow over")
                .send(TALK.syn())
                .send(given_up(TALK.client(RST), State::HalfOpen))
                .send(TALK.server(SYN | ACK)),
            Row::new("nothing reopens a closed flow but a SYN")
                .sends(TALK.handshake())
                .send(client_fin())
                .send(server_closes())
                .send(TALK.client(ACK).payload(7))
                .send(TALK.server(ACK).payload(7))
                .send(TALK.server(RST))
                .send(TALK.client(RST)),
        ],
    )
}
