//! First stage: every value by itself. Nothing here looks at two keys at once,
//! except to keep one mistake from being reported twice.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use lb_common::abi::{MAX_POOLS, NAME_BYTES};
use lb_common::control::Ramp;
use toml::de::DeTable;

use super::fields::{Field, Section, quoted, wrong_type};
use super::format;
use super::mistakes::Collector;
use super::outside::{Agent, Capacity, Dfp, Probe};
use super::read_features as features;
use super::types::{
    Aca, Algorithm, Announce, Control, DataPlane, FailDetect, FlowTable, Forwarding, InbandHealth,
    Measure, Mode, Protocol, SynGuard, TunnelSource,
};
use super::{read_outside as outside, read_probe};

/// Flows of a table. The upper bound is 3 GiB of flow table; below the lower
/// one the spill table would be larger than what it spills from.
const FLOWS: std::ops::RangeInclusive<u32> = 1_024..=16_777_216;
const DEFAULT_FLOWS: u32 = 1_000_000;
/// IANA's port for GUE.
const GUE_PORT: u16 = 6_080;
/// See [`FlowTable::ipv6`].
const DEFAULT_FLOWS6: u32 = 250_000;

/// Interface names of Linux are shorter than this (`IFNAMSIZ`).
const INTERFACE_BYTES: usize = 16;

/// Path of a Unix socket, `sun_path` less its terminating zero.
const SOCKET_BYTES: usize = 107;

const DAY: Duration = Duration::from_secs(86_400);

/// IOS SLB: `weight`.
const DEFAULT_WEIGHT: u16 = 8;

/// What the file says, value by value.
pub(super) struct RawFile {
    pub(super) data_plane: DataPlane,
    /// Where the file says that no IPv6 flows are held.
    pub(super) no_ipv6: Option<usize>,
    pub(super) control: Control,
    pub(super) services: Vec<RawService>,
}

/// A service whose values are not yet compared with those of others.
pub(super) struct RawService {
    pub(super) at: usize,
    pub(super) path: String,
    pub(super) name: Field<String>,
    pub(super) address: Field<IpAddr>,
    pub(super) port: Field<u16>,
    pub(super) protocol: Field<Protocol>,
    pub(super) forwarding: Forwarding,
    pub(super) algorithm: Algorithm,
    pub(super) measure: Field<Measure>,
    pub(super) announce: Announce,
    pub(super) gue_port: u16,
    pub(super) drain_timeout: Duration,
    pub(super) drain_reset: Field<bool>,
    pub(super) aca: Aca,
    pub(super) ramp: Ramp,
    pub(super) inband_health: Field<InbandHealth>,
    pub(super) fail_detect: Field<FailDetect>,
    pub(super) syn_guard: Field<SynGuard>,
    pub(super) outside: RawOutside,
    pub(super) backends: Vec<RawBackend>,
}

/// What others tell of a service's backends, with the offset of each section.
/// A section that is there and could not be read is `Bad`.
pub(super) struct RawOutside {
    pub(super) probe: Field<Probe>,
    pub(super) agent: Field<Agent>,
    pub(super) dfp: Field<Dfp>,
    pub(super) capacity: Field<Capacity>,
}

/// A backend whose values are not yet compared with those of others.
pub(super) struct RawBackend {
    pub(super) at: usize,
    pub(super) path: String,
    pub(super) name: Field<String>,
    pub(super) address: Field<IpAddr>,
    pub(super) port: Field<u16>,
    pub(super) weight: Option<u16>,
}

/// Reads the whole file.
pub(super) fn file<'a>(table: &'a DeTable<'a>, out: &mut Collector) -> RawFile {
    let root = Section::root(table, out);
    let data_plane = root.section("data_plane", &format::DATA_PLANE, out);
    if matches!(data_plane, Field::Absent) {
        let message = "`[data_plane]` is missing; it names the interfaces";
        out.absence(root.at, "data_plane", message);
    }
    let control = root.section("control", &format::CONTROL, out);
    let (data_plane, no_ipv6) = read_data_plane(data_plane.value().as_ref(), out);
    RawFile {
        data_plane,
        no_ipv6,
        control: read_control(control.value().as_ref(), out),
        services: root
            .sections("service", &format::SERVICE, out)
            .iter()
            .map(|section| read_service(section, out))
            .collect(),
    }
}

