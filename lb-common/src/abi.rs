//! The structs that live in BPF maps: the contract between the XDP program
//! and the controller.
//!
//! Every struct is `repr(C)`, holds only fixed-size integers and byte arrays,
//! shows its padding, and has its size asserted below. Changing any of them,
//! or the meaning of a field, means raising [`LAYOUT_VERSION`]: a daemon
//! refuses to adopt pinned maps of another layout.
//!
//! Addresses are 16 bytes: IPv6, or IPv4 in its first four with the rest zero
//! ([`Address`]). Ports are host-order numbers. Inside flow-table words an
//! IPv4 endpoint is the 48-bit number made by [`endpoint4`].

use bytemuck::{Pod, Zeroable};
pub use flows::*;

/// Version of everything in this module. Recorded in [`Settings::layout`] and
/// compared before any pinned map is adopted.
pub const LAYOUT_VERSION: u32 = 4;

/// Most virtual services of one instance.
pub const MAX_SERVICES: u32 = 256;
/// Most backends over all services. A flow names its backend in 16 bits;
/// index 0 is never used, so that a zeroed word names no backend.
pub const MAX_BACKENDS: u32 = 4_096;
/// Most next hops (gateways and on-link neighbours). A flow names its client's
/// in 16 bits; index 0 means "not known, ask the kernel".
pub const MAX_HOPS: u32 = 8_192;
/// Entries of the member arena. Every service owns a region per published
/// list, two while a change is in its grace period.
pub const MEMBER_SLOTS: u32 = 32_768;
/// Eight-byte chunks of four slots in the ring arena (`pick = "shares"`).
pub const RING_CHUNKS: u32 = 262_144;
/// Slots of one smooth ring. 4,096 keep the share of the slowest backend of
/// the default threshold, 1/253 of the best's, within a tenth of itself.
pub const RING_SLOTS: u32 = 4_096;
/// Words of the hot address filter: 65,536 bits, 8 KiB, resident in L1.
pub const FILTER_WORDS: u32 = 1_024;

/// `Settings::timeouts` has an entry per [`crate::tcp::State`].
pub const STATES: usize = 16;

/// Nanoseconds are shifted right by this to make a tick: 2^28 ns = 0.268 s.
/// 24 bits of ticks wrap after 52 days, past the longest idle timeout
/// (65,535 s, the range of IOS SLB's `idle`).
pub const TICK_SHIFT: u32 = 28;
/// Ticks are compared modulo 2^24, the width they have in a flow's meta word.
pub const TICK_MASK: u32 = (1 << 24) - 1;

/// Ticks that cover at least `milliseconds`, at least one.
pub const fn ticks_from_ms(milliseconds: u64) -> u32 {
    let ticks = (milliseconds * 1_000_000).div_ceil(1 << TICK_SHIFT);
    if ticks == 0 { 1 } else { ticks as u32 }
}

/// The tick of a monotonic time in nanoseconds (`CLOCK_MONOTONIC`, or its
/// coarse form: the two differ by less than a tick).
#[inline(always)]
pub const fn tick_of(nanoseconds: u64) -> u32 {
    (nanoseconds >> TICK_SHIFT) as u32 & TICK_MASK
}

/// Ticks from `earlier` to `later`, modulo the wrap. A `later` that lies
/// before `earlier` by less than half the range counts as no time: two CPUs
/// may stamp out of order.
#[inline(always)]
pub const fn ticks_between(earlier: u32, later: u32) -> u32 {
    let difference = later.wrapping_sub(earlier) & TICK_MASK;
    if difference > TICK_MASK / 2 {
        0
    } else {
        difference
    }
}

/// How the packet path makes ticks of jiffies: reading them costs 1 ns, the
/// coarse clock 12 (measured by `cargo xtask bench packet`). Jiffies advance
/// with `CLOCK_MONOTONIC` (kernel/time/tick-sched.c), so the two never drift
/// apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jiffies {
    /// What must be added to the nanoseconds of all jiffies, modulo 2^64, to give
    /// the monotonic clock's.
    pub offset: u64,
    /// Nanoseconds of one.
    pub nanoseconds: u32,
}

