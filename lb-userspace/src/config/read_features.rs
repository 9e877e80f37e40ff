//! First stage, a service's features: the sections below it, and the keys
//! whose capability this version does not have. Those are checked like all
//! others, so that a file written for a later version is judged the same.

use std::time::Duration;

use lb_common::control::aca::SENSITIVITY;
use lb_common::control::{Ramp, RampList};
use toml::de::DeValue;

use super::fields::{Field, Section, quoted, wrong_type};
use super::format;
use super::mistakes::Collector;
use super::types::{Aca, Calculation, Check, Curve, FailDetect, InbandHealth, Pick, SynGuard};

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The CSS's range of timers, ARROWPOINT-SVCEXT-MIB.
const CSS_TIMER: Duration = secs(1_000_000_000);

const RAMP: &[(&str, Option<Ramp>)] = &[("default", Some(Ramp::Default)), ("off", Some(Ramp::Off))];

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
        calculation: Calculation::Relative,
        absolute_sensitivity: SENSITIVITY,
        variance: 0,
        curve: Curve::Reciprocal,
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
    aca.calculation = section
        .choice("calculation", Calculation::SPELLINGS, out)
        .or(aca.calculation);
    let sensitivity = section.integer("absolute_sensitivity", 1..=25, out);
    if let (Some((value, at)), Calculation::Relative) = (sensitivity.spot(), aca.calculation)
        && *value != SENSITIVITY
    {
        let message = "without `calculation = \"absolute\"` the sensitivity changes nothing";
        out.warning(at, &section.path("absolute_sensitivity"), message);
    }
    aca.absolute_sensitivity = sensitivity.or(aca.absolute_sensitivity);
    // Loads are 2 to 254: two of them differ by 252 at most.
    aca.variance = section.integer("variance", 0..=252, out).or(aca.variance);
    let curve = section.choice("curve", Curve::SPELLINGS, out);
    if let (Field::Is(Curve::Bucket, at), Pick::Connections) = (&curve, aca.pick) {
        let message = "the curve is that of `pick = \"shares\"`; connections are chosen without it";
        out.warning(*at, &section.path("curve"), message);
    }
    aca.curve = curve.or(aca.curve);
    aca
}

/// `[service.inband_health]`; absent, failures are counted.
pub(super) fn inband_health(section: Option<&Section<'_>>, out: &mut Collector) -> InbandHealth {
    let mut health = InbandHealth {
        check: Check::Count,
        failures: 4,
        reset_time: millis(100),
        resume_service: Duration::ZERO,
        syn_timeout: secs(5),
        max_ejected_percent: 50,
    };
    let Some(section) = section else {
        return health;
    };
    let check = section.choice("check", Check::SPELLINGS, out);
    // Ranges of the ACE appliance.
    let failures = section.integer("failures", 1..=u32::MAX, out);
    let removes = check.spot().filter(|(check, _)| **check == Check::Remove);
    let removes = removes.map(|(_, at)| at);
    if let Field::Is(Check::Log | Check::Remove, _) = check {
        // ACE has no default either: what is too many depends on the traffic.
        section.require("failures", &failures, out);
    }
    health.check = check.or(health.check);
    health.failures = failures.clone().or(health.failures);
    health.reset_time = section
        .duration("reset_time", millis(100)..=secs(300), out)
        .or(health.reset_time);
    health.resume_service = section
        .duration_or_zero("resume_service", true, secs(30)..=secs(3_600), out)
        .or(health.resume_service);
    health.max_ejected_percent = section
        .integer("max_ejected_percent", 0..=100, out)
        .or(health.max_ejected_percent);
    health.syn_timeout = section
        .duration("syn_timeout", millis(250)..=secs(120), out)
        .or(health.syn_timeout);
    if let (Some((_, at)), true) = (failures.spot(), health.check != Check::Count) {
        let rate = u128::from(health.failures) * 1_000 / health.reset_time.as_millis().max(1);
        if rate > IMPLAUSIBLE {
            let message = format!(
                "{} failures within {} are {rate} failed connections a second: no server has so \
                 many, so this never trips; lower `failures` or lengthen `reset_time`",
                health.failures,
                super::duration::format(health.reset_time),
            );
            out.warning(at, &section.path("failures"), message);
        }
    }
    if let Some(at) = removes {
        if health.resume_service.is_zero() {
            let message = "without `resume_service` a removed backend stays out until an operator \
                           enables it";
            out.warning(at, &section.path("check"), message);
        }
        if health.max_ejected_percent == 0 {
            let message = "`max_ejected_percent = 0` keeps every backend in service";
            out.warning(at, &section.path("check"), message);
        }
    }
    health
}

