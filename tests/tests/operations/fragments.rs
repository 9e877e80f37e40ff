//! Datagrams larger than the MTU: kernels cut them up, fragments follow their
//! first one, and kernels put them together again.
//!
//! The rule: cilium#11180 (fragments asked for since 2020).

use std::net::{SocketAddr, UdpSocket};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use steerline_tests::world::{Balancer, Capture, Topology, World, topology};

use crate::site::{self, PATIENCE, Service, Status};
use crate::turn;

const PORT: u16 = 9_000;
const SERVERS: u8 = 3;
/// Bytes of datagrams: just too large for one packet of 1,500 bytes, and what
/// takes up to 45 of them.
const SIZES: [usize; 6] = [1_473, 2_000, 2_953, 4_000, 9_000, 65_000];
const CLIENTS: u16 = 20;

/// Sends back what comes, until that is nothing.
fn echo(socket: &UdpSocket) {
    let mut bytes = vec![0; 65_535];
    while let Ok((length @ 1.., from)) = socket.recv_from(&mut bytes) {
        // A client that hears nothing says so.
        drop(socket.send_to(&bytes[..length], from));
    }
}

#[test]
fn datagrams_in_fragments_go_there_and_back() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    for is_direct in [false, true] {
        let world = World::new(&Topology::two_armed(SERVERS))?;
        let make = if is_direct {
            Service::dsr
        } else {
            Service::nat
        };
        let service = make("echo", PORT)
            .line("protocol", "udp")
            .round_robin()
            .over(&[1; SERVERS as usize]);
        let mut sockets = Vec::new();
        for (number, server) in (1..).zip(world.servers()) {
            site::hold(server)?;
            let own = if is_direct {
                service.target()
            } else {
                SocketAddr::new(World::server_address(number).into(), PORT)
            };
            let socket = server.enter(|| UdpSocket::bind(own))??;
            socket.set_read_timeout(Some(PATIENCE))?;
            sockets.push(socket);
        }
        let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
        let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, "ip")?;
        let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, "ip")?;

        thread::scope(|scope| -> Result<()> {
            let servers: Vec<_> = sockets
                .iter()
                .map(|socket| scope.spawn(move || echo(socket)))
                .collect();
            for source in world.fresh_clients(CLIENTS)? {
                let socket = world.client().enter(|| UdpSocket::bind((source, 0)))??;
                socket.connect(service.target())?;
                socket.set_read_timeout(Some(PATIENCE))?;
                for size in SIZES {
                    let sent: Vec<u8> = (0..size).map(|at| (at * 7 + size) as u8).collect();
                    socket.send(&sent)?;
                    let mut got = vec![0; 65_535];
                    let length = socket
                        .recv(&mut got)
                        .with_context(|| format!("{size} bytes of {source}"))?;
                    ensure!(got[..length] == sent, "{size} bytes came back as others");
                }
            }
            // They answer until they are told to end.
            for socket in &sockets {
                socket.send_to(&[], socket.local_addr()?)?;
            }
            for server in servers {
                server.join().expect("an echo does not panic");
            }
            Ok(())
        })?;

        let status = Status::now(&balancer)?;
        let followed = status.counter("fragment_followed")?;
        let least: usize = SIZES
            .iter()
            .map(|size| (size + 8).div_ceil(1_480) - 1)
            .sum();
        let least = (least * usize::from(CLIENTS) * if is_direct { 1 } else { 2 }) as u64;
        assert_eq!(followed, least, "later fragments");
        assert_eq!(status.counter("fragment_early")?, 0);
        status.expect_no_drops()?;
        assert_eq!(status.sum("echo", "/new_flows")?, u64::from(CLIENTS));
        for pcap in [at_client.stop()?, at_servers.stop()?] {
            assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
        }
    }
    Ok(())
}
