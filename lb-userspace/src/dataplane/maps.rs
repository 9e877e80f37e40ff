//! The pinned maps, opened.

use super::{Mapped, Pins, Sizes, pins::Kind};
use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData, PerCpuArray, RingBuf};
use lb_common::{
    abi::{
        Backend, Bucket4, Bucket6, Budget, ColdBucket, Cursor, Hop, HopKey, Live, Member, Name,
        PoolAddress, Report, Service, ServiceKey, Settings, SpillKey, Spilled4, Spilled6, SynGuard,
        Traffic,
    },
    reason::Reason,
};
use std::os::fd::AsFd as _;
use tokio::io::{Interest, unix::AsyncFd};

/// Every map that user space reads or writes.
pub struct Maps {
    /// One entry.
    pub settings: Mapped<Settings>,
    /// The hot address filter.
    pub filter: Mapped<u64>,
    /// Service key → index.
    pub services: HashMap<MapData, ServiceKey, u32>,
    /// Services by index.
    pub service_table: Mapped<Service>,
    /// Names of services by index.
    pub service_names: Mapped<Name>,
    /// Cursors by service index.
    pub cursors: Mapped<Cursor>,
    /// Traffic by service index.
    pub traffic: PerCpuArray<MapData, Traffic>,
    /// The member arena.
    pub members: Mapped<Member>,
    /// The ring arena.
    pub rings: Mapped<[u16; 4]>,
    /// Backends by index.
    pub backends: Mapped<Backend>,
    /// Names of backends by index.
    pub backend_names: Mapped<Name>,
    /// Counts by backend index.
    pub live: Mapped<Live>,
    /// What backends may take, by index.
    pub budgets: Mapped<Budget>,
    /// SynGuards by service index.
    pub syn_guards: Mapped<SynGuard>,
    /// Teardown reports by backend index.
    pub reports: PerCpuArray<MapData, Report>,
    /// Next hops by index.
    pub hops: Mapped<Hop>,
    /// Next hop key → index.
    pub hop_index: HashMap<MapData, HopKey, u32>,
    /// Addresses that stand for clients; index 0 is none.
    pub pools: Mapped<PoolAddress>,
    /// Who has which of their ports.
    pub pool_ports: Mapped<u64>,
    /// Counters by reason.
    pub reasons: PerCpuArray<MapData, u64>,
    /// The IPv4 flow table.
    pub flows4: Mapped<Bucket4>,
    /// Its cold half.
    pub cold4: Mapped<ColdBucket>,
    /// Its spill.
    pub spill4: HashMap<MapData, SpillKey, Spilled4>,
    /// The IPv6 flow table.
    pub flows6: Mapped<Bucket6>,
    /// Its cold half.
    pub cold6: Mapped<ColdBucket>,
    /// Its spill.
    pub spill6: HashMap<MapData, SpillKey, Spilled6>,
}

