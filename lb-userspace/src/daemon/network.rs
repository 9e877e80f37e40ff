//! The daemon's side of routes, neighbours and addresses: feeds the next-hop
//! table and carries out what it decides.

use super::{
    addresses::withdraw,
    prepare::{self, Plan},
};
use crate::{
    Family,
    config::{
        self, Config, Service,
        check::{Finding, Severity},
    },
    dataplane::{Attached, Maps, Pass, Pins},
    net::{
        Netlink, announce,
        forwarding::{self, Forwarding},
        hops::{HopCommand, HopSet, HopTable},
        links::{self, Link},
        neighbours,
        routes::{self, Route},
        watch::{Change, Watch},
    },
    status::Interface,
};
use anyhow::{Context as _, Result};
use aya::maps::{MapData, RingBuf};
use lb_common::{
    abi::{self, Backend, HopKey},
    flow::{self, meta},
};
use std::{
    collections::BTreeMap,
    mem::offset_of,
    net::IpAddr,
    time::{Duration, Instant},
};
use tokio::io::unix::AsyncFd;

/// Something of the network's that the loop must handle.
pub(crate) enum NetEvent {
    Change(Change),
    /// The packet path met next hops that it has no index of.
    Wanted,
}

/// See the module's documentation.
pub(crate) struct Network {
    pub(super) netlink: Netlink,
    watch: Watch,
    hops: HopTable,
    wanted: AsyncFd<RingBuf<MapData>>,
    pub(super) announcements: Vec<announce::Announcement>,
    pub(super) announce_again: Option<Instant>,
}

impl Network {
    /// Reads the present, adopts what the maps have of earlier days, and asks
    /// for the ways to all backends.
    pub(crate) async fn start(
        maps: &Maps,
        plan: &Plan,
        config: &Config,
        watch: Watch,
        netlink: Netlink,
    ) -> Result<Self> {
        for link in &plan.links {
            let_forward(&link.name, config)?;
        }
        let mut hops = HopTable::new();
        let now = Instant::now();
        adopt(&mut hops, maps, now)?;
        for link in links::list(netlink.handle()).await? {
            hops.link_changed(link.index, link.own());
        }
        // Those of removed backends too: their flows go on.
        for index in 1..maps.backends.len() {
            let backend = maps.backends.read(index);
            if backend.flags & abi::backend_flags::PRESENT != 0 {
                let address = prepare::ip_address(&backend.address, backend.family);
                hops.want_backend(index, address, now);
            }
        }
        hops.routes_changed(now);
        let wanted = Maps::wanted_async(&plan.pins)?;
        Ok(Self {
            netlink,
            watch,
            hops,
            wanted,
            announcements: Vec::new(),
            announce_again: None,
        })
    }

    /// Waits until every backend has a next hop, but not for ever: a backend
    /// that is off must not keep the others from being served.
    pub(crate) async fn settle(&mut self, maps: &mut Maps, patience: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + patience;
        self.carry_out(maps).await?;
        while (1..maps.backends.len()).any(|index| {
            let backend = maps.backends.read(index);
            backend.flags & abi::backend_flags::UP != 0 && backend.hop == 0
        }) {
            let Ok(event) = tokio::time::timeout_at(deadline, self.event()).await else {
                tracing::warn!("some backends have no next hop yet; their packets are dropped");
                return Ok(());
            };
            self.handle(event?, maps).await?;
        }
        Ok(())
    }

    /// Asks for the ways to these backends, and waits like [`Network::settle`]
    /// until those that have none yet do.
    pub(crate) async fn reach(
        &mut self,
        maps: &mut Maps,
        backends: &[u32],
        patience: Duration,
    ) -> Result<()> {
        let now = Instant::now();
        for index in backends {
            let backend = maps.backends.read(*index);
            let address = prepare::ip_address(&backend.address, backend.family);
            self.hops.want_backend(*index, address, now);
        }
        let deadline = tokio::time::Instant::now() + patience;
        self.carry_out(maps).await?;
        while backends
            .iter()
            .any(|index| maps.backends.read(*index).hop == 0)
        {
            let Ok(event) = tokio::time::timeout_at(deadline, self.event()).await else {
                tracing::warn!("some backends have no next hop yet; their packets are dropped");
                return Ok(());
            };
            self.handle(event?, maps).await?;
        }
        Ok(())
    }

