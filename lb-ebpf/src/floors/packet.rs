//! Reading and writing packet bytes: the only file of the floors with packet
//! pointers.
//!
//! Fields stay as they are on the wire. One comparison with the frame's end
//! serves all headers: no Ethernet frame is shorter than TCP over IPv4 without
//! options, and IPv6 takes a second one.

use crate::maps::{self, ServiceKey4, ServiceKey6};
use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use lb_common::bench::{FRAME_BYTES, FRAME4, FRAME6, Peer};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Ethernet types and the mask of fragment bits (RFC 791, section 3.1), as on
/// the wire.
const IPV4: u16 = 0x0800_u16.to_be();
const IPV6: u16 = 0x86dd_u16.to_be();
const FRAGMENT: u16 = 0x3fff_u16.to_be();
/// TCP flags (RFC 9293, section 3.1).
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Ethernet, IPv4 and TCP headers, bytes.
const SHORTEST: usize = 54;
/// Ethernet, IPv6 and UDP headers; and TCP headers.
const SHORTEST_UDP6: usize = 62;
const SHORTEST_TCP6: usize = 74;

/// A flow's tuple, as on the wire; 16 or 40 bytes, a multiple of four, for
/// which the kernel's hash is fastest.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Key<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    pub protocol: u32,
}

#[inline(always)]
fn start(ctx: &XdpContext, length: usize) -> Option<*mut u8> {
    // SAFETY: the context is valid. Volatile, so that the loads stay where the
    // verifier knows them as packet pointers.
    let (start, end) = unsafe {
        (
            (&raw const (*ctx.ctx).data).read_volatile() as usize,
            (&raw const (*ctx.ctx).data_end).read_volatile() as usize,
        )
    };
    if start + length > end {
        return None;
    }
    Some(start as *mut u8)
}

/// Loads a field. BPF loads need no alignment on the machines that Steerline
/// runs on.
macro_rules! load {
    ($start:expr, $offset:expr, $type:ty) => {
        // SAFETY: whoever made the pointer proved that the frame is that long.
        unsafe { $start.add($offset).cast::<$type>().read_volatile() }
    };
}

/// Stores a field.
macro_rules! store {
    ($start:expr, $offset:expr, $type:ty, $value:expr) => {{
        let value: $type = $value;
        // SAFETY: as in `load`.
        unsafe { $start.add($offset).cast::<$type>().write_volatile(value) }
    }};
}

/// A frame of [`SHORTEST`] bytes or more.
pub(crate) struct Frame(*mut u8);

/// What is behind the Ethernet header.
pub(crate) enum Link {
    Ipv4(Frame),
    Ipv6(Frame),
}

impl Link {
    #[inline(always)]
    pub(crate) fn of(ctx: &XdpContext) -> Option<Self> {
        let start = start(ctx, SHORTEST)?;
        match load!(start, 12, u16) {
            IPV4 => Some(Self::Ipv4(Frame(start))),
            IPV6 => Some(Self::Ipv6(Frame(start))),
            _ => None,
        }
    }
}

pub(crate) fn swap_macs(ctx: &XdpContext) -> u32 {
    let Some(start) = start(ctx, 14) else {
        return xdp_action::XDP_DROP;
    };
    let (a, b) = (load!(start, 0, u32), load!(start, 4, u16));
    store!(start, 0, u32, load!(start, 6, u32));
    store!(start, 4, u16, load!(start, 10, u16));
    store!(start, 6, u32, a);
    store!(start, 10, u16, b);
    xdp_action::XDP_TX
}

/// A difference of ones'-complement sums, in words of 32 bits.
#[derive(Clone, Copy)]
pub(crate) struct Sum(u64);

