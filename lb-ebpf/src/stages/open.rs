//! Opens a flow: survey the table, choose a backend, place the flow.

use super::lookup::Known;
use crate::{
    clock,
    family::Family,
    maps::{self, PoolPorts, Scratch, ServicePool},
    packet::{self, Ip, Transport, V4, V6},
};
use aya_ebpf::programs::XdpContext;
use lb_common::{
    abi::{
        Backend, Failure, Jump, Service, Settings, algorithm, backend_flags, failure_kind,
        forwarding, halves6, measure,
    },
    flow::{self, Found, Opening, Placed, Target, Twin, client_word, meta},
    hash,
    pick::{self, Picked},
    ports,
    reason::Reason,
    tcp::{Side, State, flags},
};

/// The global functions that open flows of a family, and the program that calls
/// them.
///
/// They take and give everything in the scratch space: the verifier judges each
/// once, by itself, and their stack frames do not live at the same time.
pub(crate) trait Opens: Family {
    const NEW_FLOW: Jump;
    /// Whether the flow in the scratch space left too many SYNs unanswered.
    fn unanswered() -> u32;
    fn survey() -> u32;
    fn allocate() -> u32;
    fn pick(algorithm: u8) -> u32;
    fn place() -> u32;
}

#[inline(always)]
fn may_open(transport: &Transport) -> bool {
    transport.is_udp
        || transport.flags & (flags::SYN | flags::ACK | flags::FIN | flags::RST) == flags::SYN
}

/// Whether a client's packet on an existing flow begins a new one: a SYN on a
/// tuple that is over, or on one whose SYN was never answered by a backend that
/// may not take new flows any more (cilium/cilium issue 32472).
#[inline(always)]
pub(crate) fn must_pick_again<F: Opens>(found: &Found, transport: &Transport) -> bool {
    if !may_open(transport) {
        return false;
    }
    gives_way(found) || leaves_unanswered::<F>(found)
}

/// Whether a flow's server has left so many SYNs unanswered that this next one
/// goes to another (IOS SLB `reassign`).
#[inline(always)]
fn leaves_unanswered<F: Opens>(found: &Found) -> bool {
    if !meta::number(found.meta).is(State::HalfOpen) {
        return false;
    }
    match maps::scratch() {
        Some(scratch) => {
            scratch.found = *found;
            F::unanswered() != 0
        }
        None => false,
    }
}

#[inline(always)]
fn unanswered<F: Family>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return 0;
    };
    let found = &scratch.found;
    let Some(backend) = maps::backend(found.backend()) else {
        return 0;
    };
    let reassign = match maps::service(backend.service as u32) {
        Some(service) => service.reassign as u32,
        None => 0,
    };
    if reassign == 0 {
        return 0;
    }
    match flow::at(&F::flows(settings), found.slot, found.client) {
        // The first SYN is no repetition.
        Some((_, cold)) if cold.syn_repeats.load() + 1 >= reassign => 1,
        Some(_) | None => 0,
    }
}

/// A server that a flow is taken from is charged with a SYN timeout, and the
/// controller told.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_charge() -> u32 {
    let Some(scratch) = maps::scratch() else {
        return 0;
    };
    let former = scratch.former.get() as u16;
    maps::charge_syn_timeout(former);
    maps::tell(&Failure {
        client: scratch.opening.client,
        at_us: scratch.opening.micros,
        backend: former,
        // Else there would be no reassignment.
        repeats: 1,
        kind: failure_kind::REASSIGNED,
        padding: [0; 3],
    });
    maps::count(Reason::Reassigned);
    1
}

/// Whether a flow gives its place to a new one of the same tuple.
#[inline(always)]
fn gives_way(found: &Found) -> bool {
    let state = meta::number(found.meta);
    state.is_ended()
        || state.is(State::HalfOpen) && !may_take_new_flows(found.backend())
        || state.is_datagram() && is_removed(found.backend())
}

/// Datagrams have no end to wait for: those of a removed backend go to another
/// one at once (kubernetes/kubernetes issue 76664).
#[inline(always)]
fn is_removed(backend: u16) -> bool {
    const BOTH: u32 = backend_flags::PRESENT | backend_flags::REMOVED;
    match maps::backend(backend) {
        Some(backend) => backend.flags & BOTH != backend_flags::PRESENT,
        None => true,
    }
}

#[inline(always)]
fn may_take_new_flows(backend: u16) -> bool {
    match maps::backend(backend) {
        Some(backend) => pick::takes_new_flows(backend.flags, backend.weight),
        None => false,
    }
}