    /// The next event. Cancel-safe.
    pub(crate) async fn event(&mut self) -> Result<NetEvent> {
        tokio::select! {
            change = self.watch.next() => Ok(NetEvent::Change(change?)),
            ready = self.wanted.readable() => {
                ready?.clear_ready();
                Ok(NetEvent::Wanted)
            }
        }
    }

    pub(crate) async fn handle(&mut self, event: NetEvent, maps: &mut Maps) -> Result<()> {
        let now = Instant::now();
        match event {
            NetEvent::Change(Change::Neighbour { near, mac }) => {
                self.hops.neighbour_changed(near, mac, now);
            }
            NetEvent::Change(Change::RoutesChanged) => self.hops.routes_changed(now),
            NetEvent::Change(Change::LinkChanged { ifindex }) => {
                let link = Link::by_index(self.netlink.handle(), ifindex).await?;
                self.hops
                    .link_changed(ifindex, link.and_then(|link| link.own()));
            }
            NetEvent::Change(Change::Overrun) => self.read_again(now).await?,
            NetEvent::Wanted => self.take_wanted(now),
        }
        self.carry_out(maps).await
    }

    async fn read_again(&mut self, now: Instant) -> Result<()> {
        tracing::warn!("the kernel lost netlink messages; reading routes and neighbours again");
        for link in links::list(self.netlink.handle()).await? {
            self.hops.link_changed(link.index, link.own());
        }
        let neighbours = neighbours::list(self.netlink.handle()).await?;
        self.hops
            .neighbours_reread(neighbours.into_iter().map(|n| (n.near, n.mac)), now);
        self.hops.routes_changed(now);
        Ok(())
    }

    fn take_wanted(&mut self, now: Instant) {
        while let Some(item) = self.wanted.get_mut().next() {
            if item.len() == size_of::<HopKey>() {
                let key: HopKey = bytemuck::pod_read_unaligned(&item);
                self.hops.want(key, now);
            }
        }
    }

    pub(crate) async fn tick(&mut self, maps: &mut Maps) -> Result<()> {
        let now = Instant::now();
        // A record whose wake-up was lost.
        self.take_wanted(now);
        if self.hops.poll_timeout().is_some_and(|due| due <= now) {
            self.hops.handle_timeout(now);
        }
        if self.announce_again.is_some_and(|due| due <= now) {
            self.announce_again = None;
            self.send_announcements();
        }
        self.carry_out(maps).await
    }

    /// A removed backend that no flow holds any more.
    pub(crate) fn forget_backend(&mut self, backend: u32) {
        self.hops.forget_backend(backend);
    }

    /// Tells the table which next hops flows hold, so that it may reuse the
    /// others; flows that name one that is going are made to forget it.
    pub(crate) async fn after_pass(&mut self, pass: &Pass, maps: &mut Maps) -> Result<()> {
        let mut held = HopSet::default();
        for (index, is_held) in (0u32..).zip(&pass.hops) {
            if *is_held {
                held.insert(index);
            }
        }
        self.hops.in_use(&held);
        forget_dead_hops(maps, pass);
        self.carry_out(maps).await
    }

    async fn carry_out(&mut self, maps: &mut Maps) -> Result<()> {
        while let Some(command) = self.hops.next_command() {
            match command {
                HopCommand::WriteHop { index, hop } => maps.hops.write(index, hop),
                HopCommand::InsertIndex { key, index } => {
                    maps.hop_index
                        .insert(key, index, 0)
                        .context("HOP_INDEX: cannot insert")?;
                }
                HopCommand::RemoveIndex { key } => {
                    // Gone already after a restart between two commands.
                    let _ = maps.hop_index.remove(&key);
                }
                HopCommand::SetBackendHop { backend, index } => {
                    maps.backends
                        .write_word(backend, offset_of!(Backend, hop), index);
                }
                HopCommand::Manage(near) => {
                    match neighbours::manage(self.netlink.handle(), near).await {
                        Ok(entry) => {
                            let mac = entry.and_then(|entry| entry.mac);
                            self.hops.neighbour_changed(near, mac, Instant::now());
                        }
                        Err(error) => tracing::warn!("neighbour {}: {error:#}", near.address),
                    }
                }
                HopCommand::Release(near) => {
                    if let Err(error) = neighbours::release(self.netlink.handle(), near).await {
                        tracing::debug!("neighbour {}: {error:#}", near.address);
                    }
                }
                HopCommand::ResolveRoute { backend, address } => {
                    let route = match routes::route_to(self.netlink.handle(), address).await {
                        Ok(route) => Some(route),
                        Err(error) => {
                            tracing::warn!("backend {address}: {error}");
                            None
                        }
                    };
                    note_tunnel_source(maps, backend, address, route.as_ref());
                    self.hops
                        .route_resolved(backend, address, route, Instant::now());
                }
            }
        }
        Ok(())
    }

