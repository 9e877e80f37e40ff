//! A virtual address answers pings, whichever way its services are forwarded:
//! people ping it first, and a silent one looks broken.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use steerline_tests::world::{Balancer, Topology, World, topology};

use crate::site::{self, DIRECT, Service, Status};
use crate::turn;

const LIMIT: Duration = Duration::from_secs(5);
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
/// Odd and even, nothing, and all that fits into 1,500 bytes.
const SIZES: [usize; 6] = [0, 1, 55, 56, 1_000, 1_472];

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

/// Sends an echo request of RFC 792 and reads the first answer; the kernel has
/// nothing to do with either but the IP header.
fn ping(source: IpAddr, target: IpAddr, sequence: u16, payload: &[u8]) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect(&SocketAddr::new(target, 0).into())?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut message = vec![ECHO_REQUEST, 0, 0, 0, 0x53, 0x4c];
    message.extend(sequence.to_be_bytes());
    message.extend(payload);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    socket.send(&message)?;

    let mut buffer = [0; 2_048];
    let length = (&socket).read(&mut buffer).context("no answer")?;
    let packet = &buffer[..length];
    ensure!(packet.len() >= 20 && packet[0] == 0x45, "no IP header");
    let answer = &packet[20..];
    ensure!(checksum(answer) == 0, "a wrong checksum");
    ensure!(
        answer.len() == message.len() && answer[..2] == [ECHO_REPLY, 0],
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
    let world = World::new(&Topology::two_armed(1))?;
    site::hold(world.server(1)?)?;
    let services = [
        Service::nat("nat", 80).over(&[8]),
        Service::dsr("dsr", 80).over(&[8]),
    ];
    let balancer = Balancer::start(
        world.balancer(),
        &site::config(&[&services[0], &services[1]]),
    )?;
    let _other_end = site::other_end(world.client(), topology::CLIENT_DEVICE)?;
    let source = world.fresh_clients(1)?[0];
    let mut sent = 0;
    for target in [topology::VIP, DIRECT] {
        for size in SIZES {
            sent += 1;
            let payload: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
            world
                .client()
                .enter(|| ping(source, target.into(), sent, &payload))?
                .with_context(|| format!("{size} bytes to {target}"))?;
        }
    }
    // None of them went further: not to a server, not into a flow.
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("echo_answered")?, u64::from(sent));
    assert_eq!(status.counter("new_flow")?, 0);
    assert_eq!(status.counter("forwarded")?, 0);
    // The balancer's own address is its kernel's matter, as before.
    world
        .client()
        .enter(|| ping(source, topology::FRONT.into(), sent + 1, b"kernel"))??;
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("echo_answered")?, u64::from(sent));
    Ok(())
}
