//! First stage, a service's features: the sections below it, and the keys
//! whose capability this version does not have. Those are checked like all
//! others, so that a file written for a later version is judged the same.

use std::time::Duration;

use toml::de::DeValue;

use super::fields::{Field, Section, quoted, wrong_type};
use super::format;
use super::mistakes::Collector;
use super::types::{Aca, InbandHealth, Pick};

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The CSS's range of timers, ARROWPOINT-SVCEXT-MIB.
const CSS_TIMER: Duration = secs(1_000_000_000);

const CALCULATION: &[(&str, Option<()>)] = &[("relative", Some(())), ("absolute", None)];
const CURVE: &[(&str, Option<()>)] = &[("reciprocal", Some(())), ("bucket", None)];
const CHECK: &[(&str, Option<()>)] = &[("count", Some(())), ("log", None), ("remove", None)];
const RAMP: &[(&str, Option<()>)] = &[("off", Some(())), ("default", None)];

/// `[service.aca]`; absent, all defaults.
pub(super) fn aca(section: Option<&Section<'_>>, out: &mut Collector) -> Aca {
    let mut aca = Aca {
        load_step: millis(10),
        dynamic_step: true,
        load_threshold: 254,
        teardown_interval: secs(2),
        ageout: secs(60),
        pick: Pick::Connections,
        smoothing: 0.3,
        short_flow_bytes: 15_360,
    };
    let Some(section) = section else {
        return aca;
    };
    // Loads are counted in whole milliseconds, as on the CSS.
    let step = section
        .duration("load_step", millis(1)..=secs(1_000_000), out)
        .and(|step, at| {
            let whole = step.subsec_nanos().is_multiple_of(1_000_000);
            if !whole {
                let message = "a load step is a whole number of milliseconds";
                out.mistake(at, &section.path("load_step"), message);
            }
            whole.then_some(step)
        });
    aca.load_step = step.or(aca.load_step);
    aca.dynamic_step = section.boolean("dynamic_step", out).or(aca.dynamic_step);
    aca.load_threshold = section
        .integer("load_threshold", 2..=254, out)
        .or(aca.load_threshold);
    aca.teardown_interval = section
        .duration_or_zero("teardown_interval", true, millis(100)..=CSS_TIMER, out)
        .or(aca.teardown_interval);
    aca.ageout = section
        .duration_or_zero("ageout", true, secs(1)..=CSS_TIMER, out)
        .or(aca.ageout);
    aca.pick = section.choice("pick", Pick::SPELLINGS, out).or(aca.pick);
    aca.smoothing = section.fraction("smoothing", out).or(aca.smoothing);
    // Bytes are differences of sequence numbers, which wrap at 2^32; half of
    // that is the largest that can be told from a wrap.
    aca.short_flow_bytes = section
        .integer("short_flow_bytes", 1..=(1 << 31) - 1, out)
        .or(aca.short_flow_bytes);
    section.choice("calculation", CALCULATION, out);
    section.integer::<u8>("absolute_sensitivity", 1..=25, out);
    section.choice("curve", CURVE, out);
    // Loads are 2 to 254: two of them differ by 252 at most.
    let variance = section.integer::<u8>("variance", 0..=252, out);
    if let Field::Is(loads @ 1.., at) = variance {
        section.unavailable("variance", at, loads, "write 0 or leave it out", out);
    }
    aca
}

/// `[service.inband_health]`; absent, failures are counted.
pub(super) fn inband_health(section: Option<&Section<'_>>, out: &mut Collector) -> InbandHealth {
    let syn_timeout = secs(5);
    let Some(section) = section else {
        return InbandHealth { syn_timeout };
    };
    section.choice("check", CHECK, out);
    // Ranges of the ACE appliance; with `check = "count"` they do nothing.
    section.integer::<u32>("failures", 1..=u32::MAX, out);
    section.duration("reset_time", millis(100)..=secs(300), out);
    section.duration_or_zero("resume_service", true, secs(30)..=secs(3_600), out);
    section.integer::<u8>("max_ejected_percent", 0..=100, out);
    InbandHealth {
        syn_timeout: section
            .duration("syn_timeout", millis(250)..=secs(120), out)
            .or(syn_timeout),
    }
}

