//! What every backend may take now: ramps of ports and servers, tests, and the
//! lasting maximum of a list, put together over all services.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::budget::Budget;
use super::engine::Command;
use super::service::Service;
use super::slow_start::{deal, server_ceiling};
use super::standing::server_second;

/// Writes the budgets that the packet path does not have.
pub(super) fn ration(services: &mut [Service], now_us: u64, commands: &mut VecDeque<Command>) {
    let mut dealt = deal_servers(services, now_us);
    for (at, service) in services.iter_mut().enumerate() {
        for position in 0..service.backends.len() {
            let budget = budget(service, position, dealt.remove(&(at, position)), now_us);
            commands.extend(service.backends[position].budget(budget, now_us));
        }
    }
}

/// When a budget must be written again.
pub(super) fn poll_timeout(services: &[Service]) -> Option<u64> {
    let backends = services.iter().flat_map(|service| &service.backends);
    backends
        .filter_map(|backend| backend.budgeting.poll_timeout())
        .min()
}

/// Place of a backend: of its service, and in that.
type Place = (usize, usize);

/// Ceilings from the ramps of servers.
fn deal_servers(services: &[Service], now_us: u64) -> BTreeMap<Place, u32> {
    let mut servers: BTreeMap<&str, Vec<Place>> = BTreeMap::new();
    for (at, service) in services.iter().enumerate() {
        for (position, backend) in service.backends.iter().enumerate() {
            let places = servers.entry(&backend.server).or_default();
            places.push((at, position));
        }
    }
    let mut dealt = BTreeMap::new();
    for places in servers.into_values() {
        let backend = |&(at, position): &Place| &services[at].backends[position];
        let second = server_second(places.iter().map(|place| backend(place).standing), now_us);
        let Some(ceiling) = second.and_then(server_ceiling) else {
            continue;
        };
        let flows = |place: &Place| u32::try_from(backend(place).live).unwrap_or(u32::MAX);
        let (limited, others): (Vec<Place>, Vec<Place>) =
            places.iter().partition(|&&(at, position)| {
                services[at].ramp.limits_servers() && services[at].is_warming(position)
            });
        // What others of this server have is not there to be dealt.
        let held = others.iter().map(flows).fold(0, u32::saturating_add);
        let active: Vec<u32> = limited.iter().map(flows).collect();
        let ceilings = deal(ceiling.saturating_sub(held), &active);
        dealt.extend(limited.into_iter().zip(ceilings));
    }
    dealt
}

fn budget(service: &mut Service, position: usize, server: Option<u32>, now_us: u64) -> Budget {
    let (warming, limitable) = (service.is_warming(position), service.is_limitable(position));
    let ramp = service.ramp;
    let backend = &mut service.backends[position];
    let lasting = Budget {
        maximum: ramp.maximum(),
        ..Budget::default()
    };
    let begun = backend.begun();
    if let Some(allowance) = backend.health.test_allowance(begun) {
        // Without anybody else it is tested by whatever comes.
        return Budget {
            begun: limitable.then_some(allowance),
            ..lasting
        };
    }
    if !warming {
        backend.budgeting.end();
        return lasting;
    }
    let limits = backend.standing.limits(&ramp, now_us);
    let granted = limits
        .zip(backend.standing.second(now_us))
        .map(|(limits, second)| backend.budgeting.grant(second, limits.rate, begun));
    let port = limits.map(|limits| limits.ceiling);
    Budget {
        begun: granted,
        ceiling: [port, server].into_iter().flatten().min(),
        dummies: backend.standing.dummies(now_us),
        ..lasting
    }
}
