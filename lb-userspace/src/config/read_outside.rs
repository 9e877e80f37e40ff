//! First stage, the sections about what others tell: `[service.agent]`,
//! `[service.dfp]` and `[service.capacity]`.

use std::net::SocketAddr;
use std::time::Duration;

use lb_common::control::snmp_weight::{ACE_TOTAL, Autoadjust};

use super::fields::{Field, Section, quoted, wrong_type};
use super::format;
use super::mistakes::Collector;
use super::outside::{Agent, Capacity, CapacityKind, Dfp, Object, Oid};
use super::read_probe::{LONGEST, SHORTEST, source, text};

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// `[service.agent]`.
pub(super) fn agent(section: &Section<'_>, out: &mut Collector) -> Option<Agent> {
    let port = section.integer("port", 1..=u16::MAX, out);
    section.require("port", &port, out);
    Some(Agent {
        // HAProxy: `inter`, 2 s.
        interval: section
            .duration("interval", SHORTEST..=LONGEST, out)
            .or(secs(2)),
        timeout: section
            .duration("timeout", millis(10)..=LONGEST, out)
            .or(secs(2)),
        send: text(section, "send", out),
        source: source(section, out),
        port: port.value()?,
    })
}

/// `[service.dfp]`; defaults are IOS SLB's (spec 4.1).
pub(super) fn dfp(section: &Section<'_>, out: &mut Collector) -> Option<Dfp> {
    let agents = agents(section, out);
    let password = section.string("password", out).and(|text, at| {
        let good = (1..=32).contains(&text.len());
        if !good {
            let message = "a password has 1 to 32 bytes";
            out.mistake(at, &section.path("password"), message);
        }
        good.then(|| text.to_owned())
    });
    let key_id = section.integer("key_id", 0..=u32::MAX, out);
    if let (Some((_, at)), Field::Absent) = (key_id.spot(), &password) {
        let message = "the number of a key means nothing without `password`";
        out.mistake(at, &section.path("key_id"), message);
    }
    Some(Dfp {
        password: password.value(),
        key_id: key_id.or(0),
        timeout: section
            .duration_or_zero("timeout", true, secs(2)..=LONGEST, out)
            .or(Duration::ZERO),
        retries: section.integer("retries", 0..=65_535, out).or(0),
        interval: section
            .duration("interval", secs(1)..=LONGEST, out)
            .or(secs(180)),
        bind_id: section.integer("bind_id", 0..=65_533, out).or(0),
        agents: agents?,
    })
}

fn agents(section: &Section<'_>, out: &mut Collector) -> Option<Vec<SocketAddr>> {
    let expected = "an array of addresses with ports";
    let field = section.array("agents", expected, out);
    section.require("agents", &field, out);
    let Field::Is(elements, at) = field else {
        return None;
    };
    if elements.is_empty() {
        let message = "no agent is named; name at least one";
        out.mistake(at, &section.path("agents"), message);
    }
    let mut agents: Vec<SocketAddr> = Vec::new();
    for (value, path, at) in elements {
        let Some(text) = value.as_str() else {
            out.mistake(at, &path, wrong_type("an address with port", value));
            continue;
        };
        let problem = match text.parse::<SocketAddr>() {
            Ok(agent) if agent.port() == 0 => "port 0 is none",
            Ok(agent) if agents.contains(&agent) => "this agent is there twice",
            Ok(agent) => {
                agents.push(agent);
                continue;
            }
            Err(_) => "not an address and port such as \"10.0.0.5:8081\"",
        };
        out.mistake(at, &path, format!("{}: {problem}", quoted(text)));
    }
    Some(agents)
}

/// `type` of `[service.capacity]`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    State,
    LeastLoaded,
    Headroom,
}

const TYPE: &[(&str, Option<Type>)] = &[
    ("state", Some(Type::State)),
    ("least-loaded", Some(Type::LeastLoaded)),
    ("headroom", Some(Type::Headroom)),
];

const AUTOADJUST: &[(&str, Option<Autoadjust>)] = &[
    ("average", Some(Autoadjust::Average)),
    ("max-load", Some(Autoadjust::MaxLoad)),
    ("off", Some(Autoadjust::Off)),
];

/// Keys of `[service.capacity]` that mean something for one type only.
const KEYS_OF: [(&str, &[Type]); 4] = [
    ("oid", &[Type::State]),
    ("force_delete", &[Type::State]),
    ("autoadjust", &[Type::LeastLoaded]),
    ("object", &[Type::LeastLoaded, Type::Headroom]),
];

