//! Opening flows, and what opens none.

use lb_common::{reason::Reason, tcp::State};
use steerline_tests::packets::{
    Counter, Group, Row, Talk,
    flag::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG},
    moves::{because, establishes, goes, opens},
    scene::{A, ANY, ANY_SERVER, B, C, CLIENT, EMPTY, EXACT, EXACT_SERVER, WEB},
    v4,
};

const TALK: Talk = Talk::web(CLIENT.1, A);

/// A SYN on a half-open flow to A that goes to B instead.
fn moved_on() -> Vec<(Counter, i64)> {
    let mut all = opens(B.index);
    all.extend([
        (Counter::HalfClosed(A.index), 1),
        (Counter::flows(State::HalfOpen), -1),
    ]);
    all
}

/// A SYN on a lingering flow that gives its place.
fn replaced(backend: u16, old: State) -> Vec<(Counter, i64)> {
    let mut all = opens(backend);
    all.push((Counter::flows(old), -1));
    all
}

/// From the first SYN to data, and every way to come back.
pub(crate) fn group() -> Group {
    let again = Talk { server: B, ..TALK };
    Group::new(
        "handshake",
        vec![
            Row::new("SYN opens a flow to the first server")
                .from("katran Base: 192.168.1.1:31337 to 10.200.1.1:80, tcp")
                .send(TALK.syn()),
            Row::new("SYN with ECN set-up opens a flow")
                .from("RFC 3168 section 6.1.1")
                .send(TALK.client(SYN | ECE | CWR).also(opens(A.index))),
            Row::new("SYN with data opens a flow (RFC 7413)")
                .send(TALK.client(SYN | PSH).payload(32).also(opens(A.index))),
            Row::new("SYN repeated goes to the same server")
                .from("katran#14: retried SYNs are counted apart")
                .send(TALK.syn())
                .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
                .send(TALK.client(SYN).also(because(Reason::SynRepeated))),
            Row::new("SYN-ACK comes back from the service's address").sends(TALK.answered()),
            Row::new("SYN-ACK repeated")
                .sends(TALK.answered())
                .send(TALK.server(SYN | ACK)),
            Row::new("SYN repeated after the answer is no unanswered one")
                .sends(TALK.answered())
                .send(TALK.client(SYN)),
            Row::new("the client's ACK completes the handshake").sends(TALK.handshake()),
            Row::new("the client's first data completes it as well")
                .sends(TALK.answered())
                .send(
                    TALK.client(ACK | PSH)
                        .payload(11)
                        .also(establishes(A.index)),
                ),
            Row::new("the server's data completes it when the ACK was lost before us")
                .sends(TALK.answered())
                .send(
                    TALK.server(ACK | PSH)
                        .payload(11)
                        .also(establishes(A.index)),
                ),
            Row::new("a bare ACK of the server does not")
                .sends(TALK.answered())
                .send(TALK.server(ACK)),
            Row::new("an ACK before the answer changes nothing")
                .send(TALK.syn())
                .send(TALK.client(ACK)),
            Row::new("data in both directions")
                .sends(TALK.handshake())
                .send(TALK.client(ACK | PSH).payload(100))
                .send(TALK.server(ACK))
                .send(TALK.server(ACK | PSH).payload(1_000))
                .send(TALK.client(ACK)),
            Row::new("a flow stays on its server while others come")
                .from("eunomia-bpf/bpf-developer-tutorial#175")
                .sends(TALK.handshake())
                .sends(Talk::web(40_001, B).handshake())
                .sends(Talk::web(40_002, C).handshake())
                .send(TALK.client(ACK).payload(1))
                .send(Talk::web(40_001, B).client(ACK).payload(1))
                .send(Talk::web(40_002, C).client(ACK).payload(1))
                .send(TALK.server(ACK).payload(1)),
            Row::new("two addresses with one port are two flows")
                .sends(TALK.handshake())
                .sends(
                    Talk::web(CLIENT.1, B)
                        .from((v4([192, 168, 1, 2]), CLIENT.1))
                        .handshake(),
                ),
            Row::new("every port of a service with port 0")
                .from("katran Base: 192.168.1.1:31337 to 10.200.1.2:42")
                .sends(
                    Talk::new(CLIENT.1, ANY, ANY_SERVER)
                        .to((ANY.endpoint.0, 42))
                        .handshake(),
                ),
            Row::new("two ports of such a service cannot share a server for one client endpoint")
                .sends(
                    Talk::new(CLIENT.1, ANY, ANY_SERVER)
                        .to((ANY.endpoint.0, 42))
                        .handshake(),
                )
                .send(
                    Talk::new(CLIENT.1, ANY, ANY_SERVER)
                        .to((ANY.endpoint.0, 43))
                        .client(SYN)
                        .dropped(Reason::TupleCollision),
                ),
            Row::new("the exact port comes before every port")
                .sends(Talk::new(CLIENT.1, EXACT, EXACT_SERVER).handshake()),
            Row::new("SYN on a closed flow begins a new one")
                .from("kubernetes#81775: one client reuses its ports")
                .sends(TALK.handshake())
                .send(
                    TALK.client(FIN | ACK)
                        .also(goes(State::Established, State::ClientFin)),
                )
                .send(
                    TALK.server(FIN | ACK)
                        .also(goes(State::ClientFin, State::Closed))
                        .also(steerline_tests::packets::moves::reports(
                            A.index,
                            steerline_tests::packets::Class::Short,
                        ))
                        .also([(Counter::Closed(A.index), 1)]),
                )
                .send(again.client(SYN).also(replaced(B.index, State::Closed)))
                .send(again.syn_ack())
                .send(again.ack()),
            Row::new("SYN on a flow that the client gave up begins a new one")
                .send(TALK.syn())
                .send(
                    TALK.client(RST)
                        .also(goes(State::HalfOpen, State::Closed))
                        .also([(Counter::HalfClosed(A.index), 1)]),
                )
                .send(again.client(SYN).also(replaced(B.index, State::Closed))),
            Row::new("SYN on a live flow is forwarded and changes nothing")
                .from("RFC 5961 section 4: the server answers with a challenge ACK")
                .sends(TALK.handshake())
                .send(TALK.client(SYN))
                .send(TALK.server(ACK))
                .send(TALK.client(ACK).payload(5)),
            Row::new("SYN on a live flow of a server that is down goes there all the same")
                .sends(TALK.handshake())
                .change(|lab| lab.down(&[A]))
                .send(TALK.client(SYN)),
            Row::new("SYN on a half-open flow of a server that went down picks again")
                .from("cilium#32472")
                .send(TALK.syn())
                .change(|lab| lab.down(&[A]))
                .send(again.client(SYN).also(moved_on()))
                .send(again.syn_ack())
                .send(again.ack()),
            Row::new("SYN on a half-open flow of a server of weight 0 picks again")
                .from("cilium#32472")
                .send(TALK.syn())
                .change(|lab| lab.backend(A, |a| a.weight = 0))
                .send(again.client(SYN).also(moved_on())),
            Row::new("the server that did not answer in time is charged when it is left")
                .send(TALK.syn())
                .change(|lab| {
                    lab.down(&[A]);
                    lab.age(CLIENT, 100);
                })
                .send(
                    again
                        .client(SYN)
                        .also(moved_on())
                        .also([(Counter::SynTimeouts(A.index), 1)]),
                ),
            Row::new("SYN on a half-open flow with nobody else left is dropped, the flow kept")
                .send(TALK.syn())
                .change(|lab| lab.down(&[A, B, C]))
                .send(TALK.client(SYN).dropped(Reason::NoBackend))
                .send(TALK.syn_ack()),
            Row::new("SYN on an answered flow of a server that went down stays")
                .sends(TALK.answered())
                .change(|lab| lab.down(&[A]))
                .send(TALK.client(SYN))
                .send(TALK.ack()),
            Row::new("a server that is down keeps its flows")
                .from("acassen/keepalived#1757, kube-router#413: draining")
                .sends(TALK.handshake())
                .change(|lab| {
                    lab.down(&[A]);
                    lab.backend(A, |a| a.weight = 0);
                })
                .send(TALK.client(ACK).payload(10))
                .send(TALK.server(ACK).payload(10)),
            Row::new("the down flag is obeyed on the next packet")
                .send(TALK.syn())
                .change(|lab| lab.down(&[B]))
                .send(Talk::web(40_001, C).syn()),
            Row::new("weight 0 is obeyed on the next packet")
                .from("cilium test/l4lb/test.sh; acassen/keepalived#1757")
                .send(TALK.syn())
                .change(|lab| lab.backend(B, |b| b.weight = 0))
                .send(Talk::web(40_001, C).syn()),
            Row::new("an index that is not in use takes nothing")
                .change(|lab| lab.backend(A, |a| a.flags = 2))
                .send(Talk::web(CLIENT.1, B).syn()),
            Row::new("all down: no backend")
                .from("cilium xdp_nodeport_lb4_test.c: no backend is a drop")
                .change(|lab| lab.down(&[A, B, C]))
                .send(TALK.client(SYN).dropped(Reason::NoBackend)),
            Row::new("the last server comes back")
                .from("cilium#31840")
                .change(|lab| lab.down(&[A, B, C]))
                .send(TALK.client(SYN).dropped(Reason::NoBackend))
                .change(|lab| lab.backend(C, |c| c.flags = 3))
                .send(Talk::web(CLIENT.1, C).syn()),
            Row::new("a service without members: no backend").send(
                Talk::new(CLIENT.1, EMPTY, A)
                    .client(SYN)
                    .dropped(Reason::NoBackend),
            ),
            Row::new("no configuration: all is passed")
                .change(|lab| lab.settings(|s| s.layout = 0))
                .send(TALK.client(SYN).passed(Reason::PassedNotReady))
                .send(TALK.client(ACK).passed(Reason::PassedNotReady)),
            Row::new("another version's configuration: all is passed")
                .change(|lab| lab.settings(|s| s.layout += 1))
                .send(TALK.client(SYN).passed(Reason::PassedNotReady)),
        ],
    )
}

