//! Cases of the flow's life: how it begins, goes on and ends.

use super::{Case, Cell, Column, NO_END};
use lb_common::{abi::backend_flags, reason::Reason, tcp::State};
use steerline_tests::packets::{
    Class::Short,
    Counter, Lab, Row, Step,
    flag::{ACK, FIN, RST, SYN},
    moves::{because, ends, fails, goes, once, opens, opens_datagram, reports},
    scene::Server,
};

pub(super) const CASES: &[Case] = &[
    ("first packet", |c, row| Ok(row.send(c.talk.first()))),
    ("the server's answer", |c, row| {
        Ok(row.send(c.talk.first()).send(c.talk.answer()))
    }),
    ("the client's end of the handshake", |c, row| {
        if c.is_udp() {
            return Err("no handshake");
        }
        Ok(row.sends(c.talk.begun()))
    }),
    ("the first packet repeated", first_repeated),
    ("the client's data", |c, row| {
        Ok(row
            .sends(c.talk.begun())
            .send(c.talk.request(1))
            .send(c.talk.request(700)))
    }),
    ("the server's data", |c, row| {
        Ok(row
            .sends(c.talk.begun())
            .send(c.talk.response(1))
            .send(c.talk.response(1_400)))
    }),
    ("data repeated", |c, row| {
        Ok(row
            .sends(c.talk.begun())
            .sends([c.talk.request(9), c.talk.request(9)])
            .sends([c.talk.response(9), c.talk.response(9)]))
    }),
    ("a tick later it is a conversation", |c, row| {
        let step = c.talk.request(5);
        let step = if c.is_udp() && c.is_direct() {
            step.also(goes(State::Datagram, State::Conversing))
                .also(once(Counter::HalfClosed(c.talk.server.index)))
                .also(once(Counter::Opened(c.talk.server.index)))
        } else {
            step
        };
        Ok(row
            .sends(c.talk.begun())
            .change(move |lab| lab.age(c.talk.client, 1))
            .send(step)
            .send(c.talk.request(6)))
    }),
    ("the client's FIN", |c, row| {
        Ok(row.sends(c.talk.begun()).send(client_fin(c)?))
    }),
    ("the client's FIN repeated", |c, row| {
        Ok(row
            .sends(c.talk.begun())
            .send(client_fin(c)?)
            .send(c.talk.client(FIN | ACK))
            .send(c.talk.client(ACK)))
    }),
    ("the server's FIN", |c, row| {
        Ok(row.sends(c.talk.begun()).send(server_fin(c)?))
    }),
    ("both FINs", |c, row| {
        Ok(row
            .sends(c.talk.begun())
            .send(client_fin(c)?)
            .send(last_fin(c))
            .send(c.talk.client(ACK)))
    }),
    ("the client's RST", |c, row| {
        if c.is_udp() {
            return Err(NO_END);
        }
        let index = c.talk.server.index;
        Ok(row.sends(c.talk.begun()).send(
            c.talk
                .client(RST | ACK)
                .also(ends(index, State::Established, State::Reset))
                .also(reports(index, Short)),
        ))
    }),
    ("the client's RST of the handshake", |c, row| {
        if c.is_udp() {
            return Err("no handshake");
        }
        Ok(row.send(c.talk.first()).send(
            c.talk
                .client(RST)
                .also(goes(State::HalfOpen, State::Closed))
                .also(once(Counter::HalfClosed(c.talk.server.index))),
        ))
    }),
    ("the server's RST", |c, row| {
        if c.is_udp() {
            return Err(NO_END);
        }
        let step = c.talk.server(RST | ACK);
        let index = c.talk.server.index;
        Ok(row.sends(c.talk.begun()).send(if c.is_direct() {
            step
        } else {
            step.also(ends(index, State::Established, State::Reset))
                .also(fails(index, Short))
        }))
    }),
    ("the port reused, the tuple over", |c, row| {
        let row = row.sends(c.talk.begun()).send(client_fin(c)?);
        Ok(row
            .send(last_fin(c))
            .send(
                c.other
                    .client(SYN)
                    .also(opens(c.other.server.index))
                    .also([(Counter::flows(State::Closed), -1)]),
            )
            .sends(c.other.begun().into_iter().skip(1)))
    }),
    ("the port reused, the tuple live", |c, row| {
        let again = if c.is_udp() {
            c.talk.request(20)
        } else {
            c.talk.client(SYN)
        };
        Ok(row
            .sends(c.talk.begun())
            .send(again)
            .send(c.talk.request(3)))
    }),
    ("the server is down: the flow stays", |c, row| {
        let server = c.talk.server;
        Ok(row
            .sends(c.talk.begun())
            .change(move |lab| lab.down(&[server]))
            .send(c.talk.request(7))
            .send(c.talk.response(7)))
    }),
    ("weight 0: the flow stays", |c, row| {
        let server = c.talk.server;
        Ok(row
            .sends(c.talk.begun())
            .change(move |lab| lab.backend(server, |b| b.weight = 0))
            .send(c.talk.request(7))
            .send(c.talk.response(7)))
    }),
    ("the server is removed", removed),
    ("removed, its answer late", removed_late),
    ("removed, and nobody else is left", |c, row| {
        let (server, other) = (c.talk.server, c.other.server);
        let row = row.sends(c.talk.begun()).change(move |lab| {
            remove(lab, server);
            lab.down(&[other]);
        });
        Ok(if c.is_udp() {
            row.send(c.talk.request(7).dropped(Reason::NoBackend))
        } else {
            row.send(c.talk.request(7))
        })
    }),
    ("unanswered, and its server went down", |c, row| {
        let server = c.talk.server;
        let row = row
            .send(c.talk.first())
            .change(move |lab| lab.down(&[server]));
        Ok(if c.is_udp() {
            row.send(c.talk.request(20))
        } else {
            row.send(
                c.other
                    .client(SYN)
                    .also(opens(c.other.server.index))
                    .also(once(Counter::HalfClosed(server.index)))
                    .also([(Counter::flows(State::HalfOpen), -1)]),
            )
        })
    }),
    ("no server may take it", |c, row| {
        Ok(row
            .change(move |lab| lab.down(&c.servers()))
            .send(c.talk.request_to_open().dropped(Reason::NoBackend)))
    }),
    ("a port that no service has", |c, row| {
        let elsewhere = c.talk.to((c.talk.vip.0, 4_711));
        Ok(row.send(elsewhere.request_to_open().passed(Reason::PassedNoService)))
    }),
    ("the server's packet of no flow", |c, row| {
        Ok(row
            .send(c.talk.response(30).passed(Reason::PassedNoService))
            .sends(c.talk.begun())
            .send(
                c.talk
                    .response(30)
                    .with(|f| f.destination.1 += 1)
                    .passed(Reason::PassedNoService),
            ))
    }),
    ("no configuration", |c, row| {
        Ok(row
            .change(|lab| lab.settings(|s| s.layout = 0))
            .send(c.talk.request_to_open().passed(Reason::PassedNotReady)))
    }),
    ("two flows in turn", |c, row| {
        let (address, port) = c.talk.client;
        let second = c.other.from((address, port + 1));
        Ok(row
            .sends(c.talk.begun())
            .sends(second.begun())
            .send(c.talk.request(4))
            .send(second.request(4)))
    }),
];

