//! `flows`: the flow table straight from the pinned maps, with or without a
//! daemon.
//!
//! The table changes while it is read. Each flow is consistent in itself; one
//! that opened or ended meanwhile may be missing, and none is shown twice
//! unless it moved.

use crate::daemon::ip_address;
use crate::{
    Family,
    dataplane::{AnyBucket, Maps, decode_name},
};
use comfy_table::{Table, presets};
use lb_common::{
    abi::{Address, Ends, TICK_SHIFT, WAYS, address6, name_state, ticks_between},
    flow::{Way, meta},
    tcp::State,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Flows of the service of this name only, those of a removed one of the
    /// same name included.
    pub service: Option<String>,
    /// Most flows to list; `None`: all.
    pub limit: Option<usize>,
}

/// Flows of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flows {
    /// Flows that there are, listed or not.
    pub total: u64,
    /// There are more than are listed.
    pub more: bool,
    /// In no order.
    pub flows: Vec<Flow>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// Name of the service.
    pub service: String,
    /// Name of the backend.
    pub backend: String,
    /// `tcp`, `udp`, or a number.
    pub protocol: String,
    /// The client's address and port.
    pub client: String,
    /// The VIP and port that it connected to.
    #[serde(rename = "virtual")]
    pub virtual_end: String,
    /// The server's address and port.
    pub server: String,
    /// In `full-nat` what stands for the client there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `half-open`, `answered`, `established`, `client-fin`, `server-fin`,
    /// `closed` or `reset`; the last two linger for stragglers. Of datagrams
    /// `datagram` and `conversing`.
    pub state: &'static str,
    /// Seconds since the last packet that was noted, to a quarter of a second.
    pub age_seconds: f64,
    /// Index of the next hop towards the client; 0: not known.
    pub next_hop: u16,
    /// Carried `short_flow_bytes` or more.
    pub long: bool,
    /// In the spill table.
    pub spilled: bool,
}

/// The words of a flow.
#[derive(Clone, Copy)]
struct Words {
    family: Family,
    ends: Ends,
    client: u64,
    virtual_end: u64,
    backend_end: u64,
    meta: u64,
}

/// Copies a flow out of a way that others may write to meanwhile.
fn copy(family: Family, way: &Way, ends: impl Fn() -> Ends) -> Option<Words> {
    let before = way.meta.load();
    if !meta::is_flow(before) {
        return None;
    }
    let words = Words {
        family,
        ends: ends(),
        client: way.client.load(),
        virtual_end: way.virtual_end.load(),
        backend_end: way.backend_end.load(),
        meta: before,
    };
    // Another generation: it changed hands while it was read.
    let same = (way.meta.load() ^ before) & meta::GENERATION == 0;
    (same && words.client != 0).then_some(words)
}

/// An endpoint number of IPv4; of IPv6 the number's port with the address that it
/// stands for.
fn endpoint(family: Family, word: u64, address: Address) -> String {
    let address = match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from((word >> 16) as u32)),
        Family::V6 => IpAddr::from(Ipv6Addr::from(address)),
    };
    SocketAddr::new(address, word as u16).to_string()
}

fn state(word: u64) -> &'static str {
    match meta::state(word) {
        State::HalfOpen => "half-open",
        State::Answered => "answered",
        State::Established => "established",
        State::ClientFin => "client-fin",
        State::ServerFin => "server-fin",
        State::Closed => "closed",
        State::Reset => "reset",
        State::Datagram => "datagram",
        State::Conversing => "conversing",
        State::Free | State::Busy => "none",
    }
}

impl Words {
    fn backend(&self) -> u32 {
        u32::from(self.virtual_end as u16)
    }

    /// Index of the pool address that stands for the client; 0: none.
    fn pool(&self) -> u32 {
        u32::from(self.backend_end as u16)
    }

