//! Polls numbers by SNMPv2c and turns them into words.
//!
//! Each poll has a socket of its own: a late answer to an earlier question
//! finds it closed instead of being taken for this one's. The library reads
//! into one buffer of a datagram, so a peer cannot make us keep more.
//!
//! In `state` no answer, one of another type and one out of range mean OFFLINE
//! (spec 2.1). For numbers they mean the configured weight: a monitoring agent
//! that is down says nothing about its server.

use super::{Target, micros_of, part, random_bits, sleep_until, teller::Teller};
use crate::{
    config::{Capacity, CapacityKind, Object, Oid},
    daemon::micros,
};
use anyhow::{Context as _, Result, bail};
use lb_common::control::{
    OutsideWord,
    capacity::CacheState,
    snmp_weight::{
        HeadroomTerm, LoadTerm, Meter, Number, ace_load, ace_weight, adjusted, headroom_weight,
    },
};
use snmp2::{AsyncSession, Pdu, Value};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// `sysUpTime.0`, hundredths of a second since the agent started (RFC 3418).
const UPTIME: [u64; 9] = [1, 3, 6, 1, 2, 1, 1, 3, 0];

/// What the backends of one service have in common.
pub(super) struct Poller {
    capacity: Capacity,
    /// Least-loaded: everyone's load, since a mean is part of each weight.
    farm: Mutex<Vec<Member>>,
}

struct Member {
    index: u16,
    configured: u32,
    load: Option<u32>,
    told: Option<u32>,
}

impl Poller {
    pub(super) fn new(capacity: Capacity, targets: &[Target]) -> Self {
        let member = |target: &Target| Member {
            index: target.index,
            configured: target.weight,
            load: None,
            told: target.record.snmp_weight,
        };
        Self {
            capacity,
            farm: Mutex::new(targets.iter().map(member).collect()),
        }
    }

    /// Index and weight of every backend whose weight a new load changes.
    fn take_load(&self, position: usize, load: Option<u32>) -> Vec<(u16, Option<u32>)> {
        let CapacityKind::LeastLoaded { autoadjust, .. } = &self.capacity.kind else {
            return Vec::new();
        };
        // A task that panicked has changed nothing half.
        let mut farm = self.farm.lock().unwrap_or_else(PoisonError::into_inner);
        farm[position].load = load;
        let loads: Vec<Option<u32>> = farm.iter().map(|member| member.load).collect();
        let adjusted = adjusted(&loads, *autoadjust);
        let mut changed = Vec::new();
        for (place, (member, load)) in farm.iter_mut().zip(adjusted).enumerate() {
            let weight = load.map(|load| ace_weight(member.configured, load));
            // Who was not polled yet keeps what an earlier run told.
            let unknown = weight.is_none() && place != position;
            if member.told != weight && !unknown {
                member.told = weight;
                changed.push((member.index, weight));
            }
        }
        changed
    }
}

pub(super) async fn run(poller: Arc<Poller>, position: usize, target: Target, mut teller: Teller) {
    let capacity = &poller.capacity;
    let interval_us = micros_of(capacity.interval);
    let to = SocketAddr::new(target.address, capacity.port);
    let objects: &[Object] = match &capacity.kind {
        CapacityKind::State { .. } => &[],
        CapacityKind::LeastLoaded { objects, .. } | CapacityKind::Headroom { objects } => objects,
    };
    let mut meters = vec![Meter::default(); objects.len()];
    let mut state = target.record.capacity;
    // Soon after the start, and not all at once.
    let mut due_us = micros() + part(interval_us.min(1_000_000), random_bits());
    loop {
        sleep_until(due_us).await;
        due_us = micros().saturating_add(interval_us);
        let told = match &capacity.kind {
            CapacityKind::State { oid, .. } => {
                let polled = poll(capacity, to, std::slice::from_ref(oid)).await;
                let (now, result) = judge(polled);
                if state != Some(now) {
                    state = Some(now);
                    let word = OutsideWord::Capacity(now);
                    teller.word(target.index, word).await;
                }
                result
            }
            CapacityKind::LeastLoaded { objects, .. } => {
                let values = measure(capacity, to, objects, &mut meters).await;
                let terms: Vec<LoadTerm> = objects
                    .iter()
                    .map(|object| LoadTerm {
                        maximum: object.maximum,
                        share: object.weight,
                    })
                    .collect();
                let (result, load) = split(values, |values| ace_load(&terms, &values));
                if let Some(load) = load {
                    for (backend, weight) in poller.take_load(position, load) {
                        let word = OutsideWord::SnmpWeight(weight);
                        teller.word(backend, word).await;
                    }
                }
                result
            }
            CapacityKind::Headroom { objects } => {
                let values = measure(capacity, to, objects, &mut meters).await;
                let terms: Vec<HeadroomTerm> = objects
                    .iter()
                    .map(|object| HeadroomTerm {
                        threshold: object.maximum,
                        coefficient: object.weight,
                    })
                    .collect();
                let (result, weight) = split(values, |values| {
                    headroom_weight(target.weight, &terms, &values)
                });
                if let Some(weight) = weight {
                    let word = OutsideWord::SnmpWeight(weight);
                    teller.word(target.index, word).await;
                }
                result
            }
        };
        match told {
            Ok(()) => teller.well().await,
            Err(error) => teller.trouble(format!("{error:#}")).await,
        }
    }
}

