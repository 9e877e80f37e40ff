//! The programs to compare with, loaded, and the program that restores frames
//! before each repeat.

use super::{
    case::{Flow, Mode, Protocol, SERVERS, Site},
    frame::{self, Frame},
};
use crate::packets::{
    Family, context,
    scene::{BACK, FRONT, ROUTER_MAC},
};
use anyhow::{Context as _, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData, PerCpuArray, ProgramArray},
    programs::{ProgramFd, TestRun as _, TestRunOptions, TestRunResult, Xdp},
};
use lb_common::{
    abi::Traffic,
    bench::{Balanced, Client, FRAME_BYTES, Peer, Plan},
};
use std::{fmt, os::fd::AsFd as _, path::PathBuf};
use steerline::dataplane::Mapped;

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Does nothing.
    Empty,
    /// Exchanges MAC addresses.
    MacSwap,
    /// A balancer on the kernel's hash.
    Hash,
    /// The same on its LRU hash.
    Lru,
    /// Ours.
    Steerline,
}

impl Contender {
    /// Everyone.
    pub const ALL: [Self; 5] = [
        Self::Empty,
        Self::MacSwap,
        Self::Hash,
        Self::Lru,
        Self::Steerline,
    ];

    /// Those that forward flows.
    pub const BALANCERS: [Self; 3] = [Self::Hash, Self::Lru, Self::Steerline];

    /// The name of a floor's program in the object, and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::MacSwap => "mac_swap",
            Self::Hash => "hash",
            Self::Lru => "lru",
            Self::Steerline => "steerline",
        }
    }

    /// The program that removes the flows of a floor.
    const fn forgetful(self) -> Option<&'static str> {
        match self {
            Self::Hash => Some("forget_hash"),
            Self::Lru => Some("forget_lru"),
            Self::Empty | Self::MacSwap | Self::Steerline => None,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MacSwap => "mac swap",
            Self::Lru => "lru hash",
            other => other.name(),
        })
    }
}

/// What a floor has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Packets forwarded.
    pub packets: u64,
    /// Flows opened.
    pub opened: u64,
}

/// Index into `TRAFFIC`.
const SERVICE: u16 = 1;
/// Indices into `PEERS`: servers begin at their number.
const SERVICE_PEER: u16 = 40;
const ROUTER_PEER: u16 = 41;

/// See the module docs.
pub struct Floors {
    ebpf: Ebpf,
    plan: Mapped<Plan>,
    clients: Mapped<u64>,
    target: ProgramArray<MapData>,
    traffic: PerCpuArray<MapData, Traffic>,
    opened: PerCpuArray<MapData, u64>,
    site: Site,
}

fn object() -> Result<Vec<u8>> {
    let path = std::env::var_os("STEERLINE_FLOORS_OBJECT").map_or_else(
        || PathBuf::from("target/bpf/steerline-floors.o"),
        PathBuf::from,
    );
    std::fs::read(&path).with_context(|| {
        format!(
            "{}: cannot read the programs to compare with; `cargo xtask bench packet` builds them",
            path.display()
        )
    })
}

fn mapped<T: bytemuck::AnyBitPattern>(ebpf: &Ebpf, name: &str) -> Result<Mapped<T>> {
    let Some(Map::Array(data)) = ebpf.map(name) else {
        anyhow::bail!("the object has no array `{name}`");
    };
    Mapped::new(data.fd().as_fd(), data.info()?.max_entries())
        .with_context(|| format!("cannot map `{name}` into memory"))
}

/// The words of an address, as they are on the wire.
fn words(address: [u8; 16]) -> [u32; 4] {
    bytemuck::cast(address)
}

