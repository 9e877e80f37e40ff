//! Budgets, SynGuard, reassignment and turns, as the loaded program obeys them.

use lb_common::{
    abi::{Budget, SynGuard, algorithm, budget_flags, measure},
    reason::Reason,
};
use steerline_tests::packets::{
    Class, Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, FIN, PSH, SYN},
    moves::{because, goes, opens},
    now,
    scene::{A, B, C, CLIENT, Server, WEB},
};

/// Sequence number of a server's first data.
const SERVER_START: u32 = 50_001;

const TALK: Talk = Talk::web(CLIENT.1, A);

/// New flows of clients of their own, each to the server that is named.
fn flows(servers: &[Server]) -> Vec<Step> {
    (20_000..)
        .zip(servers)
        .map(|(port, server)| Talk::web(port, *server).syn())
        .collect()
}

/// A new flow that goes to `server` against its budget.
fn overruled(port: u16, server: Server) -> Step {
    Talk::web(port, server)
        .client(SYN)
        .also(opens(server.index))
        .also(because(Reason::OverBudget))
}

/// Gives servers a budget that is valid for some seconds. `begun` counts from
/// what has begun.
fn budget(lab: &Lab, servers: &[Server], change: impl Fn(&mut Budget)) {
    for server in servers {
        let mut budget = Budget {
            expiry: (now() + 40) & lb_common::abi::TICK_MASK,
            ..Budget::default()
        };
        change(&mut budget);
        let begun = lab.maps.live.read(server.index.into()).half_opened;
        budget.begun += begun;
        lab.maps.budgets.write(server.index.into(), budget);
    }
}

fn begun(lab: &Lab, servers: &[Server], flows: u64) {
    budget(lab, servers, |budget| {
        (budget.flags, budget.begun) = (budget_flags::BEGUN, flows);
    });
}

fn maximum(lab: &Lab, servers: &[Server], flows: u32) {
    budget(lab, servers, |budget| {
        (budget.flags, budget.maximum) = (budget_flags::MAXIMUM, flows);
    });
}

/// Who gets flows under budgets.
pub(crate) fn budgets() -> Group {
    let mut rows = vec![
        Row::new("budget: two flows of this second, then the others'")
            .change(|lab| begun(lab, &[A], 2))
            .sends(flows(&[A, B, C, A, B, C, B, C, B, C])),
        Row::new("budget: a ceiling of flows at a time")
            .change(|lab| {
                budget(lab, &[B], |budget| {
                    (budget.flags, budget.ceiling) = (budget_flags::CEILING, 1);
                });
            })
            .sends(flows(&[A, B, C, A, C, A, C])),
        Row::new("budget: one that has expired limits nobody")
            .change(|lab| {
                budget(lab, &[A], |budget| {
                    budget.flags = budget_flags::BEGUN;
                    budget.expiry = now().wrapping_sub(1) & lb_common::abi::TICK_MASK;
                });
            })
            .sends(flows(&[A, B, C])),
        Row::new("budget: the daemon is dead, so it limits nobody")
            .change(|lab| {
                begun(lab, &[A], 0);
                lab.settings(|s| s.heartbeat = s.heartbeat.wrapping_sub(1_000) & 0xff_ffff);
            })
            .sends(flows(&[A, B, C])),
        Row::new("budget: where all are spared nobody is")
            .from("design 3.3: serve anyway and count it")
            .change(|lab| begun(lab, &[A, B, C], 0))
            .sends([
                overruled(20_000, A),
                overruled(20_001, B),
                overruled(20_002, C),
            ]),
        Row::new("budget: a maximum is one, whoever is spared")
            .change(|lab| {
                maximum(lab, &[A, B], 0);
                begun(lab, &[C], 1);
            })
            .sends(flows(&[C]))
            .send(overruled(20_009, C)),
        Row::new("budget: all at their maximum")
            .change(|lab| maximum(lab, &[A, B, C], 1))
            .sends(flows(&[A, B, C]))
            .send(Talk::web(20_009, A).client(SYN).dropped(Reason::AtMaximum)),
        Row::new("budget: dummies count for least connections")
            .change(|lab| {
                lab.service(WEB, |web| {
                    web.algorithm = algorithm::WEIGHTED_LEAST_CONNECTIONS
                });
                budget(lab, &[A], |budget| budget.dummies = 2);
            })
            .sends(flows(&[B, C, B, C, A, B, C])),
    ];
    for (name, algorithm) in [
        ("connections", algorithm::ACA_CONNECTIONS),
        ("least connections", algorithm::WEIGHTED_LEAST_CONNECTIONS),
    ] {
        rows.push(
            Row::new(format!("budget: {name} pass a spared one over"))
                .change(move |lab| {
                    lab.service(WEB, |web| web.algorithm = algorithm);
                    begun(lab, &[A], 1);
                })
                .sends(flows(&[A, B, C, B, C])),
        );
    }
    rows.push(
        Row::new("budget: the ring passes a spared one over")
            .change(|lab| {
                lab.service(WEB, |web| web.algorithm = algorithm::ACA_SHARES);
                lab.publish_ring(WEB, &[A.index, A.index, B.index]);
                begun(lab, &[A], 1);
            })
            .sends(flows(&[A, B, B])),
    );
    Group::new("budgets", rows)
}

