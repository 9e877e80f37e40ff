//! What IPv6 has and IPv4 has not: extension headers that are not read, and
//! messages of the network itself.

use lb_common::reason::Reason::{self, Malformed, PassedMalformed, PassedNotOurs, PassedProtocol};
use steerline_tests::packets::{
    Extension, Family, Group, Row, Step, Talk,
    flag::SYN,
    scene::{A, CLIENT},
};

/// Encapsulated payload (RFC 4303): nothing behind it can be read.
const ESP: u8 = 50;
/// Nothing follows (RFC 8200, section 4.7).
const NO_NEXT: u8 = 59;
/// A mobility header (RFC 6275).
const MOBILITY: u8 = 135;

const NEXT_HEADER: usize = 20;
/// Of the first extension header.
const LENGTH: usize = 55;

fn talk() -> Talk {
    Talk::web(CLIENT.1, A).in_family(Family::V6)
}

/// The client's SYN behind these headers; it opens nothing.
fn behind(headers: Vec<Extension>, reason: Reason) -> Step {
    let step = talk().client(SYN).with(|f| f.extensions = headers);
    step.passed(reason)
}

/// Everything about extension headers that are not for us to read.
pub(crate) fn group() -> Group {
    let options = |units| Extension::padding(Extension::DESTINATION, units);
    let with = |header: Extension| vec![header];
    let rows = vec![
        Row::new("seven extension headers are one too many to read")
            .send(behind(vec![options(1); 7], PassedMalformed))
            .send(
                talk().syn().with(|f| {
                    f.extensions = vec![Extension::padding(Extension::DESTINATION, 1); 6]
                }),
            ),
        Row::new("what is behind other headers is the kernel's").sends(
            [ESP, NO_NEXT, MOBILITY].map(|kind| {
                let header = Extension {
                    kind,
                    body: vec![0; 6],
                };
                behind(with(header), PassedProtocol)
            }),
        ),
        Row::new("a next header that nobody has").send(
            talk()
                .client(SYN)
                .patch(NEXT_HEADER, &[253])
                .passed(PassedProtocol),
        ),
        Row::new("an extension header longer than its packet").sends([1_u8, 7, 100].map(|units| {
            let step = behind(with(options(1)), PassedMalformed);
            step.patch(LENGTH, &[units]).dropped(Malformed)
        })),
        Row::new("to a group of hosts: neighbour discovery needs it").send({
            let group = "ff02::1:ff00:1".parse().expect("an address");
            talk()
                .client(SYN)
                .with(|f| f.destination.0 = group)
                .passed(PassedNotOurs)
        }),
    ];
    Group::new("ipv6", rows)
}
