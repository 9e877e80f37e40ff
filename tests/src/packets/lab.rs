//! The loaded program, with maps, pins and a network of its own.

use super::{
    Carried, Counter, Endpoint, Entropy, Family, Moved, Tunnel, counters::Snapshot, map_address,
    scene, verdict,
};
use crate::world::Namespace;
use anyhow::{Context as _, Result};
use aya::{
    maps::{MapData, RingBuf},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use lb_common::{
    abi::{
        Address, Backend, Cold, ColdBucket, Hop, HopKey, Live, POOL_PROTOCOL, Service, ServiceKey,
        Settings, TICK_SHIFT, WAYS, Way, endpoint4, halves6, tick_of,
    },
    flow::{client_word, meta},
    hash::{endpoint6, filter_bit},
};
use nix::{
    net::if_::if_nametoindex,
    time::{ClockId, clock_gettime},
};
use std::{collections::BTreeMap, net::IpAddr};
use steerline::dataplane::{Books, Loaded, Maps, PinState, Pins, Publisher, Sizes};

/// Ticks of the coarse clock.
pub type Tick = u32;

/// Where a frame comes in or goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Towards clients.
    Front,
    /// Towards servers.
    Back,
}

/// The largest frame of a test run: what a jumbo interface takes.
const LARGEST: usize = 9_200;

/// See the module docs. Its network namespace is that of the thread that made
/// it, for good; what it pinned is removed when it is dropped.
pub struct Lab {
    /// The maps, for rows that look or change.
    pub maps: Maps,
    /// Publishes member lists and rings.
    pub publisher: Publisher,
    /// Index of the interface towards clients.
    pub front: u32,
    /// Index of the interface towards servers.
    pub back: u32,
    /// What was seen of each flow in the packets around its own.
    pub(super) entropies: BTreeMap<(Carried, Endpoint, Tunnel), Entropy>,
    books: Books,
    wanted: RingBuf<MapData>,
    buckets: u32,
    loaded: Loaded,
    pins: Unpin,
    namespace: Namespace,
}

/// Removes pins when dropped.
struct Unpin(Pins);

impl Drop for Unpin {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            eprintln!("cannot remove the pins: {error}");
        }
    }
}

/// `struct xdp_md` (include/uapi/linux/bpf.h), as a test run takes it.
pub(crate) fn context(length: usize, ifindex: u32) -> [u8; 24] {
    context_behind(0, length, ifindex)
}

/// The same of a frame behind metadata.
fn context_behind(metadata: usize, length: usize, ifindex: u32) -> [u8; 24] {
    let short = |length: usize| u32::try_from(length).expect("a short frame");
    let words = [short(metadata), short(metadata + length), 0, ifindex, 0, 0];
    let mut bytes = [0; 24];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("reading the clock");
    now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
}

/// Microseconds of the monotonic clock.
pub fn now_us() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC) / 1_000
}

/// The tick of this moment: of the coarse clock, as the program reads it.
pub fn now() -> Tick {
    tick_of(nanoseconds(ClockId::CLOCK_MONOTONIC_COARSE))
}

