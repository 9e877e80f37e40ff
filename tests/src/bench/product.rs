//! Steerline's own maps: the service of the bench, and how the table is put
//! back as it was.

use super::{
    case::{Flow, Mode, Protocol, SERVERS, Site},
    frame,
};
use crate::packets::{
    Family, Lab, now_us,
    scene::{BACK, ROUTER},
};
use anyhow::{Context as _, Result, ensure};
use aya::maps::MapError;
use lb_common::{
    abi::{
        Backend, Bucket4, Bucket6, Hop, Live, RELATIVE_ONE, STATES, Service, ServiceKey, SpillKey,
        algorithm, backend_flags, forwarding, hop_flags, measure, ticks_from_ms,
    },
    hash::filter_bit,
};
use std::collections::BTreeSet;
use steerline::dataplane::Mapped;

/// Indices beyond those of the packet table's scene.
const SERVICE: u32 = 20;
const FIRST_BACKEND: u16 = 100;
const FIRST_HOP: u32 = 200;

/// Idle times of every state: nothing ages while it is measured.
const IDLE_MS: u64 = 3_600_000;

/// Makes the service and its servers known, and the way back to clients.
///
/// # Errors
/// No room for a member list, or no route.
pub(super) fn install(lab: &mut Lab, site: Site) -> Result<()> {
    let family = site.family.number();
    let forwarding = match site.mode {
        Mode::Nat => forwarding::NAT,
        Mode::Dsr => forwarding::DSR,
    };
    lab.settings(|settings| settings.timeouts = [ticks_from_ms(IDLE_MS); STATES]);
    let vip = frame::vip(site.family);
    let addresses = (1..=SERVERS).map(|last| frame::server(site.family, last));
    for address in addresses.chain([vip]) {
        let bit = filter_bit(&address, family);
        let word = lab.maps.filter.read(bit >> 6) | 1 << (bit & 63);
        lab.maps.filter.write(bit >> 6, word);
    }
    let key = ServiceKey {
        address: vip,
        port: frame::service_port(site.protocol),
        protocol: match site.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        },
        family,
    };
    lab.maps.services.insert(key, SERVICE, 0)?;
    let service = Service {
        members: 0,
        ring: 0,
        address: key.address,
        port: key.port,
        protocol: key.protocol,
        family,
        algorithm: algorithm::WEIGHTED_ROUND_ROBIN,
        measure: match site.protocol {
            Protocol::Tcp => measure::SYN_TO_FIN,
            Protocol::Udp => measure::FIRST_RESPONSE,
        },
        forwarding,
        reassign: 0,
        short_flow_bytes: 15_360,
        padding1: 0,
        padding2: [0; 2],
    };
    lab.maps.service_table.write(SERVICE, service);
    let mut members = Vec::new();
    for number in 1..=SERVERS {
        let index = FIRST_BACKEND + u16::from(number);
        let hop = FIRST_HOP + u32::from(number);
        let backend = Backend {
            flags: backend_flags::PRESENT | backend_flags::UP,
            weight: 1,
            relative: RELATIVE_ONE,
            hop,
            address: frame::server(site.family, number),
            port: frame::server_port(site),
            service: SERVICE as u16,
            forwarding,
            family,
            ..bytemuck::Zeroable::zeroed()
        };
        lab.maps.backends.write(index.into(), backend);
        lab.maps.live.write(index.into(), Live::default());
        let hop_entry = Hop {
            flags: hop_flags::VALID,
            ifindex: lab.back,
            destination: frame::server_mac(number),
            source: BACK.1,
            mtu: 1_500,
            padding: 0,
        };
        lab.maps.hops.write(hop, hop_entry);
        members.push((index, 1));
    }
    lab.publisher
        .publish_members(&lab.maps, SERVICE, &members, now_us())?;
    // The router's next hop has an index in the scene.
    let router = site.family.counterpart(ROUTER);
    let route = match site.family {
        Family::V4 => {
            let [first, second, ..] = Flow(0).client().0;
            format!("{first}.{second}.0.0/15")
        }
        Family::V6 => "2001:2::/48".to_owned(),
    };
    let status = std::process::Command::new("ip")
        .args(["route", "add", &route, "via", &router.to_string()])
        .status()
        .context("running ip")?;
    ensure!(status.success(), "cannot add a route to {route}");
    Ok(())
}

/// Makes the service choose by one of [`algorithm`].
pub(super) fn choose_by(lab: &Lab, algorithm: u8) {
    let mut service = lab.maps.service_table.read(SERVICE);
    service.algorithm = algorithm;
    lab.maps.service_table.write(SERVICE, service);
}

/// The table and the counts of backends, as they were.
pub(super) struct Pristine {
    buckets4: Vec<Bucket4>,
    buckets6: Vec<Bucket6>,
    live: Vec<Live>,
    spilled4: BTreeSet<(u64, u64)>,
    spilled6: BTreeSet<(u64, u64)>,
}

impl Pristine {
    /// As they are now.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(super) fn take(lab: &Lab) -> Result<Self> {
        Ok(Self {
            buckets4: all(&lab.maps.flows4),
            buckets6: all(&lab.maps.flows6),
            live: backends().map(|index| lab.maps.live.read(index)).collect(),
            spilled4: spilled(lab.maps.spill4.keys())?,
            spilled6: spilled(lab.maps.spill6.keys())?,
        })
    }

    /// Removes every flow that was opened since, and what it counted. The cold
    /// half of a way without a flow means nothing and is left.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(super) fn restore(&self, lab: &mut Lab) -> Result<()> {
        put_back(&lab.maps.flows4, &self.buckets4);
        put_back(&lab.maps.flows6, &self.buckets6);
        for (index, live) in backends().zip(&self.live) {
            lab.maps.live.write(index, *live);
        }
        for (client, slot) in spilled(lab.maps.spill4.keys())?.difference(&self.spilled4) {
            let (client, slot) = (*client, *slot);
            lab.maps.spill4.remove(&SpillKey { client, slot })?;
        }
        for (client, slot) in spilled(lab.maps.spill6.keys())?.difference(&self.spilled6) {
            let (client, slot) = (*client, *slot);
            lab.maps.spill6.remove(&SpillKey { client, slot })?;
        }
        Ok(())
    }
}

fn all<T: bytemuck::AnyBitPattern>(map: &Mapped<T>) -> Vec<T> {
    (0..map.len()).map(|index| map.read(index)).collect()
}

fn put_back<T: bytemuck::AnyBitPattern + PartialEq>(map: &Mapped<T>, before: &[T]) {
    for (index, element) in (0..).zip(before) {
        if map.read(index) != *element {
            map.write(index, *element);
        }
    }
}

fn spilled(keys: impl Iterator<Item = Result<SpillKey, MapError>>) -> Result<BTreeSet<(u64, u64)>> {
    let keys = keys.map(|key| Ok(key.map(|key| (key.client, key.slot))?));
    keys.collect()
}

fn backends() -> impl Iterator<Item = u32> {
    (1..=u32::from(SERVERS)).map(|number| u32::from(FIRST_BACKEND) + number)
}
