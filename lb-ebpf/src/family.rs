//! What differs between IPv4 and IPv6: everything else in this crate is written
//! once.

use crate::{
    maps::{Flows4, Flows6},
    packet::{self, Fresh, Ip, Translation, V4, V6},
};
use aya_ebpf::{bindings::bpf_fib_lookup as FibLookup, programs::XdpContext};
use lb_common::{
    abi::{self, Backend, Ends, Jump, Settings, address4, address6, endpoint4, halves6},
    checksum::{Delta, Sum},
    flow::{Found, Table, Tuple},
    hash::{self, endpoint6, filter_bit4, filter_bit6},
    reason::Reason,
};

/// A family of IP. The types that implement it have no values that matter.
pub(crate) trait Family: Copy {
    /// As packets have it.
    type Address: Copy;
    /// Its flow table.
    type Flows: Table;

    /// 4 or 6.
    const NUMBER: u8;
    /// `AF_INET` or `AF_INET6`.
    const SOCKETS: u8;
    /// The protocol number of its control messages.
    const ICMP: u8;
    const ECHO_REQUEST: u8;
    const ECHO_REPLY: u8;
    /// Bytes of its header without options or extension headers.
    const HEADER: u32;
    /// The program that answers packets.
    const ANSWER: Jump;
    /// The program for its control messages.
    const CONTROL: Jump;
    /// The program for fragments.
    const FRAGMENT: Jump;
    /// Seconds in which the fragments of a packet must have come.
    const REASSEMBLY: u64;
    /// Whether the protocol of a packet is in every one of its fragments.
    const TELLS_PROTOCOL: bool;
    /// Where the addresses are in its header.
    const SOURCE_AT: usize;
    const DESTINATION_AT: usize;
    /// Type and code of the errors that we send.
    const TIME_EXCEEDED: (u8, u8);
    const TOO_BIG: (u8, u8);
    /// Most bytes of a packet that an error about it quotes.
    const MOST_QUOTED: u32;
    /// What every link takes: smaller ones are not told.
    const LEAST_MTU: u32;
    /// Whether the checksum of its control messages covers a pseudo header.
    const ICMP_PSEUDO: bool;

    /// Reads the header at an offset of the frame.
    fn parse(ctx: &XdpContext, offset: u32) -> Result<Ip<Self>, Reason>;
    /// Writes a translation's address, time to live and header checksum.
    fn write(
        ctx: &XdpContext,
        ip: &Ip<Self>,
        translation: &Translation<Self>,
    ) -> Result<(), Reason>;
    /// Exchanges the addresses, with a fresh time to live.
    fn answer(ctx: &XdpContext, ip: &Ip<Self>, ttl: u8) -> Result<(), Reason>;
    /// Writes an address at a place of the frame.
    fn put_address(ctx: &XdpContext, place: usize, address: Self::Address) -> Result<(), Reason>;
    /// The identification of a fragment.
    fn identification(ctx: &XdpContext, ip: &Ip<Self>) -> Result<u32, Reason>;
    /// Whether a segment or datagram may be behind a header with that number.
    fn hides(protocol: u8) -> bool;
    /// Whether two addresses are one.
    fn is_same(one: Self::Address, other: Self::Address) -> bool;
    /// Whether a type of control message tells a sender of an error about its
    /// packet that concerns it.
    fn is_error(kind: u8) -> bool;
    /// Whether such an error says that a host or port cannot be reached.
    fn is_unreachable(kind: u8, code: u8) -> bool;
    /// Writes a header of our own at an offset of the frame.
    fn compose(ctx: &XdpContext, offset: u32, fresh: &Fresh<Self>) -> Result<(), Reason>;