impl Sum {
    #[inline(always)]
    fn word(self, old: u32, new: u32) -> Self {
        Self(self.0 + u64::from(!old) + u64::from(new))
    }
    #[inline(always)]
    fn half(self, old: u16, new: u16) -> Self {
        Self(self.0 + u64::from(!old) + u64::from(new))
    }
    /// The checksum after the change (RFC 1624, equation 3).
    #[inline(always)]
    fn apply(self, checksum: u16) -> u16 {
        let sum = self.0 + u64::from(!checksum);
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}

/// Which end is rewritten: where its address and its port are.
struct End {
    address: usize,
    port: usize,
}

/// The headers of a TCP segment or UDP datagram.
pub(crate) trait Headers {
    type Address: Copy;
    fn key(&self) -> Key<Self::Address>;
    /// Whether it may be routed once more.
    fn lives_on(&self) -> bool;
    /// IP header and everything behind it, bytes.
    fn length(&self) -> u64;
    fn is_vip(address: Self::Address) -> bool;
    /// The service that it goes to, index into `BALANCED`.
    fn service(&self) -> Option<u32>;
    /// The tuple of the server's packets.
    fn answer(&self, server: &Peer) -> Key<Self::Address>;
    fn start(&self) -> *mut u8;
    fn transport(&self) -> usize;
    fn protocol(&self) -> u8;
    fn to_server(&self, server: &Peer);
    fn to_client(&self, service: &Peer);

    /// Whether a packet of no known flow opens one.
    #[inline(always)]
    fn may_open(&self) -> bool {
        self.protocol() == UDP
            || load!(self.start(), self.transport() + 13, u8) & (SYN | ACK) == SYN
    }

    /// Writes the MAC addresses of the next hop.
    #[inline(always)]
    fn address(&self, via: &Peer) {
        let (destination, source) = (
            (&raw const via.destination).cast::<u8>(),
            (&raw const via.source).cast::<u8>(),
        );
        let start = self.start();
        store!(start, 0, u32, load!(destination, 0, u32));
        store!(start, 4, u16, load!(destination, 4, u16));
        store!(start, 6, u32, load!(source, 0, u32));
        store!(start, 10, u16, load!(source, 4, u16));
    }

    /// Writes a port, and the checksum beside it; `moved` is by how much the
    /// address changed its sum.
    #[inline(always)]
    fn translate(&self, moved: Sum, place: usize, port: u16) {
        let start = self.start();
        let sum = moved.half(load!(start, place, u16), port);
        store!(start, place, u16, port);
        if self.protocol() == TCP {
            let place = self.transport() + 16;
            store!(start, place, u16, sum.apply(load!(start, place, u16)));
        } else {
            let place = self.transport() + 6;
            let old = load!(start, place, u16);
            // Zero is no checksum (RFC 768).
            if old != 0 {
                let new = sum.apply(old);
                store!(start, place, u16, if new == 0 { 0xffff } else { new });
            }
        }
    }
}

/// Over IPv4.
pub(crate) struct V4 {
    start: *mut u8,
    protocol: u8,
}

const TRANSPORT4: usize = 34;
const SOURCE4: End = End {
    address: 26,
    port: TRANSPORT4,
};
const DESTINATION4: End = End {
    address: 30,
    port: TRANSPORT4 + 2,
};

impl V4 {
    #[inline(always)]
    pub(crate) fn of(Frame(start): Frame) -> Option<Self> {
        let protocol = load!(start, 23, u8);
        let plain = load!(start, 14, u8) == 0x45 && load!(start, 20, u16) & FRAGMENT == 0;
        let ours = protocol == TCP || protocol == UDP;
        (plain && ours).then_some(Self { start, protocol })
    }