    /// The interfaces of this network namespace.
    pub(crate) async fn links(&self) -> Result<Vec<Link>> {
        links::list(self.netlink.handle()).await
    }

    pub(crate) async fn interfaces(
        &self,
        attached: &[Attached],
        losses: impl Iterator<Item = u64>,
    ) -> Result<Vec<Interface>> {
        let links = self.links().await?;
        Ok(attached
            .iter()
            .zip(losses)
            .map(|(attached, losses)| {
                let xdp = links
                    .iter()
                    .find(|link| link.name == attached.interface)
                    .and_then(|link| link.xdp.as_ref());
                let ours = xdp.filter(|xdp| xdp.program_id == attached.program_id);
                Interface {
                    name: attached.interface.clone(),
                    mode: ours.map_or("detached", |xdp| match xdp.mode {
                        links::XdpMode::Native => "native",
                        links::XdpMode::Generic => "generic",
                        links::XdpMode::Offload => "offload",
                    }),
                    link: attached.link.display().to_string(),
                    program_id: xdp.map_or(0, |xdp| xdp.program_id),
                    losses,
                }
            })
            .collect())
    }
}

/// Has an interface forward the families of the services that are configured.
/// IPv4 always: it was so before there was another, and pinned maps may have
/// flows of services that are not configured any more.
pub(super) fn let_forward(interface: &str, config: &Config) -> Result<()> {
    let is_ipv6 = |service: &Service| service.address.is_ipv6();
    let six = config.services.iter().any(is_ipv6).then_some(Family::V6);
    for family in [Family::V4].into_iter().chain(six) {
        let also = match forwarding::ensure(interface, family)? {
            Forwarding::Already => continue,
            Forwarding::Changed => "",
            Forwarding::ChangedListening => {
                "; it goes on taking router advertisements (accept_ra is 2)"
            }
        };
        tracing::info!(
            "{interface}: {family} forwarding switched on, without which the kernel answers no \
             route look-ups of the packet path{also}"
        );
    }
    Ok(())
}

/// `detach` without a daemon: takes addresses and program off.
///
/// # Errors
/// What could not be removed.
pub async fn detach(config: &Config) -> Result<bool> {
    let pins = Pins::new(&config.data_plane.pin_directory);
    let netlink = Netlink::open()?;
    withdraw(config, &netlink).await?;
    if !pins.directory().exists() {
        return Ok(false);
    }
    pins.check_file_system()?;
    pins.remove()?;
    Ok(true)
}

/// Tells the packet path our end of the tunnel to a backend, unless it is
/// configured: the address that the kernel would send from.
fn note_tunnel_source(maps: &Maps, backend: u32, address: IpAddr, route: Option<&Route>) {
    let entry = maps.backends.read(backend);
    if entry.tunnel_source_fixed != 0 {
        return;
    }
    let source = route
        .and_then(|route| route.source)
        .filter(|source| source.is_ipv4() == address.is_ipv4());
    if let Some(source) = source {
        // A packet that sees half of an IPv6 address sees that there is none: the
        // upper half comes last.
        let address = prepare::map_address(source);
        let (upper, lower) = address.split_at(8);
        let place = offset_of!(Backend, tunnel_source);
        for (at, half) in [(8, lower), (0, upper)] {
            let word: u64 = bytemuck::pod_read_unaligned(half);
            maps.backends.write_word(backend, place + at, word);
        }
    }
}

