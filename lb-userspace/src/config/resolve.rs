//! Second stage: values against each other, and the typed configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::abi::{MAX_BACKENDS, MAX_SERVICES};

use crate::Family;

use super::fields::{Field, quoted};
use super::mistakes::Collector;
use super::outside::ProbeKind;
use super::read::{RawBackend, RawFile, RawService};
use super::read_features as features;
use super::types::{Algorithm, Backend, Check, Config, Forwarding, Measure, Protocol, Service};

/// Backend index 0 stays free, see the map ABI.
const BACKENDS: usize = MAX_BACKENDS as usize - 1;
const SERVICES: usize = MAX_SERVICES as usize;

/// Where a name or an address was first seen: path and name of its owner.
type Seen<K> = BTreeMap<K, String>;

/// The typed configuration; `None` if a value that it needs is missing, which
/// has been reported.
pub(super) fn config(raw: RawFile, out: &mut Collector) -> Option<Config> {
    counts(&raw.services, out);
    let mut names = Seen::new();
    let mut endpoints = Seen::new();
    for service in &raw.services {
        unique_name(&service.name, &service.path, &mut names, out);
        unique_endpoint(service, &mut endpoints, out);
    }
    full_nat_has_pool(&raw.services, &raw.data_plane.source_pool, out);
    if let Some(at) = raw.no_ipv6 {
        room_for_ipv6(&raw.services, at, out);
    }
    if raw.services.is_empty() {
        let message = "no `[[service]]`: nothing is balanced";
        out.warning(0, "service", message);
    }
    let services: Vec<Option<Service>> = raw
        .services
        .into_iter()
        .map(|service| resolve_service(service, out))
        .collect();
    Some(Config {
        data_plane: raw.data_plane,
        control: raw.control,
        services: services.into_iter().collect::<Option<_>>()?,
    })
}

/// Reports `full-nat` services without an address to stand for their clients, and
/// addresses of the pool that are a service's or a backend's.
fn full_nat_has_pool(services: &[RawService], pool: &[IpAddr], out: &mut Collector) {
    for service in services {
        if let Some((address, at)) = service.address.spot() {
            let same = |other: &IpAddr| Family::of(*other) == Family::of(*address);
            if service.forwarding == Forwarding::FullNat && !pool.iter().any(same) {
                let message = format!(
                    "`forwarding = \"full-nat\"` needs an {} address of ours to stand for clients: \
                     name one or more in `data_plane.source_pool`",
                    Family::of(*address)
                );
                out.mistake(at, &service.path, message);
            }
            if pool.contains(address) {
                let message = "this address is in `data_plane.source_pool`: packets to it are \
                               servers' answers";
                out.mistake(at, &format!("{}.address", service.path), message);
            }
        }
        for backend in &service.backends {
            if let Some((address, at)) = backend.address.spot()
                && pool.contains(address)
            {
                let message = "this address is in `data_plane.source_pool`, so it is this \
                               machine's";
                out.mistake(at, &format!("{}.address", backend.path), message);
            }
        }
    }
}

/// Reports services of IPv6 where the file says that no flows of it are held.
fn room_for_ipv6(services: &[RawService], at: usize, out: &mut Collector) {
    let is_ipv6 = |service: &&RawService| {
        let address = service.address.spot();
        address.is_some_and(|(address, _)| address.is_ipv6())
    };
    if let Some(service) = services.iter().find(is_ipv6)
        && let Some((_, other)) = service.address.spot()
    {
        let message = format!(
            "0 leaves no room for the connections of {}: give a number of them, or leave the key \
             out",
            called(&service.path, &service.name)
        );
        out.contradiction(at, "data_plane.flow_table.ipv6", message, other);
    }
}

fn counts(services: &[RawService], out: &mut Collector) {
    if let Some(first) = services.get(SERVICES) {
        let message = format!(
            "{} services are too many; {SERVICES} are possible",
            services.len()
        );
        out.mistake(first.at, &first.path, message);
    }
    let mut backends = services.iter().flat_map(|service| &service.backends);
    if let Some(first) = backends.nth(BACKENDS) {
        let message = format!(
            "{} backends over all services are too many; {BACKENDS} are possible",
            BACKENDS + 1 + backends.count()
        );
        out.mistake(first.at, &first.path, message);
    }
}