/// What there is to tell: nothing yet while a counter has one sample, that
/// nothing is known after a failure, or what `make` makes of the values.
fn split<T>(
    values: Result<Option<Vec<u64>>>,
    make: impl FnOnce(Vec<u64>) -> T,
) -> (Result<()>, Option<Option<T>>) {
    match values {
        Ok(values) => (Ok(()), values.map(|values| Some(make(values)))),
        Err(error) => (Err(error), Some(None)),
    }
}

/// The state of a cache, and what is wrong with its answer.
fn judge(polled: Result<Vec<Polled>>) -> (CacheState, Result<()>) {
    let value = match polled.as_deref() {
        Ok([Polled::Number(Number::Gauge(value))]) => *value,
        Ok(_) => {
            let wrong = anyhow::anyhow!("the object is not an INTEGER; taken for OFFLINE");
            return (CacheState::Offline, Err(wrong));
        }
        Err(_) => return (CacheState::Offline, polled.map(drop)),
    };
    let state = CacheState::from_value(value);
    let known = (1..=9).contains(&value);
    let result = if known {
        Ok(())
    } else {
        Err(anyhow::anyhow!(
            "{value} is not a state (1 to 9); taken for OFFLINE"
        ))
    };
    (state, result)
}

/// The values of all objects; `None` while a counter has nothing to go by.
async fn measure(
    capacity: &Capacity,
    to: SocketAddr,
    objects: &[Object],
    meters: &mut [Meter],
) -> Result<Option<Vec<u64>>> {
    let mut oids: Vec<Oid> = vec![UPTIME.to_vec()];
    oids.extend(objects.iter().map(|object| object.oid.clone()));
    let polled = poll(capacity, to, &oids).await?;
    let Some((Polled::Number(Number::Gauge(uptime)), numbers)) = polled.split_first() else {
        bail!("the agent has no sysUpTime");
    };
    // TimeTicks have 32 bits.
    let uptime = *uptime as u32;
    let now_us = micros();
    let mut values = Some(Vec::new());
    for ((number, object), meter) in numbers.iter().zip(objects).zip(meters) {
        let Polled::Number(number) = number else {
            meter.forget();
            bail!("{} is not a number", dotted(&object.oid));
        };
        let value = meter.sample(*number, uptime, now_us);
        values = values.zip(value).map(|(mut values, value)| {
            values.push(value);
            values
        });
    }
    Ok(values)
}

/// An OID as people write it.
pub(super) fn dotted(oid: &[u64]) -> String {
    let arcs: Vec<String> = oid.iter().map(u64::to_string).collect();
    arcs.join(".")
}

/// A polled value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    Number(Number),
    Other,
}

impl From<Value<'_>> for Polled {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Integer(value) => Self::Number(Number::Gauge(value)),
            Value::Unsigned32(value) | Value::Timeticks(value) => {
                Self::Number(Number::Gauge(value.into()))
            }
            Value::Counter32(value) => Self::Number(Number::Counter32(value)),
            Value::Counter64(value) => Self::Number(Number::Counter64(value)),
            _ => Self::Other,
        }
    }
}