/// What comes to a service without a flow and is no SYN.
pub(crate) fn refusals() -> Group {
    let rows = [
        ("ACK", ACK),
        ("data", ACK | PSH),
        ("FIN", FIN),
        ("FIN-ACK", FIN | ACK),
        ("RST", RST),
        ("RST-ACK", RST | ACK),
        ("SYN-ACK", SYN | ACK),
        ("SYN+FIN", SYN | FIN),
        ("SYN+RST", SYN | RST),
        ("all flags", FIN | SYN | RST | PSH | ACK | URG | ECE | CWR),
        ("no flag at all", 0),
        ("xmas tree", FIN | PSH | URG),
    ];
    let mut all: Vec<Row> = rows
        .into_iter()
        .map(|(name, flags)| {
            Row::new(format!("{name} to a service is dropped"))
                .send(TALK.client(flags).dropped(Reason::NoFlow))
        })
        .collect();
    all.push(
        Row::new("another client's ACK belongs to no flow")
            .sends(TALK.handshake())
            .send(
                Talk::web(CLIENT.1 + 1, A)
                    .client(ACK)
                    .dropped(Reason::NoFlow),
            ),
    );
    all.push(
        Row::new("the client's ACK to another port of the address belongs to no flow")
            .sends(
                Talk::new(CLIENT.1, ANY, ANY_SERVER)
                    .to((ANY.endpoint.0, 42))
                    .handshake(),
            )
            .send(
                Talk::new(CLIENT.1, ANY, ANY_SERVER)
                    .to((ANY.endpoint.0, 43))
                    .client(ACK)
                    .dropped(Reason::NoFlow),
            ),
    );
    all.push(
        Row::new("a port of the address that no service has is the kernel's")
            .from("katran Base: non-VIP is passed")
            .send(
                TALK.to((WEB.endpoint.0, 81))
                    .client(SYN)
                    .passed(Reason::PassedNoService),
            )
            .send(
                TALK.to((WEB.endpoint.0, 81))
                    .client(ACK)
                    .passed(Reason::PassedNoService),
            ),
    );
    Group::new("no flow", all)
}
