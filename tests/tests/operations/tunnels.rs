//! `ipip` and `gue` to real web servers that hold the virtual address and take
//! packets out of packets, in all four combinations of families.
//!
//! The rules: xdp-tutorial#357 and loxilb#1054 (checksums right for some lengths
//! alone), cilium#32601 (packets of exactly the MTU), katran#172 (receivers that
//! cannot tell flows of a tunnel apart).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use steerline::Family;
use steerline_tests::world::{
    Balancer, Capture, Client, Decapsulator, Load, NginxOptions, PAYLOAD_SIZES, Pcap, Server,
    Topology, World, payload_digest, topology, wait_until,
};

use crate::endings;
use crate::hosts::{self, Host, Manner};
use crate::site::{self, Service, Status, web};
use crate::turn;

pub(crate) const WEB: &str = "web";
/// GUE's.
const PORT: u16 = 6_080;

/// A kind of tunnel: what the configuration calls it, and the outer family.
pub(crate) type Kind = (&'static str, Family);

const KINDS: [Kind; 4] = [
    ("ipip", Family::V4),
    ("ipip", Family::V6),
    ("gue", Family::V4),
    ("gue", Family::V6),
];

/// What clients send, for tcpdump. What servers answer passes us by.
const BARE: &str = "tcp dst port 80";
/// Every packet of a tunnel.
pub(crate) const WRAPPED: &str =
    "ip proto 4 or ip proto 41 or ip6 proto 4 or ip6 proto 41 or udp port 6080";

/// Packets of a kind that carry some of a family, for tshark.
fn carrying((forwarding, outer): Kind, inner: Family) -> String {
    let (outer, field) = match outer {
        Family::V4 => ("ip", "ip.proto"),
        Family::V6 => ("ipv6", "ipv6.nxt"),
    };
    match (forwarding, inner) {
        ("gue", _) => format!("{outer} && udp.dstport == {PORT}"),
        (_, Family::V4) => format!("{field} == 4"),
        (_, Family::V6) => format!("{field} == 41"),
    }
}

/// Servers that hold the virtual addresses, each behind a tunnel.
pub(crate) struct Scene {
    pub(crate) ends: Vec<Decapsulator>,
    pub(crate) world: World,
}

impl Scene {
    pub(crate) fn new() -> Result<Self> {
        let world = World::new(&Topology::two_armed(2).dual_stack())?;
        site::unmerged(world.balancer())?;
        // Answers come back by the balancer's kernel, which is the servers' router.
        world
            .balancer()
            .sysctl("net/ipv6/conf/all/forwarding", "1")?;
        let ends = world
            .servers()
            .iter()
            .map(|server| {
                site::hold(server)?;
                Decapsulator::start(server, PORT)
            })
            .collect::<Result<_>>()?;
        Ok(Self { ends, world })
    }

    /// Packets that all servers took out.
    pub(crate) fn delivered(&self) -> usize {
        self.ends.iter().map(Decapsulator::delivered).sum()
    }

    /// Waits until clients send no more, as their kernel sees it, and servers have
    /// taken out since `before` what the balancer forwarded since its start.
    pub(crate) fn settle(&self, before: usize, balancer: &Balancer) -> Result<()> {
        site::await_no_connections(self.world.client())?;
        let sent = Status::now(balancer)?.counter("forwarded")?;
        let what = "servers have taken out what was forwarded";
        wait_until(what, site::PATIENCE, || {
            let delivered = self.delivered() - before;
            Ok((delivered as u64 == sent).then_some(()))
        })
    }

    /// Nothing was wrong with any packet.
    pub(crate) fn expect_no_refusals(&self) -> Result<()> {
        let refused: usize = self.ends.iter().map(Decapsulator::refused).sum();
        ensure!(refused == 0, "{refused} packets were refused");
        Ok(())
    }

    /// Servers in every way, listening at `port` of every address.
    pub(crate) fn hosts(&self, port: u16, manner: Manner) -> Result<Vec<Host>> {
        let servers = self.world.servers().iter();
        servers
            .map(|server| Host::start(server, port, manner))
            .collect()
    }

    /// Lets every link behind the balancer carry packets of that size.
    fn set_mtu(&self, mtu: u32) -> Result<()> {
        let world = &self.world;
        let set = |namespace: &steerline_tests::world::Namespace, device: &str| {
            namespace.ip(&format!("link set {device} mtu {mtu}"))
        };
        for (number, server) in (1..).zip(world.servers()) {
            set(server, topology::SERVER_DEVICE)?;
            set(world.switch(), &format!("s{number}"))?;
        }
        set(world.switch(), topology::UPLINK_DEVICE)?;
        set(world.switch(), "br0")?;
        set(world.balancer(), topology::BACK_DEVICE)
    }
}

pub(crate) fn service((forwarding, outer): Kind, inner: Family, port: u16) -> Service {
    Service::tunnel(WEB, port, forwarding, outer)
        .in_family(inner)
        .least_connections()
        .over(&[1, 1])
}

/// Packets that were dropped because of the tunnel.
pub(crate) fn expect_no_drops(status: &Status) -> Result<()> {
    status.expect_no_drops()?;
    for reason in ["too_big", "no_headroom", "neighbour_unresolved"] {
        let count = status.counter(reason)?;
        ensure!(count == 0, "{count} packets were dropped: {reason}");
    }
    Ok(())
}

#[test]
fn payloads_of_every_size_come_back_from_behind_every_tunnel() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    for inner in Family::ALL {
        let _servers: Vec<Server> = (1..=2)
            .map(|number| {
                let options = NginxOptions::new(&web(number), site::direct(inner));
                Server::nginx(scene.world.server(number)?, options)
            })
            .collect::<Result<_>>()?;
        for kind in KINDS {
            payloads(&scene, kind, inner).with_context(|| format!("{inner} in {kind:?}"))?;
        }
    }
    Ok(())
}