    fn flows(settings: &'static Settings) -> Self::Flows;
    /// Buckets of the table less one.
    fn bucket_mask(settings: &Settings) -> u32;
    /// The 48-bit number of an endpoint.
    fn endpoint(address: Self::Address, port: u16, settings: &Settings) -> u64;
    /// The addresses that a flow keeps besides its words.
    fn ends(client: Self::Address, virtual_address: Self::Address) -> Ends;
    /// Position in the hot filter.
    fn filter_bit(address: Self::Address) -> u32;
    /// The address as maps have it.
    fn key(address: Self::Address) -> abi::Address;
    /// The reverse.
    fn address(key: abi::Address) -> Self::Address;
    /// What a change of address does to a checksum over it.
    fn moved(delta: Delta, old: Self::Address, new: Self::Address) -> Delta;
    /// Whether an address can be that of a host that hears an answer.
    fn is_host(address: Self::Address) -> bool;
    /// Adds an address to a sum.
    fn add(sum: Sum, address: Self::Address) -> Sum;
    /// Whether the header has a checksum of its own.
    const HEADER_CHECKSUM: bool;
    /// The VIP of a flow.
    fn virtual_address(found: &Found) -> Self::Address;
    /// The server's address of a flow whose backend this is.
    fn server_address(backend: &Backend, endpoint: u64) -> Self::Address;
    /// The client of a flow.
    fn client_address(found: &Found) -> Self::Address;
    /// Addresses of the pool: index of the first, and how many.
    fn pools(settings: &Settings) -> (u32, u32);
    /// Whether a backend, whose endpoint number is the packet's, has this address.
    fn is_address_of(backend: &Backend, address: Self::Address) -> bool;
    /// Asks about a way from one address to another.
    fn ask(fib: &mut FibLookup, source: Self::Address, destination: Self::Address, tos: u8);
    /// The next hop in the answer.
    fn answered(fib: &FibLookup) -> abi::Address;

    /// The tuple of a packet, by the endpoint of its client and the other one.
    #[inline(always)]
    fn tuple(client: u64, endpoint: u64, ends: Ends) -> Tuple {
        Tuple {
            client,
            endpoint,
            ends,
        }
    }

    /// The buckets of a client word.
    #[inline(always)]
    fn home(client: u64, settings: &Settings) -> hash::Home {
        hash::home(client, settings.hash_secret, Self::bucket_mask(settings))
    }
}

impl Family for V4 {
    type Address = u32;
    type Flows = Flows4;

    const NUMBER: u8 = 4;
    const SOCKETS: u8 = 2;
    const ICMP: u8 = packet::ICMP;
    const ECHO_REQUEST: u8 = 8;
    const ECHO_REPLY: u8 = 0;
    const HEADER: u32 = 20;
    const ANSWER: Jump = Jump::Answer4;
    const CONTROL: Jump = Jump::Icmp4;
    const FRAGMENT: Jump = Jump::Fragment4;
    /// RFC 1122, section 3.3.2, wants 60 to 120; Linux waits half a minute
    /// (`net.ipv4.ipfrag_time`), and identifications of 16 bits come again.
    const REASSEMBLY: u64 = 30;
    const TELLS_PROTOCOL: bool = true;
    const SOURCE_AT: usize = 12;
    const DESTINATION_AT: usize = 16;
    const TIME_EXCEEDED: (u8, u8) = (11, 0);
    const TOO_BIG: (u8, u8) = (3, 4);
    /// A datagram of 576 bytes (RFC 1812, section 4.3.2.3).
    const MOST_QUOTED: u32 = 576 - 20 - 8;
    /// RFC 791, section 3.2.
    const LEAST_MTU: u32 = 68;
    const ICMP_PSEUDO: bool = false;
    const HEADER_CHECKSUM: bool = true;