impl Jiffies {
    /// Kernels are built with one of these (kernel/Kconfig.hz), timer interrupts
    /// a second.
    const FREQUENCIES: [u64; 4] = [100, 250, 300, 1_000];

    /// What two readings tell; they should lie a tenth of a second apart or
    /// more, so that a jiffy of doubt does not hide the frequency. `None` if
    /// neither clock advanced or the two contradict each other.
    pub fn from_readings(first: ClockReading, second: ClockReading) -> Option<Self> {
        let jiffies = second.jiffies.checked_sub(first.jiffies)?;
        let nanoseconds = second.nanoseconds.checked_sub(first.nanoseconds)?;
        if jiffies == 0 || nanoseconds == 0 {
            return None;
        }
        let frequency = Self::FREQUENCIES.into_iter().min_by_key(|frequency| {
            (nanoseconds * frequency / 1_000_000_000).abs_diff(jiffies) * 1_000 / frequency
        })?;
        let expected = nanoseconds * frequency / 1_000_000_000;
        let nanoseconds = 1_000_000_000 / frequency;
        (expected.abs_diff(jiffies) <= 2 + jiffies / 50).then_some(Self {
            offset: second
                .nanoseconds
                .wrapping_sub(second.jiffies.wrapping_mul(nanoseconds)),
            nanoseconds: nanoseconds as u32,
        })
    }

    /// The tick of a count of jiffies: that of the coarse monotonic clock.
    #[inline(always)]
    pub const fn tick(offset: u64, nanoseconds: u32, jiffies: u64) -> u32 {
        tick_of(
            jiffies
                .wrapping_mul(nanoseconds as u64)
                .wrapping_add(offset),
        )
    }
}

/// An IPv6 address, or an IPv4 address in the first four bytes.
pub type Address = [u8; 16];

/// An IPv4 address as an [`Address`].
pub const fn address4(octets: [u8; 4]) -> Address {
    let [a, b, c, d] = octets;
    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// An IPv6 address as an [`Address`]: its halves are numbers as the packet path
/// reads them, in network order.
#[inline(always)]
pub const fn address6(halves: [u64; 2]) -> Address {
    let [a, b, c, d, e, f, g, h] = halves[0].to_be_bytes();
    let [i, j, k, l, m, n, o, p] = halves[1].to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// The halves of an IPv6 [`Address`].
#[inline(always)]
pub const fn halves6(address: Address) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    [
        u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        u64::from_be_bytes([i, j, k, l, m, n, o, p]),
    ]
}

/// An IPv4 endpoint as a 48-bit number: address, then port. Of IPv6, see
/// [`crate::hash::endpoint6`].
#[inline(always)]
pub const fn endpoint4(address: u32, port: u16) -> u64 {
    (address as u64) << 16 | port as u64
}

/// Written once by the first daemon; later ones change what the configuration
/// gives. Map `SETTINGS`, one entry, memory-mapped. A packet reads its first 64
/// bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Settings {
    /// Keys the flow hash. Drawn once; an upgrade must find its flows.
    pub hash_secret: [u64; 2],
    /// Buckets of the IPv4 table less one; a power of two less one.
    pub bucket_mask4: u32,
    /// The same of the IPv6 table.
    pub bucket_mask6: u32,
    /// [`LAYOUT_VERSION`] of the writer. Zero: not initialised, drop nothing.
    pub layout: u32,
    /// Non-zero while any backend holds a trial credit.
    pub trials: u32,
    /// See [`Jiffies::offset`].
    pub jiffies_offset: u64,
    /// See [`Jiffies::nanoseconds`].
    pub jiffy_nanoseconds: u32,
    /// Tick of the daemon's last sign of life.
    pub heartbeat: u32,
    /// Ticks after `heartbeat` past which budgets of a dead daemon (failure
    /// holds, trials) are ignored by the packet path.
    pub heartbeat_expiry: u32,
    /// Live IPv4 flows guaranteed, as configured.
    pub flow_capacity4: u32,
    /// The same of IPv6 flows.
    pub flow_capacity6: u32,
    /// Addresses of the pool for `full-nat`: in the lower half those of IPv4,
    /// which begin at index 1 of map `POOLS`, in the upper those of IPv6, which
    /// follow.
    pub pools: u32,
    /// Ticks without a packet after which a flow in that state is over,
    /// indexed by [`crate::tcp::State`].
    pub timeouts: [u32; STATES],
    /// Drawn with the secret; tells state files of this instance from others.
    pub instance: u64,
    /// A reading of the kernel's clocks, by the program that a daemon runs to
    /// find [`Jiffies`].
    pub reading: ClockReading,
}