/// Asks for some objects, again after each timeout. The values come in the
/// order of the question.
async fn poll(capacity: &Capacity, to: SocketAddr, oids: &[Oid]) -> Result<Vec<Polled>> {
    let mut last = None;
    for _ in 0..=capacity.retries {
        let asked = tokio::time::timeout(capacity.timeout, get(capacity, to, oids)).await;
        match asked
            .map_err(|_| anyhow::anyhow!("no answer in time"))
            .flatten()
        {
            Ok(values) => return Ok(values),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("never asked")?)
}

async fn get(capacity: &Capacity, to: SocketAddr, oids: &[Oid]) -> Result<Vec<Polled>> {
    let names = oids
        .iter()
        .map(|oid| snmp2::Oid::from(oid))
        .collect::<Result<Vec<_>, _>>();
    let Ok(names) = names else {
        bail!("an object identifier cannot be encoded");
    };
    let community = capacity.community.as_bytes();
    let id = random_bits().cast_signed();
    let mut session = AsyncSession::new_v2c(to, community, id)
        .await
        .map_err(super::connect::plain)?;
    let references: Vec<&snmp2::Oid<'_>> = names.iter().collect();
    let answer = session
        .get_many(&references)
        .await
        .map_err(|error| anyhow::anyhow!("not an answer of SNMPv2c: {error}"))?;
    values_of(answer, &names)
}

/// The values of an answer, if it is about `names` in their order.
fn values_of(answer: Pdu<'_>, names: &[snmp2::Oid<'_>]) -> Result<Vec<Polled>> {
    if answer.error_status != 0 {
        bail!("the agent refuses with error {}", answer.error_status);
    }
    let mut values = Vec::new();
    for ((name, value), asked) in answer.varbinds.zip(names) {
        if name != *asked {
            bail!("the agent answers about {name}, asked about {asked}");
        }
        if matches!(
            value,
            Value::NoSuchObject | Value::NoSuchInstance | Value::EndOfMibView
        ) {
            bail!("the agent has no object {asked}");
        }
        values.push(Polled::from(value));
    }
    if values.len() != names.len() {
        bail!(
            "the agent answered {} of {} objects",
            values.len(),
            names.len()
        );
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to `1.3.6.1.3.94.1.1` and `.2`: INTEGER 2 and Counter32 70,000.
    const ANSWER: &[u8] = b"\x30\x39\x02\x01\x01\x04\x06public\xa2\x2c\x02\x04\x01\x02\x03\x04\
        \x02\x01\x00\x02\x01\x00\x30\x1e\x30\x0c\x06\x07\x2b\x06\x01\x03\x5e\x01\x01\x02\x01\x02\
        \x30\x0e\x06\x07\x2b\x06\x01\x03\x5e\x01\x02\x41\x03\x01\x11\x70";

    fn names() -> Vec<snmp2::Oid<'static>> {
        let name = |last| snmp2::Oid::from(&[1, 3, 6, 1, 3, 94, 1, last]).expect("an OID");
        vec![name(1), name(2)]
    }

    fn judged(bytes: &[u8]) -> Result<Vec<Polled>> {
        let answer = Pdu::from_bytes(bytes).map_err(|error| anyhow::anyhow!("{error}"))?;
        values_of(answer, &names())
    }

    #[test]
    fn an_answer_is_read() {
        let number = Polled::Number;
        let expected = [number(Number::Gauge(2)), number(Number::Counter32(70_000))];
        assert_eq!(judged(ANSWER).expect("an answer"), expected);
    }

    #[test]
    fn a_million_mangled_answers_are_judged() {
        // Knuth's MMIX generator; the upper bits, since the lower hardly vary.
        let mut state = 0x5e_u64;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let names = names();
        let (mut read, mut refused) = (0_u32, 0_u32);
        for _ in 0..1_000_000 {
            let mut bytes = ANSWER.to_vec();
            for _ in 0..=below(3) {
                let at = below(bytes.len() + 1);
                match below(6) {
                    0 => bytes.truncate(at),
                    1 => bytes.insert(at, below(256) as u8),
                    2 => bytes.extend_from_within(at..),
                    _ => {
                        let edge = [0, 1, 2, 0x30, 0x7f, 0x80, 0x84, 0xff][below(8)];
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte = edge;
                        }
                    }
                }
            }
            let values = match Pdu::from_bytes(&bytes) {
                Ok(answer) => values_of(answer, &names),
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            match values {
                Ok(values) => {
                    assert_eq!(values.len(), 2, "{bytes:02x?}");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 10_000 && refused > 10_000, "{read} {refused}");
    }
}
