//! The namespace world itself, without a balancer: what scenarios rely on when
//! they judge one.

use std::fs;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use steerline_tests::world::{
    Capture, Client, Load, NginxOptions, Offload, PAYLOAD_SIZES, Server, Topology, Until, World,
    payload_digest, skip_unless_root, tcp_frame, topology, wait_until,
};

/// Longer than any client here is patient.
const LONG: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);
const REASON: &str = "makes network namespaces";

/// The kernel routes: what a balancer does by itself, the test turns on here.
fn routed_world(servers: u8) -> Result<World> {
    let world = World::new(&Topology::two_armed(servers))?;
    world.balancer().sysctl("net/ipv4/ip_forward", "1")?;
    Ok(world)
}

fn nginx(world: &World, number: u8, delay: Duration) -> Result<Server> {
    let options = NginxOptions::new(&format!("web-{number}"), World::server_address(number))
        .delay(delay)
        .may_delay(LONG)
        .may_delay(Duration::ZERO);
    Server::nginx(world.server(number)?, options)
}

#[test]
fn payloads_of_every_size_arrive_intact_and_cleanly_summed() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    let world = routed_world(1)?;
    let server = nginx(&world, 1, Duration::ZERO)?;
    let client = Client::new(world.client());
    let source = world.fresh_clients(1)?[0];
    let capture = Capture::start(world.client(), topology::CLIENT_DEVICE, "tcp")?;
    for size in PAYLOAD_SIZES {
        let path = format!("/bytes/{size}");
        let response = client.get(Some(source), server.address(), &path)??;
        assert_eq!(
            (response.status, response.length, response.digest),
            (200, size, payload_digest(size)),
            "{path}"
        );
        assert_eq!(response.server.as_deref(), Some("web-1"), "{path}");
        assert_eq!(response.source.ip(), source, "{path}");
    }
    let pcap = capture.stop()?;
    assert_eq!(pcap.bad_checksums()?, Vec::<String>::new());
    // What was captured is what was on the wire: nothing merged or cut later.
    assert_eq!(pcap.count("frame.len > 1514")?, 0);
    assert_eq!(
        pcap.syn_destinations()?,
        vec![server.address(); PAYLOAD_SIZES.len()]
    );

    let accesses = server.accesses()?;
    assert_eq!(accesses.len(), PAYLOAD_SIZES.len());
    assert!(accesses.iter().all(|access| access.client.ip() == source));
    Ok(())
}

#[test]
fn a_corrupted_frame_is_found() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    const SYN: u8 = 2;
    // Bytes of the IPv4 and of the TCP checksum in such a frame.
    let rows = [
        ("none", None, 0),
        ("ipv4", Some(24), 1),
        ("tcp", Some(50), 1),
    ];
    let world = routed_world(1)?;
    let source = SocketAddrV4::new([10, 1, 0, 1].into(), 40_000);
    let destination = SocketAddrV4::new(World::server_address(1), 80);
    let macs = ([2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 1, 1]);
    for (name, corrupted, expected) in rows {
        let mut frame = tcp_frame(macs, source, destination, SYN, b"odd length!")?;
        if let Some(index) = corrupted {
            frame[index] ^= 0x10;
        }
        let capture = Capture::start(world.balancer(), topology::FRONT_DEVICE, "tcp")?;
        world.client().send_frame(topology::CLIENT_DEVICE, &frame)?;
        let pcap = capture.stop()?;
        // The frame is looked at before anybody answers it.
        let to_server = format!("ip.dst == {}", destination.ip());
        assert_eq!(pcap.count(&to_server)?, 1, "{name}");
        let bad = pcap.bad_checksums()?;
        assert_eq!(bad.len(), expected, "{name}: {bad:?}");
    }
    Ok(())
}

#[test]
fn a_delay_orders_answers_and_can_be_taken_back() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    let world = routed_world(2)?;
    let slow = nginx(&world, 1, Duration::from_millis(400))?;
    let fast = nginx(&world, 2, Duration::ZERO)?;

    let begun = Load::sequential(slow.address(), 1).start(world.client())?;
    let many = Load::sequential(fast.address(), 10).run(world.client())?;
    assert!(!begun.is_finished(), "ten prompt answers took longer");
    many.expect_success()?;
    let delayed = begun.join()?;
    delayed.expect_success()?;
    assert!(delayed.outcomes[0].took >= Duration::from_millis(400));

    // A payload is delayed as well, and complete.
    let load = Load {
        path: "/bytes/15361".to_owned(),
        ..Load::sequential(slow.address(), 1)
    };
    let report = load.run(world.client())?;
    report.expect_success()?;
    let outcome = &report.outcomes[0];
    let response = outcome.result.as_ref().map_err(|e| e.to_string());
    assert_eq!(response.map(|r| r.digest), Ok(payload_digest(15_361)));
    assert!(outcome.took >= Duration::from_millis(400));

    // Slower than the client's limit, then prompt again.
    slow.set_delay(LONG)?;
    let hasty = Client::new(world.client()).limit(Duration::from_millis(300));
    let failure = hasty.get(None, slow.address(), "/")?.unwrap_err();
    assert!(failure.is_timeout(), "{failure}");
    slow.set_delay(Duration::ZERO)?;
    let response = Client::new(world.client()).get(None, slow.address(), "/")??;
    assert_eq!((response.status, response.length), (200, 5));
    Ok(())
}