/// `[service.capacity]`.
pub(super) fn capacity(section: &Section<'_>, out: &mut Collector) -> Option<Capacity> {
    let kind = section.choice("type", TYPE, out);
    section.require("type", &kind, out);
    let community = section.string("community", out).and(|text, at| {
        // RFC 3584 leaves the length open; 255 is what agents take.
        let good = (1..=255).contains(&text.len());
        if !good {
            let message = "a community has 1 to 255 bytes";
            out.mistake(at, &section.path("community"), message);
        }
        good.then(|| text.to_owned())
    });
    section.require("community", &community, out);
    let oid = oid(section, out);
    let force_delete = section.boolean("force_delete", out).or(false);
    let autoadjust = section
        .choice("autoadjust", AUTOADJUST, out)
        .or(Autoadjust::Average);
    let tables = section.sections("object", &format::OBJECT, out);
    let read = tables
        .iter()
        .map(|table| object(table, kind_of(&kind), out));
    // Every object is looked at before a missing value ends this.
    let read: Vec<Option<Object>> = read.collect();
    let port = section.integer("port", 1..=u16::MAX, out).or(161);
    let interval = section.duration("interval", secs(1)..=LONGEST, out);
    let timeout = section.duration("timeout", millis(10)..=LONGEST, out);
    let retries = section.integer("retries", 0..=10, out).or(2);

    let kind = kind.value()?;
    for (key, kinds) in KEYS_OF {
        if !kinds.contains(&kind)
            && let Some(value) = section.get(key)
        {
            let message = format!("`{key}` means nothing for this `type`; remove it");
            out.mistake(value.span().start, &section.path(key), message);
        }
    }
    if kind == Type::State {
        section.require("oid", &oid, out);
    } else if tables.is_empty() {
        let message = "no object is named; write `[[service.capacity.object]]` for each number";
        out.absence(section.at, &section.path("object"), message);
    }
    let objects = || read.into_iter().collect::<Option<Vec<Object>>>();
    let kind = match kind {
        Type::State => CapacityKind::State {
            oid: oid.value()?,
            force_delete,
        },
        Type::LeastLoaded => {
            let objects = objects()?;
            let sum: u64 = objects.iter().map(|object| u64::from(object.weight)).sum();
            if !objects.is_empty() && sum != u64::from(ACE_TOTAL) {
                let message =
                    format!("the weights of the objects add up to {sum}; make them {ACE_TOTAL}");
                out.mistake(section.at, &section.path("object"), message);
            }
            CapacityKind::LeastLoaded {
                objects,
                autoadjust,
            }
        }
        Type::Headroom => CapacityKind::Headroom {
            objects: objects()?,
        },
    };
    Some(Capacity {
        kind,
        community: community.value()?,
        port,
        // Spec 2.1 has no default from the manual; these are its reading.
        interval: interval.or(secs(5)),
        timeout: timeout.or(secs(2)),
        retries,
    })
}

fn kind_of(kind: &Field<Type>) -> Option<Type> {
    kind.spot().map(|(kind, _)| *kind)
}

/// `[[service.capacity.object]]`. The two types call their numbers by their
/// products' names.
fn object(section: &Section<'_>, kind: Option<Type>, out: &mut Collector) -> Option<Object> {
    let oid = oid(section, out);
    section.require("oid", &oid, out);
    let mut number = |key: &str, most: u64, wanted: bool| {
        let number = section.integer(key, 1..=most, out);
        match (&number, wanted) {
            // Which keys belong is not known without a type.
            _ if kind.is_none() => {}
            (Field::Absent, true) => section.require(key, &number, out),
            (Field::Is(_, at), false) => {
                let message = format!("`{key}` means nothing for this `type`; remove it");
                out.mistake(*at, &section.path(key), message);
            }
            _ => {}
        }
        number.value()
    };
    let largest = i64::MAX as u64;
    let (loaded, headroom) = (
        kind == Some(Type::LeastLoaded),
        kind == Some(Type::Headroom),
    );
    let maximum = number("maximum", largest, loaded);
    let weight = number("weight", ACE_TOTAL.into(), loaded);
    let threshold = number("threshold", largest, headroom);
    let coefficient = number("coefficient", 65_535, headroom);
    let (maximum, weight) = if headroom {
        (threshold, coefficient)
    } else {
        (maximum, weight)
    };
    Some(Object {
        oid: oid.value()?,
        maximum: maximum?,
        weight: u32::try_from(weight?).ok()?,
    })
}

/// `oid`: dotted numbers (RFC 2578, 3.5: at most 128 of 32 bits).
fn oid(section: &Section<'_>, out: &mut Collector) -> Field<Oid> {
    section.string("oid", out).and(|text, at| {
        let oid = parse_oid(text);
        if oid.is_none() {
            let message = format!(
                "{} is not an object identifier in numbers, such as \"1.3.6.1.4.1.2021.10.1.5.1\"",
                quoted(text)
            );
            out.mistake(at, &section.path("oid"), message);
        }
        oid
    })
}

fn parse_oid(text: &str) -> Option<Oid> {
    let numbers = text.strip_prefix('.').unwrap_or(text).split('.');
    let arc = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u32>().ok().filter(|_| digits)?;
        Some(u64::from(number))
    };
    let oid = numbers.map(arc).collect::<Option<Oid>>()?;
    // The first two are encoded as one number.
    let encodable = match oid[..] {
        [0 | 1, second, ..] => second < 40,
        [2, ..] => oid.len() >= 2,
        _ => false,
    };
    (encodable && oid.len() <= 128).then_some(oid)
}