    #[inline(always)]
    fn rewrite(&self, end: End, peer: &Peer) {
        let start = self.start;
        let address = peer.address[0];
        let moved = Sum(0).word(load!(start, end.address, u32), address);
        store!(start, end.address, u32, address);
        // Time to live and protocol are one word of the checksum.
        let old = load!(start, 22, u16);
        let new = old - 1;
        store!(start, 22, u16, new);
        let checksum = moved.half(old, new).apply(load!(start, 24, u16));
        store!(start, 24, u16, checksum);
        self.translate(moved, end.port, peer.port);
    }
}

impl Headers for V4 {
    type Address = u32;
    #[inline(always)]
    fn key(&self) -> Key<u32> {
        Key {
            source: load!(self.start, SOURCE4.address, u32),
            destination: load!(self.start, DESTINATION4.address, u32),
            source_port: load!(self.start, SOURCE4.port, u16),
            destination_port: load!(self.start, DESTINATION4.port, u16),
            protocol: u32::from(self.protocol),
        }
    }
    #[inline(always)]
    fn lives_on(&self) -> bool {
        load!(self.start, 22, u8) > 1
    }
    #[inline(always)]
    fn length(&self) -> u64 {
        u64::from(u16::from_be(load!(self.start, 16, u16)))
    }
    #[inline(always)]
    fn is_vip(address: u32) -> bool {
        address == maps::vip4()
    }
    #[inline(always)]
    fn service(&self) -> Option<u32> {
        let key = self.key();
        maps::service4(&ServiceKey4 {
            address: key.destination,
            port: key.destination_port,
            protocol: key.protocol as u16,
        })
    }
    #[inline(always)]
    fn answer(&self, server: &Peer) -> Key<u32> {
        let key = self.key();
        Key {
            source: server.address[0],
            destination: key.source,
            source_port: server.port,
            destination_port: key.source_port,
            protocol: key.protocol,
        }
    }
    #[inline(always)]
    fn start(&self) -> *mut u8 {
        self.start
    }
    #[inline(always)]
    fn transport(&self) -> usize {
        TRANSPORT4
    }
    #[inline(always)]
    fn protocol(&self) -> u8 {
        self.protocol
    }
    #[inline(always)]
    fn to_server(&self, server: &Peer) {
        self.rewrite(DESTINATION4, server);
    }
    #[inline(always)]
    fn to_client(&self, service: &Peer) {
        self.rewrite(SOURCE4, service);
    }
}

/// Over IPv6.
pub(crate) struct V6 {
    start: *mut u8,
    protocol: u8,
}

const TRANSPORT6: usize = 54;
const SOURCE6: End = End {
    address: 22,
    port: TRANSPORT6,
};
const DESTINATION6: End = End {
    address: 38,
    port: TRANSPORT6 + 2,
};

impl V6 {
    #[inline(always)]
    pub(crate) fn of(ctx: &XdpContext, Frame(frame): Frame) -> Option<Self> {
        let protocol = load!(frame, 20, u8);
        let start = match protocol {
            TCP => start(ctx, SHORTEST_TCP6)?,
            UDP => start(ctx, SHORTEST_UDP6)?,
            _ => return None,
        };
        Some(Self { start, protocol })
    }

    #[inline(always)]
    fn words(&self, offset: usize) -> [u32; 4] {
        [
            load!(self.start, offset, u32),
            load!(self.start, offset + 4, u32),
            load!(self.start, offset + 8, u32),
            load!(self.start, offset + 12, u32),
        ]
    }