    /// `server`: the endpoint of its backend; `pool`: the address that stands for
    /// its client, if one does.
    fn describe(
        &self,
        names: (String, String),
        server: SocketAddr,
        pool: Address,
        now: u32,
        spilled: bool,
    ) -> Flow {
        let end = |word: u64, address| endpoint(self.family, word >> 16, address);
        let ticks = ticks_between(meta::tick(self.meta), now);
        let seconds = f64::from(ticks) * f64::from(1u32 << TICK_SHIFT) / 1e9;
        let (service, backend) = names;
        Flow {
            service,
            backend,
            protocol: match (self.client >> 8) as u8 {
                6 => "tcp".into(),
                17 => "udp".into(),
                other => other.to_string(),
            },
            client: end(self.client, address6(self.ends.client)),
            virtual_end: end(self.virtual_end, address6(self.ends.virtual_address)),
            server: server.to_string(),
            source: (self.pool() != 0).then(|| end(self.backend_end, pool)),
            state: state(self.meta),
            age_seconds: (seconds * 100.0).round() / 100.0,
            next_hop: meta::hop(self.meta),
            long: self.meta & meta::LONG != 0,
            spilled,
        }
    }
}

/// A service that is not in the pinned maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownService {
    /// What was asked for.
    pub wanted: String,
    /// What there is.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, known } = self;
        write!(
            f,
            "no service `{wanted}` is in the pinned maps; there is: {}",
            known.join(", ")
        )
    }
}

impl std::error::Error for UnknownService {}

/// Reads the pinned maps.
///
/// # Errors
/// A service that nobody knows.
pub fn read(maps: &Maps, filter: &Filter) -> Result<Flows, UnknownService> {
    let now = crate::daemon::tick();
    let services: BTreeMap<u32, String> = (0..maps.service_names.len())
        .map(|index| (index, maps.service_names.read(index)))
        .filter(|(_, name)| name.state != name_state::FREE)
        .map(|(index, name)| (index, decode_name(&name)))
        .collect();
    if let Some(wanted) = &filter.service
        && !services.values().any(|name| name == wanted)
    {
        let known = services.into_values().collect();
        return Err(UnknownService {
            wanted: wanted.clone(),
            known,
        });
    }
    let service_of = |backend: u32| {
        let index = maps.backends.read(backend).service;
        services
            .get(&index.into())
            .cloned()
            .unwrap_or_else(|| "-".into())
    };
    let mut found = Flows {
        total: 0,
        more: false,
        flows: Vec::new(),
    };
    let mut take = |words: Words, spilled: bool| {
        let backend = words.backend();
        if backend >= maps.backends.len() {
            return;
        }
        let service = service_of(backend);
        if filter
            .service
            .as_ref()
            .is_some_and(|wanted| *wanted != service)
        {
            return;
        }
        found.total += 1;
        if filter.limit.is_some_and(|limit| found.flows.len() >= limit) {
            found.more = true;
            return;
        }
        let names = (service, decode_name(&maps.backend_names.read(backend)));
        let entry = maps.backends.read(backend);
        let server = SocketAddr::new(ip_address(&entry.address, entry.family), entry.port);
        let pool = match words.pool() {
            pool if pool < maps.pools.len() => maps.pools.read(pool).address,
            _ => [0; 16],
        };
        let flow = words.describe(names, server, pool, now, spilled);
        found.flows.push(flow);
    };
    for position in 0..maps.bucket_count() {
        let bucket: AnyBucket<'_> = maps.bucket(position);
        for way in 0..WAYS {
            let ends = || bucket.ends(way);
            if let Some(words) = copy(bucket.family, &bucket.words.ways[way], ends) {
                take(words, false);
            }
        }
    }
    // Without those that went while the others were read.
    for id in maps.spill_ids().unwrap_or_default() {
        let Some(entry) = maps.spilled(&id) else {
            continue;
        };
        let way = entry.spilled.way;
        if meta::is_flow(way.meta) {
            let words = Words {
                family: id.family,
                ends: entry.ends,
                client: way.client,
                virtual_end: way.virtual_end,
                backend_end: way.backend_end,
                meta: way.meta,
            };
            take(words, true);
        }
    }
    Ok(found)
}

