//! What hosts are told about their packets, on real wires: the way that is too
//! narrow, the time to live that is over.
//!
//! The rules: katran#82 (a packet that is too large was dropped, and nobody was
//! told), xdp-tutorial#357 (bytes of connections count, not pings).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::UdpSocket;
use std::thread;

use anyhow::{Context as _, Result};
use steerline_tests::world::{Balancer, Capture, Topology, World, topology, wait_until};

use crate::hosts::{self, Host, Manner};
use crate::site::{self, PATIENCE, Service, Status};
use crate::turn;

const SINK: &str = "sink";
const PORT: u16 = 9_000;
/// MTU of the way to the servers.
const NARROW: u16 = 1_400;
const UPLOAD: usize = 300_000;

fn payload() -> Vec<u8> {
    (0..UPLOAD).map(|at| (at % 251) as u8).collect()
}

/// A client that believes in 1,500 bytes learns from the balancer that the way
/// to the server takes 1,400, and everything arrives.
#[test]
fn a_client_learns_of_a_narrow_way_to_the_server() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    for make in [Service::nat, Service::dsr] {
        let world = World::new(&Topology::two_armed(1))?;
        site::hold(world.server(1)?)?;
        // What is sent back into a veth needs a program at its other end.
        let _end = site::other_end(world.client(), topology::CLIENT_DEVICE)?;
        world
            .balancer()
            .ip(&format!("link set {} mtu {NARROW}", topology::BACK_DEVICE))?;
        let host = Host::start(world.server(1)?, PORT, Manner::Silent)?;
        let service = make(SINK, PORT).over(&[1]);
        let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
        let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp or icmp")?;
        let source = world.fresh_clients(1)?[0];
        let mut stream = world
            .client()
            .enter(|| hosts::open(source, service.target()))??;
        wait_until("the server has it", PATIENCE, || {
            Ok((host.kept() == 1).then_some(()))
        })?;
        let bytes = payload();
        stream.write_all(&bytes)?;
        anyhow::ensure!(host.receive(UPLOAD)? == bytes, "other bytes arrived");

        let status = Status::now(&balancer)?;
        let told = status.counter("too_big_answered")?;
        assert!(told >= 1, "nobody was told");
        assert_eq!(status.counter("too_big")?, 0, "and everybody was");
        status.expect_no_drops()?;
        let pcap = at_client.stop()?;
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
        let virtual_address = service.target().ip();
        let errors = format!(
            "icmp.type == 3 && icmp.code == 4 && icmp.mtu == {NARROW} && ip.src == \
             {virtual_address} && tcp.dstport == {PORT}"
        );
        assert_eq!(pcap.count(&errors)? as u64, told, "{errors}");
        println!("{virtual_address}: told {told} times");
    }
    Ok(())
}

/// A SYN whose time to live ends at the balancer is answered from the virtual
/// address, as `traceroute` wants, and opens nothing.
#[test]
fn a_traceroute_is_answered_by_the_virtual_address() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1))?;
    let _end = site::other_end(world.client(), topology::CLIENT_DEVICE)?;
    let service = Service::nat(SINK, PORT).over(&[1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp or icmp")?;
    let source = world.fresh_clients(1)?[0];
    world.client().enter(|| -> Result<()> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&std::net::SocketAddr::new(source, 0).into())?;
        socket.set_ttl_v4(1)?;
        socket.set_nonblocking(true)?;
        // Is under way.
        let _ = socket.connect(&service.target().into());
        wait_until("the SYN was answered", PATIENCE, || {
            Ok((Status::now(&balancer)?.counter("ttl_answered")? > 0).then_some(()))
        })
    })??;
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("new_flow")?, 0);
    let pcap = at_client.stop()?;
    assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    let errors = format!(
        "icmp.type == 11 && ip.src == {} && tcp.dstport == {PORT}",
        topology::VIP
    );
    assert!(pcap.count(&errors)? >= 1, "{errors}");
    Ok(())
}

/// A router between balancer and client takes 1,400 bytes: what it says about the
/// server's packets reaches the server, which lowers its own, and everything
/// arrives (cilium#46993). In `nat` the server is told of its own packet, in `dsr`
/// of one of the virtual address, which it has.
#[test]
fn a_server_learns_of_a_narrow_way_to_the_client() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    for (make, own) in [
        (Service::nat as fn(_, _) -> _, World::server_address(1)),
        (Service::dsr, site::DIRECT),
    ] {
        let world = World::new(&Topology::two_armed(1))?;
        site::hold(world.server(1)?)?;
        let (far, source) = world.far_client(NARROW)?;
        let host = Host::start(world.server(1)?, PORT, Manner::Silent)?;
        let service: Service = make(SINK, PORT).over(&[1]);
        let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
        let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp or icmp")?;
        let mut stream = far.enter(|| hosts::open(source, service.target()))??;
        wait_until("the server has it", PATIENCE, || {
            Ok((host.kept() == 1).then_some(()))
        })?;
        let bytes = payload();
        let received = thread::scope(|scope| -> Result<Vec<u8>> {
            let sender = scope.spawn(|| host.send(&bytes));
            let mut received = vec![0; UPLOAD];
            stream.read_exact(&mut received)?;
            sender.join().expect("the sender does not panic")?;
            Ok(received)
        })?;
        anyhow::ensure!(received == bytes, "other bytes arrived");

        let status = Status::now(&balancer)?;
        let relayed = status.counter("icmp_relayed")?;
        assert!(relayed >= 1, "nobody was told");
        assert_eq!(status.counter("icmp_forged")?, 0);
        status.expect_no_drops()?;
        let pcap = at_servers.stop()?;
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
        let told = format!(
            "icmp.type == 3 && icmp.code == 4 && icmp.mtu == {NARROW} && ip.dst == {own} && \
             tcp.srcport == {PORT}"
        );
        assert_eq!(pcap.count(&told)? as u64, relayed, "{told}");
        println!("{own}: told {relayed} times");
    }
    Ok(())
}

/// Nobody listens on the server's port: the client of a datagram is told so by
/// the virtual address, as the server itself would have told it.
#[test]
fn a_client_learns_that_nobody_listens() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1))?;
    let service = Service::nat("nobody", PORT)
        .line("protocol", "udp")
        .over(&[1]);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "udp or icmp")?;
    let source = world.fresh_clients(1)?[0];
    let told = world.client().enter(|| -> Result<ErrorKind> {
        let socket = UdpSocket::bind((source, 0))?;
        socket.connect(service.target())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(b"anybody?")?;
        let answer = socket.recv(&mut [0; 64]).map_err(|error| error.kind());
        answer.err().context("somebody answered")
    })??;
    assert_eq!(told, ErrorKind::ConnectionRefused);
    let status = Status::now(&balancer)?;
    for (counter, count) in [("icmp_relayed", 1), ("server_unreachable", 1)] {
        assert_eq!(status.counter(counter)?, count, "{counter}");
    }
    let pcap = at_client.stop()?;
    assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    let errors = format!(
        "icmp.type == 3 && icmp.code == 3 && ip.src == {} && udp.dstport == {PORT}",
        topology::VIP
    );
    assert_eq!(pcap.count(&errors)?, 1, "{errors}");
    Ok(())
}
