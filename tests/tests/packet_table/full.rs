//! Full buckets: what goes, what stays, and where the rest is kept.

use lb_common::{
    abi::{Cold, SpillKey, Spilled4, Way},
    flow::meta,
    reason::Reason,
    tcp::State,
};
use steerline_tests::packets::{
    Class::Short,
    Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, FIN, SYN},
    moves::{because, goes, once, opens, reports},
    now,
    scene::{A, B, C, CLIENT, SHARED, SHARED_D},
};

use crate::SPILL;

/// One bucket of four ways is all there is.
pub(crate) fn one_bucket(lab: &mut Lab) {
    lab.settings(|settings| settings.bucket_mask4 = 0);
}

/// Fills the spill with established flows of nobody's.
pub(crate) fn fill_spill(lab: &mut Lab) {
    for slot in 0..u64::from(SPILL) {
        let client = 0xffff_0000_0000_0001 | slot << 16;
        let word = meta::with_tick(meta::with_state(0, State::Established), now());
        let way = Way {
            client,
            virtual_end: 0,
            meta: word,
            backend_end: 0,
        };
        let entry = Spilled4 {
            way,
            cold: Cold::default(),
        };
        lab.maps
            .spill4
            .insert(SpillKey { client, slot: 0 }, entry, 0)
            .expect("room in the spill");
    }
}

const FIRST: Talk = Talk::web(1_001, A);

/// Four established flows: a full bucket.
fn four() -> Vec<Step> {
    let mut steps = FIRST.handshake();
    steps.extend(Talk::web(1_002, B).handshake());
    steps.extend(Talk::web(1_003, C).handshake());
    steps.extend(Talk::web(1_004, A).handshake());
    steps
}

fn spilled(step: Step) -> Step {
    step.also(because(Reason::Spilled))
        .also(once(Counter::Spilled))
}

/// A new flow in place of an old one, without anything else.
fn in_place_of(step: Step, old: State) -> Step {
    step.also([(Counter::flows(old), -1)])
}