    #[inline(always)]
    fn parse(ctx: &XdpContext, offset: u32) -> Result<Ip<V4>, Reason> {
        packet::parse4(ctx, offset)
    }
    #[inline(always)]
    fn write(ctx: &XdpContext, ip: &Ip<V4>, new: &Translation<V4>) -> Result<(), Reason> {
        packet::write4(ctx, ip, new)
    }
    #[inline(always)]
    fn answer(ctx: &XdpContext, ip: &Ip<V4>, ttl: u8) -> Result<(), Reason> {
        packet::answer4(ctx, ip, ttl)
    }
    #[inline(always)]
    fn compose(ctx: &XdpContext, offset: u32, fresh: &Fresh<V4>) -> Result<(), Reason> {
        packet::compose4(ctx, offset, fresh)
    }
    #[inline(always)]
    fn put_address(ctx: &XdpContext, place: usize, address: u32) -> Result<(), Reason> {
        packet::put_address4(ctx, place, address)
    }
    #[inline(always)]
    fn identification(ctx: &XdpContext, ip: &Ip<V4>) -> Result<u32, Reason> {
        packet::identification4(ctx, ip)
    }
    #[inline(always)]
    fn hides(_: u8) -> bool {
        false
    }
    #[inline(always)]
    fn is_same(one: u32, other: u32) -> bool {
        one == other
    }
    /// Unreachable, time exceeded, parameter problem. Source quench is ignored
    /// (RFC 6633), a redirect tells of a way and not of a packet.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 11 | 12)
    }
    /// All but "fragmentation needed" (4).
    #[inline(always)]
    fn is_unreachable(kind: u8, code: u8) -> bool {
        kind == 3 && code != 4
    }
    #[inline(always)]
    fn flows(settings: &'static Settings) -> Flows4 {
        Flows4::new(settings)
    }
    #[inline(always)]
    fn bucket_mask(settings: &Settings) -> u32 {
        settings.bucket_mask4
    }
    #[inline(always)]
    fn endpoint(address: u32, port: u16, _: &Settings) -> u64 {
        endpoint4(address, port)
    }
    #[inline(always)]
    fn ends(_: u32, _: u32) -> Ends {
        Ends::NONE
    }
    #[inline(always)]
    fn filter_bit(address: u32) -> u32 {
        filter_bit4(address)
    }
    #[inline(always)]
    fn key(address: u32) -> abi::Address {
        address4(address.to_be_bytes())
    }
    #[inline(always)]
    fn address(key: abi::Address) -> u32 {
        let [a, b, c, d, ..] = key;
        u32::from_be_bytes([a, b, c, d])
    }
    #[inline(always)]
    fn moved(delta: Delta, old: u32, new: u32) -> Delta {
        delta.double(old, new)
    }
    #[inline(always)]
    fn is_host(address: u32) -> bool {
        // Neither "this network", nor loopback, nor groups and beyond.
        let first = address >> 24;
        first != 0 && first != 127 && first < 224
    }
    #[inline(always)]
    fn add(sum: Sum, address: u32) -> Sum {
        sum.double(address)
    }
    #[inline(always)]
    fn virtual_address(found: &Found) -> u32 {
        (found.virtual_endpoint() >> 16) as u32
    }
    #[inline(always)]
    fn client_address(found: &Found) -> u32 {
        (found.client_endpoint() >> 16) as u32
    }
    #[inline(always)]
    fn pools(settings: &Settings) -> (u32, u32) {
        (1, settings.pools & 0xffff)
    }
    #[inline(always)]
    fn server_address(_: &Backend, endpoint: u64) -> u32 {
        (endpoint >> 16) as u32
    }
    #[inline(always)]
    fn is_address_of(_: &Backend, _: u32) -> bool {
        // The number holds all of it.
        true
    }
    #[inline(always)]
    fn ask(fib: &mut FibLookup, source: u32, destination: u32, tos: u8) {
        fib.__bindgen_anon_2.tos = tos;
        fib.__bindgen_anon_3.ipv4_src = source.to_be();
        fib.__bindgen_anon_4.ipv4_dst = destination.to_be();
    }
    #[inline(always)]
    fn answered(fib: &FibLookup) -> abi::Address {
        // SAFETY: every bit pattern is an address.
        address4(unsafe { fib.__bindgen_anon_4.ipv4_dst }.to_ne_bytes())
    }
}

/// The halves of an address as the four words that a route look-up takes.
#[inline(always)]
fn words(halves: [u64; 2]) -> [u32; 4] {
    [
        ((halves[0] >> 32) as u32).to_be(),
        (halves[0] as u32).to_be(),
        ((halves[1] >> 32) as u32).to_be(),
        (halves[1] as u32).to_be(),
    ]
}

impl Family for V6 {
    type Address = [u64; 2];
    type Flows = Flows6;

    const NUMBER: u8 = 6;
    const SOCKETS: u8 = 10;
    const ICMP: u8 = packet::ICMPV6;
    /// RFC 4443, section 4.
    const ECHO_REQUEST: u8 = 128;
    const ECHO_REPLY: u8 = 129;
    const HEADER: u32 = 40;
    const ANSWER: Jump = Jump::Answer6;
    const CONTROL: Jump = Jump::Icmp6;
    const FRAGMENT: Jump = Jump::Fragment6;
    /// RFC 8200, section 4.5.
    const REASSEMBLY: u64 = 60;
    const TELLS_PROTOCOL: bool = false;
    const SOURCE_AT: usize = 8;
    const DESTINATION_AT: usize = 24;
    /// RFC 4443, sections 3.3 and 3.2.
    const TIME_EXCEEDED: (u8, u8) = (3, 0);
    const TOO_BIG: (u8, u8) = (2, 0);
    /// The least MTU (RFC 4443, section 2.4).
    const MOST_QUOTED: u32 = 1_280 - 40 - 8;
    /// RFC 8200, section 5.
    const LEAST_MTU: u32 = 1_280;
    const ICMP_PSEUDO: bool = true;
    const HEADER_CHECKSUM: bool = false;

