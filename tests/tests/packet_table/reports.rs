//! The teardown report: classes, failures, measurements.

use std::{cell::Cell, rc::Rc};

use lb_common::{
    abi::{Cold, Report, measure},
    tcp::State,
};
use steerline_tests::packets::{
    Class::{self, Long, Short},
    Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, FIN, PSH, RST, SYN},
    moves::{fails, goes, once, reports},
    now_us,
    scene::{A, CLIENT, WEB},
};

const TALK: Talk = Talk::web(CLIENT.1, A);
/// The scene's `short_flow_bytes`.
const LIMIT: u32 = 15_360;
/// First byte of the server's data.
const SERVER_START: u32 = 50_001;
const CLIENT_START: u32 = 1_001;

fn server_fin(class: Class, bytes: u32) -> Step {
    TALK.server(FIN | ACK)
        .with(|f| f.sequence = SERVER_START.wrapping_add(bytes))
        .also(goes(State::Established, State::ServerFin))
        .also(reports(A.index, class))
}

fn measures(what: u8) -> impl Fn(&mut Lab) {
    move |lab| lab.service(WEB, |web| web.measure = what)
}

/// Changes the cold half of the flow.
fn cold(lab: &mut Lab, change: impl Fn(&mut Cold)) {
    let found = lab.edit(CLIENT, |_, cold| change(cold));
    assert_eq!(found, 1);
}

/// The flow of the row ends, and its measurement is in this bucket.
fn ends_in_bucket(row: Row, bucket: usize) -> Row {
    let before = Rc::new(Cell::new(Report::default()));
    let kept = Rc::clone(&before);
    row.change(move |lab| kept.set(lab.snapshot().report(A.index)))
        .send(server_fin(Short, 0))
        .check(move |lab| {
            let (before, after) = (before.get(), lab.snapshot().report(A.index));
            let moved: Vec<usize> = (0..after.histogram.len())
                .filter(|place| after.histogram[*place] != before.histogram[*place])
                .collect();
            if moved == [bucket] {
                Ok(())
            } else {
                Err(format!(
                    "histogram: expected bucket {bucket}, got {moved:?}"
                ))
            }
        })
}