/// Describes the flow of a SYN in the scratch space.
#[inline(always)]
pub(crate) fn describe<F: Opens>(
    ctx: &XdpContext,
    settings: &Settings,
    known: Known,
    ip: &Ip<F>,
    transport: &Transport,
    tick: u32,
) -> Result<(), Reason> {
    if !may_open(transport) {
        return Err(Reason::NoFlow);
    }
    let scratch = maps::scratch().ok_or(Reason::Internal)?;
    let (client_mac, own_mac) = packet::macs(ctx);
    let endpoint = F::endpoint(ip.source, transport.source_port, settings);
    let client = client_word(endpoint, ip.protocol);
    scratch.opening = Opening {
        home: F::home(client, settings),
        client,
        virtual_endpoint: F::endpoint(ip.destination, transport.destination_port, settings),
        ends: F::ends(ip.source, ip.destination),
        backend_endpoint: 0,
        backend: 0,
        pool: 0,
        service: known.index as u16,
        hop: 0,
        sequence: transport.sequence,
        first_response: known.service.measure == measure::FIRST_RESPONSE,
        turns: known.service.measure == measure::REQUEST_TO_RESPONSE,
        datagram: transport.is_udp,
        one_sided: forwarding::is_one_sided(known.service.forwarding),
        tick,
        micros: clock::micros(),
        client_mac,
        own_mac,
        client_ifindex: ctx.ingress_ifindex() as u32,
    };
    scratch.service = known.index;
    scratch.client = halves6(F::key(ip.source));
    if !transport.is_udp && steerline_syn_guard() != 0 {
        return Err(Reason::SynGuard);
    }
    Ok(())
}

/// Opens the flow in the scratch space. A former flow of the same tuple gives its
/// place to the new one.
#[inline(always)]
pub(crate) fn run<F: Opens>() -> Result<(), Reason> {
    let mut outcome = attempt::<F>();
    // Two more surveys of buckets that other CPUs write at the same time. (Not a
    // loop: its counter would lie on the stack, where the verifier forgets it.)
    if outcome == RACED {
        outcome = attempt::<F>();
    }
    if outcome == RACED {
        outcome = attempt::<F>();
    }
    match outcome {
        OPENED => maps::count(Reason::NewFlow),
        FOUND => maps::count(Reason::SynRepeated),
        EXISTING => maps::count(Reason::Withdrawn),
        NO_BACKEND => return Err(Reason::NoBackend),
        COLLISION => return Err(Reason::TupleCollision),
        HAIRPIN => return Err(Reason::Hairpin),
        AT_MAXIMUM => return Err(Reason::AtMaximum),
        EXHAUSTED => return Err(Reason::PoolExhausted),
        FULL | RACED => return Err(Reason::TableFull),
        _ => return Err(Reason::Internal),
    }
    Ok(())
}

/// The backend of the flow that [`run`] opened or found: in the scratch space,
/// so that no path of the program carries a value that is not there.
#[inline(always)]
pub(crate) fn opened() -> Option<Twin> {
    let scratch = maps::scratch()?;
    Some(Twin {
        backend: scratch.opening.backend,
        backend_endpoint: scratch.opening.backend_endpoint,
        pool: scratch.opening.pool,
    })
}

/// Whether its server answers directly.
#[inline(always)]
pub(crate) fn is_one_sided() -> bool {
    maps::scratch().is_some_and(|scratch| scratch.opening.one_sided)
}

/// The client word of that flow.
#[inline(always)]
pub(crate) fn client() -> u64 {
    maps::scratch().map_or(0, |scratch| scratch.opening.client)
}

// What an attempt came to. Numbers, since a BPF function returns a scalar.
const OPENED: u32 = 0;
const EXISTING: u32 = 1;
const RACED: u32 = 2;
const NO_BACKEND: u32 = 3;
const COLLISION: u32 = 4;
const FULL: u32 = 5;
const INTERNAL: u32 = 6;
const SURVEYED: u32 = 7;
const FOUND: u32 = 8;
const EXHAUSTED: u32 = 9;
const AT_MAXIMUM: u32 = 10;
const HAIRPIN: u32 = 11;

/// Bits of `Scratch::collided`: another flow of the client endpoint has the
/// backend; the backend is the client.
const PAIRED: u32 = 1;
const ITSELF: u32 = 2;

/// One survey, pick and placement of the flow in the scratch space.
#[inline(always)]
fn attempt<F: Opens>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return INTERNAL;
    };
    let Some(service) = maps::service(scratch.service) else {
        return INTERNAL;
    };
    let surveyed = F::survey();
    if surveyed != SURVEYED {
        return surveyed;
    }
    scratch.collided.set(0);
    scratch.full.set(0);
    let picked = F::pick(service.algorithm);
    if picked & CHOSEN == 0 {
        return if scratch.collided.get() & PAIRED != 0 {
            COLLISION
        } else if scratch.collided.get() != 0 {
            HAIRPIN
        } else if scratch.full.get() != 0 {
            AT_MAXIMUM
        } else {
            NO_BACKEND
        };
    }
    let Some(backend) = maps::backend(picked as u16) else {
        return INTERNAL;
    };
    scratch.opening.backend = picked as u16;
    scratch.opening.backend_endpoint =
        F::endpoint(F::address(backend.address), backend.port, settings);
    // Not carried on the stack, of which the next call leaves little.
    scratch.picked.set(picked);
    scratch.opening.pool = 0;
    if backend.forwarding == forwarding::FULL_NAT && F::allocate() == 0 {
        return EXHAUSTED;
    }
    let outcome = F::place();
    if outcome == OPENED {
        count_picked();
    }
    outcome
}