    #[inline(always)]
    fn parse(ctx: &XdpContext, offset: u32) -> Result<Ip<V6>, Reason> {
        packet::parse6(ctx, offset)
    }
    #[inline(always)]
    fn write(ctx: &XdpContext, ip: &Ip<V6>, new: &Translation<V6>) -> Result<(), Reason> {
        packet::write6(ctx, ip, new)
    }
    #[inline(always)]
    fn answer(ctx: &XdpContext, ip: &Ip<V6>, ttl: u8) -> Result<(), Reason> {
        packet::answer6(ctx, ip, ttl)
    }
    #[inline(always)]
    fn compose(ctx: &XdpContext, offset: u32, fresh: &Fresh<V6>) -> Result<(), Reason> {
        packet::compose6(ctx, offset, fresh)
    }
    #[inline(always)]
    fn put_address(ctx: &XdpContext, place: usize, address: [u64; 2]) -> Result<(), Reason> {
        packet::put_address6(ctx, place, address)
    }
    #[inline(always)]
    fn identification(ctx: &XdpContext, ip: &Ip<V6>) -> Result<u32, Reason> {
        packet::identification6(ctx, ip)
    }
    #[inline(always)]
    fn hides(protocol: u8) -> bool {
        packet::is_extension(protocol)
    }
    #[inline(always)]
    fn is_same(one: [u64; 2], other: [u64; 2]) -> bool {
        one[0] == other[0] && one[1] == other[1]
    }
    /// Unreachable, too big, time exceeded, parameter problem: all that RFC 4443
    /// defines.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 1..=4)
    }
    #[inline(always)]
    fn is_unreachable(kind: u8, _: u8) -> bool {
        kind == 1
    }
    #[inline(always)]
    fn flows(settings: &'static Settings) -> Flows6 {
        Flows6::new(settings)
    }
    #[inline(always)]
    fn bucket_mask(settings: &Settings) -> u32 {
        settings.bucket_mask6
    }
    #[inline(always)]
    fn endpoint(address: [u64; 2], port: u16, settings: &Settings) -> u64 {
        endpoint6(address, port, settings.hash_secret)
    }
    #[inline(always)]
    fn ends(client: [u64; 2], virtual_address: [u64; 2]) -> Ends {
        Ends {
            client,
            virtual_address,
        }
    }
    #[inline(always)]
    fn filter_bit(address: [u64; 2]) -> u32 {
        filter_bit6(address)
    }
    #[inline(always)]
    fn key(address: [u64; 2]) -> abi::Address {
        address6(address)
    }
    #[inline(always)]
    fn address(key: abi::Address) -> [u64; 2] {
        halves6(key)
    }
    #[inline(always)]
    fn moved(delta: Delta, old: [u64; 2], new: [u64; 2]) -> Delta {
        delta.quad(old[0], new[0]).quad(old[1], new[1])
    }
    #[inline(always)]
    fn is_host(address: [u64; 2]) -> bool {
        // Neither unspecified, nor loopback, nor a group.
        (address[0] != 0 || address[1] > 1) && address[0] >> 56 != 0xff
    }
    #[inline(always)]
    fn add(sum: Sum, address: [u64; 2]) -> Sum {
        sum.quad(address[0]).quad(address[1])
    }
    #[inline(always)]
    fn virtual_address(found: &Found) -> [u64; 2] {
        found.ends.virtual_address
    }
    #[inline(always)]
    fn client_address(found: &Found) -> [u64; 2] {
        found.ends.client
    }
    #[inline(always)]
    fn pools(settings: &Settings) -> (u32, u32) {
        ((settings.pools & 0xffff) + 1, settings.pools >> 16)
    }
    #[inline(always)]
    fn server_address(backend: &Backend, _: u64) -> [u64; 2] {
        halves6(backend.address)
    }
    #[inline(always)]
    fn is_address_of(backend: &Backend, address: [u64; 2]) -> bool {
        let own = halves6(backend.address);
        own[0] == address[0] && own[1] == address[1]
    }
    #[inline(always)]
    fn ask(fib: &mut FibLookup, source: [u64; 2], destination: [u64; 2], tos: u8) {
        fib.__bindgen_anon_2.flowinfo = ((tos as u32) << 20).to_be();
        fib.__bindgen_anon_3.ipv6_src = words(source);
        fib.__bindgen_anon_4.ipv6_dst = words(destination);
    }
    #[inline(always)]
    fn answered(fib: &FibLookup) -> abi::Address {
        // SAFETY: every bit pattern is an address.
        let [a, b, c, d] = unsafe { fib.__bindgen_anon_4.ipv6_dst }.map(u32::from_be);
        address6([(a as u64) << 32 | b as u64, (c as u64) << 32 | d as u64])
    }
}
