//! Kernel memory that a configuration takes, from the sizes of the map ABI.
//!
//! An estimate: it counts what maps hold and what the kernel adds for each
//! element of a hash, not the program itself or the event rings (under 2 MiB
//! together).

use std::mem::size_of;

use lb_common::abi;
use lb_common::reason::REASONS;
use serde::Serialize;

use crate::dataplane::Sizes;

use super::types::{Config, FlowTable};

/// What a hash map of the kernel adds to key and value of an element:
/// `struct htab_elem` (48 bytes) and up to two bucket heads of 16.
const HASH_ELEMENT: u64 = 80;

/// Entries of the service hash for each service.
const SERVICE_KEYS: u64 = 4;

/// Memory-mapped arrays are whole pages.
const PAGE: u64 = 4_096;

/// Kernel memory of all maps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// CPUs that the per-CPU maps are counted for.
    pub cpus: u32,
    /// Groups of maps.
    pub lines: Vec<MemoryLine>,
    /// Sum of the lines, bytes.
    pub total_bytes: u64,
}

/// Kernel memory of some maps that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryLine {
    /// What they hold.
    pub name: &'static str,
    /// Their memory, bytes.
    pub bytes: u64,
    /// Whether it grows with the number of CPUs.
    pub per_cpu: bool,
}

impl FlowTable {
    /// Sizes of its maps.
    pub const fn sizes(&self) -> Sizes {
        Sizes::for_flows(self.ipv4, self.ipv6)
    }
}

impl Config {
    /// Kernel memory of the maps on a machine with that many possible CPUs.
    pub fn memory(&self, cpus: u32) -> Memory {
        let sizes = self.data_plane.flow_table.sizes();
        let services = u64::from(abi::MAX_SERVICES);
        let backends = u64::from(abi::MAX_BACKENDS);
        let hops = u64::from(abi::MAX_HOPS);
        let shared = |name, bytes| MemoryLine {
            name,
            bytes,
            per_cpu: false,
        };
        let lines = vec![
            shared("IPv4 flow table", table::<abi::Bucket4>(sizes.buckets4)),
            shared(
                "IPv4 spill table",
                hash::<abi::SpillKey, abi::Spilled4>(sizes.spill4.into()),
            ),
            shared("IPv6 flow table", table::<abi::Bucket6>(sizes.buckets6)),
            shared(
                "IPv6 spill table",
                hash::<abi::SpillKey, abi::Spilled6>(sizes.spill6.into()),
            ),
            shared(
                "ports of source_pool",
                array::<abi::PoolAddress>(u64::from(abi::MAX_POOLS) + 1)
                    + array::<u64>(
                        self.data_plane.source_pool.len() as u64 * u64::from(abi::POOL_CELLS),
                    ),
            ),
            shared(
                "services and backends",
                hash::<abi::ServiceKey, u32>(SERVICE_KEYS * services)
                    + array::<abi::Service>(services)
                    + array::<abi::Cursor>(services)
                    + array::<abi::Backend>(backends)
                    + array::<abi::Live>(backends)
                    + array::<abi::Budget>(backends)
                    + array::<abi::SynGuard>(services)
                    + array::<abi::Name>(services)
                    + array::<abi::Name>(backends),
            ),
            shared(
                "selection tables",
                array::<abi::Member>(u64::from(abi::MEMBER_SLOTS))
                    + array::<u64>(u64::from(abi::RING_CHUNKS)),
            ),
            shared(
                "next hops and filter",
                array::<abi::Hop>(hops)
                    + hash::<abi::HopKey, u32>(hops)
                    + array::<u64>(u64::from(abi::FILTER_WORDS))
                    + array::<abi::Settings>(1),
            ),
            MemoryLine {
                name: "reports and counters",
                bytes: u64::from(cpus)
                    * (bytes_of::<abi::Report>(backends)
                        + bytes_of::<abi::Traffic>(services)
                        + bytes_of::<u64>(u64::from(REASONS))),
                per_cpu: true,
            },
        ];
        Memory {
            cpus,
            total_bytes: lines.iter().map(|line| line.bytes).sum(),
            lines,
        }
    }
}

fn bytes_of<T>(entries: u64) -> u64 {
    entries * (size_of::<T>() as u64).next_multiple_of(8)
}

/// Both halves of a flow table.
fn table<Bucket>(buckets: u32) -> u64 {
    array::<Bucket>(buckets.into()) + array::<abi::ColdBucket>(buckets.into())
}

fn array<T>(entries: u64) -> u64 {
    bytes_of::<T>(entries).next_multiple_of(PAGE)
}

fn hash<K, V>(entries: u64) -> u64 {
    bytes_of::<K>(entries) + bytes_of::<V>(entries) + entries * HASH_ELEMENT
}
