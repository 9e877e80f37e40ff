//! A flow table on the heap: what the maps are to the packet path.
//!
//! The spill is a preallocated arena behind an index, like the kernel's hash:
//! an address stays valid for the table's life, and an element that was removed
//! is handed out again at once.

use std::collections::HashMap;
use std::sync::Mutex;

use lb_common::abi::{STATES, SpillKey};
use lb_common::atomic::{Half, Word};
use lb_common::flow::{Bucket, ColdWay, ColdWays, LiveWords, Opening, SpilledWay, Table, Way};
use lb_common::tcp::State;

/// Timeouts in ticks, by the state's number: short ones, all different.
pub(crate) const TIMEOUTS: [u32; STATES] = {
    let mut ticks = [0; STATES];
    ticks[State::HalfOpen as usize] = 30;
    ticks[State::Answered as usize] = 40;
    ticks[State::Established as usize] = 1_000;
    ticks[State::ClientFin as usize] = 200;
    ticks[State::ServerFin as usize] = 300;
    ticks[State::Closed as usize] = 10;
    ticks[State::Reset as usize] = 20;
    ticks[State::Datagram as usize] = 35;
    ticks[State::Conversing as usize] = 400;
    ticks
};

pub(crate) fn way() -> Way {
    Way {
        client: Word::new(0),
        virtual_end: Word::new(0),
        meta: Word::new(0),
        backend_end: Word::new(0),
    }
}

fn cold() -> ColdWay {
    ColdWay {
        syn_us: Word::new(0),
        syn_ack_us: Half::new(0),
        request_us: Half::new(0),
        response_us: Half::new(0),
        client_end: Half::new(0),
        client_start: Half::new(0),
        server_start: Half::new(0),
        service: Half::new(0),
        syn_repeats: Half::new(0),
        client_mac: Word::new(0),
        own_mac: Word::new(0),
        client_ifindex: Half::new(0),
        padding1: Half::new(0),
    }
}

fn live() -> LiveWords {
    LiveWords {
        half_opened: Word::new(0),
        half_closed: Word::new(0),
        opened: Word::new(0),
        closed: Word::new(0),
        resets: Word::new(0),
        syn_timeouts: Word::new(0),
        forgiven: Word::new(0),
        trial: Word::new(0),
    }
}

pub(crate) struct SpillIndex {
    pub(crate) places: HashMap<SpillKey, usize>,
    pub(crate) free: Vec<usize>,
}

/// The maps of a flow table, in memory.
pub(crate) struct Host {
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) cold: Vec<ColdWays>,
    pub(crate) arena: Vec<SpilledWay>,
    pub(crate) spill: Mutex<SpillIndex>,
    pub(crate) live: Vec<LiveWords>,
}

impl Host {
    pub(crate) fn new(buckets: u32, spill: usize, backends: usize) -> Self {
        let each = |n: u32| 0..n;
        Self {
            buckets: each(buckets)
                .map(|_| Bucket {
                    ways: std::array::from_fn(|_| way()),
                })
                .collect(),
            cold: each(buckets)
                .map(|_| ColdWays {
                    ways: std::array::from_fn(|_| cold()),
                })
                .collect(),
            arena: (0..spill)
                .map(|_| SpilledWay {
                    way: way(),
                    cold: cold(),
                })
                .collect(),
            spill: Mutex::new(SpillIndex {
                places: HashMap::new(),
                free: (0..spill).rev().collect(),
            }),
            live: (0..backends).map(|_| live()).collect(),
        }
    }
}

impl Table for Host {
    fn bucket(&self, index: u32) -> Option<&Bucket> {
        self.buckets.get(index as usize)
    }

    fn cold(&self, index: u32) -> Option<&ColdWays> {
        self.cold.get(index as usize)
    }

    fn spilled(&self, key: &SpillKey) -> Option<&SpilledWay> {
        let index = self.spill.lock().expect("no holder panics");
        index.places.get(key).map(|&place| &self.arena[place])
    }

    fn spill(&self, key: &SpillKey, opening: &Opening) -> bool {
        let mut index = self.spill.lock().expect("no holder panics");
        if index.places.contains_key(key) {
            return false;
        }
        let Some(place) = index.free.pop() else {
            return false;
        };
        let SpilledWay { way, cold } = &self.arena[place];
        let value = opening.spilled();
        way.client.store(value.way.client);
        way.virtual_end.store(value.way.virtual_end);
        way.backend_end.store(value.way.backend_end);
        way.meta.store(value.way.meta);
        cold.syn_us.store(value.cold.syn_us);
        cold.syn_ack_us.store(value.cold.syn_ack_us);
        cold.request_us.store(value.cold.request_us);
        cold.response_us.store(value.cold.response_us);
        cold.client_end.store(value.cold.client_end);
        cold.client_start.store(value.cold.client_start);
        cold.server_start.store(value.cold.server_start);
        cold.service.store(value.cold.service);
        cold.syn_repeats.store(value.cold.syn_repeats);
        index.places.insert(*key, place);
        true
    }

    fn live(&self, backend: u16) -> Option<&LiveWords> {
        self.live.get(usize::from(backend))
    }

    fn timeout(&self, state: State) -> u32 {
        TIMEOUTS[state as usize]
    }
}