/// The section, and where it says that there is no table of IPv6 flows.
fn read_data_plane(
    section: Option<&Section<'_>>,
    out: &mut Collector,
) -> (DataPlane, Option<usize>) {
    let mut data_plane = DataPlane {
        interfaces: Vec::new(),
        mode: Mode::Native,
        flow_table: FlowTable {
            ipv4: DEFAULT_FLOWS,
            ipv6: DEFAULT_FLOWS6,
        },
        pin_directory: PathBuf::from("/sys/fs/bpf/steerline"),
        reattach: true,
        tunnel_sources: Vec::new(),
        source_pool: Vec::new(),
    };
    let mut no_ipv6 = None;
    let Some(section) = section else {
        return (data_plane, no_ipv6);
    };
    data_plane.interfaces = read_interfaces(section, out);
    data_plane.mode = section
        .choice("mode", Mode::SPELLINGS, out)
        .or(Mode::Native);
    if let Some(table) = section
        .section("flow_table", &format::FLOW_TABLE, out)
        .value()
    {
        data_plane.flow_table.ipv4 = table.integer("ipv4", FLOWS, out).or(DEFAULT_FLOWS);
        let ipv6 = table.integer("ipv6", 0..=*FLOWS.end(), out);
        if let Some((flows, at)) = ipv6.spot()
            && (1..*FLOWS.start()).contains(flows)
        {
            let message = format!(
                "{flows} is out of range; 0, or {} to {} is possible",
                FLOWS.start(),
                FLOWS.end()
            );
            out.mistake(at, &table.path("ipv6"), message);
        }
        if let Field::Is(0, at) = ipv6 {
            no_ipv6 = Some(at);
        }
        data_plane.flow_table.ipv6 = ipv6.or(DEFAULT_FLOWS6);
    }
    let pins = section.absolute_path("pin_directory", out);
    data_plane.pin_directory = pins.or(data_plane.pin_directory);
    data_plane.reattach = section.boolean("reattach", out).or(true);
    data_plane.tunnel_sources = read_tunnel_sources(section, out);
    data_plane.source_pool = read_source_pool(section, out);
    (data_plane, no_ipv6)
}

/// Addresses, each once.
fn read_source_pool(section: &Section<'_>, out: &mut Collector) -> Vec<IpAddr> {
    let Field::Is(elements, at) = section.array("source_pool", "an array of addresses", out) else {
        return Vec::new();
    };
    if elements.len() > MAX_POOLS as usize {
        let message = format!("at most {MAX_POOLS} addresses are possible");
        out.mistake(at, &section.path("source_pool"), message);
    }
    let mut pool: Vec<IpAddr> = Vec::new();
    for (value, path, at) in elements {
        let Some(text) = value.as_str() else {
            out.mistake(at, &path, wrong_type("an address", value));
            continue;
        };
        let problem = match text.parse::<IpAddr>() {
            Ok(address) if pool.contains(&address) => "the address is there twice",
            Ok(address)
                if address.is_unspecified() || address.is_loopback() || address.is_multicast() =>
            {
                "not an address of a network's host"
            }
            Ok(address) => {
                pool.push(address);
                continue;
            }
            Err(_) => "not an IP address; names are not looked up",
        };
        out.mistake(at, &path, format!("{}: {problem}", quoted(text)));
    }
    pool
}

/// Addresses or prefixes, one for each family.
fn read_tunnel_sources(section: &Section<'_>, out: &mut Collector) -> Vec<TunnelSource> {
    let expected = "an array of addresses or prefixes";
    let Field::Is(elements, _) = section.array("tunnel_source", expected, out) else {
        return Vec::new();
    };
    let mut sources: Vec<TunnelSource> = Vec::new();
    for (value, path, at) in elements {
        let Some(text) = value.as_str() else {
            out.mistake(at, &path, wrong_type("an address or prefix", value));
            continue;
        };
        match tunnel_source(text) {
            Ok(source)
                if sources
                    .iter()
                    .any(|s| s.address.is_ipv4() == source.address.is_ipv4()) =>
            {
                let message = "one entry for each family of addresses is enough; write a prefix \
                               for several addresses";
                out.mistake(at, &path, message);
            }
            Ok(source) => sources.push(source),
            Err(problem) => out.mistake(at, &path, format!("{}: {problem}", quoted(text))),
        }
    }
    sources
}

fn tunnel_source(text: &str) -> Result<TunnelSource, String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| "not an IP address or prefix; names are not looked up".to_owned())?;
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let shortest = bits - TunnelSource::MOST_SPREAD;
    let length = match length.map(str::parse) {
        None => bits,
        Some(Ok(length)) if (shortest..=bits).contains(&length) => length,
        Some(_) => return Err(format!("a prefix has {shortest} to {bits} bits here")),
    };
    let host = match address {
        IpAddr::V4(address) => u32::from(address).trailing_zeros(),
        IpAddr::V6(address) => u128::from(address).trailing_zeros(),
    };
    if host < u32::from(bits - length) {
        return Err("bits behind the prefix are not zero".to_owned());
    }
    if address.is_loopback() || address.is_multicast() || address.is_unspecified() {
        return Err("not an address of a network's host".to_owned());
    }
    Ok(TunnelSource { address, length })
}