#[test]
fn a_load_uses_its_sources_and_reports_every_request() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    let world = routed_world(1)?;
    let server = nginx(&world, 1, Duration::ZERO)?;
    let sources = world.fresh_clients(16)?;
    let load = Load {
        workers: 8,
        sources: sources.clone(),
        ..Load::sequential(server.address(), 160)
    };
    let report = load.clone().run(world.client())?;
    report.expect_success()?;
    assert_eq!(
        report.by_server().into_iter().collect::<Vec<_>>(),
        [("web-1", 160)]
    );
    let accesses = server.accesses()?;
    for source in &sources {
        let count = accesses
            .iter()
            .filter(|access| access.client.ip() == *source)
            .count();
        assert_eq!(count, 10, "{source}");
    }
    let later = world.fresh_clients(1)?;
    assert!(!sources.contains(&later[0]));

    // Nobody listens there: each request fails, and is reported.
    let closed = SocketAddr::new(server.address().ip(), 81);
    let report = Load {
        target: closed,
        ..load.clone()
    }
    .run(world.client())?;
    assert_eq!(report.failures().count(), 160);
    assert!(report.outcomes.iter().all(|outcome| {
        outcome
            .result
            .as_ref()
            .is_err_and(|failure| failure.is_reset())
    }));

    // An endless load ends when it is told to.
    let running = Load {
        rate: Some(200),
        until: Until::Time(Duration::from_secs(3_600)),
        ..load
    }
    .start(world.client())?;
    wait_until("twenty requests have ended", PATIENCE, || {
        Ok((running.completed() >= 20).then_some(()))
    })?;
    running.stop()?.expect_success()?;
    Ok(())
}

#[test]
fn namespaces_are_separate_and_settings_are_verified() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    let one = World::new(&Topology::two_armed(1))?;
    let other = World::new(&Topology::two_armed(1))?;
    // The same addresses in both, and neither sees the other's server.
    let _server = nginx(&one, 1, Duration::ZERO)?;
    let address = SocketAddr::new(IpAddr::V4(World::server_address(1)), 80);
    Client::new(one.server(1)?).get(None, address, "/")??;
    let failure = Client::new(other.server(1)?)
        .get(None, address, "/")?
        .unwrap_err();
    assert!(failure.is_reset(), "{failure}");

    let error = one
        .client()
        .offloads("nothing", &[(Offload::GenericReceive, true)])
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("ethtool -K nothing"),
        "{error:#}"
    );
    Ok(())
}

#[test]
fn nothing_outlives_its_world() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    let exists = |name: &str| Path::new("/run/netns").join(name).exists();
    let alive = |id: u32| Path::new("/proc").join(id.to_string()).exists();
    let begin = || -> Result<(World, Server, Vec<String>)> {
        let world = World::new(&Topology::two_armed(2))?;
        let server = nginx(&world, 2, Duration::ZERO)?;
        let names = world
            .servers()
            .iter()
            .chain([world.client(), world.balancer(), world.switch()])
            .map(|namespace| namespace.name().to_owned())
            .collect();
        Ok((world, server, names))
    };

    let (world, server, names) = begin()?;
    let id = server.process_id();
    ensure!(names.iter().all(|name| exists(name)) && alive(id), "begun");
    // The namespaces stay while something is in them, whatever goes first.
    drop(world);
    drop(server);
    assert!(!names.iter().any(|name| exists(name)), "{names:?}");
    assert!(!alive(id));

    let (names, id) = {
        let (sender, receiver) = std::sync::mpsc::channel();
        let panicked = std::thread::spawn(move || {
            let (_world, server, names) = begin().unwrap();
            sender.send((names, server.process_id())).unwrap();
            panic!("on purpose: the guards must clean up");
        })
        .join();
        ensure!(panicked.is_err(), "it should have panicked");
        receiver.recv().context("nothing was begun")?
    };
    assert!(!names.iter().any(|name| exists(name)), "{names:?}");
    assert!(!alive(id));
    Ok(())
}

#[test]
fn leftovers_of_a_killed_process_are_removed() -> Result<()> {
    if skip_unless_root(REASON) {
        return Ok(());
    }
    // No process has the highest id: the kernel's limit excludes it.
    let most: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")?
        .trim()
        .parse()?;
    let name = format!("steerline-test-{most}-0-client");
    let status = std::process::Command::new("ip")
        .args(["netns", "add", &name])
        .status()?;
    ensure!(status.success(), "cannot add {name}");
    let _world = World::new(&Topology::two_armed(0))?;
    assert!(!Path::new("/run/netns").join(&name).exists());
    Ok(())
}
