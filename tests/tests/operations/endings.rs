//! A hundred thousand connections that end in every way there is, or never,
//! leave nothing in the books, in `nat` and in `dsr`.
//!
//! The rules: traefik#4226 (phantom open connections), cilium#20407 (ends that
//! direct return does not show), kubernetes#81775 (closed tuples).
//!
//! Connections that nobody ends are over by their idle timeouts: seconds for a
//! half-open one, an hour for an established one. No test waits that long, so
//! once all connections are as they will stay the timeouts in the pinned
//! settings are shortened, [`shorten`], and the daemon's own sweep does the rest.

use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread;

use anyhow::{Context, Result, bail};
use lb_common::abi::Settings;
use lb_common::reason::Reason;
use lb_common::tcp::{State, flags};
use steerline::dataplane::Maps;
use steerline_tests::world::{
    Balancer, BalancerConfig, Namespace, Topology, World, tcp_frame, topology, wait_until,
};

use crate::hosts::{self, Ending, Host, Manner};
use crate::site::{self, PATIENCE, Service, Status};
use crate::turn;

const OBEDIENT: u16 = 9_000;
const SILENT: u16 = 9_001;
const VOID: u16 = 9_002;
/// The names of the services, by who is behind them.
const OBEYING: &str = "obeying";
const KEEPING: &str = "keeping";
const NOWHERE: &str = "nowhere";

/// Of each of [`Ending::ALL`], by real sockets.
const OF_EACH: usize = 5_000;
/// Clients that vanish, by real sockets.
const VANISHING: usize = 1_000;
/// SYNs that a server answers and nobody acknowledges.
const ABANDONED: u32 = 40_000;
/// SYNs that nobody answers; in `dsr`, half of them are acknowledged all the
/// same, which there is all that an established connection shows.
const UNANSWERED: u32 = 39_000;

/// Server 9 does not exist, but has a MAC: what is sent there is lost.
const LOST: u8 = 9;

/// Shortens every timeout to a tick, a quarter of a second, in the settings of
/// the running packet path and daemon: one is as good as the other to see that
/// what is over is counted as over.
pub(crate) fn shorten(balancer: &Balancer) -> Result<()> {
    let maps = site::maps(balancer)?;
    let mut timeouts = maps.settings.read(0).timeouts;
    for timeout in &mut timeouts[State::HalfOpen as usize..=State::Conversing as usize] {
        *timeout = 1;
    }
    let offset = offset_of!(Settings, timeouts);
    maps.settings.write_word(0, offset, timeouts);
    Ok(())
}

struct Scene {
    balancer: Balancer,
    silent: Vec<Host>,
    _obedient: Vec<Host>,
    world: World,
    services: [Service; 3],
}