/// `sticky` of a service: off is the only value so far.
pub(super) fn sticky(section: &Section<'_>, out: &mut Collector) {
    let sticky = section.duration_or_zero("sticky", true, secs(1)..=secs(65_535), out);
    if let Field::Is(time, at) = sticky
        && !time.is_zero()
    {
        let written = quoted(&super::duration::format(time));
        let remedy = "write \"0s\" or leave it out";
        section.unavailable("sticky", at, written, remedy, out);
    }
}

/// `max_connections` and `backup` of a backend: off is the only value so far.
pub(super) fn backend_limits(section: &Section<'_>, out: &mut Collector) {
    let limit = section.integer::<u32>("max_connections", 0..=u32::MAX, out);
    if let Field::Is(limit @ 1.., at) = limit {
        let remedy = "write 0 or leave it out";
        section.unavailable("max_connections", at, limit, remedy, out);
    }
    if let Field::Is(true, at) = section.boolean("backup", out) {
        section.unavailable("backup", at, true, "write false or leave it out", out);
    }
}

/// The sections of a service that do nothing yet.
pub(super) fn refused(service: &Section<'_>, out: &mut Collector) {
    if let Field::Is(section, _) = service.section("slow_start", &format::SLOW_START, out) {
        slow_start(&section, out);
    }
    if let Field::Is(section, _) = service.section("fail_detect", &format::FAIL_DETECT, out) {
        fail_detect(&section, out);
    }
    if let Field::Is(section, _) = service.section("syn_guard", &format::SYN_GUARD, out) {
        syn_guard(&section, out);
    }
}

fn slow_start(section: &Section<'_>, out: &mut Collector) {
    let remedy = "write \"off\" or leave the section out";
    let Some(value) = section.get("ramp") else {
        let message = "without `ramp` this section turns slow start on, which is not available in \
                       this version; write `ramp = \"off\"` or leave the section out";
        out.absence(section.at, section.own_path(), message);
        return;
    };
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(_) => {
            section.choice("ramp", RAMP, out);
        }
        DeValue::Table(_) => {
            if let Field::Is(ramp, _) = section.section("ramp", &format::RAMP, out) {
                list(&ramp, out);
            }
            section.unavailable("ramp", at, "{ … }", remedy, out);
        }
        other => {
            let message = wrong_type("\"default\", \"off\" or a table", other);
            out.mistake(at, &section.path("ramp"), message);
        }
    }
}

/// A Virtual ADX `slow-start` list.
fn list(ramp: &Section<'_>, out: &mut Collector) {
    for key in ["rate1", "rate2", "maximum"] {
        let rate = ramp.integer::<u32>(key, 1..=1_000_000, out);
        ramp.require(key, &rate, out);
    }
    for key in ["interval1", "interval2"] {
        let interval = ramp.duration(key, secs(1)..=secs(1_000_000), out);
        ramp.require(key, &interval, out);
        if let Field::Is(interval, at) = interval
            && interval.subsec_nanos() != 0
        {
            let message = "a ramp goes by whole seconds";
            out.mistake(at, &ramp.path(key), message);
        }
    }
}

fn fail_detect(section: &Section<'_>, out: &mut Collector) {
    let connections = section.integer::<u8>("connections", 0..=255, out);
    match connections {
        Field::Absent => {
            let message = "without `connections` this section turns failure detection on, which \
                           is not available in this version; write `connections = 0` or leave \
                           the section out";
            out.absence(section.at, section.own_path(), message);
        }
        Field::Is(failures @ 1.., at) => {
            let remedy = "write 0 or leave the section out";
            section.unavailable("connections", at, failures, remedy, out);
        }
        Field::Is(0, _) | Field::Bad => {}
    }
    section.integer::<u8>("clients", 1..=8, out);
    section.integer::<u8>("reassign", 1..=4, out);
    section.duration_or_zero("retry", true, secs(1)..=secs(3_600), out);
}

fn syn_guard(section: &Section<'_>, out: &mut Collector) {
    let unanswered = section.integer::<u32>("unanswered", 0..=u32::MAX, out);
    if let Field::Is(syns @ 1.., at) = unanswered {
        let remedy = "write 0 or leave the section out";
        section.unavailable("unanswered", at, syns, remedy, out);
    }
    section.duration("interval", millis(50)..=secs(5), out);
}