/// Everything that a flow's end leaves behind.
pub(crate) fn group() -> Group {
    let mut rows = vec![
        Row::new("one byte below the limit is short")
            .sends(TALK.handshake())
            .send(server_fin(Short, LIMIT - 1)),
        Row::new("the limit is long")
            .sends(TALK.handshake())
            .send(server_fin(Long, LIMIT)),
        Row::new("the FIN's own payload counts")
            .sends(TALK.handshake())
            .send(server_fin(Long, LIMIT - 100).payload(100)),
        Row::new("both directions count")
            .sends(TALK.handshake())
            .send(
                server_fin(Long, LIMIT - 400)
                    .with(|f| f.acknowledgement = CLIENT_START.wrapping_add(400)),
            ),
        Row::new("bytes are counted across the end of the sequence space")
            .send(TALK.syn())
            .send(TALK.syn_ack().with(|f| f.sequence = 0xffff_f000))
            .send(TALK.ack())
            .send(server_fin(Long, 0).with(|f| f.sequence = 0xffff_f001_u32.wrapping_add(LIMIT))),
        Row::new("the client's end counts alike")
            .sends(TALK.handshake())
            .send(
                TALK.client(FIN | ACK)
                    .also(goes(State::Established, State::ClientFin)),
            )
            .send(
                TALK.server(FIN | ACK)
                    .with(|f| f.acknowledgement = CLIENT_START.wrapping_add(LIMIT))
                    .also(goes(State::ClientFin, State::Closed))
                    .also(once(Counter::Closed(A.index)))
                    .also(reports(A.index, Long)),
            ),
        Row::new("long once is long for good")
            .sends(TALK.handshake())
            .change(|lab| lab.age(CLIENT, 8))
            .send(TALK.client(ACK).with(|f| f.sequence = CLIENT_START + LIMIT))
            .send(server_fin(Long, 0)),
        Row::new("within two seconds nothing is looked at")
            .sends(TALK.handshake())
            .change(|lab| lab.age(CLIENT, 7))
            .send(TALK.client(ACK | PSH).payload(100))
            .send(server_fin(Short, 0)),
        Row::new("a failure of a long flow")
            .sends(TALK.handshake())
            .send(
                TALK.server(RST | ACK)
                    .with(|f| f.sequence = SERVER_START + LIMIT)
                    .also(goes(State::Established, State::Reset))
                    .also(once(Counter::Closed(A.index)))
                    .also(fails(A.index, Long)),
            ),
        Row::new("short_flow_bytes 0: every flow is long")
            .change(|lab| lab.service(WEB, |web| web.short_flow_bytes = 0))
            .sends(TALK.handshake())
            .send(server_fin(Long, 0)),
        Row::new("syn-to-syn-ack is reported at the end")
            .change(measures(measure::SYN_TO_SYN_ACK))
            .sends(TALK.handshake())
            .send(server_fin(Short, 0)),
        Row::new("first-response")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.handshake())
            .send(TALK.client(ACK | PSH).payload(100))
            .send(TALK.server(ACK))
            .send(TALK.server(ACK | PSH).payload(500))
            .send(server_fin(Short, 500)),
        Row::new("first-response: no request, no measurement")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.handshake())
            .send(
                TALK.server(FIN | ACK)
                    .with(|f| f.sequence = SERVER_START)
                    .also(goes(State::Established, State::ServerFin)),
            ),
        Row::new("first-response: a greeting of the server is no response")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.handshake())
            .send(TALK.server(ACK | PSH).payload(50))
            .send(TALK.client(ACK | PSH).payload(10))
            .send(
                TALK.server(FIN | ACK)
                    .with(|f| f.sequence = SERVER_START + 50)
                    .also(goes(State::Established, State::ServerFin)),
            ),
        Row::new("first-response: a failure is a failure")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.handshake())
            .send(TALK.client(ACK | PSH).payload(100))
            .send(
                TALK.server(RST)
                    .with(|f| f.sequence = SERVER_START)
                    .also(goes(State::Established, State::Reset))
                    .also(once(Counter::Closed(A.index)))
                    .also(fails(A.index, Short)),
            ),
        Row::new("a SYN-ACK that is repeated does not change what was measured")
            .change(measures(measure::SYN_TO_SYN_ACK))
            .sends(TALK.answered())
            .send(TALK.server(SYN | ACK))
            .send(TALK.ack())
            .send(server_fin(Short, 0)),
    ];
    for (micros, bucket) in [
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
        (255, 7),
        (256, 8),
        (1_023, 9),
        (1_024, 10),
        (65_535, 15),
        (65_536, 16),
        (1_000_000, 19),
        ((1 << 31) - 1, 30),
        (1 << 31, 31),
        (u32::MAX, 31),
    ] {
        let row = Row::new(format!(
            "a measurement of {micros} µs is in bucket {bucket}"
        ))
        .change(measures(measure::SYN_TO_SYN_ACK))
        .sends(TALK.handshake())
        .change(move |lab| cold(lab, |cold| cold.syn_ack_us = micros));
        rows.push(ends_in_bucket(row, bucket));
    }
    let row = Row::new("syn-to-fin: from the SYN to the server's FIN")
        .sends(TALK.handshake())
        // Half way between the ends of the bucket: the run takes time itself.
        .change(|lab| cold(lab, |cold| cold.syn_us = now_us() - (3 << 19)));
    rows.push(ends_in_bucket(row, 20));
    let row = Row::new("first-response: from the request to the response")
        .change(measures(measure::FIRST_RESPONSE))
        .sends(TALK.handshake())
        .send(TALK.client(ACK | PSH).payload(100))
        .send(TALK.server(ACK | PSH).payload(500))
        .change(|lab| {
            cold(lab, |cold| {
                (cold.request_us, cold.response_us) = (5_000, 5_000 + 300)
            });
        });
    rows.push(ends_in_bucket(row, 8));
    let row = Row::new("a clock that ran backwards measures nothing, not an age")
        .sends(TALK.handshake())
        .change(|lab| cold(lab, |cold| cold.syn_us = now_us() + 60_000_000));
    rows.push(ends_in_bucket(row, 0));
    Group::new("reports", rows)
}
