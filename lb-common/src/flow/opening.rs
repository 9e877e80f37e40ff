//! A flow to be opened, and the words that it will have.

use super::meta;
use crate::abi::{Cold, Ends, Spilled4, Spilled6, Way};
use crate::hash::Home;
use crate::tcp::State;

/// A flow to be opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The buckets of the client word.
    pub home: Home,
    /// See [`super::client_word`].
    pub client: u64,
    /// VIP address and port.
    pub virtual_endpoint: u64,
    /// Client and VIP address of an IPv6 flow.
    pub ends: Ends,
    /// Backend address and port.
    pub backend_endpoint: u64,
    /// Index of the backend.
    pub backend: u16,
    /// Index of the pool address that stands for the client; 0: none. Then
    /// `backend_endpoint` is that address with the port it was given.
    pub pool: u16,
    /// Index of the service.
    pub service: u16,
    /// Client-side next hop, 0 if not known.
    pub hop: u16,
    /// Sequence number of the SYN.
    pub sequence: u32,
    /// The service measures the first response.
    pub first_response: bool,
    /// The service measures every turn from client to server.
    pub turns: bool,
    /// Opened by a datagram instead of a SYN.
    pub datagram: bool,
    /// The server answers directly.
    pub one_sided: bool,
    /// The coarse clock now, 24 bits.
    pub tick: u32,
    /// Monotonic microseconds.
    pub micros: u64,
    /// See [`Cold::client_mac`].
    pub client_mac: u64,
    /// See [`Cold::own_mac`].
    pub own_mac: u64,
    /// See [`Cold::client_ifindex`].
    pub client_ifindex: u32,
}

impl Opening {
    /// The value of this flow's spill entry.
    #[inline(always)]
    pub const fn spilled(&self) -> Spilled4 {
        Spilled4 {
            way: Way {
                client: self.client,
                virtual_end: self.virtual_end(),
                meta: self.meta(self.spill_seed()),
                backend_end: self.backend_end(),
            },
            cold: self.cold(),
        }
    }

    /// The same over IPv6.
    #[inline(always)]
    pub const fn spilled_wide(&self) -> Spilled6 {
        Spilled6 {
            spilled: self.spilled(),
            ends: self.ends,
        }
    }

    /// What stands for the former meta word of a new spill entry: generations
    /// start at the tick, so that a reader of recycled memory does not take one
    /// entry for another.
    #[inline(always)]
    pub(super) const fn spill_seed(&self) -> u64 {
        (self.tick as u64 & 0xff) << 16
    }

    #[inline(always)]
    pub(super) const fn cold(&self) -> Cold {
        Cold {
            syn_us: self.micros,
            syn_ack_us: 0,
            request_us: self.request_us(),
            response_us: 0,
            client_end: 0,
            client_start: self.sequence.wrapping_add(1),
            server_start: 0,
            service: self.service as u32,
            syn_repeats: 0,
            client_mac: self.client_mac,
            own_mac: self.own_mac,
            client_ifindex: self.client_ifindex,
            padding1: 0,
        }
    }

    /// A datagram is its flow's first request.
    #[inline(always)]
    pub(super) const fn request_us(&self) -> u32 {
        self.datagram as u32
    }

    #[inline(always)]
    pub(super) const fn virtual_end(&self) -> u64 {
        self.virtual_endpoint << 16 | self.backend as u64
    }

    /// In direct return no reply is matched, and the server sees the VIP: the
    /// word is empty, so that it pairs with nothing.
    #[inline(always)]
    pub(super) const fn backend_end(&self) -> u64 {
        if self.one_sided {
            0
        } else {
            self.backend_endpoint << 16 | self.pool as u64
        }
    }

    /// The endpoint that the server sees of itself: its own, which no other flow
    /// of this client may show it; in direct return the VIP, and 0 here. Also 0
    /// where the client has a port of ours: nobody else has it.
    #[inline(always)]
    pub(super) const fn shows(&self) -> u64 {
        if self.pool != 0 {
            0
        } else {
            self.backend_end() >> 16
        }
    }

    /// The meta word of this flow in a way whose last one was `before`.
    #[inline(always)]
    pub(super) const fn meta(&self, before: u64) -> u64 {
        let state = if self.datagram {
            State::Datagram
        } else {
            State::HalfOpen
        };
        let mut word = meta::successor(before, state) | meta::TENTATIVE;
        word = meta::with_hop(meta::with_tick(word, self.tick), self.hop);
        // Of datagrams in direct return no answer is ever seen.
        if self.first_response && !(self.datagram && self.one_sided) {
            word |= meta::FIRST_RESPONSE;
        }
        if self.turns {
            word |= meta::TURNS;
        }
        if self.datagram {
            word |= meta::REQUESTED;
        }
        if self.one_sided {
            word |= meta::ONE_SIDED | meta::UNASSURED;
        }
        word
    }
}