impl Lab {
    /// A laboratory with a flow table of `buckets` buckets and a spill of
    /// `spill` entries. Moves the calling thread into a namespace of its own.
    ///
    /// # Errors
    /// Whatever forbids it: no root, no bpf file system, a program that the
    /// kernel refuses.
    pub fn new(buckets: u32, spill: u32) -> Result<Self> {
        crate::world::topology::remove_orphans();
        let namespace = Namespace::new("packets")?;
        for command in scene::commands() {
            namespace.ip(&command)?;
        }
        for interface in ["front", "back"] {
            for family in ["ipv4", "ipv6"] {
                namespace.sysctl(&format!("net/{family}/conf/{interface}/forwarding"), "1")?;
            }
        }
        namespace.join_this_thread()?;
        let index =
            |name: &str| if_nametoindex(name).with_context(|| format!("{name}: has no index"));
        let (front, back) = (index("front")?, index("back")?);
        let pins = Pins::new(format!("/sys/fs/bpf/{}", namespace.name()));
        let sizes = Sizes {
            buckets4: buckets,
            spill4: spill,
            buckets6: buckets,
            spill6: spill,
            pools: scene::POOLS,
        };
        pins.check_file_system()?;
        let loaded = Loaded::new(&pins, PinState::Absent, sizes)?;
        let pins = Unpin(pins);
        let maps = loaded.maps()?;
        let wanted = Maps::wanted(&pins.0)?;
        let publisher = Publisher::new(&maps);
        let mut lab = Self {
            maps,
            publisher,
            front,
            back,
            entropies: BTreeMap::new(),
            books: Books::new(),
            wanted,
            buckets,
            loaded,
            pins,
            namespace,
        };
        lab.reset();
        Ok(lab)
    }

    /// Everything as it was in the beginning: empty tables, the scene's
    /// services. Counters that only grow keep what they have.
    pub fn reset(&mut self) {
        for index in 0..self.maps.flows4.len() {
            self.maps.flows4.write(index, bytemuck::Zeroable::zeroed());
            self.maps.cold4.write(index, bytemuck::Zeroable::zeroed());
        }
        for index in 0..self.maps.flows6.len() {
            self.maps.flows6.write(index, bytemuck::Zeroable::zeroed());
            self.maps.cold6.write(index, bytemuck::Zeroable::zeroed());
        }
        let keys: Vec<_> = self.maps.spill4.keys().flatten().collect();
        for key in keys {
            self.maps.spill4.remove(&key).expect("emptying the spill");
        }
        let keys: Vec<_> = self.maps.services.keys().flatten().collect();
        for key in keys {
            self.maps
                .services
                .remove(&key)
                .expect("forgetting a service");
        }
        let keys: Vec<_> = self.maps.hop_index.keys().flatten().collect();
        for key in keys {
            self.maps
                .hop_index
                .remove(&key)
                .expect("forgetting a next hop");
        }
        for index in 0..scene::SERVICES_READ {
            self.maps
                .service_table
                .write(index, bytemuck::Zeroable::zeroed());
            self.maps.cursors.write(index, bytemuck::Zeroable::zeroed());
            self.maps
                .syn_guards
                .write(index, bytemuck::Zeroable::zeroed());
        }
        for index in 0..self.maps.budgets.len() {
            self.maps.budgets.write(index, bytemuck::Zeroable::zeroed());
        }
        while self.wanted.next().is_some() {}
        let before = self.maps.settings.read(0);
        self.maps
            .settings
            .write(0, scene::settings(&before, self.buckets, now()));
        scene::write(self);
    }

    pub(super) fn assign_service(&mut self, name: &str, key: &ServiceKey, index: u32) {
        // Zeroed tables make everything look new: the names know better.
        if self.maps.service_names.read(index).state == lb_common::abi::name_state::FREE {
            let assigned = self
                .books
                .service(&mut self.maps, name, key)
                .expect("an index");
            assert_eq!(assigned.index, index, "service {name}");
        }
        self.maps
            .services
            .insert(key, index, 0)
            .expect("naming a service");
    }

    pub(super) fn assign_backend(
        &mut self,
        name: &str,
        service: u32,
        address: &Address,
        port: u16,
        index: u32,
    ) {
        if self.maps.backend_names.read(index).state == lb_common::abi::name_state::FREE {
            let assigned = self
                .books
                .backend(&mut self.maps, service, name, address, port)
                .expect("an index");
            assert_eq!(assigned.index, index, "backend {name}");
        }
    }

    /// The entry program, for test runs of another kind.
    ///
    /// # Errors
    /// None in practice: it was loaded.
    pub fn program(&self) -> Result<&Xdp> {
        self.loaded.entry()
    }

