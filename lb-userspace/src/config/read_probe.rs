//! First stage, `[service.probe]`.

use std::net::IpAddr;
use std::time::Duration;

use super::fields::{Field, Section, quoted, wrong_type};
use super::mistakes::Collector;
use super::outside::{DnsProbe, HttpProbe, Probe, ProbeKind, TlsProbe};

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// ACE's longest interval.
pub(super) const LONGEST: Duration = secs(65_535);
/// A second of a thousand backends is then 10,000 probes.
pub(super) const SHORTEST: Duration = millis(100);

/// `type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Icmp,
    Tcp,
    Http,
    Https,
    Dns,
}

const TYPE: &[(&str, Option<Type>)] = &[
    ("icmp", Some(Type::Icmp)),
    ("tcp", Some(Type::Tcp)),
    ("http", Some(Type::Http)),
    ("https", Some(Type::Https)),
    ("dns", Some(Type::Dns)),
];

/// Keys that mean something for some types only.
const KEYS_OF: [(&str, &[Type]); 8] = [
    ("port", &[Type::Tcp, Type::Http, Type::Https, Type::Dns]),
    ("path", &[Type::Http, Type::Https]),
    ("host", &[Type::Http, Type::Https]),
    ("expect_status", &[Type::Http, Type::Https]),
    ("expect_body", &[Type::Http, Type::Https]),
    ("server_name", &[Type::Https]),
    ("verify", &[Type::Https]),
    ("ca_file", &[Type::Https]),
];

/// A probe, as far as its section can be read.
pub(super) fn probe(section: &Section<'_>, out: &mut Collector) -> Option<Probe> {
    let kind = section.choice("type", TYPE, out);
    section.require("type", &kind, out);
    let interval = section
        .duration("interval", SHORTEST..=LONGEST, out)
        .or(secs(5));
    let fast = section.duration("fast_interval", SHORTEST..=LONGEST, out);
    if let Some((fast, at)) = fast.spot()
        && *fast > interval
    {
        let message = "the fast interval is longer than `interval`";
        out.mistake(at, &section.path("fast_interval"), message);
    }
    let timeout = section.duration("timeout", millis(10)..=LONGEST, out);
    let parameters = Probe {
        kind: ProbeKind::Icmp,
        port: section.integer("port", 1..=u16::MAX, out).value(),
        interval,
        fast_interval: fast.or(secs(1).min(interval)),
        timeout: timeout.or(secs(2)),
        rise: section.integer("rise", 1..=65_535, out).or(2),
        fall: section.integer("fall", 1..=65_535, out).or(3),
        jitter: section.integer("jitter_percent", 0..=50, out).or(10),
        source: source(section, out),
    };
    // Read for what is wrong with them, whatever the type.
    let http = http(section, out);
    let tls = tls(section, out);
    let query = query(section, out);
    let kind = kind.value()?;
    foreign_keys(section, kind, out);
    if kind == Type::Dns {
        section.require("query", &query, out);
    } else if let Field::Is(_, at) = query {
        foreign(section, "query", at, out);
    }
    if kind == Type::Https
        && let Some(value) = section.get("ca_file")
        && !tls.verify
    {
        let message = "with `verify = false` no authority is asked; leave one of the two out";
        out.mistake(value.span().start, &section.path("ca_file"), message);
    }
    Some(Probe {
        kind: match kind {
            Type::Icmp => ProbeKind::Icmp,
            Type::Tcp => ProbeKind::Tcp,
            Type::Http => ProbeKind::Http(http),
            Type::Https => ProbeKind::Http(HttpProbe {
                tls: Some(tls),
                ..http
            }),
            Type::Dns => ProbeKind::Dns(DnsProbe {
                query: query.value()?,
            }),
        },
        ..parameters
    })
}

/// What a key of another type would do: nothing.
fn foreign_keys(section: &Section<'_>, kind: Type, out: &mut Collector) {
    for (key, kinds) in KEYS_OF {
        if !kinds.contains(&kind)
            && let Some(value) = section.get(key)
        {
            foreign(section, key, value.span().start, out);
        }
    }
}

