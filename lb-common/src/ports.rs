//! Ports of our own addresses, given to the flows of `full-nat` services.
//!
//! Every address of the pool has a cell per protocol and port. A cell holds the
//! client word of the flow that has the port: swapping it in *is* the allocation,
//! and a server's packet, whose destination is the cell's endpoint, finds its flow
//! by it. Nobody has to give a port back: a cell whose flow is no longer in the
//! table, or is over past its linger, is taken over by the next one that comes to
//! it.
//!
//! Ports are tried in a row, so that one that was just used is the last to be
//! used again: a server keeps an ended connection's endpoint in TIME_WAIT for up
//! to a minute. A new connection that comes sooner all the same is taken over by
//! RFC 6191 where the server has time stamps; else the server's challenge makes
//! the client reset the old one, and its second SYN gets through.

use crate::abi::{FIRST_POOL_PORT, WAYS, pool_cell, ticks_between};
use crate::atomic::Word;
use crate::flow::{Table, meta};
use crate::hash::Home;

/// Ports of one address and protocol.
pub const PORTS_PER_ADDRESS: u64 = 65_536 - FIRST_POOL_PORT as u64;
/// Most cells that one flow looks at. With so many, one flow in 13 finds no port
/// when 99 in 100 are taken, and one in 10^5 when 95 are.
pub const PROBES: u32 = 256;

/// The cells, as the packet path and the tests have them.
pub trait Ports {
    /// Addresses of the pool that this flow may have, as consecutive indices from
    /// 1: first, and how many.
    fn addresses(&self) -> (u32, u32);
    /// Takes the next turn of an address: counts up without end.
    fn turn(&self, pool: u32) -> u64;
    /// The cell at an index of [`pool_cell`].
    fn cell(&self, index: u32) -> Option<&Word>;
    /// Whether the flow of a client word still has a port of a pool address.
    fn is_taken(&self, word: u64, pool: u32, port: u16) -> bool;
    /// Calls `visit` with 0, 1, … `count` − 1 until it answers `false`.
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, visit: V);
}

/// Index of the address, from 1, and port of what [`allocate`] answers.
#[inline(always)]
pub const fn allocated(given: u64) -> (u32, u16) {
    ((given >> 16) as u32, given as u16)
}

/// Allocates a port for the flow of a client word: a number for [`allocated`], or 0
/// if none of those looked at is free. `start`: any number that differs between
/// clients, by which they spread over the addresses.
#[inline(always)]
pub fn allocate<P: Ports>(ports: &P, client: u64, is_udp: bool, start: u32) -> u64 {
    let (first, count) = ports.addresses();
    if count == 0 {
        return 0;
    }
    let mut found = 0u64;
    ports.each(PROBES, |probe| {
        // Never zero here; a check that the compiler keeps would be a panic.
        let place = start.wrapping_add(probe).checked_rem(count);
        let pool = first + place.unwrap_or(0);
        let port = FIRST_POOL_PORT + (ports.turn(pool) % PORTS_PER_ADDRESS) as u16;
        let Some(cell) = ports.cell(pool_cell(pool, is_udp, port)) else {
            return false;
        };
        let holder = cell.load();
        if holder != 0 && ports.is_taken(holder, pool, port) || !cell.replace(holder, client) {
            return true;
        }
        found = (pool as u64) << 16 | port as u64;
        false
    });
    found
}

/// Whether one of a client word's buckets holds a flow with this word for its
/// server's side that is not over past its linger. A flow in the spill counts as
/// one: its bucket says that there is a spill, and no more is asked.
#[inline(always)]
pub fn is_held<T: Table>(table: &T, home: Home, client: u64, backend_end: u64, now: u32) -> bool {
    let mut held = false;
    for which in 0..2 {
        let index = if which == 0 {
            home.primary
        } else {
            home.secondary
        };
        let Some(bucket) = table.bucket(index) else {
            return false;
        };
        for way in 0..WAYS {
            let words = &bucket.ways[way];
            let word = words.meta.load();
            let state = meta::number(word);
            // One that is being written may be the one.
            let may_be = state.is(crate::tcp::State::Busy)
                || meta::is_flow(word)
                    && words.client.load() == client
                    && words.backend_end.load() == backend_end
                    && (!state.is_ended()
                        || ticks_between(meta::tick(word), now) < table.timeout(meta::state(word)));
            held |= may_be;
            if which == 0 && way == 0 && word & meta::SPILLED != 0 {
                held = true;
            }
        }
    }
    held
}
