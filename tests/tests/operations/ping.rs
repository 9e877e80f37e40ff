//! A virtual address answers pings, whichever way its services are forwarded:
//! people ping it first, and a silent one looks broken.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use steerline::Family;
use steerline_tests::world::{Balancer, Topology, World, topology};

use crate::site::{self, Service, Status};
use crate::turn;

const LIMIT: Duration = Duration::from_secs(5);
/// Odd and even, nothing, and all that fits into 1,500 bytes.
fn sizes(family: Family) -> [usize; 6] {
    let largest = match family {
        Family::V4 => 1_500 - 20 - 8,
        Family::V6 => 1_500 - 40 - 8,
    };
    [0, 1, 55, 56, 1_000, largest]
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([pair[0], low]))
        })
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends an echo request (RFC 792, RFC 4443) and reads the first answer of its
/// sequence number. The kernel has nothing to do with either but the IP header,
/// and in IPv6 the checksum: one that is wrong does not arrive.
fn ping(source: IpAddr, target: IpAddr, sequence: u16, payload: &[u8]) -> Result<()> {
    let (domain, protocol, request, reply, header) = match Family::of(source) {
        Family::V4 => (Domain::IPV4, Protocol::ICMPV4, 8, 0, 20),
        Family::V6 => (Domain::IPV6, Protocol::ICMPV6, 128, 129, 0),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect(&SocketAddr::new(target, 0).into())?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut message = vec![request, 0, 0, 0, 0x53, 0x4c];
    message.extend(sequence.to_be_bytes());
    message.extend(payload);
    if header != 0 {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    socket.send(&message)?;

    let mut buffer = [0; 2_048];
    let answer = loop {
        let length = (&socket).read(&mut buffer).context("no answer")?;
        ensure!(length > header, "no IP header");
        // The socket hears of neighbour discovery as well.
        if (133..=137).contains(&buffer[header]) && header == 0 {
            continue;
        }
        break &buffer[header..length];
    };
    if header != 0 {
        ensure!(checksum(answer) == 0, "a wrong checksum");
    }
    ensure!(
        answer.len() == message.len() && answer[..2] == [reply, 0],
        "{answer:?}"
    );
    ensure!(answer[4..] == message[4..], "another payload came back");
    Ok(())
}

#[test]
fn virtual_addresses_answer_pings_with_the_right_payload() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1).dual_stack())?;
    site::hold(world.server(1)?)?;
    let services = [
        Service::nat("nat", 80).over(&[8]),
        Service::dsr("dsr", 80).over(&[8]),
        Service::nat("nat-6", 80).in_family(Family::V6).over(&[8]),
        Service::dsr("dsr-6", 80).in_family(Family::V6).over(&[8]),
    ];
    let config = site::config(&services.each_ref());
    let balancer = Balancer::start(world.balancer(), &config)?;
    let _other_end = site::other_end(world.client(), topology::CLIENT_DEVICE)?;
    let mut sent = 0;
    for service in &services {
        let target = service.target().ip();
        let family = Family::of(target);
        let source = world.fresh_clients_in(family, 1)?[0];
        for size in sizes(family) {
            sent += 1;
            let payload: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
            world
                .client()
                .enter(|| ping(source, target, sent, &payload))?
                .with_context(|| format!("{size} bytes to {target}"))?;
        }
    }
    // None of them went further: not to a server, not into a flow.
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("echo_answered")?, u64::from(sent));
    assert_eq!(status.counter("new_flow")?, 0);
    assert_eq!(status.counter("forwarded")?, 0);
    // The balancer's own address is its kernel's matter, as before.
    for family in Family::ALL {
        let source = world.fresh_clients_in(family, 1)?[0];
        let own = topology::front(family);
        world
            .client()
            .enter(|| ping(source, own, sent + 1, b"kernel"))??;
    }
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("echo_answered")?, u64::from(sent));
    Ok(())
}
