//! The teardown report of flows whose servers are not seen.

use super::{CLIENT_START, SERVER_START, TALK, fin, fin_of};
use lb_common::{
    abi::{Cold, Report, measure},
    reason::Reason,
    tcp::State,
};
use std::{cell::Cell, rc::Rc};
use steerline_tests::packets::{
    Class::{Long, Short},
    Group, Lab, Row, Step,
    flag::{ACK, FIN, SYN},
    moves::{because, ends},
    now_us,
    scene::{CLIENT, DIRECT, DIRECT_A},
};

/// The scene's `short_flow_bytes`.
const LIMIT: u32 = 15_360;

fn measures(what: u8) -> impl Fn(&mut Lab) {
    move |lab| lab.service(DIRECT, |direct| direct.measure = what)
}

fn cold(lab: &mut Lab, change: impl Fn(&mut Cold)) {
    let found = lab.edit(CLIENT, |_, cold| change(cold));
    assert_eq!(found, 1);
}

/// This frame acknowledges so many bytes of the server.
fn acknowledging(step: Step, bytes: u32) -> Step {
    step.with(|f| f.acknowledgement = SERVER_START.wrapping_add(bytes))
}

/// The FIN of a flow that has no measurement.
fn unmeasured_fin() -> Step {
    TALK.client(FIN | ACK)
        .also(ends(DIRECT_A.index, State::Established, State::Closed))
}

/// The flow of the row ends, and its measurement is in this bucket.
fn ends_in_bucket(row: Row, bucket: usize) -> Row {
    let before = Rc::new(Cell::new(Report::default()));
    let kept = Rc::clone(&before);
    row.change(move |lab| kept.set(lab.snapshot().report(DIRECT_A.index)))
        .send(fin())
        .check(move |lab| {
            let (before, after) = (before.get(), lab.snapshot().report(DIRECT_A.index));
            let moved: Vec<usize> = (0..after.histogram.len())
                .filter(|place| after.histogram[*place] != before.histogram[*place])
                .collect();
            if moved == [bucket] {
                Ok(())
            } else {
                Err(format!("histogram: expected {bucket}, got {moved:?}"))
            }
        })
}

/// A flow whose first response took 700 µs of handshake, and this from the
/// request to its acknowledged answer.
fn responded(name: &'static str, took: u32, bucket: usize) -> Row {
    let row = Row::new(name)
        .change(measures(measure::FIRST_RESPONSE))
        .sends(TALK.begun())
        .send(TALK.request(100))
        .send(acknowledging(TALK.client(ACK), 500))
        .change(move |lab| {
            cold(lab, |cold| {
                cold.syn_ack_us = 700;
                (cold.request_us, cold.response_us) = (5_000, 5_000 + took);
            });
        });
    ends_in_bucket(row, bucket)
}

/// Everything that a flow's end leaves behind.
pub(crate) fn group() -> Group {
    let first_response = |name: &str| {
        Row::new(name)
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.begun())
    };
    let rows = vec![
        Row::new("one acknowledged byte below the limit is short")
            .sends(TALK.begun())
            .send(acknowledging(fin_of(Short), LIMIT - 1)),
        Row::new("the limit is long")
            .sends(TALK.begun())
            .send(acknowledging(fin_of(Long), LIMIT)),
        Row::new("the client's bytes count too")
            .sends(TALK.begun())
            .send(
                acknowledging(fin_of(Long), LIMIT - 100).with(|f| f.sequence = CLIENT_START + 100),
            ),
        Row::new("acknowledged bytes across the end of the sequence space")
            .send(TALK.syn())
            .send(TALK.direct_ack().with(|f| f.acknowledgement = 0xffff_f001))
            .send(fin_of(Long).with(|f| f.acknowledgement = 0xffff_f001_u32.wrapping_add(LIMIT))),
        Row::new("long once is long for good")
            .sends(TALK.begun())
            .change(|lab| lab.age(CLIENT, 1))
            .send(acknowledging(TALK.client(ACK), LIMIT))
            .send(fin_of(Long)),
        Row::new("first-response: reported at the client's FIN")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.begun())
            .send(TALK.request(100))
            .send(acknowledging(TALK.client(ACK), 500))
            .send(acknowledging(fin_of(Short), 500)),
        Row::new("first-response: acknowledged by the FIN itself")
            .change(measures(measure::FIRST_RESPONSE))
            .sends(TALK.begun())
            .send(TALK.request(100))
            .send(acknowledging(fin_of(Short), 500)),
        first_response("first-response: no request, no measurement").send(unmeasured_fin()),
        first_response("first-response: no answer, no measurement")
            .send(TALK.request(100))
            .send(TALK.client(ACK))
            .send(unmeasured_fin()),
        first_response("first-response: a request in the FIN is not answered any more")
            .send(unmeasured_fin().payload(9))
            .send(TALK.client(FIN | ACK).payload(9)),
        first_response("first-response: a greeting is no answer")
            .from("servers that speak first: SMTP, MySQL")
            .send(acknowledging(TALK.client(ACK), 50))
            .send(acknowledging(TALK.request(10), 50))
            .send(acknowledging(TALK.request(10), 50).with(|f| f.sequence = CLIENT_START + 10))
            .send(acknowledging(unmeasured_fin(), 50)),
        first_response("first-response: what comes after the greeting is")
            .send(acknowledging(TALK.client(ACK), 50))
            .send(acknowledging(TALK.request(10), 50))
            .send(acknowledging(TALK.client(ACK), 51))
            .send(acknowledging(fin_of(Short), 51)),
        Row::new("first-response: data of a repeated SYN has no answer in the handshake")
            .from("RFC 7413")
            .change(measures(measure::FIRST_RESPONSE))
            .send(TALK.syn().payload(30))
            .send(
                TALK.client(SYN)
                    .payload(30)
                    .also(because(Reason::SynRepeated)),
            )
            .send(TALK.direct_ack())
            .send(unmeasured_fin()),
        ends_in_bucket(
            Row::new("syn-to-fin: from the SYN to the client's FIN")
                .sends(TALK.begun())
                // Half way between the ends of the bucket: the run takes time.
                .change(|lab| cold(lab, |cold| cold.syn_us = now_us() - (3 << 19))),
            20,
        ),
        ends_in_bucket(
            Row::new("syn-to-syn-ack: from the SYN to the client's ACK")
                .change(measures(measure::SYN_TO_SYN_ACK))
                .sends(TALK.begun())
                .change(|lab| cold(lab, |cold| cold.syn_ack_us = 300)),
            8,
        ),
        responded("first-response: less the handshake's time", 1_000, 8),
        responded("first-response: within the handshake's time", 700, 0),
        responded("first-response: sooner than the handshake", 20, 0),
    ];
    Group::new("direct, reports", rows)
}