impl Scene {
    fn new(make: fn(&'static str, u16) -> Service) -> Result<Self> {
        let world = World::new(&Topology::two_armed(2))?;
        for server in world.servers() {
            site::hold(server)?;
            // One answer to a SYN and no more, so that packets can be counted.
            server.sysctl("net/ipv4/tcp_synack_retries", "0")?;
        }
        let start = |port, manner| -> Result<Vec<Host>> {
            let servers = world.servers().iter();
            servers
                .map(|server| Host::start(server, port, manner))
                .collect()
        };
        let silent = start(SILENT, Manner::Silent)?;
        let obedient = start(OBEDIENT, Manner::Obedient)?;
        let services = [
            make(OBEYING, OBEDIENT).round_robin().over(&[1, 1]),
            make(KEEPING, SILENT).round_robin().over(&[1, 1]),
            make(NOWHERE, VOID).round_robin().backend(LOST, 1),
        ];
        let void = World::server_address(LOST);
        world.balancer().ip(&format!(
            "neighbour add {void} lladdr 02:00:00:00:04:99 dev {} nud permanent",
            topology::BACK_DEVICE
        ))?;
        // These clients are nobody's: answers to them end at the client host,
        // which does not forward.
        world
            .balancer()
            .ip(&format!("route add 10.9.0.0/16 via {}", topology::CLIENT))?;
        let services = services.map(|service| service.line("inband_health.syn_timeout", "2m"));
        let config = BalancerConfig {
            data_plane: "flow_table = { ipv4 = 262_144, ipv6 = 0 }\n".to_owned(),
            ..site::config(&services.each_ref())
        };
        Ok(Self {
            balancer: Balancer::start(world.balancer(), &config)?,
            silent,
            _obedient: obedient,
            world,
            services,
        })
    }

    /// Real connections, in four threads with a mixture of endings each.
    fn end_in_every_way(&self) -> Result<()> {
        let target = self.services[0].target();
        let ways = Ending::ALL.len();
        // An address each: a port that a reset has freed may be drawn again,
        // and a SYN on a tuple that lingers is another scenario's matter.
        let sources = self.world.fresh_clients((ways * OF_EACH) as u16)?;
        in_threads(self.world.client(), OF_EACH, |number| {
            let sources = &sources[number * ways..][..ways];
            for (source, ending) in sources.iter().zip(Ending::ALL) {
                hosts::end(*source, target, ending).with_context(|| format!("{ending:?}"))?;
            }
            Ok(())
        })
    }

    fn vanish(&self) -> Result<()> {
        let target = self.services[1].target();
        let sources = self.world.fresh_clients(VANISHING as u16)?;
        in_threads(self.world.client(), VANISHING, |number| {
            hosts::vanish(sources[number], target)
        })?;
        wait_until("servers have accepted them", PATIENCE, || {
            let kept: usize = self.silent.iter().map(Host::kept).sum();
            Ok((kept == VANISHING).then_some(()))
        })
    }

    /// `count` SYNs of clients that do nothing else, but for those that
    /// acknowledge what never came. No more are sent before the balancer has
    /// forwarded them, and the answers if there are any that it sees: queues
    /// are short.
    fn strew(
        &self,
        target: SocketAddr,
        count: u32,
        acknowledge: impl Fn(u32) -> bool,
        answered: bool,
    ) -> Result<()> {
        /// What a receiver's queue holds for certain.
        const AT_ONCE: usize = 100;
        let SocketAddr::V4(target) = target else {
            bail!("{target} is of another family");
        };
        let maps = site::maps(&self.balancer)?;
        let mut forwarded = count_of(&maps, Reason::Forwarded)?;
        let numbers: Vec<u32> = (0..count).collect();
        for part in numbers.chunks(AT_ONCE) {
            let mut frames = Vec::new();
            for number in part {
                let source = SocketAddrV4::new(
                    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 9, 0, 1)) + number % 1_000),
                    (2_000 + number / 1_000) as u16,
                );
                frames.push(frame(source, target, flags::SYN)?);
                if acknowledge(*number) {
                    frames.push(frame(source, target, flags::ACK)?);
                }
            }
            let answers = if answered { part.len() } else { 0 };
            forwarded += (frames.len() + answers) as u64;
            self.world
                .client()
                .send_frames(topology::CLIENT_DEVICE, frames)?;
            wait_until("the balancer has forwarded them", PATIENCE, || {
                Ok((count_of(&maps, Reason::Forwarded)? >= forwarded).then_some(()))
            })?;
        }
        Ok(())
    }
}

fn count_of(maps: &Maps, wanted: Reason) -> Result<u64> {
    let counts = maps.reason_counts()?;
    let found = counts.iter().find(|(reason, _)| *reason == wanted);
    found.map(|(_, count)| *count).context("no such counter")
}

fn frame(source: SocketAddrV4, target: SocketAddrV4, flags: u8) -> Result<Vec<u8>> {
    const CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 2];
    const FRONT: [u8; 6] = [2, 0, 0, 0, 1, 1];
    tcp_frame((CLIENT, FRONT), source, target, flags, &[])
}

/// Does `what` for each number below `count`, in four threads of `namespace`.
fn in_threads(
    namespace: &Namespace,
    count: usize,
    what: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    const THREADS: usize = 4;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                let what = &what;
                scope.spawn(move || {
                    namespace.enter(|| (first..count).step_by(THREADS).try_for_each(what))?
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })
}