#[inline(always)]
fn count_picked() {
    let Some(scratch) = maps::scratch() else {
        return;
    };
    let picked = scratch.picked.get();
    if picked & TRIAL != 0 {
        maps::count(Reason::Trial);
    }
    if scratch.former.get() != 0 {
        steerline_charge();
    } else if picked & OVERRULED != 0 {
        maps::count(Reason::OverBudget);
    }
}

/// Whether SynGuard keeps the flow in the scratch space out. A global function
/// for its stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_syn_guard() -> u32 {
    let Some(scratch) = maps::scratch() else {
        return 0;
    };
    match maps::syn_guard(scratch.service) {
        Some((limit, guarded)) if !guarded.admits_syn(&limit, scratch.opening.micros) => 1,
        Some(_) | None => 0,
    }
}

/// Looks for places, unless the flow is there already.
#[inline(always)]
fn survey<F: Opens>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return INTERNAL;
    };
    let table = F::flows(settings);
    scratch.former.set(0);
    let opening = &mut scratch.opening;
    let tuple = F::tuple(opening.client, opening.virtual_endpoint, opening.ends);
    let own = match flow::find(&table, opening.home, &tuple, Side::Client) {
        // A former flow of the tuple, or one whose SYN was never answered.
        Some(found) if gives_way(&found) => Target::of(&found),
        Some(found) if leaves_unanswered::<F>(&found) => {
            scratch.former.set(found.backend() as u32);
            Target::of(&found)
        }
        // Another CPU opened it in the meantime.
        Some(found) => {
            opening.backend = found.backend();
            opening.backend_endpoint = found.backend_endpoint();
            opening.pool = found.pool();
            return FOUND;
        }
        None => Target::NONE,
    };
    let (home, client, tick) = (opening.home, opening.client, opening.tick);
    match flow::survey(&table, home, client, &opening.ends, own, tick) {
        Some(survey) => {
            scratch.survey = survey;
            SURVEYED
        }
        None => INTERNAL,
    }
}

/// Bits of what the picks return, above the backend's index.
const CHOSEN: u32 = 1 << 16;
const TRIAL: u32 = 1 << 17;
const OVERRULED: u32 = 1 << 18;

#[inline(always)]
fn encode(picked: Option<Picked>) -> u32 {
    let Some(picked) = picked else { return 0 };
    let trial = if picked.trial { TRIAL } else { 0 };
    let overruled = if picked.overruled { OVERRULED } else { 0 };
    CHOSEN | trial | overruled | picked.backend as u32
}

/// The backends of a service for the flow in the scratch space, and whether
/// trial credits are about.
#[inline(always)]
fn pool<'a, F: Family>(
    settings: &'static Settings,
    service: &'static Service,
    scratch: &'a Scratch,
) -> (ServicePool<impl Fn(&Backend) -> bool + 'a>, bool) {
    let attended = maps::is_attended(settings, scratch.opening.tick);
    let pool = ServicePool {
        service: scratch.service,
        members: service.members,
        ring: service.ring,
        attended,
        former: scratch.former.get() as u16,
        refused: move |backend: &Backend| {
            // Asked only of backends that may take new flows. In direct return
            // the server sees the VIP: no two flows look alike to it.
            // With a port of ours none does in full-nat either.
            if scratch.opening.one_sided || backend.forwarding == forwarding::FULL_NAT {
                return false;
            }
            // No host takes packets from itself that come by a wire.
            let (own, client) = (halves6(backend.address), scratch.client);
            if own[0] == client[0] && own[1] == client[1] {
                scratch.collided.set(scratch.collided.get() | ITSELF);
                return true;
            }
            if !scratch.survey.paired.any() {
                return false;
            }
            let endpoint = F::endpoint(F::address(backend.address), backend.port, settings);
            let paired = scratch
                .survey
                .paired
                .contains(&F::flows(settings), endpoint);
            if paired {
                scratch.collided.set(scratch.collided.get() | PAIRED);
            }
            paired
        },
    };
    (pool, attended && settings.trials != 0)
}

/// The choice of an algorithm among a service's backends, as [`encode`] makes it.
macro_rules! pick {
    ($family:ident, $pool:ident, $trials:ident => $pick:expr) => {{
        let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
            return 0;
        };
        let Some(service) = maps::service(scratch.service) else {
            return 0;
        };
        let ($pool, $trials) = pool::<$family>(settings, service, scratch);
        encode($pick)
    }};
}