impl Maps {
    /// Opens the pinned maps. The sizes of the flow table are taken from the
    /// maps themselves.
    ///
    /// # Errors
    /// A pin that is missing or not the expected kind of map.
    pub fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            settings: mapped(pins, "SETTINGS")?,
            filter: mapped(pins, "FILTER")?,
            services: typed(pins, "SERVICES", HashMap::try_from)?,
            service_table: mapped(pins, "SERVICE_TABLE")?,
            service_names: mapped(pins, "SERVICE_NAMES")?,
            cursors: mapped(pins, "CURSORS")?,
            traffic: typed(pins, "TRAFFIC", PerCpuArray::try_from)?,
            members: mapped(pins, "MEMBERS")?,
            rings: mapped(pins, "RINGS")?,
            backends: mapped(pins, "BACKENDS")?,
            backend_names: mapped(pins, "BACKEND_NAMES")?,
            live: mapped(pins, "LIVE")?,
            budgets: mapped(pins, "BUDGETS")?,
            syn_guards: mapped(pins, "SYN_GUARDS")?,
            reports: typed(pins, "REPORTS", PerCpuArray::try_from)?,
            hops: mapped(pins, "HOPS")?,
            hop_index: typed(pins, "HOP_INDEX", HashMap::try_from)?,
            pools: mapped(pins, "POOLS")?,
            pool_ports: mapped(pins, "POOL_PORTS")?,
            reasons: typed(pins, "REASONS", PerCpuArray::try_from)?,
            flows4: mapped(pins, "FLOWS4")?,
            cold4: mapped(pins, "COLD4")?,
            spill4: typed(pins, "SPILL4", HashMap::try_from)?,
            flows6: mapped(pins, "FLOWS6")?,
            cold6: mapped(pins, "COLD6")?,
            spill6: typed(pins, "SPILL6", HashMap::try_from)?,
        })
    }

    /// The ring of next hops that the packet path wants. One consumer only.
    ///
    /// # Errors
    /// As [`Maps::open`].
    pub fn wanted(pins: &Pins) -> Result<RingBuf<MapData>> {
        typed(pins, "WANTED", RingBuf::try_from)
    }

    /// The same, to be waited for in a tokio runtime.
    ///
    /// # Errors
    /// As [`Maps::wanted`]; no runtime.
    pub fn wanted_async(pins: &Pins) -> Result<AsyncFd<RingBuf<MapData>>> {
        waiting(Self::wanted(pins)?)
    }

    /// The ring of failures, to be waited for in a tokio runtime. One consumer
    /// only.
    ///
    /// # Errors
    /// As [`Maps::wanted`]; no runtime.
    pub fn failures_async(pins: &Pins) -> Result<AsyncFd<RingBuf<MapData>>> {
        waiting(typed(pins, "FAILURES", RingBuf::try_from)?)
    }

    /// Packets by reason, summed over CPUs.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn reason_counts(&self) -> Result<Vec<(Reason, u64)>> {
        Reason::ALL
            .iter()
            .map(|reason| {
                let values = self.reasons.get(&(*reason as u32), 0)?;
                Ok((*reason, values.iter().sum()))
            })
            .collect()
    }

    /// Traffic of a service, summed over CPUs.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn service_traffic(&self, service: u32) -> Result<Traffic> {
        let values = self.traffic.get(&service, 0)?;
        Ok(values.iter().fold(Traffic::default(), |sum, one| Traffic {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        }))
    }

    /// The teardown report of a backend, summed over CPUs.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn report(&self, backend: u32) -> Result<Report> {
        let values = self.reports.get(&backend, 0)?;
        Ok(values.iter().fold(Report::default(), |mut sum, one| {
            for (sum, one) in [(&mut sum.short, &one.short), (&mut sum.long, &one.long)] {
                sum.count += one.count;
                sum.total_us += one.total_us;
                sum.failures += one.failures;
            }
            for (sum, one) in sum.histogram.iter_mut().zip(&one.histogram) {
                *sum += one;
            }
            sum
        }))
    }

    /// Zeroes the counters of an index that is about to get a new owner.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn forget_backend(&mut self, backend: u32) -> Result<()> {
        self.live.write(backend, Live::default());
        self.budgets.write(backend, Budget::default());
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| {
            anyhow::Error::from(error).context(format!("counting CPUs in {what}"))
        })?;
        let zeros = aya::maps::PerCpuValues::try_from(vec![Report::default(); cpus])?;
        self.reports.set(backend, zeros, 0)?;
        Ok(())
    }

    /// The same for a service.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn forget_service(&mut self, service: u32) -> Result<()> {
        let cpus = aya::util::nr_cpus().map_err(|(what, error)| {
            anyhow::Error::from(error).context(format!("counting CPUs in {what}"))
        })?;
        let zeros = aya::maps::PerCpuValues::try_from(vec![Traffic::default(); cpus])?;
        self.traffic.set(service, zeros, 0)?;
        Ok(())
    }
}

fn waiting(ring: RingBuf<MapData>) -> Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the ring owns its file descriptor for as long as it lives, and
    // always answers the same one.
    let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
    Ok(ring.map_err(std::io::Error::from)?)
}

fn data(pins: &Pins, name: &str) -> Result<MapData> {
    let pin = pins.map(name);
    MapData::from_pin(&pin)
        .with_context(|| format!("{}: cannot open the pinned map", pin.display()))
}

fn mapped<T: bytemuck::AnyBitPattern>(pins: &Pins, name: &str) -> Result<Mapped<T>> {
    let map = data(pins, name)?;
    let entries = map.info()?.max_entries();
    Mapped::new(map.fd().as_fd(), entries)
        .with_context(|| format!("{}: cannot map the pinned array", pins.map(name).display()))
}

fn typed<M, E>(pins: &Pins, name: &str, convert: impl FnOnce(Map) -> Result<M, E>) -> Result<M>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let map = Map::from_map_data(data(pins, name)?)?;
    convert(map).with_context(|| format!("{}: unexpected kind of map", pins.map(name).display()))
}

/// Names of all pinned maps.
pub(crate) fn names(sizes: Sizes) -> Vec<&'static str> {
    Kind::all(sizes).into_iter().map(|kind| kind.name).collect()
}