/// Everything about too little room.
pub(crate) fn group() -> Group {
    let fifth = Talk::web(1_005, B);
    let mut rows = vec![
        Row::new("the fifth flow of a bucket goes to the spill and works from there")
            .change(one_bucket)
            .sends(four())
            .send(spilled(fifth.syn()))
            .send(fifth.client(SYN).also(because(Reason::SynRepeated)))
            .send(fifth.syn_ack())
            .send(fifth.ack())
            .send(fifth.client(ACK).payload(100))
            .send(fifth.server(ACK).payload(100))
            .send(FIRST.client(ACK).payload(1))
            .send(FIRST.server(ACK).payload(1))
            .send(
                fifth
                    .client(FIN | ACK)
                    .also(goes(State::Established, State::ClientFin)),
            )
            .send(
                fifth
                    .server(FIN | ACK)
                    .also(goes(State::ClientFin, State::Closed))
                    .also(once(Counter::Closed(B.index)))
                    .also(reports(B.index, Short)),
            )
            .send(fifth.client(ACK)),
        Row::new("no flow is found in the spill for a stranger")
            .change(one_bucket)
            .sends(four())
            .send(spilled(fifth.syn()))
            .send(Talk::web(1_006, B).client(ACK).dropped(Reason::NoFlow))
            .send(
                fifth
                    .server(SYN | ACK)
                    .with(|f| f.source.1 += 1)
                    .passed(Reason::PassedNoService),
            ),
        Row::new("SYN on a flow of the spill that is over takes its place")
            .change(one_bucket)
            .sends(four())
            .send(spilled(fifth.syn()))
            .send(
                fifth
                    .client(steerline_tests::packets::flag::RST)
                    .also(goes(State::HalfOpen, State::Closed))
                    .also(once(Counter::HalfClosed(B.index))),
            )
            .send(in_place_of(Talk::web(1_005, C).syn(), State::Closed)),
        Row::new("one client endpoint spills with two services")
            .change(one_bucket)
            .sends(four())
            .send(spilled(fifth.syn()))
            // Of the shared service's two servers in turn: neither is B.
            .send(spilled(
                Talk::new(1_005, SHARED, steerline_tests::packets::scene::SHARED_A).syn(),
            ))
            .send(fifth.syn_ack())
            .send(Talk::new(1_005, SHARED, steerline_tests::packets::scene::SHARED_A).syn_ack()),
        Row::new("a pairing in the spill is a pairing")
            .change(|lab| {
                one_bucket(lab);
                lab.down(&[A, B]);
            })
            .sends((1_001..1_005).map(|port| Talk::web(port, C).syn()))
            .change(|lab| lab.backend(A, |a| a.flags = 3))
            .send(spilled(Talk::web(1_005, A).syn()))
            .send(spilled(Talk::new(1_005, SHARED, SHARED_D).syn())),
        Row::new("everything full of established flows: dropped, nothing evicted")
            .from("cilium#24177, cilium#20068: no live flow is pushed out")
            .change(one_bucket)
            .sends(four())
            .change(fill_spill)
            .send(fifth.client(SYN).dropped(Reason::TableFull))
            .send(FIRST.client(ACK).payload(1))
            .send(Talk::web(1_002, B).server(ACK).payload(1))
            .send(Talk::web(1_003, C).server(ACK).payload(1))
            .send(Talk::web(1_004, A).client(ACK).payload(1)),
        Row::new("a real spill filled flow by flow")
            .change(one_bucket)
            .sends(four())
            .sends((0..SPILL as u16).flat_map(|number| {
                let talk = Talk::web(2_000 + number, [B, C, A][usize::from(number % 3)]);
                let mut steps = vec![spilled(talk.syn())];
                steps.extend([talk.syn_ack(), talk.ack()]);
                steps
            }))
            .send(Talk::web(3_000, A).client(SYN).dropped(Reason::TableFull)),
        Row::new("closing flows are not evicted either")
            .change(one_bucket)
            .sends(four())
            .change(fill_spill)
            .send(
                FIRST
                    .client(FIN | ACK)
                    .also(goes(State::Established, State::ClientFin)),
            )
            .send(fifth.client(SYN).dropped(Reason::TableFull)),
        Row::new("a reset may be forged: its flow stays until its linger is over")
            .from("RFC 5961 section 3")
            .change(one_bucket)
            .sends(four())
            .change(fill_spill)
            .change(|lab| {
                lab.edit(FIRST.client, |way, _| {
                    way.meta = meta::with_state(way.meta, State::Reset);
                });
                lab.live(A, |a| a.closed += 1);
            })
            .send(fifth.client(SYN).dropped(Reason::TableFull))
            .change(|lab| lab.age(FIRST.client, 38))
            .send(in_place_of(Talk::web(1_006, C).syn(), State::Reset)),
        Row::new("a closed flow that lingers gives its place when the bucket has no other")
            .change(one_bucket)
            .sends(four())
            .change(|lab| {
                lab.edit(FIRST.client, |way, _| {
                    way.meta = meta::with_state(way.meta, State::Closed);
                });
                lab.live(A, |a| a.closed += 1);
            })
            .send(in_place_of(fifth.syn(), State::Closed)),
        Row::new("a half-open flow goes when everything is full")
            .change(one_bucket)
            .send(FIRST.syn())
            .sends(four().into_iter().skip(3).take(9))
            .change(fill_spill)
            .send(
                in_place_of(fifth.syn(), State::HalfOpen)
                    .also(because(Reason::EvictedHalfOpen))
                    .also(once(Counter::HalfClosed(A.index))),
            )
            .send(FIRST.client(ACK).dropped(Reason::NoFlow)),
        Row::new("an answered flow may go as well, the oldest first")
            .change(one_bucket)
            .sends(FIRST.answered())
            .send(Talk::web(1_002, B).syn())
            .sends(Talk::web(1_003, C).handshake())
            .sends(Talk::web(1_004, A).handshake())
            .change(fill_spill)
            .change(|lab| {
                lab.age(FIRST.client, 3);
                lab.age((CLIENT.0, 1_002), 2);
            })
            .send(
                in_place_of(fifth.syn(), State::Answered)
                    .also(because(Reason::EvictedHalfOpen))
                    .also(once(Counter::HalfClosed(A.index))),
            ),
        Row::new("a flow silent for its timeout gives its place")
            .from("katran#106: a timeout per state")
            .change(one_bucket)
            .sends(four())
            .change(|lab| lab.age(FIRST.client, 13_412))
            .send(
                in_place_of(fifth.syn(), State::Established).also(once(Counter::Closed(A.index))),
            ),
        Row::new("an idle flow shortly before its timeout does not")
            .change(one_bucket)
            .sends(four())
            .change(|lab| lab.age(FIRST.client, 13_400))
            .send(spilled(fifth.syn())),
        Row::new("a SYN that nobody answered in time gives its place and is charged")
            .change(one_bucket)
            .send(FIRST.syn())
            .sends(four().into_iter().skip(3).take(9))
            .change(|lab| lab.age(FIRST.client, 19))
            .send(in_place_of(fifth.syn(), State::HalfOpen).also([
                (Counter::HalfClosed(A.index), 1),
                (Counter::SynTimeouts(A.index), 1),
            ])),
        Row::new("what ended goes before what is silent")
            .change(one_bucket)
            .sends(four())
            .change(|lab| {
                lab.age(FIRST.client, 13_412);
                lab.edit((CLIENT.0, 1_002), |way, _| {
                    way.meta = meta::with_state(way.meta, State::Reset);
                });
                lab.age((CLIENT.0, 1_002), 38);
                lab.live(B, |b| b.closed += 1);
            })
            .send(in_place_of(fifth.syn(), State::Reset)),
        Row::new("a way that changed hands answers the new client only")
            .from("cilium#17729")
            .change(one_bucket)
            .sends(four())
            .change(|lab| lab.age(FIRST.client, 13_412))
            .send(in_place_of(fifth.syn(), State::Established).also(once(Counter::Closed(A.index))))
            .send(FIRST.client(ACK).dropped(Reason::NoFlow))
            .send(FIRST.server(ACK).passed(Reason::PassedNoService))
            .send(fifth.syn_ack()),
    ];
    // Both buckets of a flow: eight flows in a table of two.
    let servers = [A, B, C];
    let talks: Vec<Talk> = (0..8)
        .map(|number| Talk::web(5_000 + number, servers[usize::from(number % 3)]))
        .collect();
    rows.push(
        Row::new("two buckets hold eight flows, found from both sides")
            .change(|lab| lab.settings(|settings| settings.bucket_mask4 = 1))
            .sends(talks.iter().flat_map(Talk::handshake))
            .sends(talks.iter().map(|talk| talk.client(ACK).payload(3)))
            .sends(talks.iter().map(|talk| talk.server(ACK).payload(3)))
            .send(spilled(
                Talk::web(6_000, C).client(SYN).also(opens(C.index)),
            )),
    );
    Group::new("full", rows)
}
