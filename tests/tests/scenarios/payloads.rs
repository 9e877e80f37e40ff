//! What servers and clients send arrives as it was sent, with checksums that
//! are right on both sides of the balancer.
//!
//! A balancer whose checksums are wrong, or right for some lengths alone,
//! answers pings and fails here (xdp-tutorial#357, bpf-developer-tutorial#175,
//! loxilb#1054).

use std::net::SocketAddr;

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{
    Capture, Client, NginxOptions, PAYLOAD_SIZES, Pcap, Server, Topology, World, payload,
    payload_digest, topology,
};

use crate::lab::{self, Lab, Service, web};
use crate::mirror::{self, Mirror};
use crate::turn;

/// Beside [`PAYLOAD_SIZES`]: odd ones, what fills a window, and what does or
/// does not fit into 16 bits.
const MORE_SIZES: [usize; 9] = [
    3, 511, 4_095, 7_777, 65_535, 65_536, 65_537, 1_048_575, 1_048_577,
];

/// What is uploaded, largest last.
const UPLOADS: [usize; 12] = [
    0, 1, 2, 3, 1_459, 1_461, 15_359, 15_360, 65_535, 65_537, 1_000_001, 10_000_000,
];

/// Ports that differ between the two sides, so that both words of an address
/// and the port are rewritten.
const SERVER_PORT: u16 = 8_080;
const ECHO_PORT: u16 = 4_007;

/// Captures of one thing on both sides of the balancer.
struct BothSides {
    client: Capture,
    server: Capture,
}

impl BothSides {
    fn start(world: &World) -> Result<Self> {
        Ok(Self {
            client: Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp")?,
            server: Capture::start(world.switch(), topology::UPLINK_DEVICE, "tcp")?,
        })
    }

    /// Ends both and asserts that all was captured and is correct.
    fn stop(self, family: Family) -> Result<()> {
        let (client, server) = (self.client.stop()?, self.server.stop()?);
        let (vip, back) = (topology::vip(family), World::server_ip(1, family));
        let ip = match family {
            Family::V4 => "ip",
            Family::V6 => "ipv6",
        };
        for (side, pcap, server) in [("client's", &client, vip), ("server's", &server, back)] {
            assert_eq!(pcap.bad_checksums()?, Vec::<String>::new(), "{side} side");
            for direction in ["src", "dst"] {
                let filter = format!("{ip}.{direction} == {server} && tcp.len > 0");
                assert!(pcap.count(&filter)? > 0, "{side} side: nothing of {filter}");
            }
        }
        // The balancer repeats and swallows nothing.
        let segments = |pcap: &Pcap| pcap.count("");
        assert_eq!(segments(&client)?, segments(&server)?);
        Ok(())
    }
}

#[test]
fn downloads_of_every_size_arrive_intact() -> Result<()> {
    for family in Family::ALL {
        download(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn download(family: Family) -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1).dual_stack())?;
    let sizes = [&PAYLOAD_SIZES[..], &MORE_SIZES].concat();
    let options = NginxOptions {
        payloads: sizes.clone(),
        listen: SocketAddr::new(World::server_ip(1, family), SERVER_PORT),
        ..NginxOptions::new(&web(1), World::server_ip(1, family))
    };
    let servers = vec![Server::nginx(world.server(1)?, options)?];
    let service = Service::new("weighted-round-robin")
        .in_family(family)
        .backend(1, SERVER_PORT, 1);
    let lab = Lab::in_front_of(world, servers, &lab::config(&[service]))?;
    let client = Client::new(lab.world.client());
    let source = lab.world.fresh_clients_in(family, 1)?[0];
    let target = SocketAddr::new(topology::vip(family), 80);

    let both = BothSides::start(&lab.world)?;
    for size in sizes {
        let path = format!("/bytes/{size}");
        let response = client.get(Some(source), target, &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
        assert_eq!(response.server, Some(web(1)), "{path}");
    }
    both.stop(family)
}

#[test]
fn uploads_of_every_size_arrive_intact_and_come_back() -> Result<()> {
    for family in Family::ALL {
        upload(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn upload(family: Family) -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let world = World::new(&Topology::two_armed(1).dual_stack())?;
    let _mirror = Mirror::start(world.server(1)?)?;
    let service = Service::new("weighted-round-robin")
        .named("echo", ECHO_PORT)
        .in_family(family)
        .backend(1, mirror::PORT, 1);
    let lab = Lab::in_front_of(world, Vec::new(), &lab::config(&[service]))?;
    let source = lab.world.fresh_clients_in(family, 1)?[0];
    let target = SocketAddr::new(topology::vip(family), ECHO_PORT);

    let both = BothSides::start(&lab.world)?;
    for size in UPLOADS {
        let sent = payload(size);
        let came = mirror::exchange(lab.world.client(), source, target, &sent)?;
        // Not by `assert_eq`, which would print both.
        assert!(came == sent, "{size} bytes came back as {}", came.len());
    }
    both.stop(family)
}