/// Reports a name that an earlier sibling has.
fn unique_name(name: &Field<String>, path: &str, names: &mut Seen<String>, out: &mut Collector) {
    let Some((name, at)) = name.spot() else {
        return;
    };
    match names.get(name) {
        Some(first) => {
            let message = format!("{} is already the name of {first}", quoted(name));
            out.mistake(at, &format!("{path}.name"), message);
        }
        None => {
            names.insert(name.clone(), path.to_owned());
        }
    }
}

/// How messages call something that may have a usable name.
fn called(path: &str, name: &Field<String>) -> String {
    match name.spot() {
        Some((name, _)) => format!("{path} ({})", quoted(name)),
        None => path.to_owned(),
    }
}

fn protocol_of(service: &RawService) -> Option<Protocol> {
    match service.protocol {
        Field::Absent => Some(Protocol::Tcp),
        Field::Bad => None,
        Field::Is(protocol, _) => Some(protocol),
    }
}

fn unique_endpoint(
    service: &RawService,
    endpoints: &mut Seen<(IpAddr, u16, &'static str)>,
    out: &mut Collector,
) {
    let (Some((address, at)), Some((port, _)), Some(protocol)) = (
        service.address.spot(),
        service.port.spot(),
        protocol_of(service),
    ) else {
        return;
    };
    let key = (*address, *port, protocol.as_str());
    match endpoints.get(&key) {
        Some(first) => {
            let message = format!("address, port and protocol are those of {first}");
            out.mistake(at, &format!("{}.address", service.path), message);
        }
        None => {
            endpoints.insert(key, called(&service.path, &service.name));
        }
    }
}

fn resolve_service(raw: RawService, out: &mut Collector) -> Option<Service> {
    backends_apart(&raw, out);
    if raw.backends.is_empty() {
        let message = "no `[[service.backend]]`: connections to this service are dropped";
        out.warning(raw.at, &raw.path, message);
    } else if raw.backends.iter().all(|backend| backend.weight == Some(0)) {
        let message = "every backend has weight 0: new connections to this service are dropped";
        out.warning(raw.at, &raw.path, message);
    }
    let protocol = protocol_of(&raw)?;
    let measure = measure_of(&raw, protocol, out);
    let drain_reset = drain_reset_of(&raw, protocol, out);
    let forwarding = raw.forwarding;
    if forwarding.is_direct() && protocol == Protocol::Udp && raw.algorithm == Algorithm::Aca {
        let message = "direct return shows nothing of a UDP server's answers: `aca` has nothing to \
                       measure there and goes by open flows alone";
        out.warning(raw.at, &raw.path, message);
    }
    ports_to_ask(&raw, out);
    families_to_ask(&raw, out);
    if protocol == Protocol::Udp {
        no_failures_of_udp(&raw, out);
    }
    let inband_health = raw.inband_health.or(features::inband_health(None, out));
    let fail_detect = raw.fail_detect.or(features::fail_detect(None, out));
    let syn_guard = raw.syn_guard.or(features::syn_guard(None, out));
    if let (Forwarding::Dsr, Field::Is(Measure::RequestToResponse, at)) = (forwarding, &raw.measure)
    {
        let message = "in direct return the client's ACK stands for the answer, and clients delay \
                       it by up to 40 ms: short times are too long by as much";
        out.warning(*at, &format!("{}.measure", raw.path), message);
    }
    // Every backend is looked at before a missing value ends this.
    let port = raw.port.value();
    let backends: Vec<Option<Backend>> = raw
        .backends
        .into_iter()
        .map(|backend| match forwarding {
            Forwarding::Nat | Forwarding::FullNat => resolve_backend(backend, port, out),
            Forwarding::Dsr | Forwarding::Ipip | Forwarding::Gue => {
                resolve_direct(backend, forwarding, port, out)
            }
        })
        .collect();
    Some(Service {
        name: raw.name.value()?,
        address: raw.address.value()?,
        port: port?,
        protocol,
        forwarding: raw.forwarding,
        algorithm: raw.algorithm,
        measure: measure?,
        announce: raw.announce,
        gue_port: raw.gue_port,
        drain_timeout: raw.drain_timeout,
        drain_reset: drain_reset?,
        aca: raw.aca,
        ramp: raw.ramp,
        inband_health,
        fail_detect,
        syn_guard,
        probe: raw.outside.probe.value(),
        agent: raw.outside.agent.value(),
        dfp: raw.outside.dfp.value(),
        capacity: raw.outside.capacity.value(),
        backends: backends.into_iter().collect::<Option<_>>()?,
    })
}

/// Who asks from an address of its own can ask that address's family only, and
/// DFP has no room for IPv6 addresses.
fn families_to_ask(service: &RawService, out: &mut Collector) {
    let outside = &service.outside;
    let probe = outside.probe.spot().map(|(probe, at)| (probe.source, at));
    let agent = outside.agent.spot().map(|(agent, at)| (agent.source, at));
    let sources = [("probe", probe), ("agent", agent)];
    for backend in &service.backends {
        let Some((address, other)) = backend.address.spot() else {
            continue;
        };
        let family = Family::of(*address);
        let name = called(&backend.path, &backend.name);
        for (key, source) in sources {
            if let Some((Some(source), at)) = source
                && Family::of(source) != family
            {
                let message = format!("{source} cannot reach {name}, which is {family}");
                let path = format!("{}.{key}.source", service.path);
                out.contradiction(at, &path, message, other);
            }
        }
        if let Some((_, at)) = outside.dfp.spot()
            && family == Family::V6
        {
            let message = format!("DFP knows IPv4 addresses only, and {name} is {family}");
            out.contradiction(at, &format!("{}.dfp", service.path), message, other);
        }
    }
}

/// A probe of a service with every port must be told which one to try.
fn ports_to_ask(service: &RawService, out: &mut Collector) {
    let every = service.port.spot().is_some_and(|(port, _)| *port == 0);
    if let Some((probe, at)) = service.outside.probe.spot()
        && every
        && service.forwarding.is_direct()
        && probe.port.is_none()
        && probe.kind != ProbeKind::Icmp
    {
        let message = "the service has every port (`port = 0`): name the one to probe in `port`";
        out.mistake(at, &format!("{}.probe", service.path), message);
    }
}

/// UDP has no SYN, and what tells of its failures are ICMP messages, which this
/// version does not read.
fn no_failures_of_udp(service: &RawService, out: &mut Collector) {
    let mut refuse = |at: usize, section: &str, what: &str| {
        out.mistake(at, &format!("{}.{section}", service.path), what);
    };
    match service.inband_health.spot() {
        Some((health, at)) if health.check != Check::Count => {
            let what = "failures of UDP are not seen in this version; write `check = \"count\"` or \
                        leave the section out";
            refuse(at, "inband_health", what);
        }
        Some(_) | None => {}
    }
    match service.fail_detect.spot() {
        Some((detect, at)) if detect.connections > 0 => {
            let what = "failures of UDP are not seen in this version; write `connections = 0` or \
                        leave the section out";
            refuse(at, "fail_detect", what);
        }
        Some(_) | None => {}
    }
    match service.syn_guard.spot() {
        Some((guard, at)) if guard.unanswered > 0 => {
            let what = "UDP has no SYN; write `unanswered = 0` or leave the section out";
            refuse(at, "syn_guard", what);
        }
        Some(_) | None => {}
    }
}

/// What a service measures, if that can be told.
fn measure_of(raw: &RawService, protocol: Protocol, out: &mut Collector) -> Option<Measure> {
    match (&raw.measure, protocol) {
        (Field::Bad, _) => None,
        (Field::Is(measure, _), Protocol::Tcp) => Some(*measure),
        (Field::Absent, Protocol::Tcp) => Some(Measure::SynToFin),
        (Field::Absent | Field::Is(Measure::FirstResponse, _), Protocol::Udp) => {
            Some(Measure::FirstResponse)
        }
        (Field::Is(measure, at), Protocol::Udp) => {
            let message = format!(
                "UDP has neither SYN nor FIN, so `{measure}` cannot be measured; use \
                 \"first-response\""
            );
            out.mistake(*at, &format!("{}.measure", raw.path), message);
            None
        }
    }
}

/// Whether ended connections are answered, if that can be told.
fn drain_reset_of(raw: &RawService, protocol: Protocol, out: &mut Collector) -> Option<bool> {
    match (&raw.drain_reset, protocol) {
        (Field::Bad, _) => None,
        (Field::Absent, _) => Some(false),
        (Field::Is(true, at), Protocol::Udp) => {
            let message = "datagrams have no connection to reset: leave `drain_reset` out";
            out.mistake(*at, &format!("{}.drain_reset", raw.path), message);
            None
        }
        (Field::Is(reset, _), _) => Some(*reset),
    }
}

/// The port of a backend, if it and what it may default to can be read.
fn port_of(backend: &RawBackend, service: Option<u16>) -> Option<u16> {
    match backend.port {
        Field::Absent => service,
        Field::Bad => None,
        Field::Is(port, _) => Some(port),
    }
}

fn backends_apart(service: &RawService, out: &mut Collector) {
    let virtual_port = service.port.spot().map(|(port, _)| *port);
    let mut names = Seen::new();
    let mut endpoints = Seen::new();
    for backend in &service.backends {
        unique_name(&backend.name, &backend.path, &mut names, out);
        let (Some((address, at)), Some(port)) =
            (backend.address.spot(), port_of(backend, virtual_port))
        else {
            continue;
        };
        let path = format!("{}.address", backend.path);
        if let Some((virtual_address, other)) = service.address.spot()
            && Family::of(*virtual_address) != Family::of(*address)
            && !service.forwarding.is_tunnel()
        {
            let message = format!(
                "this is {}, and `forwarding = \"{}\"` stays within one family: the service's \
                 address is {}",
                Family::of(*address),
                service.forwarding,
                Family::of(*virtual_address)
            );
            out.contradiction(at, &path, message, other);
            continue;
        }
        if service.address.spot().map(|(address, _)| address) == Some(address)
            && (virtual_port == Some(0) || virtual_port == Some(port))
        {
            let message = "this is the service itself: its packets would come back to it";
            out.mistake(at, &path, message);
        } else if let Some(first) = endpoints.get(&(*address, port)) {
            let message = format!("address and port are those of {first}");
            out.mistake(at, &path, message);
        } else {
            let owner = called(&backend.path, &backend.name);
            endpoints.insert((*address, port), owner);
        }
    }
}

/// A backend in direct return. It gets packets as clients sent them, to the
/// service's own port.
fn resolve_direct(
    raw: RawBackend,
    forwarding: Forwarding,
    virtual_port: Option<u16>,
    out: &mut Collector,
) -> Option<Backend> {
    if let (Field::Is(port, at), Some(service)) = (&raw.port, virtual_port)
        && *port != service
    {
        let message = format!(
            "direct return (`forwarding = \"{forwarding}\"`) changes no port: leave `port` out, \
             the server listens on the service's"
        );
        out.mistake(*at, &format!("{}.port", raw.path), message);
        return None;
    }
    Some(Backend {
        name: raw.name.value()?,
        address: raw.address.value()?,
        port: virtual_port?,
        weight: raw.weight?,
    })
}

fn resolve_backend(
    raw: RawBackend,
    virtual_port: Option<u16>,
    out: &mut Collector,
) -> Option<Backend> {
    let port = port_of(&raw, virtual_port);
    if port == Some(0) {
        let path = format!("{}.port", raw.path);
        let every = "a backend needs a port: the service has every port (`port = 0`), and keeping \
                     the client's is not available in this version; write 1 to 65535";
        match raw.port {
            Field::Is(_, at) if virtual_port == Some(0) => out.mistake(at, &path, every),
            Field::Is(_, at) => {
                out.mistake(at, &path, "0 is out of range; 1 to 65535 is possible");
            }
            Field::Absent | Field::Bad => out.absence(raw.at, &path, every),
        }
        return None;
    }
    Some(Backend {
        name: raw.name.value()?,
        address: raw.address.value()?,
        port: port?,
        weight: raw.weight?,
    })
}