/// SYNs that are dropped, moved, or answered.
pub(crate) fn syns() -> Group {
    let guard = |unanswered| {
        move |lab: &mut Lab| {
            let guard = SynGuard {
                unanswered,
                // Longer than a row takes.
                interval_us: 4_000_000_000,
                ..SynGuard::default()
            };
            lab.maps.syn_guards.write(WEB.index, guard);
        }
    };
    let dropped = |port| Talk::web(port, A).client(SYN).dropped(Reason::SynGuard);
    let reassign = |lab: &mut Lab| lab.service(WEB, |web| web.reassign = 3);
    let moved = Talk { server: B, ..TALK };
    Group::new(
        "SYNs",
        vec![
            Row::new("SynGuard: two unanswered ones, and no more")
                .from("IOS SLB; spec/seed-systems.md 4.3")
                .change(guard(2))
                .sends(flows(&[A, B]))
                .send(dropped(20_002))
                .send(dropped(20_003)),
            Row::new("SynGuard: an answer frees a place")
                .change(guard(2))
                .sends(TALK.answered())
                .sends(flows(&[B, C]))
                .send(dropped(20_002)),
            Row::new("SynGuard: off")
                .change(guard(0))
                .sends(flows(&[A, B, C, A, B])),
            Row::new("reassign: the fourth SYN goes to another server")
                .from("IOS SLB; spec/seed-systems.md 4.3, 4.5")
                .change(reassign)
                .send(TALK.syn())
                .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
                .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
                .send(
                    moved
                        .client(SYN)
                        .also(because(Reason::NewFlow))
                        .also(because(Reason::Reassigned))
                        .also([
                            (Counter::HalfOpened(B.index), 1),
                            (Counter::HalfClosed(A.index), 1),
                            (Counter::SynTimeouts(A.index), 1),
                        ]),
                ),
            Row::new("reassign: there is no other server")
                .change(reassign)
                .change(|lab| lab.down(&[B, C]))
                .send(TALK.syn())
                .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
                .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
                .send(
                    TALK.client(SYN)
                        .also(because(Reason::NewFlow))
                        .also(because(Reason::Reassigned))
                        .also([
                            (Counter::HalfOpened(A.index), 1),
                            (Counter::HalfClosed(A.index), 1),
                            (Counter::SynTimeouts(A.index), 1),
                        ]),
                ),
            Row::new("reassign: an answered one stays")
                .change(reassign)
                .sends(TALK.answered())
                .send(TALK.client(SYN))
                .send(TALK.client(SYN))
                .send(TALK.client(SYN)),
        ],
    )
}

/// `request-to-response`.
pub(crate) fn turns() -> Group {
    let measured = |step: Step| {
        step.also([
            (Counter::Measured(A.index, Class::Short), 1),
            (Counter::Histogram(A.index), 1),
        ])
    };
    let request = |at: u32| {
        TALK.client(ACK | PSH)
            .payload(100)
            .with(move |f| f.sequence = f.sequence.wrapping_add(at))
    };
    let response = |at: u32| {
        TALK.server(ACK | PSH)
            .payload(200)
            .with(move |f| f.sequence = f.sequence.wrapping_add(at))
    };
    Group::new(
        "turns",
        vec![
            Row::new("request-to-response: every turn is measured, the end is not")
                .change(|lab| lab.service(WEB, |web| web.measure = measure::REQUEST_TO_RESPONSE))
                .sends(TALK.handshake())
                .send(request(0))
                .send(request(100))
                .send(measured(response(0)))
                .send(response(200))
                .send(request(200))
                .send(measured(response(400)))
                .send(
                    TALK.server(FIN | ACK)
                        .with(|f| f.sequence = SERVER_START + 600)
                        .also(goes(
                            lb_common::tcp::State::Established,
                            lb_common::tcp::State::ServerFin,
                        )),
                ),
        ],
    )
}
