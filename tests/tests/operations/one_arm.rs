//! `dsr` over one interface: clients, balancer and servers are on one segment,
//! and the balancer sends by where it receives (`XDP_TX`).

use anyhow::Result;
use steerline_tests::world::{
    Balancer, BalancerConfig, Capture, Client, Load, PAYLOAD_SIZES, Server, Topology, World,
    payload_digest, topology,
};

use crate::direct_return::nginx;
use crate::endings;
use crate::site::{self, DIRECT, Service, Status};
use crate::turn;

const WEB: &str = "web";

#[test]
fn one_interface_is_enough() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    // The third host is the client: its default route leads to the balancer,
    // and servers answer it directly, by the switch alone.
    let world = World::new(&Topology::two_armed(3))?;
    let client = world.server(3)?;
    let _servers: Vec<Server> = (1..=2)
        .map(|number| nginx(&world, number))
        .collect::<Result<_>>()?;
    let service = Service::dsr(WEB, 80).least_connections().over(&[1, 1]);
    let config = BalancerConfig {
        interfaces: vec![topology::BACK_DEVICE.to_owned()],
        ..site::config(&[&service])
    };
    let _other_end = site::other_end(world.switch(), topology::UPLINK_DEVICE)?;
    let balancer = Balancer::start(world.balancer(), &config)?;
    let at_client = Capture::start(client, topology::SERVER_DEVICE, "tcp")?;
    let at_server = Capture::start(world.server(1)?, topology::SERVER_DEVICE, "tcp")?;

    for size in PAYLOAD_SIZES {
        let path = format!("/bytes/{size}");
        let response = Client::new(client).get(None, service.target(), &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
    }
    let load = Load {
        workers: 8,
        ..Load::sequential(service.target(), 200)
    };
    let report = load.run(client)?;
    report.expect_success()?;
    println!("{:?}", report.by_server());
    assert_eq!(report.by_server().len(), 2, "{:?}", report.by_server());

    let (at_client, at_server) = (at_client.stop()?, at_server.stop()?);
    for pcap in [&at_client, &at_server] {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    }
    let sent = at_client.count("tcp.dstport == 80")?;
    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("forwarded")?, sent as u64);
    // From the balancer, for the virtual address, with the client's hops.
    let towards = at_server.count("tcp.dstport == 80")?;
    let same = format!(
        "tcp.dstport == 80 && ip.dst == {DIRECT} && ip.ttl == 64 && eth.src == 02:00:00:00:02:01"
    );
    assert_eq!(at_server.count(&same)?, towards);
    // Answers went from the server to the client, past the balancer.
    let answers = at_client.count("tcp.srcport == 80")?;
    let direct = "tcp.srcport == 80 && eth.src[0:5] == 02:00:00:00:04";
    assert_eq!(at_client.count(direct)?, answers);
    println!("{sent} packets by the balancer, {answers} answers past it");
    status.expect_no_drops()?;
    endings::shorten(&balancer)?;
    Status::quiet(&balancer)?;
    Ok(())
}