    /// Index of an interface.
    pub fn ifindex(&self, port: Port) -> u32 {
        match port {
            Port::Front => self.front,
            Port::Back => self.back,
        }
    }

    /// Runs a frame that comes in at `port`: the verdict and the bytes after.
    ///
    /// # Panics
    /// If the kernel refuses the run.
    pub fn run(&self, frame: &[u8], port: Port) -> (u32, Vec<u8>) {
        self.run_behind(&[], frame, port)
    }

    /// Runs a frame behind metadata, which must stay there.
    ///
    /// # Panics
    /// If the kernel refuses the run, or the metadata is not there any more.
    pub fn run_behind(&self, metadata: &[u8], frame: &[u8], port: Port) -> (u32, Vec<u8>) {
        let mut out = vec![0; LARGEST];
        let context = context_behind(metadata.len(), frame.len(), self.ifindex(port));
        let options = TestRunOptions {
            data_in: Some(&[metadata, frame].concat()),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let program = self.loaded.entry().expect("the program is loaded");
        let result = program
            .test_run(options)
            .expect("the kernel runs the frame");
        out.truncate(result.data_size_out as usize);
        let frame = out.split_off(metadata.len());
        assert_eq!(out, metadata, "the metadata in front of the frame");
        (result.return_value, frame)
    }

    /// Moves the calling thread into this laboratory's namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enter(&self) -> Result<()> {
        self.namespace.join_this_thread()
    }

    /// Runs a frame and judges nothing: for what a row does not look at.
    pub fn feed(&self, frame: &[u8], port: Port) {
        let (verdict, _) = self.run(frame, port);
        assert_ne!(verdict, verdict::ABORTED, "the program failed");
    }