/// Hands the pinned maps' next hops to the table.
fn adopt(hops: &mut HopTable, maps: &Maps, now: Instant) -> Result<()> {
    let keys: Vec<(HopKey, u32)> = maps.hop_index.iter().collect::<Result<_, _>>()?;
    let by_index: BTreeMap<u32, HopKey> = keys.iter().map(|(key, index)| (*index, *key)).collect();
    let mut backend_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for index in 1..maps.backends.len() {
        let hop = maps.backends.read(index).hop;
        if hop != 0 && hop < maps.hops.len() {
            backend_of.entry(hop).or_default().push(index);
        }
    }
    for index in 1..maps.hops.len() {
        let hop = maps.hops.read(index);
        if let Some(key) = by_index.get(&index) {
            hops.adopt(index, *key, hop, now);
        } else if let Some(backends) = backend_of.get(&index) {
            for backend in backends {
                hops.adopt_backend(*backend, index, hop);
            }
        } else if hop != abi::Hop::default() {
            hops.adopt_retired(index, hop);
        }
    }
    Ok(())
}

/// Makes flows forget a next hop that is not valid any more, so that they ask
/// the kernel once and note the new one, and the index becomes free.
fn forget_dead_hops(maps: &Maps, pass: &Pass) {
    let dead: Vec<bool> = (0u32..)
        .zip(&pass.hops)
        .map(|(index, held)| {
            *held && index != 0 && maps.hops.read(index).flags & abi::hop_flags::VALID == 0
        })
        .collect();
    if !dead.contains(&true) {
        return;
    }
    for position in 0..maps.bucket_count() {
        for way in &maps.bucket(position).words.ways {
            let word = way.meta.load();
            if meta::is_flow(word) && dead.get(usize::from(meta::hop(word))) == Some(&true) {
                flow::forget_hop(way, word);
            }
        }
    }
}

/// See [`super::findings`].
pub(crate) async fn findings(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut failure = |subject: &str, message: String| {
        findings.push(Finding {
            severity: Severity::Failure,
            subject: subject.into(),
            message,
        });
    };
    let netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) => {
            failure("netlink", format!("{error:#}"));
            return findings;
        }
    };
    if let Err(error) = prepare::plan(config, netlink.handle()).await {
        failure("start", format!("{error:#}"));
    }
    let links = match links::list(netlink.handle()).await {
        Ok(links) => links,
        Err(error) => {
            failure("netlink", format!("{error:#}"));
            return findings;
        }
    };
    let addresses = announce::addresses(netlink.handle()).await;
    let addresses = addresses.unwrap_or_default();
    for service in &config.services {
        for backend in &service.backends {
            let subject = format!("{}/{}", service.name, backend.name);
            match routes::route_to(netlink.handle(), backend.address).await {
                Ok(route) => {
                    let exit = links.iter().find(|link| link.index == route.ifindex);
                    let name = exit.map_or("?", |link| link.name.as_str());
                    if backend.address.is_ipv6()
                        && !announce::has_link_local(&addresses, route.ifindex)
                    {
                        failure(
                            &subject,
                            format!(
                                "{name} has no IPv6 link-local address, from which the kernel \
                                 asks for neighbours: {} cannot be found. Set \
                                 net.ipv6.conf.{name}.addr_gen_mode to 0, or give it an address \
                                 of fe80::/64",
                                backend.address
                            ),
                        );
                    }
                    let listed = config
                        .data_plane
                        .interfaces
                        .iter()
                        .any(|listed| listed == name);
                    if service.forwarding.is_tunnel() {
                        // Any way will do, and answers do not come by it.
                    } else if service.forwarding == config::Forwarding::Dsr {
                        // The MAC address is all that is rewritten: it must be
                        // the server's own.
                        if let Some(gateway) = route.gateway {
                            failure(
                                &subject,
                                format!(
                                    "{} is behind the gateway {gateway}: direct return needs \
                                     servers on a segment of this machine. Use \
                                     forwarding = \"nat\", or move the server",
                                    backend.address
                                ),
                            );
                        }
                    } else if !listed {
                        failure(
                            &subject,
                            format!(
                                "{} is reached by {name}, which data_plane.interfaces does not \
                                 list: its replies would bypass Steerline and reach clients from \
                                 the wrong address. Add \"{name}\"",
                                backend.address
                            ),
                        );
                    }
                }
                Err(error) => failure(&subject, format!("{}: {error}", backend.address)),
            }
        }
    }
    findings
}