    #[inline(always)]
    fn rewrite(&self, end: End, peer: &Peer) {
        let start = self.start;
        let [a, b, c, d] = self.words(end.address);
        let [e, f, g, h] = peer.address;
        let moved = Sum(0).word(a, e).word(b, f).word(c, g).word(d, h);
        store!(start, end.address, u32, e);
        store!(start, end.address + 4, u32, f);
        store!(start, end.address + 8, u32, g);
        store!(start, end.address + 12, u32, h);
        store!(start, 21, u8, load!(start, 21, u8) - 1);
        self.translate(moved, end.port, peer.port);
    }
}

impl Headers for V6 {
    type Address = [u32; 4];
    #[inline(always)]
    fn key(&self) -> Key<[u32; 4]> {
        Key {
            source: self.words(SOURCE6.address),
            destination: self.words(DESTINATION6.address),
            source_port: load!(self.start, SOURCE6.port, u16),
            destination_port: load!(self.start, DESTINATION6.port, u16),
            protocol: u32::from(self.protocol),
        }
    }
    #[inline(always)]
    fn lives_on(&self) -> bool {
        load!(self.start, 21, u8) > 1
    }
    #[inline(always)]
    fn length(&self) -> u64 {
        40 + u64::from(u16::from_be(load!(self.start, 18, u16)))
    }
    #[inline(always)]
    fn is_vip([a, b, c, d]: [u32; 4]) -> bool {
        let [e, f, g, h] = maps::vip6();
        // The last word is the one that differs.
        d == h && c == g && b == f && a == e
    }
    #[inline(always)]
    fn service(&self) -> Option<u32> {
        let key = self.key();
        maps::service6(&ServiceKey6 {
            address: key.destination,
            port: key.destination_port,
            protocol: key.protocol as u16,
        })
    }
    #[inline(always)]
    fn answer(&self, server: &Peer) -> Key<[u32; 4]> {
        let key = self.key();
        Key {
            source: server.address,
            destination: key.source,
            source_port: server.port,
            destination_port: key.source_port,
            protocol: key.protocol,
        }
    }
    #[inline(always)]
    fn start(&self) -> *mut u8 {
        self.start
    }
    #[inline(always)]
    fn transport(&self) -> usize {
        TRANSPORT6
    }
    #[inline(always)]
    fn protocol(&self) -> u8 {
        self.protocol
    }
    #[inline(always)]
    fn to_server(&self, server: &Peer) {
        self.rewrite(DESTINATION6, server);
    }
    #[inline(always)]
    fn to_client(&self, service: &Peer) {
        self.rewrite(SOURCE6, service);
    }
}

/// Copies fields of the plan's frame, with bits of the flow's own.
macro_rules! copy {
    ($start:expr, $frame:expr, $type:ty: $($offset:literal $(| $own:expr)?),+ $(,)?) => {
        $( store!($start, $offset, $type, load!($frame, $offset, $type) $(| $own)?); )+
    };
}

/// The parts of a [`lb_common::bench::Client`]'s word.
#[inline(always)]
fn parts(client: u64) -> (u64, u64, u64) {
    (client & 0xffff_ffff, client >> 32 & 0xffff, client >> 48)
}

/// Writes a frame in stores that are as wide as any load that a program makes
/// there, and begin where it does: the processor forwards a store to a load
/// that lies within it, and stalls where it does not (Agner Fog,
/// microarchitecture, store forwarding). No real frame comes out of a store.
macro_rules! restore4 {
    ($ctx:expr, $plan:expr, $addresses:expr, $ports:expr) => {{
        let Some(start) = start($ctx, FRAME4) else {
            return false;
        };
        let frame = $plan.as_ptr();
        copy!(start, frame, u32: 0, 6);
        copy!(start, frame, u16: 4, 10, 12);
        copy!(start, frame, u32: 14, 18, 22);
        copy!(start, frame, u64: 26 | $addresses, 34 | $ports, 42);
        copy!(start, frame, u32: 50);
        true
    }};
}

#[inline(always)]
pub(crate) fn restore4_to_server(ctx: &XdpContext, plan: &[u8; FRAME_BYTES], client: u64) -> bool {
    let (address, port, _) = parts(client);
    restore4!(ctx, plan, address, port)
}

#[inline(always)]
pub(crate) fn restore4_to_client(ctx: &XdpContext, plan: &[u8; FRAME_BYTES], client: u64) -> bool {
    let (address, port, server) = parts(client);
    restore4!(ctx, plan, address << 32 | server << 24, port << 16)
}

/// As `restore4`: 64-bit halves of the addresses, then of the TCP header.
macro_rules! restore6 {
    ($ctx:expr, $plan:expr, $source:expr, $destination:expr, $ports:expr) => {{
        let Some(start) = start($ctx, FRAME6) else {
            return false;
        };
        let frame = $plan.as_ptr();
        copy!(start, frame, u32: 0, 6);
        copy!(start, frame, u16: 4, 10, 12);
        copy!(start, frame, u64: 14, 22, 30 | $source, 38, 46 | $destination);
        copy!(start, frame, u64: 54 | $ports, 62);
        copy!(start, frame, u32: 70);
        true
    }};
}

#[inline(always)]
pub(crate) fn restore6_to_server(ctx: &XdpContext, plan: &[u8; FRAME_BYTES], client: u64) -> bool {
    let (address, port, _) = parts(client);
    restore6!(ctx, plan, address << 32, 0, port)
}

#[inline(always)]
pub(crate) fn restore6_to_client(ctx: &XdpContext, plan: &[u8; FRAME_BYTES], client: u64) -> bool {
    let (address, port, server) = parts(client);
    restore6!(ctx, plan, server << 56, address << 32, port << 16)
}