fn first_repeated(c: Column, row: Row) -> Cell {
    Ok(if c.is_udp() {
        row.send(c.talk.first()).send(c.talk.request(20))
    } else {
        row.send(c.talk.first())
            .send(c.talk.client(SYN).also(because(Reason::SynRepeated)))
    })
}

fn client_fin(c: Column) -> Result<Step, &'static str> {
    let index = c.talk.server.index;
    let step = c.talk.client(FIN | ACK);
    match (c.is_udp(), c.is_direct()) {
        (true, _) => Err(NO_END),
        (false, false) => Ok(step.also(goes(State::Established, State::ClientFin))),
        (false, true) => Ok(step
            .also(ends(index, State::Established, State::Closed))
            .also(reports(index, Short))),
    }
}

fn server_fin(c: Column) -> Result<Step, &'static str> {
    let step = c.talk.server(FIN | ACK);
    match (c.is_udp(), c.is_direct()) {
        (true, _) => Err(NO_END),
        (false, false) => Ok(step
            .also(goes(State::Established, State::ServerFin))
            .also(reports(c.talk.server.index, Short))),
        (false, true) => Ok(step),
    }
}

/// The server's FIN after the client's.
fn last_fin(c: Column) -> Step {
    let step = c.talk.server(FIN | ACK);
    let index = c.talk.server.index;
    if c.is_direct() {
        step
    } else {
        step.also(ends(index, State::ClientFin, State::Closed))
            .also(reports(index, Short))
    }
}

/// What the controller does to a server that is no longer configured.
fn remove(lab: &mut Lab, server: Server) {
    lab.backend(server, |b| {
        b.flags = backend_flags::PRESENT | backend_flags::REMOVED;
        b.weight = 0;
    });
}

/// The datagram with which a flow leaves its removed server for another one.
fn picked_again(c: Column) -> Step {
    let (old, new) = (c.talk.server.index, c.other.server.index);
    let (state, left) = if c.is_direct() {
        (State::Datagram, Counter::HalfClosed(old))
    } else {
        (State::Conversing, Counter::Closed(old))
    };
    c.other
        .request(20)
        .also(opens_datagram(new))
        .also([(Counter::flows(state), -1), (left, 1)])
}

/// kubernetes#76664, keepalived#1781: datagrams have no end to wait for.
fn removed(c: Column, row: Row) -> Cell {
    let server = c.talk.server;
    let row = row
        .from("kubernetes#76664, keepalived#1781; kube-router#413")
        .sends(c.talk.begun())
        .change(move |lab| remove(lab, server));
    Ok(if c.is_udp() {
        row.send(picked_again(c)).send(c.other.answer())
    } else {
        row.send(c.talk.request(7))
            .send(c.talk.response(7))
            .send(client_fin(c)?)
    })
}

/// An answer of the old server, after the flow went to another one.
fn removed_late(c: Column, row: Row) -> Cell {
    let server = c.talk.server;
    let row = row
        .sends(c.talk.begun())
        .change(move |lab| remove(lab, server));
    Ok(if c.is_udp() {
        row.send(picked_again(c))
            .send(c.talk.response(9).passed(Reason::PassedNoService))
    } else {
        row.send(c.talk.response(9))
    })
}