fn payloads(scene: &Scene, kind: Kind, inner: Family) -> Result<()> {
    let world = &scene.world;
    let service = service(kind, inner, 80);
    let balancer = Balancer::start(world.balancer(), &site::config(&[&service]))?;
    let before = scene.delivered();
    let at_client = Capture::start(world.client(), topology::CLIENT_DEVICE, BARE)?;
    let either = format!("{BARE} or {WRAPPED}");
    let at_servers = Capture::start(world.switch(), topology::UPLINK_DEVICE, &either)?;
    let inside = Capture::start(world.server(1)?, Decapsulator::IN_DEVICE, BARE)?;

    let source = world.fresh_clients_in(inner, 1)?[0];
    for size in PAYLOAD_SIZES {
        let path = format!("/bytes/{size}");
        let response = Client::new(world.client()).get(Some(source), service.target(), &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
    }
    // Many at a time, so that the fewest connections lead to both.
    let load = Load {
        workers: 8,
        sources: world.fresh_clients_in(inner, 16)?,
        path: "/bytes/15361".to_owned(),
        ..Load::sequential(service.target(), 100)
    };
    let report = load.run(world.client())?;
    report.expect_success()?;
    assert_eq!(report.by_server().len(), 2, "{:?}", report.by_server());

    scene.settle(before, &balancer)?;
    let captures = [at_client.stop()?, at_servers.stop()?, inside.stop()?];
    for pcap in &captures {
        assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    }
    let [at_client, at_servers, inside] = captures;
    let sent = at_client.count("")?;
    let wrapped = carrying(kind, inner);
    assert_eq!(at_servers.count(&wrapped)?, sent, "{wrapped}");
    // None of them is on the way as it is. (tshark looks into IP alone.)
    let bare = match inner {
        Family::V4 => format!("tcp.dstport == 80 && ip && !({wrapped})"),
        Family::V6 => format!("tcp.dstport == 80 && ipv6 && !({wrapped})"),
    };
    assert_eq!(at_servers.count(&bare)?, 0);
    judge_outer(&at_servers, &wrapped, kind)?;
    scene.expect_no_refusals()?;
    assert!(inside.count("")? > 0, "server 1 has a share");
    // Inside, the client's hops are all there.
    let hops = match inner {
        Family::V4 => "ip.ttl != 64",
        Family::V6 => "ipv6.hlim != 64",
    };
    assert_eq!(inside.count(hops)?, 0);

    let status = Status::now(&balancer)?;
    assert_eq!(status.counter("forwarded")?, sent as u64);
    let requests = (PAYLOAD_SIZES.len() + report.outcomes.len()) as u64;
    assert_eq!(status.sum(WEB, "/new_flows")?, requests);
    expect_no_drops(&status)?;
    println!(
        "{inner} in {kind:?}: {sent} packets, {:?}",
        report.by_server()
    );
    endings::shorten(&balancer)?;
    Status::quiet(&balancer)?;
    Ok(())
}

/// What every outer header is to say.
fn judge_outer(pcap: &Pcap, wrapped: &str, (forwarding, outer): Kind) -> Result<()> {
    // Of fields that inner headers have too, tshark gives the outer one first.
    let fields: &[&str] = match outer {
        Family::V4 => &["ip.src", "ip.ttl", "ip.flags.df", "ip.id", "udp.srcport"],
        Family::V6 => &[
            "ipv6.src",
            "ipv6.hlim",
            "ipv6.flow",
            "ipv6.plen",
            "udp.srcport",
        ],
    };
    let ours = match outer {
        Family::V4 => topology::BACK.to_string(),
        Family::V6 => topology::BACK6.to_string(),
    };
    let mut ports = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for row in pcap.fields(wrapped, fields)? {
        let first: Vec<&str> = row
            .iter()
            .map(|field| field.split(',').next().unwrap_or_default())
            .collect();
        ensure!(first[..2] == [ours.as_str(), "64"], "{row:?}");
        if outer == Family::V4 {
            let may_fragment = !["1", "True"].contains(&first[2]);
            ensure!(!may_fragment && first[3] == "0x0000", "{row:?}");
        } else {
            labels.insert(first[2].to_owned());
        }
        if forwarding == "gue" {
            let port: u16 = first[4].parse()?;
            ensure!(port >= 49_152, "{row:?}");
            ports.insert(port);
        }
    }
    // A hundred flows and more: nearly all differ.
    ensure!(forwarding != "gue" || ports.len() > 90, "{ports:?}");
    ensure!(outer == Family::V4 || labels.len() > 90, "{labels:?}");
    Ok(())
}

/// Segments that fill a packet of the client's MTU, towards the servers.
const SENT: [usize; 4] = [0, 1, 1_460, 1_000_000];

pub(crate) fn send_all(scene: &Scene, inner: Family, target: SocketAddr) -> Result<()> {
    let source = scene.world.fresh_clients_in(inner, 1)?[0];
    for size in SENT {
        scene
            .world
            .client()
            .enter(|| hosts::send(source, target, size))?
            .with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

/// The largest packet of a client that fits 1,500 bytes in a tunnel, as
/// `docs/tunnels.md` has it.
fn largest_packet(kind: Kind) -> usize {
    match kind {
        ("ipip", Family::V4) => 1_480,
        ("gue", Family::V4) => 1_468,
        ("ipip", _) => 1_460,
        _ => 1_448,
    }
}

/// The segment in it.
fn segment(kind: Kind, inner: Family) -> usize {
    let headers = match inner {
        Family::V4 => 40,
        Family::V6 => 60,
    };
    largest_packet(kind) - headers
}

/// The two remedies of `docs/tunnels.md`, to the byte: links that take 52 bytes
/// more, and servers that ask for less.
#[test]
fn uploads_fit_by_a_larger_mtu_or_by_smaller_segments() -> Result<()> {
    const UPLOADS: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(UPLOADS, Manner::Receiving)?;
    for inner in Family::ALL {
        for kind in KINDS {
            let service = service(kind, inner, UPLOADS);
            let balancer = Balancer::start(scene.world.balancer(), &site::config(&[&service]))?;
            let uploads = |what: &str, largest: usize| -> Result<()> {
                let wire = Capture::start(scene.world.switch(), topology::UPLINK_DEVICE, WRAPPED)?;
                send_all(&scene, inner, service.target())?;
                let wire = wire.stop()?;
                assert_eq!(wire.bad_checksums()?, Vec::<String>::new(), "{what}");
                let length = |row: &Vec<String>| row[0].parse::<usize>();
                let rows = wire.fields(&carrying(kind, inner), &["frame.len"])?;
                let longest = rows
                    .iter()
                    .map(length)
                    .collect::<Result<BTreeSet<_>, _>>()?;
                let longest = longest.last().copied().unwrap_or(0) - 14;
                assert_eq!(longest, largest, "{what}");
                expect_no_drops(&Status::now(&balancer)?)
            };
            let name = format!("{inner} in {kind:?}");
            scene.set_mtu(1_552)?;
            let overhead = 1_500 - largest_packet(kind);
            uploads("a larger MTU", 1_500 + overhead).with_context(|| name.clone())?;

            scene.set_mtu(1_500)?;
            advise(&scene, inner, Some(segment(kind, inner)))?;
            uploads("smaller segments", 1_500).with_context(|| name.clone())?;
            advise(&scene, inner, None)?;
            scene.expect_no_refusals()?;
        }
    }
    Ok(())
}

/// Sets the largest segment that servers ask their clients for.
pub(crate) fn advise(scene: &Scene, inner: Family, segment: Option<usize>) -> Result<()> {
    let (flag, gateway) = match inner {
        Family::V4 => ("-4", topology::BACK.to_string()),
        Family::V6 => ("-6", topology::BACK6.to_string()),
    };
    let advice = segment.map_or(String::new(), |segment| format!(" advmss {segment}"));
    for server in scene.world.servers() {
        server.ip(&format!(
            "{flag} route replace default via {gateway}{advice}"
        ))?;
    }
    Ok(())
}

/// Without either remedy: clients that send 1,500 bytes are told what the tunnel
/// leaves of them, and everything arrives (katran#82).
#[test]
fn clients_learn_what_a_tunnel_leaves_of_the_mtu() -> Result<()> {
    const UPLOADS: u16 = 9_000;
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new()?;
    let _hosts = scene.hosts(UPLOADS, Manner::Receiving)?;
    // What is sent back into a veth needs a program at its other end.
    let _end = site::other_end(scene.world.client(), topology::CLIENT_DEVICE)?;
    // Clients remember: each tunnel leaves less than the one before.
    let [ipip4, ipip6, gue4, gue6] = KINDS;
    for inner in Family::ALL {
        for kind in [ipip4, gue4, ipip6, gue6] {
            let name = format!("{inner} in {kind:?}");
            let service = service(kind, inner, UPLOADS);
            let balancer = Balancer::start(scene.world.balancer(), &site::config(&[&service]))?;
            let (client, device) = (scene.world.client(), topology::CLIENT_DEVICE);
            let at_client = Capture::start(client, device, "icmp or icmp6")?;
            send_all(&scene, inner, service.target()).with_context(|| name.clone())?;
            let status = Status::now(&balancer)?;
            let told = status.counter("too_big_answered")?;
            assert!(told > 0, "{name}: nobody was told");
            expect_no_drops(&status).with_context(|| name.clone())?;
            scene.expect_no_refusals()?;
            let at_client = at_client.stop()?;
            assert_eq!(at_client.bad_checksums()?, Vec::<String>::new(), "{name}");
            let errors = match inner {
                Family::V4 => "icmp.code == 4 && icmp.mtu",
                Family::V6 => "icmpv6.type == 2 && icmpv6.mtu",
            };
            let errors = format!("{errors} == {}", largest_packet(kind));
            assert_eq!(at_client.count(&errors)? as u64, told, "{name}: {errors}");
            println!("{name}: told {told} times");
        }
    }
    Ok(())
}
