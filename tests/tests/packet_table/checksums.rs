//! Checksums at their edges, the time to live, and what must stay as it is.

use steerline_tests::packets::{
    Frame, Group, Reply, Row, Step, Talk,
    flag::{ACK, CWR, ECE, PSH, SYN, URG},
    scene::{A, CLIENT},
    v4,
};

const TALK: Talk = Talk::web(CLIENT.1, A);
const IP_CHECKSUM: usize = 24;
const TCP_CHECKSUM: usize = 50;

/// A client's frame as the server gets it, for its checksums.
fn at_server(frame: &Frame) -> Frame {
    frame.clone().with(|frame| {
        frame.destination = A.endpoint;
        frame.ttl -= 1;
    })
}

/// A server's frame as the client gets it.
fn at_client(frame: &Frame) -> Frame {
    frame.clone().with(|frame| {
        frame.source = TALK.vip;
        frame.ttl -= 1;
    })
}

fn established(name: String) -> Row {
    Row::new(name).sends(TALK.handshake())
}

fn client_data() -> Step {
    TALK.client(ACK | PSH).payload(11)
}

fn server_data() -> Step {
    TALK.server(ACK | PSH).payload(11)
}

/// Everything about bytes 0 to 54 of a frame that is not a length.
pub(crate) fn group() -> Group {
    let mut rows = Vec::new();

    // Eqn. 3 of RFC 1624 and its trap, 0x0000 against 0xffff; one less than the
    // decrement of the time to live, which adds 0x0100, and one more.
    for sum in [
        0x0000, 0x0001, 0x00ff, 0x0100, 0xfeff, 0xff00, 0xff01, 0xfffe_u16,
    ] {
        rows.push(
            established(format!("IP checksum {sum:#06x} coming in, and going out"))
                .from("RFC 1624 section 4, RFC 1141 for the time to live")
                .send(client_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_identification(|f| f.checksums().0 == sum);
                }))
                .send(client_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_identification(|f| at_server(f).checksums().0 == sum);
                }))
                .send(server_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_identification(|f| f.checksums().0 == sum);
                }))
                .send(server_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_identification(|f| at_client(f).checksums().0 == sum);
                })),
        );
        rows.push(
            established(format!("TCP checksum {sum:#06x} coming in, and going out"))
                .from("RFC 1624 section 4")
                .send(client_data().with(|frame| {
                    *frame = frame.clone().seek_sequence(|f| f.checksums().1 == sum);
                }))
                .send(client_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_sequence(|f| at_server(f).checksums().1 == sum);
                }))
                .send(server_data().with(|frame| {
                    *frame = frame.clone().seek_sequence(|f| f.checksums().1 == sum);
                }))
                .send(server_data().with(|frame| {
                    *frame = frame
                        .clone()
                        .seek_sequence(|f| at_client(f).checksums().1 == sum);
                })),
        );
    }
    rows.push(
        established("an IP checksum of 0xffff in place of 0x0000".into())
            .from("RFC 1624 section 3: both are zero, receivers take both")
            .send(
                client_data()
                    .with(|f| {
                        *f = f.clone().seek_identification(|f| f.checksums().0 == 0);
                    })
                    .patch(IP_CHECKSUM, &[0xff, 0xff]),
            ),
    );
    rows.push(
        established("a TCP checksum of 0xffff in place of 0x0000".into())
            .from("RFC 1624 section 3")
            .send(
                client_data()
                    .with(|f| *f = f.clone().seek_sequence(|f| f.checksums().1 == 0))
                    .patch(TCP_CHECKSUM, &[0xff, 0xff]),
            )
            .send(
                server_data()
                    .with(|f| *f = f.clone().seek_sequence(|f| f.checksums().1 == 0))
                    .patch(TCP_CHECKSUM, &[0xff, 0xff]),
            ),
    );
    for error in [0x0001, 0x0100, 0x1234, 0x8000, 0xfffe_u16] {
        rows.push(
            Row::new(format!(
                "checksums wrong by {error:#06x} stay wrong by as much"
            ))
            .from("eunomia-bpf/bpf-developer-tutorial#175; xdp-tutorial#160: update, never repair")
            .send(TALK.syn().with(|f| f.tcp_error = error))
            .send(TALK.syn_ack().with(|f| f.tcp_error = error))
            .send(TALK.ack())
            .send(client_data().with(|f| f.tcp_error = error))
            .send(server_data().with(|f| f.tcp_error = error))
            .send(client_data().with(|f| f.ip_error = error))
            .send(server_data().with(|f| f.ip_error = error)),
        );
    }
    rows.push(
        Row::new("many flows, each with its own sums").sends((0..90).map(|number: u16| {
            let (server, port) = (
                [
                    A,
                    steerline_tests::packets::scene::B,
                    steerline_tests::packets::scene::C,
                ][usize::from(number % 3)],
                1_024 + number * 613,
            );
            Talk::web(port, server)
                .from((v4([192, 168, 1, (number * 7) as u8]), port))
                .syn()
                .with(|f| {
                    f.sequence = u32::from(number).wrapping_mul(0x9e37_79b1);
                    f.identification = number.wrapping_mul(0x3d0b);
                })
        })),
    );

    for ttl in [0, 1] {
        rows.push(
            Row::new(format!("SYN with a time to live of {ttl} opens nothing"))
                .from("a flow that no server hears of must not be charged to one as a SYN timeout")
                .send(
                    TALK.client(SYN)
                        .with(|f| f.ttl = ttl)
                        .replied(Reply::TimeExceeded(TALK.vip.0)),
                )
                .send(TALK.syn()),
        );
        rows.push(
            established(format!("a time to live of {ttl} ends here"))
                .send(
                    client_data()
                        .with(|f| f.ttl = ttl)
                        .replied(Reply::TimeExceeded(TALK.vip.0)),
                )
                .send(
                    server_data()
                        .with(|f| f.ttl = ttl)
                        .replied(Reply::TimeExceeded(TALK.vip.0)),
                )
                .send(
                    TALK.server(steerline_tests::packets::flag::RST)
                        .with(|f| f.ttl = ttl)
                        .replied(Reply::TimeExceeded(TALK.vip.0)),
                ),
        );
    }
    for ttl in [2, 3, 64, 128, 129, 255] {
        rows.push(
            Row::new(format!("a time to live of {ttl} goes down by one"))
                .send(TALK.syn().with(|f| f.ttl = ttl))
                .send(TALK.syn_ack().with(|f| f.ttl = ttl))
                .send(TALK.ack().with(|f| f.ttl = ttl)),
        );
    }
    for (name, tos) in [
        ("ECT(1)", 0x01),
        ("ECT(0)", 0x02),
        ("congestion experienced", 0x03),
        ("type of service 0x8c, katran's", 0x8c),
        ("expedited forwarding", 0xb8),
        ("every bit", 0xff),
    ] {
        rows.push(
            Row::new(format!("{name} is not touched"))
                .from("katran Base: ToS is kept; RFC 3168")
                .send(TALK.syn().with(|f| f.tos = tos))
                .send(TALK.syn_ack().with(|f| f.tos = tos))
                .send(TALK.ack().with(|f| f.tos = tos)),
        );
    }
    rows.push(
        established("ECE, CWR, PSH and URG are not touched".into())
            .send(TALK.client(ACK | CWR).payload(3))
            .send(TALK.server(ACK | ECE).payload(3))
            .send(TALK.client(ACK | PSH | URG).payload(3))
            .send(TALK.server(ACK | PSH | URG | ECE | CWR).payload(3)),
    );
    rows.push(
        established("identification 0 and fragmenting allowed are not touched".into())
            .send(client_data().with(|f| {
                f.identification = 0;
                f.dont_fragment = false;
            }))
            .send(server_data().with(|f| {
                f.identification = 0xffff;
                f.dont_fragment = false;
            })),
    );
    rows.push(
        established("the edges of the sequence space".into())
            .send(client_data().with(|f| (f.sequence, f.acknowledgement) = (u32::MAX, 0)))
            .send(client_data().with(|f| (f.sequence, f.acknowledgement) = (0, u32::MAX)))
            .send(
                server_data()
                    .with(|f| (f.sequence, f.acknowledgement) = (0x8000_0000, 0x7fff_ffff)),
            ),
    );
    Group::new("checksums", rows)
}
