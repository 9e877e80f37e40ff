//! Whether a configuration fits into the maps beside what they hold already:
//! asked before anything is changed.

use super::{Maps, books};
use lb_common::abi::{Address, MAX_BACKENDS, MAX_SERVICES, ServiceKey, name_state};

/// Who has which index.
#[derive(Clone, Debug, Default)]
pub struct Present {
    /// Name and key by service index; `None`: free.
    pub services: Vec<Option<(String, ServiceKey)>>,
    /// Service, address and port by backend index; `None`: free. Index 0 is
    /// never given.
    pub backends: Vec<Option<(u32, Address, u16)>>,
}

/// A service that is to have an index, with its backends.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name.
    pub name: String,
    /// Key.
    pub key: ServiceKey,
    /// Address and port of every backend.
    pub backends: Vec<(Address, u16)>,
}

impl Present {
    /// What the maps hold, retired owners included.
    pub fn read(maps: &Maps) -> Self {
        let services = (0..MAX_SERVICES).map(|index| {
            let name = maps.service_names.read(index);
            let entry = maps.service_table.read(index);
            let key = ServiceKey {
                address: entry.address,
                port: entry.port,
                protocol: entry.protocol,
                family: entry.family,
            };
            (name.state != name_state::FREE).then(|| (books::decode(&name), key))
        });
        let backends = (0..MAX_BACKENDS).map(|index| {
            let taken = maps.backend_names.read(index).state != name_state::FREE;
            let entry = maps.backends.read(index);
            taken.then_some((u32::from(entry.service), entry.address, entry.port))
        });
        Self {
            services: services.collect(),
            backends: backends.collect(),
        }
    }

    /// Whether all of `wanted` can have an index. Whoever has one keeps it.
    ///
    /// # Errors
    /// What is short, and the remedy.
    pub fn room_for(&self, wanted: &[Wanted]) -> Result<(), String> {
        let (mut services, mut backends) = (0, 0);
        for service in wanted {
            let index = self.services.iter().position(|present| {
                present
                    .as_ref()
                    .is_some_and(|(name, key)| *name == service.name && *key == service.key)
            });
            let Some(index) = index else {
                services += 1;
                backends += service.backends.len();
                continue;
            };
            let new = service.backends.iter().filter(|(address, port)| {
                !self
                    .backends
                    .iter()
                    .flatten()
                    .any(|(owner, a, p)| *owner as usize == index && (a, p) == (address, port))
            });
            backends += new.count();
        }
        let free = self
            .services
            .iter()
            .filter(|present| present.is_none())
            .count();
        let spare = self
            .backends
            .iter()
            .skip(1)
            .filter(|present| present.is_none())
            .count();
        let short = |what: &str, wanted: usize, free: usize| {
            Err(format!(
                "{wanted} new {what} want an index and {free} are free: those that were removed \
                 keep theirs until their last connection has ended. Wait for that, or change \
                 fewer at a time"
            ))
        };
        if services > free {
            return short("services", services, free);
        }
        if backends > spare {
            return short("backends", backends, spare);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::abi::address4;

    fn key(port: u16) -> ServiceKey {
        ServiceKey {
            address: address4([192, 0, 2, 1]),
            port,
            protocol: 6,
            family: 4,
        }
    }

    fn wanted(name: &str, port: u16, hosts: &[u8]) -> Wanted {
        let backends = hosts.iter().map(|host| (address4([10, 0, 0, *host]), 80));
        Wanted {
            name: name.into(),
            key: key(port),
            backends: backends.collect(),
        }
    }

    #[test]
    fn indices_are_counted_before_they_are_given() {
        // Two services, one free index; backends 1 to 3, two free ones.
        let owner = |service, host| Some((service, address4([10, 0, 0, host]), 80));
        let present = Present {
            services: vec![Some(("a".into(), key(1))), None, Some(("b".into(), key(2)))],
            backends: vec![None, owner(0, 1), owner(0, 2), owner(2, 1), None, None],
        };
        // Wanted services; part of the refusal.
        let rows: [(Vec<Wanted>, Option<&str>); 9] = [
            (vec![], None),
            (vec![wanted("a", 1, &[1, 2]), wanted("b", 2, &[1])], None),
            (vec![wanted("a", 1, &[1, 3, 4])], None),
            (
                vec![wanted("a", 1, &[3, 4, 5])],
                Some("3 new backends want an index and 2 are"),
            ),
            (vec![wanted("c", 3, &[1, 2])], None),
            (vec![wanted("c", 3, &[1, 2, 3])], Some("3 new backends")),
            // Another key or name is another service.
            (vec![wanted("a", 9, &[1, 2])], None),
            (
                vec![wanted("a", 9, &[]), wanted("x", 1, &[])],
                Some("2 new services want an index and 1"),
            ),
            (vec![wanted("b", 2, &[1, 2]), wanted("a", 1, &[2, 3])], None),
        ];
        for (wanted, refusal) in rows {
            let got = present.room_for(&wanted);
            match refusal {
                None => assert_eq!(got, Ok(()), "{wanted:?}"),
                Some(part) => assert!(got.unwrap_err().contains(part), "{wanted:?}"),
            }
        }
    }
}