/// The kernel's two coarse clocks at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ClockReading {
    /// `bpf_jiffies64`.
    pub jiffies: u64,
    /// `bpf_ktime_get_coarse_ns`.
    pub nanoseconds: u64,
}

/// Key of map `SERVICES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
pub struct ServiceKey {
    /// The virtual address.
    pub address: Address,
    /// 0: every port that no more exact key names.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
}

/// Indices of map `PROGRAMS`: programs that others jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// Opens IPv4 flows.
    New4 = 0,
    /// Begins with an IPv6 packet.
    Ipv6 = 1,
    /// Opens IPv6 flows.
    New6 = 2,
    /// Answers IPv4 packets.
    Answer4 = 3,
    /// Answers IPv6 packets.
    Answer6 = 4,
    /// Begins with an ICMP message.
    Icmp4 = 5,
    /// Begins with an ICMPv6 message.
    Icmp6 = 6,
    /// Begins with an IPv4 fragment.
    Fragment4 = 7,
    /// Begins with an IPv6 fragment.
    Fragment6 = 8,
}

impl Jump {
    /// Every one, with the name of its program.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::New4, "steerline_new4"),
        (Self::Ipv6, "steerline_ipv6"),
        (Self::New6, "steerline_new6"),
        (Self::Answer4, "steerline_answer4"),
        (Self::Answer6, "steerline_answer6"),
        (Self::Icmp4, "steerline_icmp4"),
        (Self::Icmp6, "steerline_icmp6"),
        (Self::Fragment4, "steerline_fragment4"),
        (Self::Fragment6, "steerline_fragment6"),
    ];
}

/// How a service chooses a backend, [`Service::algorithm`].
pub mod algorithm {
    /// `weighted-round-robin`: runs in configuration order.
    pub const WEIGHTED_ROUND_ROBIN: u8 = 1;
    /// `aca` with `pick = "connections"`: lowest (live+1) × relative ÷ weight.
    pub const ACA_CONNECTIONS: u8 = 2;
    /// `aca` with `pick = "shares"`: a smooth ring from 1/(load − 1).
    pub const ACA_SHARES: u8 = 3;
    /// `weighted-least-connections`: lowest live ÷ weight.
    pub const WEIGHTED_LEAST_CONNECTIONS: u8 = 4;
}

/// How a service's packets reach its backends, [`Service::forwarding`].
pub mod forwarding {
    /// Destination rewritten; replies come back through us.
    pub const NAT: u8 = 1;
    /// MAC address rewritten; the server answers the client directly.
    pub const DSR: u8 = 2;
    /// As direct return, in an IP packet of its own to the server (RFC 2003,
    /// RFC 2473, RFC 4213).
    pub const IPIP: u8 = 3;
    /// The same in UDP with a header that says what follows (Generic UDP
    /// Encapsulation, variant 0: draft-ietf-intarea-gue).
    pub const GUE: u8 = 4;
    /// Destination rewritten, and the client's endpoint to one of our own.
    pub const FULL_NAT: u8 = 5;
    /// As direct return, to a cache that answers in the destination's place.
    pub const TRANSPARENT: u8 = 6;

    /// Whether servers answer clients directly: only the client's packets are
    /// seen.
    #[inline(always)]
    pub const fn is_one_sided(forwarding: u8) -> bool {
        matches!(forwarding, DSR | IPIP | GUE | TRANSPARENT)
    }
}