fn foreign(section: &Section<'_>, key: &str, at: usize, out: &mut Collector) {
    let message = format!("`{key}` means nothing for a probe of this `type`; remove it");
    out.mistake(at, &section.path(key), message);
}

/// `source` of whatever asks: an address of this machine.
pub(super) fn source(section: &Section<'_>, out: &mut Collector) -> Option<IpAddr> {
    let source = section.string("source", out).and(|text, at| {
        let address = text.parse::<IpAddr>().ok();
        let usable = address.filter(|a| !a.is_unspecified() && !a.is_multicast());
        if usable.is_none() {
            let message = format!("{} is not an address of this machine", quoted(text));
            out.mistake(at, &section.path("source"), message);
        }
        usable
    });
    source.value()
}

fn http(section: &Section<'_>, out: &mut Collector) -> HttpProbe {
    let path = section.string("path", out).and(|path, at| {
        let problem = if !path.starts_with('/') {
            "a path starts with `/`"
        } else if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains('#') {
            "write spaces and other special characters of a path as %20 and so on"
        } else {
            return Some(path.to_owned());
        };
        out.mistake(
            at,
            &section.path("path"),
            format!("{}: {problem}", quoted(path)),
        );
        None
    });
    HttpProbe {
        path: path.or("/".to_owned()),
        host: name(section, "host", true, out),
        expect_status: statuses(section, out),
        expect_body: text(section, "expect_body", out),
        tls: None,
    }
}

fn tls(section: &Section<'_>, out: &mut Collector) -> TlsProbe {
    TlsProbe {
        server_name: name(section, "server_name", false, out),
        verify: section.boolean("verify", out).or(true),
        ca_file: section.absolute_path("ca_file", out).value(),
    }
}

/// A host name or an address, with a port where that is possible.
fn name(section: &Section<'_>, key: &str, port: bool, out: &mut Collector) -> Option<String> {
    let name = section.string(key, out).and(|text, at| {
        let (host, number) = match text.split_once(':') {
            Some((host, number)) if port => (host, Some(number)),
            _ => (text, None),
        };
        let good = is_name(host) && number.is_none_or(|number| number.parse::<u16>().is_ok());
        if !good {
            let message = format!("{} is not the name of a host", quoted(text));
            out.mistake(at, &section.path(key), message);
        }
        good.then(|| text.to_owned())
    });
    name.value()
}

/// A domain name (RFC 1035, 2.3.4), with the underscore that services use.
fn is_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(known)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

fn query(section: &Section<'_>, out: &mut Collector) -> Field<String> {
    section.string("query", out).and(|text, at| {
        let good = is_name(text);
        if !good {
            let message = format!("{} is not a domain name", quoted(text));
            out.mistake(at, &section.path("query"), message);
        }
        good.then(|| text.to_owned())
    })
}

/// A text that is not empty.
pub(super) fn text(section: &Section<'_>, key: &str, out: &mut Collector) -> Option<String> {
    let text = section.string(key, out).and(|text, at| {
        if text.is_empty() {
            let message = "an empty text means nothing; leave it out";
            out.mistake(at, &section.path(key), message);
        }
        (!text.is_empty()).then(|| text.to_owned())
    });
    text.value()
}

fn statuses(section: &Section<'_>, out: &mut Collector) -> Vec<u16> {
    let Field::Is(codes, at) = section.array("expect_status", "an array of HTTP status codes", out)
    else {
        return vec![200];
    };
    if codes.is_empty() {
        let message = "no status is named; name at least one";
        out.mistake(at, &section.path("expect_status"), message);
    }
    let mut statuses = Vec::new();
    for (value, path, at) in codes {
        let code = value
            .as_integer()
            .and_then(|code| u16::from_str_radix(code.as_str(), code.radix()).ok())
            .filter(|code| (100..=599).contains(code));
        match code {
            Some(code) => statuses.push(code),
            None => {
                let message = wrong_type("an HTTP status of 100 to 599", value);
                out.mistake(at, &path, message);
            }
        }
    }
    statuses
}
