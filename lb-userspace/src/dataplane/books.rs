//! Which index a service or backend has: found again by identity in the
//! pinned maps, so that flows, loads and counters keep their owner over
//! restarts.

use super::Maps;
use anyhow::{Result, bail};
use lb_common::abi::{
    Address, MAX_BACKENDS, MAX_SERVICES, NAME_BYTES, Name, ServiceKey, name_state,
};
use std::collections::BTreeSet;

/// The index of something, and whether it had it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Index into the maps.
    pub index: u32,
    /// No daemon before this one knew it: its counters start at zero.
    pub is_new: bool,
}

/// The indices in use.
#[derive(Default)]
pub struct Books {
    services: BTreeSet<u32>,
    backends: BTreeSet<u32>,
}

fn encode(name: &str, state: u32) -> Name {
    let mut bytes = [0; NAME_BYTES];
    let length = name.len().min(NAME_BYTES);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    Name {
        name: bytes,
        state,
        padding: 0,
    }
}

/// The text of a name.
pub(crate) fn decode(name: &Name) -> String {
    let end = name
        .name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(&name.name[..end]).into_owned()
}

impl Books {
    /// Nothing assigned yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The index of a service: the one it had, else a free one.
    ///
    /// # Errors
    /// More services than [`MAX_SERVICES`], retired ones included.
    pub fn service(&mut self, maps: &mut Maps, name: &str, key: &ServiceKey) -> Result<Assigned> {
        let had = (0..MAX_SERVICES).find(|index| {
            let service = maps.service_table.read(*index);
            let entry = maps.service_names.read(*index);
            entry.state != name_state::FREE
                && decode(&entry) == name
                && (
                    service.address,
                    service.port,
                    service.protocol,
                    service.family,
                ) == (key.address, key.port, key.protocol, key.family)
        });
        let assigned = match had {
            Some(index) => Assigned {
                index,
                is_new: false,
            },
            None => {
                let free = (0..MAX_SERVICES).find(|index| {
                    maps.service_names.read(*index).state == name_state::FREE
                        && !self.services.contains(index)
                });
                let Some(index) = free else {
                    bail!("no index is free for service `{name}`: {MAX_SERVICES} are in use")
                };
                maps.forget_service(index)?;
                Assigned {
                    index,
                    is_new: true,
                }
            }
        };
        maps.service_names
            .write(assigned.index, encode(name, name_state::IN_USE));
        self.services.insert(assigned.index);
        Ok(assigned)
    }

    /// The index of a backend of a service: the one that this service, address
    /// and port had, else a free one. Index 0 is never given.
    ///
    /// # Errors
    /// More backends than there are indices, retired ones included.
    pub fn backend(
        &mut self,
        maps: &mut Maps,
        service: u32,
        name: &str,
        address: &Address,
        port: u16,
    ) -> Result<Assigned> {
        let had = (1..MAX_BACKENDS).find(|index| {
            let backend = maps.backends.read(*index);
            maps.backend_names.read(*index).state != name_state::FREE
                && (u32::from(backend.service), &backend.address, backend.port)
                    == (service, address, port)
        });
        let assigned = match had {
            Some(index) => Assigned {
                index,
                is_new: false,
            },
            None => {
                let free = (1..MAX_BACKENDS).find(|index| {
                    maps.backend_names.read(*index).state == name_state::FREE
                        && !self.backends.contains(index)
                });
                let Some(index) = free else {
                    bail!(
                        "no index is free for backend `{name}`: {} are in use, those included \
                         that were removed and still have flows",
                        MAX_BACKENDS - 1
                    )
                };
                maps.forget_backend(index)?;
                Assigned {
                    index,
                    is_new: true,
                }
            }
        };
        maps.backend_names
            .write(assigned.index, encode(name, name_state::IN_USE));
        self.backends.insert(assigned.index);
        Ok(assigned)
    }

    /// Retires every index that the pinned maps hold and this configuration
    /// does not; returns the backends and services concerned.
    pub fn retire_others(&self, maps: &Maps) -> (Vec<u32>, Vec<u32>) {
        let mut backends = Vec::new();
        for index in 1..MAX_BACKENDS {
            let mut name = maps.backend_names.read(index);
            if name.state == name_state::IN_USE && !self.backends.contains(&index) {
                name.state = name_state::RETIRED;
                maps.backend_names.write(index, name);
                backends.push(index);
            }
        }
        let mut services = Vec::new();
        for index in 0..MAX_SERVICES {
            let mut name = maps.service_names.read(index);
            if name.state == name_state::IN_USE && !self.services.contains(&index) {
                name.state = name_state::RETIRED;
                maps.service_names.write(index, name);
                services.push(index);
            }
        }
        (backends, services)
    }

    /// Frees retired indices that a full pass over the flow table found no flow
    /// holding; returns the backends among them.
    pub fn free_unheld(&self, maps: &Maps, holds: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut freed = Vec::new();
        let mut kept_services = BTreeSet::new();
        for index in 1..MAX_BACKENDS {
            let name = maps.backend_names.read(index);
            if name.state == name_state::FREE {
                continue;
            }
            if name.state == name_state::RETIRED && !holds(index) {
                maps.backend_names
                    .write(index, encode("", name_state::FREE));
                maps.backends.write(index, bytemuck::Zeroable::zeroed());
                freed.push(index);
                continue;
            }
            kept_services.insert(u32::from(maps.backends.read(index).service));
        }
        for index in 0..MAX_SERVICES {
            let name = maps.service_names.read(index);
            if name.state == name_state::RETIRED && !kept_services.contains(&index) {
                maps.service_names
                    .write(index, encode("", name_state::FREE));
                maps.service_table
                    .write(index, bytemuck::Zeroable::zeroed());
            }
        }
        freed
    }
}