/// What a service measures on each flow, [`Service::measure`].
pub mod measure {
    /// SYN to the server's FIN (or the flow's end without one).
    pub const SYN_TO_FIN: u8 = 1;
    /// SYN to SYN-ACK.
    pub const SYN_TO_SYN_ACK: u8 = 2;
    /// First client data to first server data.
    pub const FIRST_RESPONSE: u8 = 3;
    /// Client data to the server's data after it, at every turn.
    pub const REQUEST_TO_RESPONSE: u8 = 4;
}

/// A virtual service. Map `SERVICE_TABLE`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Service {
    /// Published member list, made by [`descriptor`]; 0: no members.
    pub members: u64,
    /// Published ring of `pick = "shares"`; 0: none.
    pub ring: u64,
    /// The virtual address.
    pub address: Address,
    /// The virtual port; 0: every port that no other service names.
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    /// See [`algorithm`].
    pub algorithm: u8,
    /// See [`measure`].
    pub measure: u8,
    /// See [`forwarding`].
    pub forwarding: u8,
    /// Unanswered SYNs after which a flow's next one goes to another backend; 0:
    /// never.
    pub reassign: u8,
    /// Bytes in both directions from which a flow is "long".
    pub short_flow_bytes: u32,
    /// Visible padding, zero.
    pub padding1: u32,
    /// Visible padding, zero.
    pub padding2: [u64; 2],
}

/// The part of a service that every new flow writes, on its own cache line.
/// Map `CURSORS`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Cursor {
    /// Next slot of the member list, counted up without end.
    pub members: u64,
    /// Next slot of the ring, counted up without end.
    pub ring: u64,
    /// Visible padding, zero.
    pub padding: [u64; 6],
}

/// One run of a member list: the backend and the sum of weights up to and
/// including it. Map `MEMBERS`, memory-mapped.
///
/// A published region of length n has n + 1 entries: the first is a header,
/// the cursor's value that counts as slot 0 of this list ([`Member::base`]), so
/// that it is published by the same store as the list itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Member {
    /// Sum of the weights of this and all earlier members of the list.
    pub prefix: u32,
    /// Index into the backend maps.
    pub backend: u16,
    /// Visible padding, zero. In a header, bits 48 to 64 of the cursor's value.
    pub padding: u16,
}

impl Member {
    /// The header entry of a list whose slot 0 is cursor value `cursor`.
    pub const fn header(cursor: u64) -> Self {
        Self {
            prefix: cursor as u32,
            backend: (cursor >> 32) as u16,
            padding: (cursor >> 48) as u16,
        }
    }

    /// The cursor value that a header entry holds.
    #[inline(always)]
    pub const fn base(self) -> u64 {
        self.prefix as u64 | (self.backend as u64) << 32 | (self.padding as u64) << 48
    }
}

/// Packs a region of an arena into the one word by which it is published.
/// `sequence` differs between consecutive lists, so that a reader can tell.
pub const fn descriptor(offset: u32, length: u16, sequence: u16) -> u64 {
    (sequence as u64) << 48 | (length as u64) << 32 | offset as u64
}

/// Offset and length of a [`descriptor`].
#[inline(always)]
pub const fn region(descriptor: u64) -> (u32, u32) {
    (descriptor as u32, (descriptor >> 32) as u32 & 0xffff)
}

/// Bits of [`Backend::flags`].
pub mod backend_flags {
    /// The index is in use; its flows are forwarded.
    pub const PRESENT: u32 = 1;
    /// May take new flows (together with a weight above 0).
    pub const UP: u32 = 2;
    /// No longer configured: its datagrams go to another backend at once, its
    /// TCP flows go on.
    pub const REMOVED: u32 = 4;
    /// Connections that the controller ends are answered with resets
    /// (`drain_reset`); the packet path finds it at each flow
    /// ([`crate::flow::meta::REFUSED`]).
    pub const RESET_FLOWS: u32 = 8;
}