impl Floors {
    /// Loads everything, with flow maps for `capacity` flows of the site's
    /// kind, and `clients` flows to take turns. `front` and `back` are the
    /// interfaces towards clients and servers.
    ///
    /// # Errors
    /// No object, no root, what the kernel refuses.
    pub fn new(site: Site, capacity: u32, clients: u32, front: u32, back: u32) -> Result<Self> {
        let vip4 = words(frame::vip(Family::V4))[0];
        let vip6 = words(frame::vip(Family::V6));
        let mut loader = EbpfLoader::new();
        loader
            .override_global("VIP4", &vip4, true)
            .override_global("VIP6", &vip6, true)
            .map_max_entries("CLIENTS", clients);
        let (out, unused) = match site.family {
            Family::V4 => (
                ["HASH_OUT4", "HASH_BACK4", "LRU_OUT4", "LRU_BACK4"],
                ["HASH_OUT6", "HASH_BACK6", "LRU_OUT6", "LRU_BACK6"],
            ),
            Family::V6 => (
                ["HASH_OUT6", "HASH_BACK6", "LRU_OUT6", "LRU_BACK6"],
                ["HASH_OUT4", "HASH_BACK4", "LRU_OUT4", "LRU_BACK4"],
            ),
        };
        for name in out {
            loader.map_max_entries(name, capacity);
        }
        for name in unused {
            // An LRU map needs an entry for each CPU.
            loader.map_max_entries(name, 64);
        }
        let mut ebpf = loader
            .load(&object()?)
            .context("loading the maps of the programs to compare with")?;
        for (name, program) in ebpf.programs_mut() {
            let program: &mut Xdp = program.try_into()?;
            program
                .load()
                .with_context(|| format!("the kernel refused the program `{name}`"))?;
        }
        let take = |ebpf: &mut Ebpf, name: &str| {
            ebpf.take_map(name)
                .with_context(|| format!("the object has no map `{name}`"))
        };
        let mut floors = Self {
            plan: mapped(&ebpf, "PLAN")?,
            clients: mapped(&ebpf, "CLIENTS")?,
            target: ProgramArray::try_from(take(&mut ebpf, "TARGET")?)?,
            traffic: PerCpuArray::try_from(take(&mut ebpf, "TRAFFIC")?)?,
            opened: PerCpuArray::try_from(take(&mut ebpf, "OPENED")?)?,
            ebpf,
            site,
        };
        floors.configure(front, back)?;
        Ok(floors)
    }

    fn configure(&mut self, front: u32, back: u32) -> Result<()> {
        let peers: Mapped<Peer> = mapped(&self.ebpf, "PEERS")?;
        let family = self.site.family;
        let port = frame::service_port(self.site.protocol).to_be();
        for number in 1..=SERVERS {
            let server = Peer {
                address: words(frame::server(family, number)),
                ifindex: back,
                destination: frame::server_mac(number),
                source: BACK.1,
                port: frame::server_port(self.site).to_be(),
                service: SERVICE,
                direct: u32::from(self.site.mode == Mode::Dsr),
            };
            peers.write(number.into(), server);
        }
        let service = Peer {
            address: words(frame::vip(family)),
            port,
            service: SERVICE,
            ..Peer::default()
        };
        peers.write(SERVICE_PEER.into(), service);
        let router = Peer {
            ifindex: front,
            destination: ROUTER_MAC,
            source: FRONT.1,
            ..Peer::default()
        };
        peers.write(ROUTER_PEER.into(), router);

        let balanced: Mapped<Balanced> = mapped(&self.ebpf, "BALANCED")?;
        let index = u32::from(family == Family::V6);
        let entry = Balanced {
            cursor: 0,
            first: 1,
            servers: SERVERS.into(),
            peer: SERVICE_PEER.into(),
            router: ROUTER_PEER.into(),
            padding: [0; 5],
        };
        balanced.write(index, entry);
        let protocol: u16 = match self.site.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        // The keys of both families: address, port, protocol.
        let vip = frame::vip(family);
        let (port, protocol) = (port.to_ne_bytes(), protocol.to_ne_bytes());
        match family {
            Family::V4 => {
                let mut key = [0; 8];
                key[..4].copy_from_slice(&vip[..4]);
                key[4..6].copy_from_slice(&port);
                key[6..].copy_from_slice(&protocol);
                self.name_service("SERVICES4", key, index)
            }
            Family::V6 => {
                let mut key = [0; 20];
                key[..16].copy_from_slice(&vip);
                key[16..18].copy_from_slice(&port);
                key[18..].copy_from_slice(&protocol);
                self.name_service("SERVICES6", key, index)
            }
        }
    }

    fn name_service<K: aya::Pod>(&mut self, name: &str, key: K, index: u32) -> Result<()> {
        let map = self.ebpf.map_mut(name);
        let map = map.with_context(|| format!("the object has no map `{name}`"))?;
        let mut services = HashMap::<_, K, u32>::try_from(map)?;
        services
            .insert(key, index, 0)
            .context("naming the service")?;
        Ok(())
    }

