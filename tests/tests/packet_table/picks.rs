//! Who gets a new flow.

use lb_common::{
    abi::{MAX_BACKENDS, algorithm},
    reason::Reason,
};
use steerline_tests::packets::{
    Counter, Group, Lab, Row, Step, Talk,
    flag::{ACK, SYN},
    moves::{because, opens},
    scene::{A, B, C, CLIENT, SHARED, SHARED_A, SHARED_D, Server, WEB},
    v4,
};

/// New flows of clients of their own, from port `first` on, each to the server
/// that is named.
fn flows_from(first: u16, servers: &[Server]) -> Vec<Step> {
    (first..)
        .zip(servers)
        .map(|(port, server)| Talk::web(port, *server).syn())
        .collect()
}

fn flows(servers: &[Server]) -> Vec<Step> {
    flows_from(20_000, servers)
}

/// A new flow that is a trial of `server`.
fn trial(port: u16, server: Server) -> Step {
    Talk::web(port, server)
        .client(SYN)
        .also(opens(server.index))
        .also(because(Reason::Trial))
        .also([(Counter::Trial(server.index), -1)])
}

fn weigh(lab: &mut Lab, weights: [u32; 3]) {
    let members: Vec<_> = [A, B, C].iter().map(|s| s.index).zip(weights).collect();
    for (server, weight) in [A, B, C].into_iter().zip(weights) {
        lab.backend(server, |backend| backend.weight = weight);
    }
    lab.publish(WEB, &members);
}

fn connections(lab: &mut Lab) {
    lab.service(WEB, |web| web.algorithm = algorithm::ACA_CONNECTIONS);
}

fn shares(lab: &mut Lab, ring: &[u16]) {
    lab.service(WEB, |web| web.algorithm = algorithm::ACA_SHARES);
    lab.publish_ring(WEB, ring);
}

/// The daemon's last sign of life is longer ago than its budgets last.
fn unattended(lab: &mut Lab) {
    lab.settings(|settings| {
        settings.heartbeat = settings.heartbeat.wrapping_sub(1_000) & 0xff_ffff
    });
}

/// `weighted-round-robin`.
pub(crate) fn round_robin() -> Group {
    Group::new(
        "round robin",
        vec![
            Row::new("one each in turn, the first server first")
                .from("IOS SLB; spec/seed-systems.md 4.3")
                .sends(flows(&[A, B, C, A, B, C, A])),
            Row::new("3:1:2 is AAABCC AAABCC")
                .from("IOS SLB; spec/seed-systems.md 4.3")
                .change(|lab| weigh(lab, [3, 1, 2]))
                .sends(flows(&[A, A, A, B, C, C, A, A, A, B, C, C])),
            Row::new("3:1:2 with B down is AAACC AAACC")
                .change(|lab| {
                    weigh(lab, [3, 1, 2]);
                    lab.down(&[B]);
                })
                .sends(flows(&[A, A, A, C, C, A, A, A, C, C])),
            Row::new("a run is left in the middle when its server goes down")
                .change(|lab| weigh(lab, [3, 1, 2]))
                .sends(flows_from(20_000, &[A, A]))
                .change(|lab| lab.down(&[A]))
                .sends(flows_from(20_010, &[B, C, C, B, C, C])),
            Row::new("two runs in a row are jumped")
                .change(|lab| {
                    weigh(lab, [2, 2, 2]);
                    lab.down(&[B, C]);
                })
                .sends(flows(&[A, A, A, A, A])),
            Row::new("weight 0 in the backend beats the published list")
                .change(|lab| {
                    weigh(lab, [3, 1, 2]);
                    lab.backend(A, |a| a.weight = 0);
                })
                .sends(flows(&[B, C, C, B, C, C])),
            Row::new("weight 0 in the list is no turn")
                .from("acassen/keepalived#1757")
                .change(|lab| weigh(lab, [1, 0, 2]))
                .sends(flows(&[A, C, C, A, C, C])),
            Row::new("the largest weights")
                .from("katran#35: any weights work")
                .change(|lab| {
                    weigh(lab, [1, 65_535, 1]);
                    lab.maps.cursors.write_word(0, 0, 65_534_u64);
                })
                .sends(flows(&[B, B, C, A, B])),
            Row::new("a change of weights elsewhere gives nobody a second turn")
                .from("envoy#14360")
                .change(|lab| weigh(lab, [3, 1, 2]))
                .sends(flows_from(20_000, &[A, A, A, B]))
                .change(|lab| weigh(lab, [5, 1, 2]))
                .sends(flows_from(20_010, &[C, C, A, A, A, A, A, B, C])),
            Row::new("the cursor wraps")
                .change(|lab| lab.maps.cursors.write_word(0, 0, u64::MAX))
                // 2^64 − 1 is a multiple of 3: A's turn, and then 0 is as well.
                .sends(flows(&[A, A, B, C])),
            Row::new("members of all weight 0: no backend")
                .change(|lab| weigh(lab, [0, 0, 0]))
                .send(
                    Talk::web(CLIENT.1, A)
                        .client(SYN)
                        .dropped(Reason::NoBackend),
                ),
            Row::new("a list that names an index beyond the table")
                .change(|lab| lab.publish(WEB, &[(MAX_BACKENDS as u16, 1), (A.index, 1)]))
                .sends(flows(&[A, A])),
            Row::new("an algorithm that this program does not know: no backend")
                .change(|lab| lab.service(WEB, |web| web.algorithm = 99))
                .send(
                    Talk::web(CLIENT.1, A)
                        .client(SYN)
                        .dropped(Reason::NoBackend),
                ),
        ],
    )
}