/// What the packet path knows of a backend. Map `BACKENDS`, memory-mapped;
/// written by the controller alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Backend {
    /// See [`backend_flags`]. Obeyed on the next packet.
    pub flags: u32,
    /// Effective weight, 0..=65535; 0 takes no new flow.
    pub weight: u32,
    /// Measured response relative to the service's best: 256 = best or
    /// unknown, at most 65,535.
    pub relative: u32,
    /// Index into `HOPS` of the way to this backend; 0: unresolved.
    pub hop: u32,
    /// Where the server listens.
    pub address: Address,
    /// The server's port.
    pub port: u16,
    /// Index into the service maps.
    pub service: u16,
    /// See [`forwarding`]; the service's, at hand without it.
    pub forwarding: u8,
    /// 4 or 6, of the server's address: in tunnels not always the service's.
    pub family: u8,
    /// UDP port of the server's end of the tunnel ([`forwarding::GUE`]).
    pub tunnel_port: u16,
    /// Our end of the tunnel.
    pub tunnel_source: Address,
    /// So many low bits of `tunnel_source` are chosen by the flow, at most 16:
    /// receivers spread packets over their queues by addresses.
    pub tunnel_spread: u32,
    /// 1: `tunnel_source` is configured; 0: it is what the kernel's route to the
    /// server prefers. The packet path does not look.
    pub tunnel_source_fixed: u32,
}

/// `Backend::relative` of a backend that is the best, or of which nothing is
/// known.
pub const RELATIVE_ONE: u32 = 256;

/// Most addresses of the pool for `full-nat`; index 0 of map `POOLS` is none.
pub const MAX_POOLS: u32 = 64;
/// Ports below are never given to flows: the well-known ones (RFC 6335).
pub const FIRST_POOL_PORT: u16 = 1_024;
/// In map `SERVICES`, the protocol of keys that lead from an address of the pool
/// to its index (255 is reserved by IANA: no packet has it).
pub const POOL_PROTOCOL: u8 = 255;
/// Cells of map `POOL_PORTS` for one address: two protocols.
pub const POOL_CELLS: u32 = 2 << 16;

/// Index of a port's cell in map `POOL_PORTS`. `pool` from 1.
#[inline(always)]
pub const fn pool_cell(pool: u32, is_udp: bool, port: u16) -> u32 {
    (pool.wrapping_sub(1) * 2 + is_udp as u32) << 16 | port as u32
}

/// An address of our own that stands for clients ([`forwarding::FULL_NAT`]).
/// Map `POOLS`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct PoolAddress {
    /// The address.
    pub address: Address,
    /// Next port to try, counted up without end.
    pub turn: u64,
    /// Visible padding, zero.
    pub padding: [u64; 5],
}

/// Monotonic counts of one backend, shared by all CPUs, one cache line. Map
/// `LIVE`, memory-mapped.
///
/// `active = opened − closed` and `half-open = half_opened − half_closed`:
/// nobody ever stores a count taken from a moving table.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Live {
    /// Flows entered into the table by a client's SYN.
    pub half_opened: u64,
    /// Flows that left the handshake, completed or not.
    pub half_closed: u64,
    /// Flows past the handshake.
    pub opened: u64,
    /// Flows past the handshake that ended.
    pub closed: u64,
    /// Server resets counted as failures.
    pub resets: u64,
    /// SYN timeouts, counted by the controller's sweep.
    pub syn_timeouts: u64,
    /// Failures whose penalty time has passed; written by the controller.
    pub forgiven: u64,
    /// 1: takes the next new flow whatever its metric says (a trial).
    pub trial: u64,
}

/// Sums over the flows of one size class that ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct ClassSums {
    /// Ended flows that carry a measurement.
    pub count: u64,
    /// Sum of their measurements, microseconds.
    pub total_us: u64,
    /// Failed flows (server resets); no time of theirs is in `total_us`.
    pub failures: u64,
}

/// Buckets of [`Report::histogram`].
pub const HISTOGRAM_BUCKETS: usize = 32;

/// The teardown report of one backend on one CPU: monotonic sums, read and
/// differenced by the controller. Map `REPORTS`, per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Report {
    /// Flows below `short_flow_bytes`.
    pub short: ClassSums,
    /// Flows of `short_flow_bytes` and more.
    pub long: ClassSums,
    /// Measurements by floor(log2(microseconds)); the last bucket holds all
    /// longer ones too.
    pub histogram: [u64; HISTOGRAM_BUCKETS],
}

