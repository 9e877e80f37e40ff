//! What must be right before the daemon touches anything, and the first filling
//! of the maps.

use super::clock;
use crate::{
    Family,
    config::{self, Algorithm, Config, Forwarding, Measure, Pick, Protocol, Service},
    dataplane::{Books, Hook, HookState, Maps, PinState, Pins, Sizes, Wanted},
    net::links::{self, Link},
};
use anyhow::{Context as _, Result, bail};
use lb_common::{
    abi::{
        self, Address, Backend, LAYOUT_VERSION, PoolAddress, RELATIVE_ONE, ServiceKey, Settings,
        backend_flags, ticks_from_ms,
    },
    control::{
        AcaParameters, Algorithm as EngineAlgorithm, BackendConfig, Calculation, Check, Curve,
        EngineConfig, FailDetectParameters, HealthParameters, InbandParameters, Pick as EnginePick,
        ServiceConfig,
    },
    hash,
    tcp::State,
};
use std::{io::Read as _, mem::offset_of, net::IpAddr, time::Duration};

/// IP protocol number of TCP.
const TCP: u8 = 6;
/// The same of UDP.
const UDP: u8 = 17;
/// The same of ICMP: every VIP has a key of it, by which it answers ping.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Idle and linger times of the packet path. Sources: `delay` and `idle` of IOS
/// SLB (spec 4.1: 10 s and 3,600 s); the embryonic limit of ACE (spec 5.2) is
/// `syn_timeout`; a closing flow gets Linux conntrack's FIN_WAIT of 120 s; a
/// client that was answered gets its whole SYN-ACK retransmission (RFC 6298:
/// 1 + 2 + 4 + 8 + 16 s).
const ANSWERED: Duration = Duration::from_secs(31);
const ESTABLISHED: Duration = Duration::from_secs(3_600);
const CLOSING: Duration = Duration::from_secs(120);
const LINGER: Duration = Duration::from_secs(10);
/// UDP: Linux conntrack's timeouts of a flow that was answered never, and once.
const DATAGRAM: Duration = Duration::from_secs(30);
const CONVERSING: Duration = Duration::from_secs(120);
/// A daemon that gave no sign of life for this long is taken for dead by the
/// packet path.
const HEARTBEAT_EXPIRY: Duration = Duration::from_secs(10);

/// Everything that was looked at and found in order. Nothing is changed yet.
pub(crate) struct Plan {
    pub(crate) pins: Pins,
    pub(crate) state: PinState,
    pub(crate) sizes: Sizes,
    pub(crate) hooks: Vec<(Hook, HookState)>,
    pub(crate) links: Vec<Link>,
}

/// Sizes of the maps for a configuration.
pub(crate) fn sizes(config: &Config) -> Sizes {
    Sizes {
        pools: u32::try_from(config.data_plane.source_pool.len()).unwrap_or(u32::MAX),
        ..config.data_plane.flow_table.sizes()
    }
}

