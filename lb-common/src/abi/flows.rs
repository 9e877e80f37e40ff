//! The structs of the flow tables.

use bytemuck::{Pod, Zeroable};

/// One way of a flow table: four words, see [`crate::flow`]. In IPv6 the
/// addresses in it are tags ([`crate::hash::tag6`]); the full ones are in
/// [`Ends`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Way {
    /// Client address and port, protocol, key tag.
    pub client: u64,
    /// VIP address and port, backend index.
    pub virtual_end: u64,
    /// Tick, state, flags, generation, client-side next hop.
    pub meta: u64,
    /// Backend address and port, pool index.
    pub backend_end: u64,
}

/// Ways of a bucket.
pub const WAYS: usize = 4;

/// Two adjacent cache lines. Map `FLOWS4`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Bucket4 {
    /// The ways, in the order in which they are searched.
    pub ways: [Way; WAYS],
}

/// The full addresses of an IPv6 flow, as halves in network order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Ends {
    /// The client's.
    pub client: [u64; 2],
    /// The VIP, or whatever the client calls it.
    pub virtual_address: [u64; 2],
}

impl Ends {
    /// What IPv4 flows have: the words of their way hold everything.
    pub const NONE: Self = Self {
        client: [0; 2],
        virtual_address: [0; 2],
    };
}

/// Four adjacent cache lines, of which a hit touches three: the words of all
/// ways lie together. Map `FLOWS6`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Bucket6 {
    /// The ways, in the order in which they are searched.
    pub ways: [Way; WAYS],
    /// The addresses of each.
    pub ends: [Ends; WAYS],
}

/// What only the handshake, the first data and the end of a flow need. Same
/// index as the way. Maps `COLD4` and `COLD6`, memory-mapped, [`ColdBucket`] per bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Cold {
    /// Monotonic microseconds of the first SYN.
    pub syn_us: u64,
    /// Microseconds from the SYN to the first SYN-ACK; 0: none yet.
    pub syn_ack_us: u32,
    /// Microseconds from the SYN to the client's first data; 0: none yet.
    pub request_us: u32,
    /// Microseconds from the SYN to the server's first data after it; 0: none.
    pub response_us: u32,
    /// In direct return: sequence number after the client's last data, at its
    /// FIN or reset; before that, what its first request acknowledged.
    pub client_end: u32,
    /// Sequence number of the first byte of data, client to server.
    pub client_start: u32,
    /// The same, server to client.
    pub server_start: u32,
    /// Index into the service maps.
    pub service: u32,
    /// Repeated SYNs while unanswered.
    pub syn_repeats: u32,
    /// MAC address that the SYN came from, as a number. The way back to a
    /// client on our own segment while its neighbour entry is unresolved.
    pub client_mac: u64,
    /// MAC address that the SYN was sent to: the interface's own.
    pub own_mac: u64,
    /// Interface that the SYN came in by.
    pub client_ifindex: u32,
    /// Visible padding, zero.
    pub padding1: u32,
}

/// The cold halves of a bucket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct ColdBucket {
    /// The cold half of each way.
    pub ways: [Cold; WAYS],
}

/// Key of maps `SPILL4` and `SPILL6`: the client word of a flow, and which of its spilled
/// flows this is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct SpillKey {
    /// See [`crate::flow::client_word`].
    pub client: u64,
    /// 0..[`SPILL_SLOTS`].
    pub slot: u64,
}

/// Spilled flows that one client endpoint can have at a time.
pub const SPILL_SLOTS: u64 = 4;

/// Value of map `SPILL4`: a flow that fitted neither of its buckets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Spilled4 {
    /// The same words as in a bucket.
    pub way: Way,
    /// The same as in a cold bucket.
    pub cold: Cold,
}

/// Value of map `SPILL6`: the same over IPv6.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Spilled6 {
    /// As in [`Spilled4`].
    pub spilled: Spilled4,
    /// The flow's addresses.
    pub ends: Ends,
}