const REAL: u64 = (Ending::ALL.len() * OF_EACH) as u64;
const TOTAL: u64 = REAL + VANISHING as u64 + ABANDONED as u64 + UNANSWERED as u64;
const _: () = assert!(TOTAL == 100_000);

fn print(mode: &str, status: &Status) -> Result<()> {
    println!(
        "{mode}: {OF_EACH} each of {:?}, {VANISHING} vanished, {ABANDONED} abandoned, \
         {UNANSWERED} unanswered",
        Ending::ALL
    );
    for service in [OBEYING, KEEPING, NOWHERE] {
        println!(
            "  {service}: {} opened, {} active, {} half-open",
            status.sum(service, "/new_flows")?,
            status.sum(service, "/active_flows")?,
            status.sum(service, "/half_open")?
        );
    }
    Ok(())
}

fn assert_all_over(scene: &Scene) -> Result<Status> {
    shorten(&scene.balancer)?;
    let status = Status::quiet(&scene.balancer)?;
    assert_eq!(status.counter("new_flow")?, TOTAL, "none was opened twice");
    assert_eq!(status.counter("evicted_half_open")?, 0);
    status.expect_no_drops()?;
    Ok(status)
}

#[test]
fn endings_by_nat_leave_nothing_behind() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new(Service::nat)?;
    scene.end_in_every_way()?;
    scene.vanish()?;
    let [obeying, _, nowhere] = &scene.services;
    // Both sides were seen: what has ended is known to have, at once, and what
    // has not is established.
    let status = Status::wait(&scene.balancer, "only the vanished are left", |status| {
        Ok(status.sum(OBEYING, "/active_flows")? == 0
            && status.sum(KEEPING, "/active_flows")? == VANISHING as u64)
    })?;
    let resets = status.sum(OBEYING, "/failures/reset")?;
    assert_eq!(resets, OF_EACH as u64, "resets of servers");
    scene.strew(obeying.target(), ABANDONED, |_| false, true)?;
    scene.strew(nowhere.target(), UNANSWERED, |_| false, false)?;
    let status = Status::now(&scene.balancer)?;
    print("nat", &status)?;
    assert_eq!(status.sum(OBEYING, "/half_open")?, u64::from(ABANDONED));
    assert_eq!(status.sum(NOWHERE, "/half_open")?, u64::from(UNANSWERED));

    let status = assert_all_over(&scene)?;
    // A SYN that was answered is nobody's failure.
    let failures = |service| status.sum(service, "/failures/syn_timeout");
    assert_eq!(failures(OBEYING)?, 0);
    assert_eq!(failures(NOWHERE)?, u64::from(UNANSWERED));
    Ok(())
}

#[test]
fn endings_by_dsr_leave_nothing_behind() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let scene = Scene::new(Service::dsr)?;
    scene.end_in_every_way()?;
    scene.vanish()?;
    let [obeying, _, nowhere] = &scene.services;
    scene.strew(obeying.target(), ABANDONED, |_| false, false)?;
    scene.strew(
        nowhere.target(),
        UNANSWERED,
        |number| number % 2 == 0,
        false,
    )?;
    // Of servers nothing is seen: those that were reset by theirs, and the
    // vanished, are established for all that the balancer knows.
    let status = Status::wait(
        &scene.balancer,
        "the last ACKs are in the books",
        |status| {
            Ok(
                status.sum(NOWHERE, "/active_flows")? == u64::from(UNANSWERED / 2)
                    && status.sum(KEEPING, "/active_flows")? == VANISHING as u64,
            )
        },
    )?;
    print("dsr", &status)?;
    assert_eq!(status.sum(OBEYING, "/half_open")?, u64::from(ABANDONED));
    assert_eq!(
        status.sum(NOWHERE, "/half_open")?,
        u64::from(UNANSWERED / 2)
    );

    let status = assert_all_over(&scene)?;
    assert_eq!(status.sum(OBEYING, "/failures/reset")?, 0, "not visible");
    // Nobody repeated a SYN, so no server is known to have failed one.
    assert_eq!(status.sum(NOWHERE, "/failures/syn_timeout")?, 0);
    Ok(())
}