/// Failed connections a second of one server beyond which a threshold means
/// nothing: a busy one has some thousands of connections a second.
const IMPLAUSIBLE: u128 = 10_000;

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

/// `[service.slow_start]`; absent, the default ramp.
pub(super) fn ramp(section: Option<&Section<'_>>, out: &mut Collector) -> Ramp {
    let Some(section) = section else {
        return Ramp::Default;
    };
    let Some(value) = section.get("ramp") else {
        return Ramp::Default;
    };
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(_) => section.choice("ramp", RAMP, out).or(Ramp::Default),
        DeValue::Table(_) => {
            let list = section.section("ramp", &format::RAMP, out).value();
            list.and_then(|ramp| list_of(&ramp, out))
                .map_or(Ramp::Default, Ramp::List)
        }
        other => {
            let message = wrong_type("\"default\", \"off\" or a table", other);
            out.mistake(at, &section.path("ramp"), message);
            Ramp::Default
        }
    }
}

/// A Virtual ADX `slow-start` list.
fn list_of(ramp: &Section<'_>, out: &mut Collector) -> Option<RampList> {
    let mut number = |key: &str| {
        let number = ramp.integer::<u32>(key, 1..=1_000_000, out);
        ramp.require(key, &number, out);
        number.value()
    };
    let (rate1, rate2, maximum) = (number("rate1"), number("rate2"), number("maximum"));
    let mut seconds = |key: &str| {
        let interval = ramp.duration(key, secs(1)..=secs(1_000_000), out);
        ramp.require(key, &interval, out);
        let Field::Is(interval, at) = interval else {
            return None;
        };
        if interval.subsec_nanos() != 0 {
            let message = "a ramp goes by whole seconds";
            out.mistake(at, &ramp.path(key), message);
        }
        u32::try_from(interval.as_secs()).ok()
    };
    let (interval1_s, interval2_s) = (seconds("interval1"), seconds("interval2"));
    Some(RampList {
        rate1: rate1?,
        interval1_s: interval1_s?,
        rate2: rate2?,
        interval2_s: interval2_s?,
        maximum: maximum?,
    })
}

/// `[service.fail_detect]`; absent, the defaults of IOS.
pub(super) fn fail_detect(section: Option<&Section<'_>>, out: &mut Collector) -> FailDetect {
    let detect = FailDetect {
        connections: 8,
        clients: 2,
        reassign: 3,
        retry: secs(60),
    };
    let Some(section) = section else {
        return detect;
    };
    FailDetect {
        connections: section
            .integer("connections", 0..=255, out)
            .or(detect.connections),
        clients: section.integer("clients", 1..=8, out).or(detect.clients),
        reassign: section.integer("reassign", 1..=4, out).or(detect.reassign),
        retry: section
            .duration_or_zero("retry", true, secs(1)..=secs(3_600), out)
            .or(detect.retry),
    }
}

/// `[service.syn_guard]`; absent, off.
pub(super) fn syn_guard(section: Option<&Section<'_>>, out: &mut Collector) -> SynGuard {
    let guard = SynGuard {
        unanswered: 0,
        interval: millis(100),
    };
    let Some(section) = section else {
        return guard;
    };
    SynGuard {
        unanswered: section
            .integer("unanswered", 0..=u32::MAX, out)
            .or(guard.unanswered),
        interval: section
            .duration("interval", millis(50)..=secs(5), out)
            .or(guard.interval),
    }
}