    /// All counters.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.maps)
    }

    /// Adds the next hops that were asked for since the last call.
    pub fn drain_wanted(&mut self, moved: &mut Moved) {
        while let Some(record) = self.wanted.next() {
            let key: HopKey = bytemuck::pod_read_unaligned(&record);
            let [a, b, c, d, ..] = key.address;
            let address = match key.family {
                4 => IpAddr::from([a, b, c, d]),
                _ => IpAddr::from(key.address),
            };
            moved.add(Counter::Wanted(address), 1);
        }
    }

    /// Forgets the next hops that were asked for.
    pub fn forget_wanted(&mut self) {
        while self.wanted.next().is_some() {}
    }

    /// Whether the books of every backend of the scene say what the table
    /// holds.
    ///
    /// # Errors
    /// The first that does not.
    pub fn books_agree(&self) -> Result<()> {
        let mut held = BTreeMap::<u64, (u64, u64)>::new();
        let mut note = |word: u64, virtual_end: u64| {
            let state = meta::state(word);
            let (half_open, active) = held.entry(virtual_end & 0xffff).or_default();
            *half_open += u64::from(state.is_half_open());
            *active += u64::from(state.is_active());
        };
        for position in 0..self.maps.bucket_count() {
            for way in &self.maps.bucket(position).words.ways {
                note(way.meta.load(), way.virtual_end.load());
            }
        }
        for id in self.maps.spill_ids()? {
            if let Some(entry) = self.maps.spilled(&id) {
                note(entry.spilled.way.meta, entry.spilled.way.virtual_end);
            }
        }
        for backend in 0..u64::from(scene::BACKENDS_READ) {
            let live = self.maps.live.read(u32::try_from(backend)?);
            let booked = (
                live.half_opened.wrapping_sub(live.half_closed),
                live.opened.wrapping_sub(live.closed),
            );
            let held = held.get(&backend).copied().unwrap_or_default();
            anyhow::ensure!(
                booked == held,
                "backend {backend}: (half-open, active) is {booked:?} in the books, {held:?} in \
                 the table"
            );
        }
        Ok(())
    }

    /// Counters of services and backends beyond the scene's, which must be
    /// zero whatever happened.
    ///
    /// # Errors
    /// The first that is not.
    pub fn nothing_strayed(&self) -> Result<()> {
        for service in scene::SERVICES_READ..self.maps.service_table.len() {
            let traffic = self.maps.service_traffic(service)?;
            anyhow::ensure!(
                traffic == Default::default(),
                "service {service}: {traffic:?}"
            );
        }
        for backend in u32::from(scene::BACKENDS_READ)..self.maps.live.len() {
            let live = self.maps.live.read(backend);
            anyhow::ensure!(live == Live::default(), "backend {backend}: {live:?}");
            let report = self.maps.report(backend)?;
            anyhow::ensure!(
                report == Default::default(),
                "backend {backend}: {report:?}"
            );
        }
        Ok(())
    }

    /// Changes the settings.
    pub fn settings(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.maps.settings.read(0);
        change(&mut settings);
        self.maps.settings.write(0, settings);
    }

    /// Changes a service.
    pub fn service(&self, vip: scene::Vip, change: impl FnOnce(&mut Service)) {
        let mut service = self.maps.service_table.read(vip.index);
        change(&mut service);
        self.maps.service_table.write(vip.index, service);
    }

    /// Changes a backend.
    pub fn backend(&self, server: scene::Server, change: impl FnOnce(&mut Backend)) {
        let mut backend = self.maps.backends.read(server.index.into());
        change(&mut backend);
        self.maps.backends.write(server.index.into(), backend);
    }

    /// Lets servers' packets to an address find the flows that have its ports.
    pub fn name_pool(&mut self, address: IpAddr, index: u32) {
        let bit = filter_bit(&map_address(address), Family::of(address).number());
        let word = self.maps.filter.read(bit >> 6);
        self.maps.filter.write(bit >> 6, word | 1 << (bit & 63));
        let key = ServiceKey {
            address: map_address(address),
            port: 0,
            protocol: POOL_PROTOCOL,
            family: Family::of(address).number(),
        };
        self.maps
            .services
            .insert(key, index, 0)
            .expect("naming an address of the pool");
    }

    /// Puts these backends of a service behind a tunnel; see
    /// [`scene::Server::behind`].
    pub fn tunnel(&self, vip: scene::Vip, servers: &[scene::Server]) {
        for server in servers {
            let tunnel = server.tunnel.expect("a server behind a tunnel");
            let forwarding = tunnel.forwarding();
            self.service(vip, |service| service.forwarding = forwarding);
            self.backend(*server, |backend| {
                backend.forwarding = forwarding;
                backend.address = map_address(server.endpoint.0);
                backend.family = tunnel.family.number();
                backend.hop = server.hop();
                backend.tunnel_port = tunnel.port;
                backend.tunnel_source = map_address(tunnel.source);
                backend.tunnel_spread = tunnel.spread;
            });
        }
    }

    /// Takes the up flag from servers.
    pub fn down(&self, servers: &[scene::Server]) {
        for server in servers {
            self.backend(*server, |b| b.flags &= !lb_common::abi::backend_flags::UP);
        }
    }

    /// Changes the books of a backend.
    pub fn live(&self, server: scene::Server, change: impl FnOnce(&mut Live)) {
        let mut live = self.maps.live.read(server.index.into());
        change(&mut live);
        self.maps.live.write(server.index.into(), live);
    }

    /// Changes a next hop.
    pub fn hop(&self, index: u32, change: impl FnOnce(&mut Hop)) {
        let mut hop = self.maps.hops.read(index);
        change(&mut hop);
        self.maps.hops.write(index, hop);
    }

    /// Publishes a member list.
    pub fn publish(&mut self, vip: scene::Vip, members: &[(u16, u32)]) {
        self.publisher
            .publish_members(&self.maps, vip.index, members, now_us())
            .expect("room for a member list");
    }

    /// Publishes a ring.
    pub fn publish_ring(&mut self, vip: scene::Vip, slots: &[u16]) {
        self.publisher
            .publish_ring(&self.maps, vip.index, slots, now_us())
            .expect("room for a ring");
    }

    /// Changes the flows of a client endpoint in the tables, both halves, of
    /// whichever protocol; answers how many there were.
    pub fn edit(&self, client: Endpoint, mut change: impl FnMut(&mut Way, &mut Cold)) -> usize {
        const PROTOCOL: u64 = 0xff00;
        let endpoint = match client.0 {
            IpAddr::V4(address) => endpoint4(address.into(), client.1),
            IpAddr::V6(address) => {
                let secret = self.maps.settings.read(0).hash_secret;
                endpoint6(halves6(address.octets()), client.1, secret)
            }
        };
        let word = client_word(endpoint, 0);
        let mut found = 0;
        let mut edit = |ways: &mut [Way; WAYS], cold: &mut ColdBucket| {
            for (way, cold) in ways.iter_mut().zip(&mut cold.ways) {
                if way.client & !PROTOCOL == word && meta::is_flow(way.meta) {
                    change(way, cold);
                    found += 1;
                }
            }
        };
        for index in 0..self.maps.flows4.len() {
            let (mut bucket, mut cold) =
                (self.maps.flows4.read(index), self.maps.cold4.read(index));
            edit(&mut bucket.ways, &mut cold);
            self.maps.flows4.write(index, bucket);
            self.maps.cold4.write(index, cold);
        }
        for index in 0..self.maps.flows6.len() {
            let (mut bucket, mut cold) =
                (self.maps.flows6.read(index), self.maps.cold6.read(index));
            edit(&mut bucket.ways, &mut cold);
            self.maps.flows6.write(index, bucket);
            self.maps.cold6.write(index, cold);
        }
        found
    }

    /// Makes the flow of a client endpoint look as if its last packet was that
    /// many ticks ago.
    pub fn age(&self, client: Endpoint, ticks: Tick) {
        let tick = now().wrapping_sub(ticks) & lb_common::abi::TICK_MASK;
        let found = self.edit(client, |way, _| way.meta = meta::with_tick(way.meta, tick));
        assert_eq!(found, 1, "one flow of {client:?} in the table");
    }

    /// Directory of the pins.
    pub fn pins(&self) -> &Pins {
        &self.pins.0
    }
}