/// Traffic of one service on one CPU. Map `TRAFFIC`, per CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Traffic {
    /// Packets forwarded, both directions.
    pub packets: u64,
    /// Bytes of those packets from the IP header on.
    pub bytes: u64,
}

/// Bits of [`Hop::flags`].
pub mod hop_flags {
    /// The MAC addresses and interface may be used.
    pub const VALID: u32 = 1;
}

/// A resolved next hop. Map `HOPS`, memory-mapped; written by the controller.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct Hop {
    /// See [`hop_flags`].
    pub flags: u32,
    /// Interface the frame leaves by.
    pub ifindex: u32,
    /// MAC address of the next hop.
    pub destination: [u8; 6],
    /// MAC address of the interface.
    pub source: [u8; 6],
    /// MTU of the interface, bytes of IP packet; 0: not known, no limit.
    pub mtu: u32,
    /// Visible padding, zero.
    pub padding: u64,
}

/// Key of map `HOP_INDEX` (value: `u32` index into `HOPS`), and the record of
/// the `WANTED` ring: a next hop that the packet path met and has no index of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
pub struct HopKey {
    /// The next hop's address.
    pub address: Address,
    /// Interface through which it is reached.
    pub ifindex: u32,
    /// 4 or 6.
    pub family: u32,
}

/// Longest service or backend name, bytes.
pub const NAME_BYTES: usize = 64;

/// Who has a service or backend index: what `stats` and `flows` print when no
/// daemon runs, and by what a new daemon finds its indices again. Maps
/// `SERVICE_NAMES` and `BACKEND_NAMES`, memory-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Name {
    /// UTF-8, zero-padded. All zero: the index is free.
    pub name: [u8; NAME_BYTES],
    /// See [`name_state`].
    pub state: u32,
    /// Visible padding, zero.
    pub padding: u32,
}

/// Values of [`Name::state`].
pub mod name_state {
    /// The index was never used, or a full sweep found no flow holding it.
    pub const FREE: u32 = 0;
    /// Configured.
    pub const IN_USE: u32 = 1;
    /// No longer configured; flows may still hold it.
    pub const RETIRED: u32 = 2;
}

mod feedback;
mod flows;
pub use feedback::{Budget, Failure, SynGuard, budget_flags, failure_kind};
mod sizes;
#[cfg(feature = "user")]
mod user;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jiffies_give_the_ticks_of_the_monotonic_clock() {
        let reading = |jiffies, nanoseconds| ClockReading {
            jiffies,
            nanoseconds,
        };
        // Jiffies begin five minutes before they pass 2^32 (INITIAL_JIFFIES).
        for frequency in [100u64, 250, 300, 1_000] {
            let length = 1_000_000_000 / frequency;
            let begin = (1u64 << 32) - 300 * frequency;
            let at = |count: u64| reading(begin + count, 7_000_123 + count * length);
            for doubt in [0, 1] {
                let mut second = at(50 + 12 * frequency / 100 + doubt);
                second.nanoseconds -= doubt * length;
                let jiffies = Jiffies::from_readings(at(50), second).unwrap();
                assert_eq!(
                    u64::from(jiffies.nanoseconds),
                    length,
                    "{frequency} {doubt}"
                );
                if doubt == 0 {
                    for count in [0, 51, 1_000_000, 10_000_000_000] {
                        let now = at(count);
                        assert_eq!(
                            Jiffies::tick(jiffies.offset, jiffies.nanoseconds, now.jiffies),
                            tick_of(now.nanoseconds),
                            "{frequency} {count}"
                        );
                    }
                }
            }
        }
        let first = reading(10, 1_000_000_000);
        for (second, why) in [
            (reading(10, 1_120_000_000), "no jiffy"),
            (reading(40, 1_000_000_000), "no time"),
            (reading(9, 1_120_000_000), "backwards"),
            (reading(5_000, 1_120_000_000), "41 kHz"),
        ] {
            assert_eq!(Jiffies::from_readings(first, second), None, "{why}");
        }
    }
}