    /// Writes a row of flows from index `first` on.
    pub fn line_up(&self, first: u32, flows: impl IntoIterator<Item = Flow>) {
        for (index, flow) in (first..).zip(flows) {
            let (address, port) = flow.client();
            let client = Client {
                address,
                port,
                server: flow.server(),
            };
            self.clients.write(index, client.word());
        }
    }

    fn program(&self, name: &str) -> Result<&Xdp> {
        let program = self.ebpf.program(name);
        Ok(program
            .with_context(|| format!("the object has no program `{name}`"))?
            .try_into()?)
    }

    /// Makes a program the one that is measured; `ours` is Steerline's.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn aim(&mut self, contender: Contender, ours: Option<&Xdp>) -> Result<()> {
        let fd: ProgramFd = match (contender, ours) {
            (Contender::Steerline, Some(program)) => program.fd()?.try_clone()?,
            (Contender::Steerline, None) => anyhow::bail!("Steerline is not loaded"),
            (floor, _) => self.program(floor.name())?.fd()?.try_clone()?,
        };
        self.target.set(0, &fd, 0).context("choosing the program")
    }

    /// Runs frames of `count` flows from index `first` on through the program
    /// that was chosen, in turn, `repeat` in all.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn run(
        &self,
        frame: Frame,
        ifindex: u32,
        row: (u32, u32),
        repeat: u32,
    ) -> Result<TestRunResult> {
        self.restore(frame, ifindex, row, repeat, None)
    }

    fn restore(
        &self,
        frame: Frame,
        ifindex: u32,
        (first, count): (u32, u32),
        repeat: u32,
        data_out: Option<&mut [u8]>,
    ) -> Result<TestRunResult> {
        anyhow::ensure!(count.is_power_of_two(), "{count} flows: not a power of two");
        let name = match (self.site.family, frame.is_servers()) {
            (Family::V4, false) => "restore4_to_server",
            (Family::V4, true) => "restore4_to_client",
            (Family::V6, false) => "restore6_to_server",
            (Family::V6, true) => "restore6_to_client",
        };
        let plan = Plan {
            frame: frame.plan(self.site),
            first,
            mask: count - 1,
            turn: 0,
        };
        self.plan.write(0, plan);
        let bytes = frame.arriving(self.site, super::frame::Parties::BLANK);
        let context = context(bytes.len(), ifindex);
        let options = TestRunOptions {
            data_in: Some(&bytes),
            data_out,
            ctx_in: Some(&context),
            repeat,
            ..TestRunOptions::new()
        };
        let result = self.program(name)?.test_run(options);
        result.context("the kernel refused the test run")
    }

    /// The frame that the first flow of a row gets.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn restored(&mut self, frame: Frame, first: u32, ifindex: u32) -> Result<Vec<u8>> {
        self.aim(Contender::Empty, None)?;
        let mut out = vec![0; FRAME_BYTES];
        let result = self.restore(frame, ifindex, (first, 1), 1, Some(&mut out))?;
        out.truncate(result.data_size_out as usize);
        Ok(out)
    }

    /// Runs one frame as it is through a floor: verdict, and what leaves.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn once(&self, contender: Contender, bytes: &[u8], ifindex: u32) -> Result<(u32, Vec<u8>)> {
        let mut out = vec![0; bytes.len()];
        let context = context(bytes.len(), ifindex);
        let options = TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        };
        let result = self.program(contender.name())?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value, out))
    }

    /// Removes the flows of a row of clients from a floor; others have none.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn forget(&mut self, contender: Contender, row: (u32, u32), ifindex: u32) -> Result<()> {
        let Some(name) = contender.forgetful() else {
            return Ok(());
        };
        let fd = self.program(name)?.fd()?.try_clone()?;
        self.target.set(0, &fd, 0)?;
        self.run(Frame::First, ifindex, row, row.1)?;
        Ok(())
    }

    /// What the floors have counted.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn counted(&self) -> Result<Counted> {
        let traffic = self.traffic.get(&SERVICE.into(), 0)?;
        Ok(Counted {
            packets: traffic.iter().map(|one| one.packets).sum(),
            opened: self.opened.get(&0, 0)?.iter().sum(),
        })
    }
}