/// Waits until a tick of the coarse clock has just begun, unless one has: rows
/// that depend on two frames of the same tick have a tenth of a second then.
pub fn early_in_a_tick() {
    const TICK: u64 = 1 << TICK_SHIFT;
    const ENOUGH: u64 = 150_000_000;
    loop {
        let since = nanoseconds(ClockId::CLOCK_MONOTONIC_COARSE) % TICK;
        if since < ENOUGH {
            return;
        }
        std::thread::sleep(std::time::Duration::from_nanos(TICK - since));
    }
}

/// Turns the kernel's forwarding of both families on or off for what comes in
/// at an interface of this thread's namespace.
///
/// # Panics
/// If the kernel refuses.
pub fn set_forwarding(interface: &str, on: bool) {
    for family in Family::ALL {
        let path = format!(
            "/proc/sys/net/{}/conf/{interface}/forwarding",
            family.name()
        );
        std::fs::write(&path, if on { "1" } else { "0" }).expect("setting forwarding");
    }
}

/// Sets the MTU of an interface of this thread's namespace.
///
/// # Panics
/// If `ip` cannot.
pub fn set_mtu(interface: &str, mtu: u32) {
    // The command inherits the namespace of the thread that starts it.
    let status = std::process::Command::new("ip")
        .args(["link", "set", interface, "mtu", &mtu.to_string()])
        .status();
    assert!(
        status.expect("running ip").success(),
        "setting the MTU of {interface}"
    );
}