fn read_interfaces(section: &Section<'_>, out: &mut Collector) -> Vec<String> {
    let field = section.array("interfaces", "an array of interface names", out);
    section.require("interfaces", &field, out);
    let Field::Is(elements, at) = field else {
        return Vec::new();
    };
    if elements.is_empty() {
        let message = "no interface is named; name at least the one that clients come in by";
        out.mistake(at, &section.path("interfaces"), message);
    }
    let mut interfaces: Vec<String> = Vec::new();
    for (value, path, at) in elements {
        let Some(name) = value.as_str() else {
            out.mistake(at, &path, wrong_type("an interface name", value));
            continue;
        };
        let unusable = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if name.is_empty()
            || name.len() >= INTERFACE_BYTES
            || name == "."
            || name == ".."
            || name.contains(unusable)
        {
            let message = format!(
                "{} cannot be the name of an interface (1 to {} bytes, no `/`, `:` or space)",
                quoted(name),
                INTERFACE_BYTES - 1
            );
            out.mistake(at, &path, message);
        } else if interfaces.iter().any(|known| known == name) {
            out.mistake(
                at,
                &path,
                format!("interface {} is there twice", quoted(name)),
            );
        } else {
            interfaces.push(name.to_owned());
        }
    }
    interfaces
}

fn read_control(section: Option<&Section<'_>>, out: &mut Collector) -> Control {
    let mut control = Control {
        socket: PathBuf::from("/run/steerline/control.sock"),
        state_directory: PathBuf::from("/var/lib/steerline"),
    };
    let Some(section) = section else {
        return control;
    };
    let socket = section.absolute_path("socket", out).and(|path, at| {
        let short = path.as_os_str().len() <= SOCKET_BYTES;
        if !short {
            let message = format!("a socket's path has at most {SOCKET_BYTES} bytes");
            out.mistake(at, &section.path("socket"), message);
        }
        short.then_some(path)
    });
    control.socket = socket.or(control.socket);
    let state = section.absolute_path("state_directory", out);
    control.state_directory = state.or(control.state_directory);
    if let Field::Is(text, at) = section.string("metrics", out) {
        if text.parse::<SocketAddr>().is_ok() {
            section.unavailable("metrics", at, quoted(text), "leave it out", out);
        } else {
            let message = format!(
                "{} is not an address and port such as \"127.0.0.1:9155\"",
                quoted(text)
            );
            out.mistake(at, &section.path("metrics"), message);
        }
    }
    control
}

fn read_service(section: &Section<'_>, out: &mut Collector) -> RawService {
    let name = read_name(section, out);
    let address = section.string("address", out);
    section.require("address", &address, out);
    let address = address.and(|text, at| {
        // A prefix is right for a transparent service, and that it is one is
        // reported at `forwarding`.
        if is_prefix(text) && section.says("forwarding", "transparent") {
            return None;
        }
        read_address(section, text, at, out)
    });
    let port = section.integer("port", 0..=u16::MAX, out);
    section.require("port", &port, out);
    let protocol = section.choice("protocol", Protocol::SPELLINGS, out);
    let forwarding = section
        .choice("forwarding", Forwarding::SPELLINGS, out)
        .or(Forwarding::Nat);
    let algorithm = section
        .choice("algorithm", Algorithm::SPELLINGS, out)
        .or(Algorithm::Aca);
    let measure = section.choice("measure", Measure::SPELLINGS, out);
    let announce = section
        .choice("announce", Announce::SPELLINGS, out)
        .or(Announce::Address);
    let gue_port = section.integer("gue_port", 1..=u16::MAX, out).or(GUE_PORT);
    features::sticky(section, out);
    let drain_timeout = section
        .duration("drain_timeout", Duration::ZERO..=DAY, out)
        .or(Duration::from_secs(60));
    let drain_reset = section.boolean("drain_reset", out);
    let aca = section.section("aca", &format::ACA, out).value();
    let slow_start = section.section("slow_start", &format::SLOW_START, out);
    let inband = section.section("inband_health", &format::INBAND_HEALTH, out);
    let detect = section.section("fail_detect", &format::FAIL_DETECT, out);
    let guard = section.section("syn_guard", &format::SYN_GUARD, out);
    RawService {
        at: section.at,
        path: section.own_path().to_owned(),
        name,
        address,
        port,
        protocol,
        forwarding,
        algorithm,
        measure,
        announce,
        gue_port,
        drain_timeout,
        drain_reset,
        aca: features::aca(aca.as_ref(), out),
        ramp: features::ramp(slow_start.value().as_ref(), out),
        inband_health: inband.and(|section, _| Some(features::inband_health(Some(&section), out))),
        fail_detect: detect.and(|section, _| Some(features::fail_detect(Some(&section), out))),
        syn_guard: guard.and(|section, _| Some(features::syn_guard(Some(&section), out))),
        outside: read_outside(section, out),
        backends: section
            .sections("backend", &format::BACKEND, out)
            .iter()
            .map(|backend| read_backend(backend, out))
            .collect(),
    }
}

