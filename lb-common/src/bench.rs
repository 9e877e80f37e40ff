//! What `cargo xtask bench packet` shares with the BPF programs that it
//! compares ours with, the floors (`lb-ebpf/src/floors`).
//!
//! Nothing of it is in the product's object or its pinned maps, so it may
//! change without raising [`crate::abi::LAYOUT_VERSION`].

use bytemuck::{Pod, Zeroable};

/// Bytes of a frame that are restored, over IPv4: the shortest of Ethernet
/// without its checksum.
pub const FRAME4: usize = 60;
/// The same over IPv6: TCP with some payload.
pub const FRAME6: usize = 80;
/// Room for either.
pub const FRAME_BYTES: usize = 96;

/// The frame that a program gets in every repeat of a test run, and whose
/// turn it is. Map `PLAN`, one entry, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Plan {
    /// The frame; what differs between flows ([`Client`]) is zero.
    pub frame: [u8; FRAME_BYTES],
    /// First of the flows that take turns, index into `CLIENTS`.
    pub first: u32,
    /// How many they are, less one; a power of two less one.
    pub mask: u32,
    /// Repeats so far.
    pub turn: u64,
}

/// What differs between the frames of flows. Map `CLIENTS`, memory-mapped, one
/// 64-bit word per flow: the program reads them in a row, and a short row
/// leaves the caches to what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The address, or the last four bytes of an IPv6 address.
    pub address: [u8; 4],
    /// The port.
    pub port: u16,
    /// Last byte of the address of the flow's server.
    pub server: u8,
}

impl Client {
    /// The word in the map: address and port as they are on the wire.
    pub const fn word(self) -> u64 {
        u32::from_ne_bytes(self.address) as u64
            | (self.port.to_be() as u64) << 32
            | (self.server as u64) << 48
    }
}

/// An end that the floors write into frames. Map `PEERS`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Peer {
    /// IPv6, or IPv4 in the first word; as on the wire.
    pub address: [u32; 4],
    /// Interface that leads there.
    pub ifindex: u32,
    /// MAC address of the next hop.
    pub destination: [u8; 6],
    /// MAC address of the interface.
    pub source: [u8; 6],
    /// Port, as on the wire.
    pub port: u16,
    /// Index into `TRAFFIC`.
    pub service: u16,
    /// Not zero: answers the client directly, nothing but MAC addresses is
    /// written.
    pub direct: u32,
}

/// Entries of `PEERS`.
pub const PEERS: u32 = 64;

/// A service of the floors: its servers are neighbours in `PEERS`. Map
/// `BALANCED`, memory-mapped; one entry per family.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Balanced {
    /// Next server, counted up without end.
    pub cursor: u64,
    /// Index of the first server.
    pub first: u32,
    /// How many.
    pub servers: u32,
    /// Index of the service itself in `PEERS`.
    pub peer: u32,
    /// Index of the way back to clients in `PEERS`.
    pub router: u32,
    /// Visible padding, zero: a cache line of its own.
    pub padding: [u64; 5],
}

const _: () = {
    assert!(size_of::<Plan>() == 112);
    assert!(size_of::<Peer>() == 40);
    assert!(size_of::<Balanced>() == 64);
};