/// Looks at interfaces, hooks and pins.
///
/// # Errors
/// Whatever forbids starting, with the remedy. Nothing was changed.
pub(crate) async fn plan(config: &Config, handle: &rtnetlink::Handle) -> Result<Plan> {
    let all = links::list(handle).await?;
    let mut links = Vec::new();
    for name in &config.data_plane.interfaces {
        match all.iter().find(|link| link.name == *name) {
            Some(link) => links.push(link.clone()),
            None => bail!(
                "{name}: no such interface in this network namespace; data_plane.interfaces can \
                 name {}",
                all.iter()
                    .map(|link| link.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        }
    }
    let pins = Pins::new(&config.data_plane.pin_directory);
    let sizes = sizes(config);
    let state = pins.check(sizes)?;
    if state == PinState::Ours {
        check_settings(&Maps::open(&pins)?, &pins)?;
    }
    let mut hooks = Vec::new();
    for link in &links {
        let hook = Hook {
            interface: link.name.clone(),
            ifindex: link.index,
            program: link.xdp.as_ref().map(|xdp| xdp.program_id),
        };
        let state = hook.check(&pins)?;
        hooks.push((hook, state));
    }
    Ok(Plan {
        pins,
        state,
        sizes,
        hooks,
        links,
    })
}

fn check_settings(maps: &Maps, pins: &Pins) -> Result<()> {
    let settings = maps.settings.read(0);
    // Zero: a daemon died between making the maps and filling them.
    if settings.layout != 0 && settings.layout != LAYOUT_VERSION {
        bail!(
            "{}: the maps have layout {}, this version has {LAYOUT_VERSION}; nothing was \
             changed. Start the version that made them, or end its traffic with `steerline \
             detach` and start again",
            pins.directory().display(),
            settings.layout
        );
    }
    for (mask, buckets) in [
        (settings.bucket_mask4, maps.flows4.len()),
        (settings.bucket_mask6, maps.flows6.len()),
    ] {
        if settings.layout != 0 && mask != buckets - 1 {
            bail!(
                "{}: corrupt settings (bucket mask {mask:#x} with {buckets} buckets); nothing \
                 was changed. End the traffic with `steerline detach` and start again",
                pins.directory().display(),
            );
        }
    }
    Ok(())
}

/// An address as the maps hold it.
pub(crate) fn map_address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => abi::address4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address that the maps hold.
pub(crate) fn ip_address(address: &Address, family: u8) -> IpAddr {
    if family == 4 {
        let [a, b, c, d, ..] = *address;
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(*address)
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

/// A service's place in the maps.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) index: u32,
    /// Indices of its backends, in file order.
    pub(crate) backends: Vec<u32>,
    /// Flags that all of them have by configuration.
    pub(crate) flags: u32,
}

fn service_key(service: &Service) -> ServiceKey {
    ServiceKey {
        address: map_address(service.address),
        port: service.port,
        protocol: match service.protocol {
            Protocol::Tcp => TCP,
            Protocol::Udp => UDP,
        },
        family: family(service.address),
    }
}

/// Fills settings and tables. Indices that the maps already have for a service
/// or backend stay; so do the lists that are published.
pub(crate) fn fill(config: &Config, maps: &mut Maps, books: &mut Books) -> Result<Vec<Placed>> {
    let placed = place(config, maps, books)?;
    for backend in placed.iter().flat_map(|placed| &placed.backends) {
        // An engine that begins takes it that nobody is limited.
        maps.budgets.write(*backend, abi::Budget::default());
    }
    switch(config, maps, books, &placed)?;
    Ok(placed)
}

/// The entries of everything configured. Whoever has flows keeps its entry,
/// and nobody new gets any yet.
pub(crate) fn place(config: &Config, maps: &mut Maps, books: &mut Books) -> Result<Vec<Placed>> {
    fill_settings(config, maps)?;
    fill_pools(config, maps);
    let mut placed = Vec::new();
    for service in &config.services {
        let key = service_key(service);
        let assigned = books.service(maps, &service.name, &key)?;
        let before = maps.service_table.read(assigned.index);
        let (members, ring) = if assigned.is_new {
            (0, 0)
        } else {
            (before.members, before.ring)
        };
        maps.service_table.write(
            assigned.index,
            abi::Service {
                members,
                ring,
                address: key.address,
                port: key.port,
                protocol: key.protocol,
                family: key.family,
                algorithm: match (service.algorithm, service.aca.pick) {
                    (Algorithm::WeightedRoundRobin, _) => abi::algorithm::WEIGHTED_ROUND_ROBIN,
                    (Algorithm::WeightedLeastConnections, _) => {
                        abi::algorithm::WEIGHTED_LEAST_CONNECTIONS
                    }
                    (Algorithm::Aca, Pick::Connections) => abi::algorithm::ACA_CONNECTIONS,
                    (Algorithm::Aca, Pick::Shares) => abi::algorithm::ACA_SHARES,
                },
                measure: match service.measure {
                    Measure::SynToFin => abi::measure::SYN_TO_FIN,
                    Measure::SynToSynAck => abi::measure::SYN_TO_SYN_ACK,
                    Measure::FirstResponse => abi::measure::FIRST_RESPONSE,
                    Measure::RequestToResponse => abi::measure::REQUEST_TO_RESPONSE,
                },
                forwarding: forwarding(service.forwarding),
                reassign: match service.fail_detect.connections {
                    0 => 0,
                    _ => service.fail_detect.reassign,
                },
                short_flow_bytes: service.aca.short_flow_bytes,
                padding1: 0,
                padding2: [0; 2],
            },
        );
        let word = |offset, value: u32| maps.syn_guards.write_word(assigned.index, offset, value);
        let interval_us = u32::try_from(micros(service.syn_guard.interval))?;
        word(offset_of!(abi::SynGuard, interval_us), interval_us);
        word(
            offset_of!(abi::SynGuard, unanswered),
            service.syn_guard.unanswered,
        );
        let mut backends = Vec::new();
        for backend in &service.backends {
            let address = map_address(backend.address);
            let assigned_backend =
                books.backend(maps, assigned.index, &backend.name, &address, backend.port)?;
            let before = if assigned_backend.is_new {
                Backend {
                    flags: backend_flags::PRESENT,
                    relative: RELATIVE_ONE,
                    address,
                    port: backend.port,
                    service: u16::try_from(assigned.index)?,
                    ..bytemuck::Zeroable::zeroed()
                }
            } else {
                maps.backends.read(assigned_backend.index)
            };
            let entry = forward(config, service, backend, before);
            maps.backends.write(assigned_backend.index, entry);
            backends.push(assigned_backend.index);
        }
        placed.push(Placed {
            index: assigned.index,
            backends,
            flags: if service.drain_reset {
                backend_flags::RESET_FLOWS
            } else {
                0
            },
        });
    }
    Ok(placed)
}

/// A backend's entry with all that says how packets reach it.
fn forward(
    config: &Config,
    service: &Service,
    backend: &crate::config::Backend,
    before: Backend,
) -> Backend {
    let v4 = backend.address.is_ipv4();
    let configured = config
        .data_plane
        .tunnel_sources
        .iter()
        .find(|source| source.address.is_ipv4() == v4);
    let (source, spread, fixed) = match configured {
        Some(source) => (map_address(source.address), source.spread(), 1),
        // The daemon learns it with the route.
        None if before.tunnel_source_fixed == 0 => (before.tunnel_source, 0, 0),
        None => ([0; 16], 0, 0),
    };
    Backend {
        forwarding: forwarding(service.forwarding),
        family: family(backend.address),
        tunnel_port: service.gue_port,
        tunnel_source: source,
        tunnel_spread: spread,
        tunnel_source_fixed: fixed,
        ..before
    }
}

fn forwarding(forwarding: Forwarding) -> u8 {
    match forwarding {
        Forwarding::Nat => abi::forwarding::NAT,
        Forwarding::Dsr => abi::forwarding::DSR,
        Forwarding::Ipip => abi::forwarding::IPIP,
        Forwarding::Gue => abi::forwarding::GUE,
        Forwarding::FullNat => abi::forwarding::FULL_NAT,
    }
}

/// The addresses that stand for clients, those of IPv4 first. Ports of an address
/// that comes in another's place are all free.
fn fill_pools(config: &Config, maps: &Maps) {
    for (index, address) in (1..).zip(pool(config)) {
        let entry = PoolAddress {
            address: map_address(address),
            ..maps.pools.read(index)
        };
        if maps.pools.read(index).address == entry.address {
            continue;
        }
        let first = abi::pool_cell(index, false, 0);
        for cell in first..first + abi::POOL_CELLS {
            maps.pool_ports.write(cell, 0);
        }
        maps.pools.write(index, entry);
    }
}

/// The pool in the order of its indices, which begin at 1.
fn pool(config: &Config) -> impl Iterator<Item = IpAddr> + '_ {
    let of = |family: Family| {
        let all = config.data_plane.source_pool.iter().copied();
        all.filter(move |address| Family::of(*address) == family)
    };
    Family::ALL.into_iter().flat_map(of)
}

/// Lets new flows come to what was placed and to nothing else. Keys lead to the
/// new entries before the old ones close: a service that was renamed drops no
/// packet.
pub(crate) fn switch(
    config: &Config,
    maps: &mut Maps,
    books: &Books,
    placed: &[Placed],
) -> Result<()> {
    write_filter(maps);
    publish_keys(config, maps, placed)?;
    let (retired, _) = books.retire_others(maps);
    for backend in retired {
        // Its flows go on; new ones do not come.
        maps.backends
            .write_word(backend, offset_of!(Backend, weight), 0u32);
        let kept = maps.backends.read(backend).flags & backend_flags::RESET_FLOWS;
        let flags = backend_flags::PRESENT | backend_flags::REMOVED | kept;
        maps.backends
            .write_word(backend, offset_of!(Backend, flags), flags);
    }
    Ok(())
}

/// What `config` wants indices for.
pub(crate) fn wanted(config: &Config) -> Vec<Wanted> {
    let services = config.services.iter().map(|service| Wanted {
        name: service.name.clone(),
        key: service_key(service),
        backends: service
            .backends
            .iter()
            .map(|b| (map_address(b.address), b.port))
            .collect(),
    });
    services.collect()
}

/// The services' keys: those wanted are there before those unwanted go.
fn publish_keys(config: &Config, maps: &mut Maps, placed: &[Placed]) -> Result<()> {
    let wanted: Vec<(ServiceKey, u32)> = config
        .services
        .iter()
        .zip(placed)
        .flat_map(|(service, placed)| {
            let key = service_key(service);
            let ping = ServiceKey {
                port: 0,
                protocol: if key.family == 4 { ICMP } else { ICMPV6 },
                ..key
            };
            [(key, placed.index), (ping, placed.index)]
        })
        .chain((1..).zip(pool(config)).map(|(index, address)| {
            let key = ServiceKey {
                address: map_address(address),
                port: 0,
                protocol: abi::POOL_PROTOCOL,
                family: family(address),
            };
            (key, index)
        }))
        .collect();
    for (key, index) in &wanted {
        maps.services.insert(key, index, 0)?;
    }
    let present: Vec<ServiceKey> = maps.services.keys().collect::<Result<_, _>>()?;
    for key in present {
        if !wanted.iter().any(|(wanted, _)| *wanted == key) {
            maps.services.remove(&key)?;
        }
    }
    Ok(())
}

/// The hot filter: every VIP and backend address that the maps know, retired
/// ones included, for their flows go on.
pub(crate) fn write_filter(maps: &Maps) {
    let mut words = vec![0u64; abi::FILTER_WORDS as usize];
    let mut mark = |address: &Address, family: u8| {
        let bit = hash::filter_bit(address, family);
        words[(bit / 64) as usize] |= 1 << (bit % 64);
    };
    for index in 0..maps.service_table.len() {
        let service = maps.service_table.read(index);
        if maps.service_names.read(index).state != abi::name_state::FREE {
            mark(&service.address, service.family);
        }
    }
    for index in 1..maps.backends.len() {
        let backend = maps.backends.read(index);
        if backend.flags & backend_flags::PRESENT != 0 {
            mark(&backend.address, backend.family);
        }
    }
    let pools = maps.settings.read(0).pools;
    let (four, six) = (pools & 0xffff, pools >> 16);
    for index in 1..=four + six {
        mark(
            &maps.pools.read(index).address,
            if index <= four { 4 } else { 6 },
        );
    }
    for (index, word) in (0..).zip(words) {
        maps.filter.write(index, word);
    }
}

fn fill_settings(config: &Config, maps: &Maps) -> Result<()> {
    let mut settings: Settings = maps.settings.read(0);
    let fresh = settings.layout == 0;
    if fresh {
        let mut random = [0u8; 24];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .context("/dev/urandom: cannot draw the hash secret")?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&random[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        settings.hash_secret = [word(0), word(8)];
        settings.instance = word(16);
        settings.bucket_mask4 = maps.flows4.len() - 1;
        settings.bucket_mask6 = maps.flows6.len() - 1;
    }
    settings.flow_capacity4 = config.data_plane.flow_table.ipv4;
    settings.flow_capacity6 = config.data_plane.flow_table.ipv6;
    let count = |family: Family| {
        let all = config.data_plane.source_pool.iter();
        all.filter(|address| Family::of(**address) == family)
            .count() as u32
    };
    settings.pools = count(Family::V6) << 16 | count(Family::V4);
    settings.heartbeat = clock::tick();
    settings.heartbeat_expiry = ticks(HEARTBEAT_EXPIRY);
    // One table serves all services: the most patient one's limit counts.
    let syn_timeout = config
        .services
        .iter()
        .map(|service| service.inband_health.syn_timeout)
        .max()
        .unwrap_or(Duration::from_secs(5));
    let mut timeouts = [u32::MAX; abi::STATES];
    for (state, time) in [
        (State::HalfOpen, syn_timeout),
        (State::Answered, ANSWERED.max(syn_timeout)),
        (State::Established, ESTABLISHED),
        (State::ClientFin, CLOSING),
        (State::ServerFin, CLOSING),
        (State::Closed, LINGER),
        (State::Reset, LINGER),
        (State::Datagram, DATAGRAM),
        (State::Conversing, CONVERSING),
    ] {
        timeouts[state as usize] = ticks(time);
    }
    settings.timeouts = timeouts;
    // The layout last: with it the packet path begins to work.
    settings.layout = if fresh { 0 } else { settings.layout };
    maps.settings.write(0, settings);
    if fresh {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        maps.settings
            .write_word(0, offset_of!(Settings, layout), LAYOUT_VERSION);
    }
    Ok(())
}

fn ticks(time: Duration) -> u32 {
    ticks_from_ms(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What failures of a service's backends lead to.
fn health(service: &Service) -> HealthParameters {
    let inband = &service.inband_health;
    HealthParameters {
        inband: InbandParameters {
            check: match inband.check {
                config::Check::Count => Check::Count,
                config::Check::Log => Check::Log,
                config::Check::Remove => Check::Remove,
            },
            failures: inband.failures,
            reset_time_us: micros(inband.reset_time),
            resume_service_us: micros(inband.resume_service),
        },
        detect: FailDetectParameters {
            connections: service.fail_detect.connections.into(),
            clients: service.fail_detect.clients.into(),
            retry_us: micros(service.fail_detect.retry),
            ..FailDetectParameters::default()
        },
        max_ejected_percent: inband.max_ejected_percent.into(),
    }
}

/// What the engine is to steer.
pub(crate) fn engine_config(config: &Config, placed: &[Placed]) -> Result<EngineConfig> {
    let mut services = Vec::new();
    for (service, place) in config.services.iter().zip(placed) {
        let mut backends = Vec::new();
        for (backend, index) in service.backends.iter().zip(&place.backends) {
            backends.push(BackendConfig {
                index: u16::try_from(*index)?,
                identity: format!("{} {}:{}", service.name, backend.address, backend.port),
                server: backend.address.to_string(),
                weight: backend.weight.into(),
            });
        }
        services.push(ServiceConfig {
            index: u16::try_from(place.index)?,
            algorithm: match service.algorithm {
                Algorithm::WeightedRoundRobin => EngineAlgorithm::WeightedRoundRobin,
                Algorithm::WeightedLeastConnections => EngineAlgorithm::WeightedLeastConnections,
                Algorithm::Aca => EngineAlgorithm::Aca {
                    pick: match service.aca.pick {
                        Pick::Connections => EnginePick::Connections,
                        Pick::Shares => EnginePick::Shares,
                    },
                },
            },
            aca: AcaParameters {
                calculation: match service.aca.calculation {
                    config::Calculation::Relative => Calculation::Relative,
                    config::Calculation::Absolute => Calculation::Absolute {
                        sensitivity: service.aca.absolute_sensitivity,
                    },
                },
                load_step_ms: u64::try_from(service.aca.load_step.as_millis())?,
                dynamic_step: service.aca.dynamic_step,
                load_threshold: service.aca.load_threshold,
                ageout_us: micros(service.aca.ageout),
                smoothing: service.aca.smoothing,
                variance: service.aca.variance,
                curve: match service.aca.curve {
                    config::Curve::Reciprocal => Curve::Reciprocal,
                    config::Curve::Bucket => Curve::Bucket,
                },
            },
            teardown_interval_us: micros(service.aca.teardown_interval),
            syn_timeout_us: micros(service.inband_health.syn_timeout),
            drain_timeout_us: micros(service.drain_timeout),
            ramp: service.ramp,
            health: health(service),
            outside: super::outside::sources(service),
            backends,
        });
    }
    Ok(EngineConfig { services })
}