/// The same for people.
pub fn render(found: &Flows) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "client", "virtual", "backend", "server", "state", "age s", "hop", "",
    ]);
    for flow in &found.flows {
        let mut marks = Vec::new();
        marks.extend(flow.long.then_some("long"));
        marks.extend(flow.spilled.then_some("spilled"));
        table.add_row([
            flow.client.clone(),
            flow.virtual_end.clone(),
            format!("{}/{}", flow.service, flow.backend),
            match &flow.source {
                None => flow.server.clone(),
                Some(source) => format!("{} from {source}", flow.server),
            },
            flow.state.into(),
            format!("{:.1}", flow.age_seconds),
            flow.next_hop.to_string(),
            marks.join(" "),
        ]);
    }
    let more = match found.total - found.flows.len() as u64 {
        0 => String::new(),
        more => format!("{more} more; list them with --limit 0\n"),
    };
    format!("{table}\n{} flows\n{more}", found.total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::{abi::endpoint4, atomic::Word, flow::client_word};

    fn way(meta: u64) -> Way {
        let client = endpoint4(u32::from(Ipv4Addr::new(192, 0, 2, 7)), 40_000);
        let vip = endpoint4(u32::from(Ipv4Addr::new(198, 51, 100, 10)), 80);
        let server = endpoint4(u32::from(Ipv4Addr::new(10, 0, 0, 11)), 8_080);
        Way {
            client: Word::new(client_word(client, 6)),
            virtual_end: Word::new(vip << 16 | 5),
            meta: Word::new(meta),
            backend_end: Word::new(server << 16),
        }
    }

    #[test]
    fn a_flow_in_words() {
        let flags = meta::LONG | meta::REPORTED;
        let meta = meta::with_hop(meta::with_tick(State::Established as u64 | flags, 100), 9);
        let words = copy(Family::V4, &way(meta), || Ends::NONE).unwrap();
        assert_eq!(words.backend(), 5);
        let names = || ("web".to_owned(), "w1".to_owned());
        let server = || "10.0.0.11:8080".parse().unwrap();
        let flow = words.describe(names(), server(), [0; 16], 104, false);
        let expected = Flow {
            service: "web".into(),
            backend: "w1".into(),
            protocol: "tcp".into(),
            client: "192.0.2.7:40000".into(),
            virtual_end: "198.51.100.10:80".into(),
            server: "10.0.0.11:8080".into(),
            source: None,
            state: "established",
            age_seconds: 1.07,
            next_hop: 9,
            long: true,
            spilled: false,
        };
        assert_eq!(flow, expected);
        // A packet of this very tick, noted by a CPU that is ahead.
        assert_eq!(
            words
                .describe(names(), server(), [0; 16], 99, true)
                .age_seconds,
            0.0
        );
        let found = Flows {
            total: 3,
            more: true,
            flows: vec![flow],
        };
        let text = render(&found);
        for part in [
            "192.0.2.7:40000",
            "web/w1",
            "established",
            "1.1",
            "long",
            "2 more",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(
            serde_json::to_value(&found).unwrap()["flows"][0]["virtual"],
            "198.51.100.10:80"
        );
    }

    #[test]
    fn what_is_no_flow_is_not_shown() {
        for (word, shown) in [
            (State::Free as u64, false),
            (State::Busy as u64, false),
            (State::HalfOpen as u64, true),
            (State::Reset as u64, true),
            (15, false),
        ] {
            let found = copy(Family::V4, &way(word), || Ends::NONE);
            assert_eq!(found.is_some(), shown, "{word}");
        }
        let empty = way(State::HalfOpen as u64);
        empty.client.store(0);
        assert!(copy(Family::V4, &empty, || Ends::NONE).is_none());
    }
}
