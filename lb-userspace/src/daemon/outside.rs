//! What others say of the backends, on its way to the engine.

use super::{Daemon, clock, journal::Happening, prepare::Placed};
use crate::{
    config::Config,
    outside::{Heard, Outside, Target, Watched, protocol_number},
};
use anyhow::Result;
use lb_common::control::{Engine, Event, OutsideSources};

use crate::config::{CapacityKind, Service};

/// Which sources a service has.
pub(super) fn sources(service: &Service) -> OutsideSources {
    let kind = service.capacity.as_ref().map(|capacity| &capacity.kind);
    let (capacity, snmp_weight, force_delete) = match kind {
        None => (false, false, false),
        Some(CapacityKind::State { force_delete, .. }) => (true, false, *force_delete),
        Some(CapacityKind::LeastLoaded { .. } | CapacityKind::Headroom { .. }) => {
            (false, true, false)
        }
    };
    OutsideSources {
        probe: service.probe.is_some(),
        agent: service.agent.is_some(),
        dfp: service.dfp.is_some(),
        capacity,
        snmp_weight,
        force_delete,
    }
}

/// Begins to ask about all backends, from what the engine knows of them.
pub(super) fn start(config: &Config, placed: &[Placed], engine: &Engine) -> Result<Outside> {
    let mut services = Vec::new();
    for (service, place) in config.services.iter().zip(placed) {
        let mut targets = Vec::new();
        for (backend, index) in service.backends.iter().zip(&place.backends) {
            let index = u16::try_from(*index)?;
            targets.push(Target {
                index,
                name: format!("{}/{}", service.name, backend.name),
                address: backend.address,
                port: backend.port,
                weight: backend.weight.into(),
                record: engine.outside(index),
            });
        }
        services.push(Watched {
            protocol: protocol_number(service.protocol),
            probe: service.probe.clone(),
            agent: service.agent.clone(),
            dfp: service.dfp.clone(),
            capacity: service.capacity.clone(),
            targets,
        });
    }
    Ok(Outside::start(services))
}

impl Daemon {
    /// Takes what was heard.
    pub(super) fn hear(&mut self, heard: Vec<Heard>) -> Result<()> {
        for heard in heard {
            match heard {
                Heard::Word { backend, word } => {
                    let event = Event::Outside { backend, word };
                    self.engine.handle(event, clock::micros());
                }
                Heard::Peer {
                    source,
                    peer,
                    trouble,
                } => self.journal.record(&match trouble {
                    Some(reason) => Happening::PeerTrouble {
                        source,
                        peer,
                        reason,
                    },
                    None => Happening::PeerWell { source, peer },
                }),
            }
        }
        self.carry_out()?;
        if self.note_states() {
            // A crash must not bring a server back that was told to be down.
            self.save();
        } else {
            self.unsaved = true;
        }
        self.changed();
        Ok(())
    }
}