fn read_outside(service: &Section<'_>, out: &mut Collector) -> RawOutside {
    let probe = service.section("probe", &format::PROBE, out);
    let agent = service.section("agent", &format::AGENT, out);
    let dfp = service.section("dfp", &format::DFP, out);
    let capacity = service.section("capacity", &format::CAPACITY, out);
    RawOutside {
        probe: probe.and(|section, _| read_probe::probe(&section, out)),
        agent: agent.and(|section, _| outside::agent(&section, out)),
        dfp: dfp.and(|section, _| outside::dfp(&section, out)),
        capacity: capacity.and(|section, _| outside::capacity(&section, out)),
    }
}

fn read_backend(section: &Section<'_>, out: &mut Collector) -> RawBackend {
    let name = read_name(section, out);
    let address = section.string("address", out);
    section.require("address", &address, out);
    let address = address.and(|text, at| read_address(section, text, at, out));
    features::backend_limits(section, out);
    RawBackend {
        at: section.at,
        path: section.own_path().to_owned(),
        name,
        address,
        port: section.integer("port", 0..=u16::MAX, out),
        weight: match section.integer("weight", 0..=u16::MAX, out) {
            Field::Absent => Some(DEFAULT_WEIGHT),
            Field::Bad => None,
            Field::Is(weight, _) => Some(weight),
        },
    }
}

/// Names are arguments (`SERVICE/BACKEND`), labels of metrics, and 64 bytes of
/// a pinned map.
fn read_name(section: &Section<'_>, out: &mut Collector) -> Field<String> {
    let name = section.string("name", out);
    section.require("name", &name, out);
    name.and(|text, at| {
        let problem = if text.is_empty() {
            "a name cannot be empty".to_owned()
        } else if text.len() > NAME_BYTES {
            format!(
                "a name has at most {NAME_BYTES} bytes, this one {}",
                text.len()
            )
        } else if text.contains('/') {
            "a name cannot contain `/`, which separates service and backend".to_owned()
        } else if text.contains(char::is_control) {
            "a name cannot contain control characters".to_owned()
        } else if text.trim() != text {
            "a name cannot begin or end with a space".to_owned()
        } else {
            return Some(text.to_owned());
        };
        out.mistake(
            at,
            &section.path("name"),
            format!("{}: {problem}", quoted(text)),
        );
        None
    })
}

fn is_prefix(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, length)| {
        let Ok(address) = address.parse::<IpAddr>() else {
            return false;
        };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        length.parse::<u8>().is_ok_and(|length| length <= longest)
    })
}

fn in_brackets(text: &str) -> bool {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
}

/// What kind of address this is, if no host of a network can have it for itself.
fn unusable(address: IpAddr) -> Option<&'static str> {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let six = match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    };
    if address.is_unspecified() {
        Some("the unspecified address")
    } else if address.is_loopback() {
        Some("a loopback address")
    } else if address.is_multicast() {
        Some("a multicast address")
    } else if is_broadcast {
        Some("the broadcast address")
    } else if six.is_some_and(|address| address.is_unicast_link_local()) {
        Some("a link-local address, which means another host on every interface")
    } else if six.is_some_and(|address| address.to_ipv4_mapped().is_some()) {
        Some("an IPv4 address in the form of IPv6, which is on no wire")
    } else {
        None
    }
}

fn read_address(
    section: &Section<'_>,
    text: &str,
    at: usize,
    out: &mut Collector,
) -> Option<IpAddr> {
    let problem = match text.parse::<IpAddr>() {
        Ok(address) => match unusable(address) {
            None => return Some(address),
            Some(kind) => format!("this is {kind}; use a unicast address of a network"),
        },
        Err(_) if is_prefix(text) => {
            "a prefix is for `forwarding = \"transparent\"`, which is not available in this \
             version; write one address"
                .to_owned()
        }
        Err(_) if text.parse::<SocketAddr>().is_ok() => {
            "write the address alone, and the port in `port`".to_owned()
        }
        Err(_) if in_brackets(text) => "write the address without brackets".to_owned(),
        Err(_) => "not an IP address; names are not looked up".to_owned(),
    };
    out.mistake(
        at,
        &section.path("address"),
        format!("{}: {problem}", quoted(text)),
    );
    None
}
