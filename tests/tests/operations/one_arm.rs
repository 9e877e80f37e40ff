//! `dsr` over one interface: clients, balancer and servers are on one segment,
//! and the balancer sends by where it receives (`XDP_TX`).

use anyhow::{Context, Result};
use steerline::Family;
use steerline_tests::world::{
    Balancer, BalancerConfig, Capture, Client, Load, PAYLOAD_SIZES, Server, Topology, World,
    payload_digest, topology,
};

use crate::direct_return::nginx;
use crate::endings;
use crate::site::{self, Service, Status};
use crate::turn;

const WEB: &str = "web";

#[test]
fn one_interface_is_enough() -> Result<()> {
    for family in Family::ALL {
        one_interface(family).with_context(|| family.to_string())?;
    }
    Ok(())
}

fn one_interface(family: Family) -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    // The third host is the client: its default route leads to the balancer,
    // and servers answer it directly, by the switch alone.
    let world = World::new(&Topology::two_armed(3).dual_stack())?;
    let client = world.server(3)?;
    let _servers: Vec<Server> = (1..=2)
        .map(|number| nginx(&world, number, family))
        .collect::<Result<_>>()?;
    let service = Service::dsr(WEB, 80).in_family(family);
    let service = service.least_connections().over(&[1, 1]);
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
    let target = service.target().ip();
    let untouched = match family {
        Family::V4 => format!("ip.dst == {target} && ip.ttl == 64"),
        Family::V6 => format!("ipv6.dst == {target} && ipv6.hlim == 64"),
    };
    let same = format!("tcp.dstport == 80 && {untouched} && eth.src == 02:00:00:00:02:01");
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