/// Puts the flow of the scratch space into the table.
#[inline(always)]
fn place<F: Family>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return INTERNAL;
    };
    match flow::place(&F::flows(settings), &scratch.survey, &scratch.opening) {
        Placed::Opened {
            evicted_half_open,
            spilled,
            ..
        } => {
            if evicted_half_open {
                maps::count(Reason::EvictedHalfOpen);
            }
            if spilled {
                maps::count(Reason::Spilled);
            }
            OPENED
        }
        Placed::Existing(twin) => {
            scratch.opening.backend = twin.backend;
            scratch.opening.backend_endpoint = twin.backend_endpoint;
            scratch.opening.pool = twin.pool;
            EXISTING
        }
        Placed::Raced => RACED,
        Placed::Full => FULL,
    }
}

/// The ports of the pool for the flow in the scratch space.
#[inline(always)]
fn ports<F: Family>(
    settings: &'static Settings,
    tick: u32,
) -> PoolPorts<impl Fn(u64, u32, u16) -> bool> {
    PoolPorts {
        addresses: F::pools(settings),
        is_taken: move |word: u64, pool: u32, port: u16| {
            let Some(address) = maps::pool(pool) else {
                return true;
            };
            let endpoint = F::endpoint(F::address(address.address), port, settings);
            let home = F::home(word, settings);
            let table = F::flows(settings);
            ports::is_held(&table, home, word, endpoint << 16 | pool as u64, tick)
        },
    }
}

/// Gives the flow of the scratch space an endpoint of the pool; 0 if none is free.
#[inline(always)]
fn allocate<F: Family>() -> u32 {
    let (Some(scratch), Some(settings)) = (maps::scratch(), maps::settings()) else {
        return 0;
    };
    let opening = &mut scratch.opening;
    let start = hash::mix(opening.client, settings.hash_secret) as u32;
    let ports = ports::<F>(settings, opening.tick);
    let given = ports::allocate(&ports, opening.client, opening.datagram, start);
    if given == 0 {
        return 0;
    }
    let (pool, port) = ports::allocated(given);
    let Some(address) = maps::pool(pool) else {
        return 0;
    };
    opening.pool = pool as u16;
    opening.backend_endpoint = F::endpoint(F::address(address.address), port, settings);
    1
}

/// Defines the global functions of a family.
macro_rules! opens {
    (
        $family:ident, $jump:ident, $unanswered:ident, $survey:ident, $allocate:ident,
        $place:ident, $round_robin:ident, $least:ident, $connections:ident, $shares:ident
    ) => {
        impl Opens for $family {
            const NEW_FLOW: Jump = Jump::$jump;

            #[inline(always)]
            fn unanswered() -> u32 {
                $unanswered()
            }
            #[inline(always)]
            fn survey() -> u32 {
                $survey()
            }
            #[inline(always)]
            fn allocate() -> u32 {
                $allocate()
            }
            #[inline(always)]
            fn pick(algorithm: u8) -> u32 {
                match algorithm {
                    algorithm::WEIGHTED_ROUND_ROBIN => $round_robin(),
                    algorithm::ACA_CONNECTIONS => $connections(),
                    algorithm::ACA_SHARES => $shares(),
                    algorithm::WEIGHTED_LEAST_CONNECTIONS => $least(),
                    _ => 0,
                }
            }
            #[inline(always)]
            fn place() -> u32 {
                $place()
            }
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $unanswered() -> u32 {
            unanswered::<$family>()
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $survey() -> u32 {
            survey::<$family>()
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $allocate() -> u32 {
            allocate::<$family>()
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $place() -> u32 {
            place::<$family>()
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $round_robin() -> u32 {
            pick!($family, pool, _trials => pick::weighted_round_robin(&pool))
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $least() -> u32 {
            pick!($family, pool, _trials => pick::weighted_least_connections(&pool))
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $connections() -> u32 {
            pick!($family, pool, trials => pick::aca_connections(&pool, trials))
        }
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $shares() -> u32 {
            pick!($family, pool, trials => pick::aca_shares(&pool, trials))
        }
    };
}

opens!(
    V4,
    New4,
    steerline_unanswered4,
    steerline_survey4,
    steerline_allocate4,
    steerline_place4,
    steerline_weighted_round_robin4,
    steerline_weighted_least_connections4,
    steerline_aca_connections4,
    steerline_aca_shares4
);
opens!(
    V6,
    New6,
    steerline_unanswered6,
    steerline_survey6,
    steerline_allocate6,
    steerline_place6,
    steerline_weighted_round_robin6,
    steerline_weighted_least_connections6,
    steerline_aca_connections6,
    steerline_aca_shares6
);