/// `aca`, both picks.
pub(crate) fn adaptive() -> Group {
    let ring = [A.index, B.index, A.index, C.index, A.index];
    Group::new(
        "aca",
        vec![
            Row::new("connections: alike servers take turns by their live flows")
                .change(connections)
                .sends(flows(&[A, B, C, A, B, C])),
            Row::new("connections: by weight, ties to the heavier, then in order")
                .change(|lab| {
                    connections(lab);
                    weigh(lab, [1, 2, 1]);
                })
                .sends(flows(&[B, B, A, C, B, B, A, C])),
            Row::new("connections: a server of twice the response time gets half")
                .change(|lab| {
                    connections(lab);
                    lab.backend(A, |a| a.relative = 512);
                })
                .sends(flows(&[B, C, A, B, C, B, C, A, B, C])),
            Row::new("connections: live flows count, half-open ones too")
                .change(|lab| {
                    connections(lab);
                    lab.live(A, |a| a.half_opened += 2);
                    lab.live(B, |b| b.opened += 1);
                })
                .sends(flows(&[C, B, C, A])),
            Row::new("connections: what closed does not count")
                .change(|lab| {
                    connections(lab);
                    lab.live(A, |a| {
                        (a.half_opened, a.half_closed, a.opened, a.closed) = (9, 9, 9, 9)
                    });
                })
                .sends(flows(&[A, B, C])),
            Row::new("connections: failures are held against a server")
                .from("ingress-nginx#9882: who fails fast must not look fast")
                .change(|lab| {
                    connections(lab);
                    lab.live(A, |a| (a.resets, a.syn_timeouts) = (1, 1));
                })
                .sends(flows(&[B, C, B, C, A, B, C])),
            Row::new("connections: what is forgiven is not")
                .change(|lab| {
                    connections(lab);
                    lab.live(A, |a| (a.resets, a.syn_timeouts, a.forgiven) = (1, 1, 2));
                })
                .sends(flows(&[A, B, C])),
            Row::new("connections: failures are not held when the daemon is dead")
                .change(|lab| {
                    connections(lab);
                    unattended(lab);
                    lab.live(A, |a| a.resets = 100);
                })
                .sends(flows(&[A, B, C])),
            Row::new("connections: books below zero count as none")
                .change(|lab| {
                    connections(lab);
                    lab.live(B, |b| b.half_closed = 1);
                })
                .sends(flows(&[A, B, B, C])),
            Row::new("connections: more failures forgiven than there were count as none")
                .change(|lab| {
                    connections(lab);
                    lab.live(B, |b| b.forgiven = 1);
                })
                .sends(flows(&[A, B, B, C])),
            Row::new("connections: down and weight 0 get nothing")
                .change(|lab| {
                    connections(lab);
                    lab.down(&[A]);
                    lab.backend(B, |b| b.weight = 0);
                })
                .sends(flows(&[C, C, C])),
            Row::new("connections: all down: no backend")
                .change(|lab| {
                    connections(lab);
                    lab.down(&[A, B, C]);
                })
                .send(
                    Talk::web(CLIENT.1, A)
                        .client(SYN)
                        .dropped(Reason::NoBackend),
                ),
            Row::new("connections: numbers at their ends")
                .change(|lab| {
                    connections(lab);
                    lab.backend(A, |a| (a.weight, a.relative) = (1, 65_535));
                    lab.live(A, |a| a.opened = 0xff_ffff);
                    lab.backend(B, |b| (b.weight, b.relative) = (65_535, 65_535));
                    lab.live(B, |b| b.opened = u64::from(u32::MAX));
                    lab.backend(C, |c| (c.weight, c.relative) = (1, 65_535));
                    lab.live(C, |c| c.opened = 300);
                })
                // The costs: 2^24 × 65,535, the same by 65,535, and 301 × 65,535.
                .sends(flows(&[B])),
            Row::new("connections: a trial goes first, once")
                .change(|lab| {
                    connections(lab);
                    lab.settings(|s| s.trials = 1);
                    lab.backend(C, |c| c.relative = 65_535);
                    lab.live(C, |c| c.trial = 1);
                })
                .send(trial(20_000, C))
                .sends(flows_from(20_001, &[A, B, A, B])),
            Row::new("connections: no trial unless the settings say so")
                .change(|lab| {
                    connections(lab);
                    lab.live(C, |c| c.trial = 1);
                })
                .sends(flows(&[A, B, C])),
            Row::new("connections: no trial when the daemon is dead")
                .change(|lab| {
                    connections(lab);
                    unattended(lab);
                    lab.settings(|s| s.trials = 1);
                    lab.live(C, |c| c.trial = 1);
                })
                .sends(flows(&[A, B, C])),
            Row::new("connections: no trial of a server that is down")
                .change(|lab| {
                    connections(lab);
                    lab.settings(|s| s.trials = 1);
                    lab.live(C, |c| c.trial = 1);
                    lab.down(&[C]);
                })
                .sends(flows(&[A, B])),
            Row::new("shares: the ring in its order, around and around")
                .change(move |lab| shares(lab, &ring))
                .sends(flows(&[A, B, A, C, A, A, B, A, C, A])),
            Row::new("shares: a refused slot draws again")
                .change(move |lab| {
                    shares(lab, &ring);
                    lab.down(&[A]);
                })
                .sends(flows(&[B, C, B, C])),
            Row::new("shares: a ring of refused servers: the list is searched")
                .change(|lab| {
                    shares(lab, &[A.index; 40]);
                    lab.down(&[A]);
                })
                .sends(flows(&[B, B])),
            Row::new("shares: no ring yet: the list is searched")
                .change(|lab| shares(lab, &[]))
                .sends(flows(&[A, A])),
            Row::new("shares: all down: no backend")
                .change(move |lab| {
                    shares(lab, &ring);
                    lab.down(&[A, B, C]);
                })
                .send(
                    Talk::web(CLIENT.1, A)
                        .client(SYN)
                        .dropped(Reason::NoBackend),
                ),
            Row::new("shares: a trial goes first, and the ring stays where it was")
                .change(move |lab| {
                    shares(lab, &ring);
                    lab.settings(|s| s.trials = 1);
                    lab.live(C, |c| c.trial = 1);
                })
                .send(trial(20_000, C))
                .sends(flows_from(20_001, &[A, B, A, C])),
        ],
    )
}

/// One client endpoint with two services that share a server.
pub(crate) fn collisions() -> Group {
    let first = Talk::web(CLIENT.1, A);
    let second = Talk::new(CLIENT.1, SHARED, SHARED_D);
    let again = Talk::new(CLIENT.1, SHARED, SHARED_A);
    let algorithms = [
        ("weighted round robin", algorithm::WEIGHTED_ROUND_ROBIN),
        ("aca connections", algorithm::ACA_CONNECTIONS),
        ("aca shares", algorithm::ACA_SHARES),
    ];
    let mut rows = vec![
        Row::new("another client goes to the shared server")
            .send(first.syn())
            .send(again.from((v4([192, 168, 1, 1]), CLIENT.1 + 1)).syn()),
        Row::new("another server: the replies of both are told apart")
            .sends(first.handshake())
            .sends(second.handshake())
            .send(first.client(ACK).payload(5))
            .send(second.client(ACK).payload(5))
            .send(first.server(ACK).payload(5))
            .send(second.server(ACK).payload(5)),
        Row::new("the pairing lasts while the first flow lingers")
            .sends(first.handshake())
            .change(|lab| {
                let found = lab.edit(CLIENT, |way, _| way.meta = way.meta & !0xf | 7);
                assert_eq!(found, 1);
                lab.live(A, |a| a.closed += 1);
            })
            .send(second.syn()),
        Row::new("a pairing elsewhere does not explain servers that are down")
            .send(first.syn())
            .change(|lab| lab.down(&[SHARED_A, SHARED_D]))
            .send(second.client(SYN).dropped(Reason::NoBackend)),
        Row::new("a SYN repeated on the first flow is no collision")
            .send(first.syn())
            .send(first.client(SYN).also(because(Reason::SynRepeated))),
        Row::new("the flow's own former self is no collision")
            .send(Talk::new(CLIENT.1, SHARED, SHARED_A).syn())
            .change(|lab| {
                lab.down(&[SHARED_D]);
                let found = lab.edit(CLIENT, |way, _| way.meta = way.meta & !0xf | 8);
                assert_eq!(found, 1);
                lab.live(SHARED_A, |a| a.half_closed += 1);
            })
            .send(
                again
                    .client(SYN)
                    .also(opens(SHARED_A.index))
                    .also([(Counter::flows(lb_common::tcp::State::Reset), -1)]),
            ),
    ];
    for (name, algorithm) in algorithms {
        rows.push(
            Row::new(format!(
                "{name}: the paired server is skipped, with none left dropped"
            ))
            .change(move |lab| {
                lab.service(SHARED, |shared| shared.algorithm = algorithm);
                lab.publish_ring(SHARED, &[SHARED_A.index, SHARED_D.index]);
            })
            .send(first.syn())
            .send(second.syn())
            .change(|lab| lab.down(&[SHARED_D, B, C]))
            .send(Talk::web(7, A).syn())
            .send(
                Talk::new(7, SHARED, SHARED_A)
                    .client(SYN)
                    .dropped(Reason::TupleCollision),
            ),
        );
    }
    Group::new("collisions", rows)
}
