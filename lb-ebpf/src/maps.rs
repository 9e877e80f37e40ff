//! Every BPF map of the program, and typed access to them.
//!
//! Arrays marked [`MMAPABLE`] are written by the controller in place. Sizes
//! that depend on the configuration are set by the loader.

use aya_ebpf::{
    bindings::bpf_fib_lookup as FibLookup,
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, RingBuf},
    helpers::generated::bpf_loop,
    macros::btf_map,
    programs::XdpContext,
};
use core::{arch::asm, cell::Cell, ffi::c_void};
use lb_common::{
    abi::{
        Address, Backend, Bucket4, Bucket6, Budget, ClassSums, ClockReading, ColdBucket, Cursor,
        Failure, HISTOGRAM_BUCKETS, Hop, HopKey, Jump, Live, MAX_BACKENDS, MAX_HOPS, MAX_POOLS,
        MAX_SERVICES, MEMBER_SLOTS, Member, Name, PoolAddress, RING_CHUNKS, Report, Service,
        ServiceKey, Settings, SpillKey, Spilled4, Spilled6, SynGuard, Traffic, region,
        ticks_between,
    },
    admission::{Admission, admit},
    atomic::Word,
    flow::{
        Arrival, Bucket, ColdWays, Ended, EndsWords, Found, LiveWords, Opening, Slot, SpilledWay,
        Survey, Table, WideBucket, WideSpilledWay,
    },
    pick::{Candidate, Pool, takes_new_flows},
    ports::Ports,
    reason::{REASONS as REASON_COUNT, Reason},
    syn_guard::{Guarded, Limit},
    tcp::State,
};

use crate::packet::Outer;

const MMAPABLE: usize = 0x400;
const SERVICES_MAX: usize = MAX_SERVICES as usize;
const BACKENDS_MAX: usize = MAX_BACKENDS as usize;

#[btf_map]
static SETTINGS: Array<Settings, 1, MMAPABLE> = Array::new();
#[btf_map]
static FILTER: Array<u64, { lb_common::abi::FILTER_WORDS as usize }, MMAPABLE> = Array::new();
#[btf_map]
static SERVICES: HashMap<ServiceKey, u32, { 4 * SERVICES_MAX }> = HashMap::new();
#[btf_map]
static SERVICE_TABLE: Array<Service, SERVICES_MAX, MMAPABLE> = Array::new();
#[btf_map]
static SERVICE_NAMES: Array<Name, SERVICES_MAX, MMAPABLE> = Array::new();
#[btf_map]
static CURSORS: Array<Cursor, SERVICES_MAX, MMAPABLE> = Array::new();
#[btf_map]
static TRAFFIC: PerCpuArray<Traffic, SERVICES_MAX> = PerCpuArray::new();
#[btf_map]
static MEMBERS: Array<Member, { MEMBER_SLOTS as usize }, MMAPABLE> = Array::new();
#[btf_map]
static RINGS: Array<[u16; 4], { RING_CHUNKS as usize }, MMAPABLE> = Array::new();
#[btf_map]
static BACKENDS: Array<Backend, BACKENDS_MAX, MMAPABLE> = Array::new();
#[btf_map]
static BACKEND_NAMES: Array<Name, BACKENDS_MAX, MMAPABLE> = Array::new();
#[btf_map]
static LIVE: Array<Live, BACKENDS_MAX, MMAPABLE> = Array::new();
#[btf_map]
static BUDGETS: Array<Budget, BACKENDS_MAX, MMAPABLE> = Array::new();
#[btf_map]
static FAILURES: RingBuf<Failure, 262_144> = RingBuf::new();
#[btf_map]
static SYN_GUARDS: Array<SynGuard, SERVICES_MAX, MMAPABLE> = Array::new();
#[btf_map]
static REPORTS: PerCpuArray<Report, BACKENDS_MAX> = PerCpuArray::new();
#[btf_map]
static HOPS: Array<Hop, { MAX_HOPS as usize }, MMAPABLE> = Array::new();
#[btf_map]
static HOP_INDEX: HashMap<HopKey, u32, { MAX_HOPS as usize }> = HashMap::new();
#[btf_map]
static WANTED: RingBuf<HopKey, 65_536> = RingBuf::new();
#[btf_map]
static REASONS: PerCpuArray<u64, { REASON_COUNT as usize }> = PerCpuArray::new();
/// Sized by the loader from `flow_table`.
#[btf_map]
static FLOWS4: Array<Bucket4, 1_024, MMAPABLE> = Array::new();
/// Same number of entries as `FLOWS4`.
#[btf_map]
static COLD4: Array<ColdBucket, 1_024, MMAPABLE> = Array::new();
/// Sized by the loader.
#[btf_map]
static SPILL4: HashMap<SpillKey, Spilled4, 1_024> = HashMap::new();
/// As for IPv4.
#[btf_map]
static FLOWS6: Array<Bucket6, 1_024, MMAPABLE> = Array::new();
#[btf_map]
static COLD6: Array<ColdBucket, 1_024, MMAPABLE> = Array::new();
#[btf_map]
static SPILL6: HashMap<SpillKey, Spilled6, 1_024> = HashMap::new();

/// Addresses of our own that stand for clients.
#[btf_map]
static POOLS: Array<PoolAddress, { MAX_POOLS as usize + 1 }, MMAPABLE> = Array::new();
/// Who has which of their ports, see [`lb_common::ports`]. Sized by the loader.
#[btf_map]
static POOL_PORTS: Array<u64, 1, MMAPABLE> = Array::new();

/// The programs that others jump to, by [`Jump`]. Never shared between loads: the
/// loader pins one per program.
#[btf_map]
static PROGRAMS: ProgramArray<{ Jump::ALL.len() }> = ProgramArray::new();
/// Packets in fragments of which the first was seen. Not kept over a load: nobody
/// reassembles for so long.
#[btf_map]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, MOST_FRAGMENTED> = LruHashMap::new();
/// What is too large for the stack of 512 bytes.
#[btf_map]
static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Packets in fragments that are remembered at a time: the least recently used are
/// forgotten first. A link of 10 Gbit/s carries fewer in a reordering of 20 ms.
const MOST_FRAGMENTED: usize = 8_192;

/// What all fragments of a packet have in common (RFC 791, section 3.2; RFC 8200,
/// section 4.5).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FragmentKey {
    pub source: Address,
    pub destination: Address,
    pub identification: u32,
    /// Zero in IPv6, where only the first fragment knows.
    pub protocol: u8,
    /// 4 or 6.
    pub family: u8,
    pub padding: u16,
}

/// What only the first one has.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FragmentPorts {
    pub source: u16,
    pub destination: u16,
    pub protocol: u32,
    /// When it was seen.
    pub tick: u32,
}

/// See [`SCRATCH`].
#[repr(C)]
pub(crate) struct Scratch {
    /// The flow being opened.
    pub opening: Opening,
    /// Where it could go.
    pub survey: Survey,
    /// Why backends that may take new flows were refused to this one; bits of the
    /// stage that opens it.
    pub collided: Cell<u32>,
    /// The address of its client as maps have it, in halves.
    pub client: [u64; 2],
    /// Not zero: a backend that may take new flows has all that it can.
    pub full: Cell<u32>,
    /// Index of the backend that the flow is taken from; 0: none.
    pub former: Cell<u32>,
    /// The time of a request that was answered, microseconds.
    pub turn_us: Cell<u64>,
    /// What the pick answered.
    pub picked: Cell<u32>,
    /// Index of the service whose backends are asked.
    pub service: u32,
    /// A flow that a packet changes, and the packet.
    pub found: Found,
    /// See [`Table::forget`].
    forgotten: Word,
    pub arrival: Arrival,
    pub tick: u32,
    /// What a packet is put into.
    pub outer: Outer,
    /// Keys of look-ups: the stack has no room to spare.
    service_key: ServiceKey,
    hop_key: HopKey,
    spilled: Spilled6,
    /// The parameters of a route look-up.
    pub fib: FibLookup,
    /// What the program that was jumped to is to answer.
    pub answer: Cell<u32>,
    /// The MTU that the packet exceeds which is to be answered.
    mtu: Cell<u32>,
    /// Errors sent by this CPU, and the tick in which.
    pub told: Cell<u32>,
    pub told_tick: Cell<u32>,
}

/// Goes on in another program; returns only if there is none.
#[inline(always)]
pub(crate) fn jump(ctx: &XdpContext, to: Jump) {
    // SAFETY: nothing of this frame is used after the jump.
    let _ = unsafe { PROGRAMS.tail_call(ctx, to as u32) };
}

/// Leaves a reading of the clocks for the daemon.
#[inline(always)]
pub(crate) fn store_reading(reading: ClockReading) {
    if let Some(settings) = SETTINGS.get_ptr_mut(0) {
        // SAFETY: an element of a memory-mapped array; one daemon at a time asks.
        unsafe { (&raw mut (*settings).reading).write_volatile(reading) };
    }
}

/// This CPU's scratch space.
#[inline(always)]
pub(crate) fn scratch() -> Option<&'static mut Scratch> {
    // SAFETY: a per-CPU slot; the program is not preempted on its CPU, and each
    // field has one user at a time.
    SCRATCH
        .get_ptr_mut(0)
        .map(|scratch| unsafe { &mut *scratch })
}

/// Remembers a first fragment. A map that cannot take it loses the rest of that
/// packet.
#[inline(always)]
pub(crate) fn remember_fragment(key: &FragmentKey, ports: &FragmentPorts) {
    let _ = FRAGMENTS.insert(key, ports, 0);
}

#[inline(always)]
pub(crate) fn remembered_fragment(key: &FragmentKey) -> Option<FragmentPorts> {
    // SAFETY: the value is copied at once.
    unsafe { FRAGMENTS.get(key) }.copied()
}

/// Keeps the MTU that a packet exceeds, for the answer.
#[inline(always)]
pub(crate) fn note_mtu(mtu: u32) {
    if let Some(scratch) = scratch() {
        scratch.mtu.set(mtu);
    }
}

/// See [`note_mtu`].
#[inline(always)]
pub(crate) fn noted_mtu() -> u32 {
    match scratch() {
        Some(scratch) => scratch.mtu.get(),
        None => 0,
    }
}

/// Copies of all that a packet needs to know of the settings are one line.
#[inline(always)]
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get(0).map(extend)
}

/// Hides a pointer's origin from the optimiser, after it was compared with
/// null: else arithmetic on it is moved before the comparison, which the
/// verifier refuses ("pointer arithmetic on map_value_or_null prohibited").
#[inline(always)]
fn checked<T>(pointer: *const T) -> *const T {
    let mut pointer = pointer;
    // SAFETY: a register is moved to itself. (An empty text would leave two
    // entries of line information at one instruction, which is refused too.)
    unsafe {
        asm!("{0} = {0}", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

/// Hides a value's range from the optimiser.
#[inline(always)]
pub(crate) fn opaque(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: as in `checked`.
    unsafe {
        asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Map memory outlives every run of the program.
#[inline(always)]
fn extend<T>(reference: &T) -> &'static T {
    // SAFETY: array maps never free an element while the program is loaded.
    unsafe { &*core::ptr::from_ref(reference) }
}

#[inline(always)]
pub(crate) fn count(reason: Reason) {
    if let Some(counter) = REASONS.get_ptr_mut(reason as u32) {
        // SAFETY: a per-CPU slot; the program is not preempted on its CPU.
        unsafe { *counter += 1 };
    }
}

/// Counts a forwarded packet on its service.
#[inline(always)]
pub(crate) fn count_traffic(service: u16, bytes: u64) {
    if let Some(traffic) = TRAFFIC.get_ptr_mut(service as u32) {
        // SAFETY: as in `count`.
        unsafe {
            (*traffic).packets += 1;
            (*traffic).bytes += bytes;
        }
    }
}

/// Whether the hot filter has this bit.
#[inline(always)]
pub(crate) fn filter_has(bit: u32) -> bool {
    match FILTER.get(bit >> 6) {
        Some(word) => *word >> (bit & 63) & 1 != 0,
        None => false,
    }
}

#[inline(always)]
pub(crate) fn service_index(key: &ServiceKey) -> Option<u32> {
    let scratch = scratch()?;
    scratch.service_key = *key;
    // SAFETY: the value is copied at once; it never changes under a key.
    unsafe { SERVICES.get(&scratch.service_key) }.copied()
}

#[inline(always)]
pub(crate) fn service(index: u32) -> Option<&'static Service> {
    SERVICE_TABLE.get(index).map(extend)
}

#[inline(always)]
pub(crate) fn backend(index: u16) -> Option<&'static Backend> {
    BACKENDS.get(index as u32).map(extend)
}

#[inline(always)]
pub(crate) fn hop(index: u32) -> Option<&'static Hop> {
    HOPS.get(index).map(extend)
}

#[inline(always)]
pub(crate) fn hop_index(key: &HopKey) -> Option<u32> {
    let scratch = scratch()?;
    scratch.hop_key = *key;
    // SAFETY: as in `service_index`.
    unsafe { HOP_INDEX.get(&scratch.hop_key) }.copied()
}

/// Tells the controller of a next hop that has no index yet. A full ring loses
/// the wish; the next packet wishes again.
#[inline(always)]
pub(crate) fn want_hop(key: &HopKey) {
    if let Some(scratch) = scratch() {
        scratch.hop_key = *key;
        let _ = WANTED.output(&scratch.hop_key, 0);
    }
}

/// Tells the controller of a failure. A full ring loses the record: the count of
/// failures still tells how many there were.
#[inline(always)]
pub(crate) fn tell(failure: &Failure) {
    if FAILURES.output(failure, 0).is_err() {
        count(Reason::FailureUntold);
    }
}

/// Counts a flow that a backend did not answer and that goes to another.
#[inline(always)]
pub(crate) fn charge_syn_timeout(backend: u16) {
    if let Some(live) = live(backend) {
        live.syn_timeouts.add(1);
    }
}

/// The limit of a service's SynGuard and its count, if it has any.
#[inline(always)]
pub(crate) fn syn_guard(service: u32) -> Option<(Limit, &'static Guarded)> {
    let guard = checked(SYN_GUARDS.get_ptr(service)?);
    // SAFETY: an element of the array; the controller writes both by one store
    // each.
    let (unanswered, interval_us) = unsafe {
        (
            (&raw const (*guard).unanswered).read_volatile(),
            (&raw const (*guard).interval_us).read_volatile(),
        )
    };
    if unanswered == 0 {
        return None;
    }
    let limit = Limit {
        unanswered,
        interval_us,
    };
    // SAFETY: `Guarded` is the shared view of the two words from `origin_us` on;
    // array elements live as long as the program.
    let guarded = unsafe { &*(&raw const (*guard).origin_us).cast::<Guarded>() };
    Some((limit, guarded))
}

/// Adds a flow's end to the report of its backend.
#[inline(always)]
pub(crate) fn report(ended: &Ended) {
    let Some(report) = REPORTS.get_ptr_mut(ended.backend as u32) else {
        return;
    };
    // SAFETY: as in `count`: this CPU's slot, no preemption.
    let report: &mut Report = unsafe { &mut *report };
    let class: &mut ClassSums = if ended.long {
        &mut report.long
    } else {
        &mut report.short
    };
    if ended.failed {
        class.failures += 1;
    }
    if let Some(micros) = ended.sample_us {
        class.count += 1;
        class.total_us += micros;
        let bucket = log2(micros) as usize;
        if bucket < HISTOGRAM_BUCKETS {
            report.histogram[bucket] += 1;
        }
    }
}

/// floor(log2), at most the last histogram bucket.
#[inline(always)]
fn log2(value: u64) -> u32 {
    let mut rest = if value > u32::MAX as u64 {
        u32::MAX
    } else {
        value as u32
    };
    let mut bits = 0;
    if rest >= 1 << 16 {
        rest >>= 16;
        bits += 16;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        bits += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        bits += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        bits += 2;
    }
    if rest >= 2 {
        bits += 1;
    }
    bits
}

/// Defines a flow table over its three maps, how it stores a spill entry, and
/// what else is its own.
macro_rules! flows {
    (
        $(#[doc = $doc:literal])+ $name:ident: $flows:ident, $cold:ident, $spill:ident,
        $opening:ident, $stored:ident => $store:expr,
        $($wide:tt)*
    ) => {
        $(#[doc = $doc])+
        pub(crate) struct $name {
            settings: &'static Settings,
        }

        impl $name {
            #[inline(always)]
            pub(crate) fn new(settings: &'static Settings) -> Self {
                Self { settings }
            }
        }

        impl Table for $name {
            $($wide)*

            #[inline(always)]
            fn bucket(&self, index: u32) -> Option<&Bucket> {
                // SAFETY: `Bucket` is the shared view of the value, or of its
                // beginning.
                $flows
                    .get_ptr(index)
                    .map(|bucket| unsafe { &*checked(bucket.cast::<Bucket>()) })
            }
            #[inline(always)]
            fn cold(&self, index: u32) -> Option<&ColdWays> {
                // SAFETY: `ColdWays` is the shared view of `ColdBucket`, same size.
                $cold
                    .get_ptr(index)
                    .map(|bucket| unsafe { &*checked(bucket.cast::<ColdWays>()) })
            }
            #[inline(always)]
            fn spilled(&self, key: &SpillKey) -> Option<&SpilledWay> {
                // SAFETY: `SpilledWay` is the shared view of the value, or of its
                // beginning.
                $spill
                    .get_ptr(key)
                    .map(|value| unsafe { &*checked(value.cast::<SpilledWay>()) })
            }
            #[inline(always)]
            fn spill(&self, key: &SpillKey, $opening: &Opening) -> bool {
                const BPF_NOEXIST: u64 = 1;
                let Some(scratch) = scratch() else {
                    return false;
                };
                let $stored = &mut scratch.spilled;
                $spill.insert(key, $store, BPF_NOEXIST).is_ok()
            }
            #[inline(always)]
            fn live(&self, backend: u16) -> Option<&LiveWords> {
                live(backend)
            }
            #[inline(always)]
            fn opaque(&self, value: u64) -> u64 {
                opaque(value)
            }
            #[inline(always)]
            fn forget(&self, value: u64) -> u64 {
                // Through map memory, which the verifier does not follow.
                match scratch() {
                    Some(scratch) => {
                        scratch.forgotten.store(value);
                        scratch.forgotten.load()
                    }
                    None => 0,
                }
            }
            #[inline(always)]
            fn conceal(&self, number: u32, noise: u64) -> u32 {
                let noise = noise as u32 & 3;
                (opaque((number ^ noise) as u64) as u32 ^ noise) & 3
            }
            #[inline(always)]
            fn timeout(&self, state: State) -> u32 {
                self.settings.timeouts[(state as usize) & 15]
            }
        }
    };
}

flows!(
    /// The IPv4 flow table.
    Flows4: FLOWS4, COLD4, SPILL4,
    opening, stored => {
        stored.spilled = opening.spilled();
        &stored.spilled
    },
);

flows!(
    /// The IPv6 flow table.
    Flows6: FLOWS6, COLD6, SPILL6,
    opening, stored => {
        *stored = opening.spilled_wide();
        &*stored
    },
    const WIDE: bool = true;

    #[inline(always)]
    fn ends(&self, slot: Slot, client: u64) -> Option<&EndsWords> {
        if slot.is_spill() {
            let key = SpillKey { client, slot: slot.spill_number() };
            // SAFETY: `WideSpilledWay` is the shared view of `Spilled6`, same size.
            let value = SPILL6
                .get_ptr(&key)
                .map(|value| unsafe { &*checked(value.cast::<WideSpilledWay>()) })?;
            return Some(&value.ends);
        }
        // SAFETY: `WideBucket` is the shared view of `Bucket6`, same size.
        let bucket = FLOWS6
            .get_ptr(slot.bucket())
            .map(|bucket| unsafe { &*checked(bucket.cast::<WideBucket>()) })?;
        bucket.ends.get(slot.index())
    }
);

/// An address of the pool.
#[inline(always)]
pub(crate) fn pool(index: u32) -> Option<&'static PoolAddress> {
    POOLS.get(index).map(extend)
}

/// The client word in a cell of the pool.
#[inline(always)]
pub(crate) fn pool_holder(cell: u32) -> u64 {
    match POOL_PORTS.get_ptr(cell) {
        // SAFETY: a word of a memory-mapped array, aligned.
        Some(word) => unsafe { &*word.cast::<Word>() }.load(),
        None => 0,
    }
}

/// The ports of the pool, for one new flow.
pub(crate) struct PoolPorts<H: Fn(u64, u32, u16) -> bool> {
    /// Index of the first address, and how many there are.
    pub addresses: (u32, u32),
    /// See [`Ports::is_taken`].
    pub is_taken: H,
}

impl<H: Fn(u64, u32, u16) -> bool> Ports for PoolPorts<H> {
    #[inline(always)]
    fn addresses(&self) -> (u32, u32) {
        self.addresses
    }
    #[inline(always)]
    fn turn(&self, pool: u32) -> u64 {
        match POOLS.get_ptr_mut(pool) {
            // SAFETY: a `u64` of a memory-mapped array, aligned, shared as a word.
            Some(pool) => unsafe { &*(&raw const (*pool).turn).cast::<Word>() }.add(1),
            None => 0,
        }
    }
    #[inline(always)]
    fn cell(&self, index: u32) -> Option<&Word> {
        // SAFETY: as in `pool_holder`.
        POOL_PORTS
            .get_ptr(index)
            .map(|word| unsafe { &*checked(word.cast::<Word>()) })
    }
    #[inline(always)]
    fn is_taken(&self, word: u64, pool: u32, port: u16) -> bool {
        (self.is_taken)(word, pool, port)
    }
    #[inline(always)]
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, visit: V) {
        each(count, visit);
    }
}

#[inline(always)]
fn live(backend: u16) -> Option<&'static LiveWords> {
    // SAFETY: `LiveWords` is the shared view of `Live`, same size; array
    // elements live as long as the program.
    LIVE.get_ptr(backend as u32)
        .map(|live| unsafe { &*live.cast::<LiveWords>() })
}

/// A service's backends, for one new flow.
pub(crate) struct ServicePool<R: Fn(&Backend) -> bool> {
    /// Index into the service maps.
    pub service: u32,
    /// Published member list.
    pub members: u64,
    /// Published ring.
    pub ring: u64,
    /// Failures are held against a backend, trials are honoured: the daemon
    /// gave a sign of life lately.
    pub attended: bool,
    /// The backend that the flow is taken from, if it is: it gets the flow only
    /// if nobody else takes it.
    pub former: u16,
    /// Whether the flow may not go to this backend.
    pub refused: R,
}

/// Flows of a backend in the handshake or past it; below zero where loads of
/// racing counters missed each other.
#[inline(always)]
fn active(live: &LiveWords) -> u64 {
    let half_open = live
        .half_opened
        .load()
        .wrapping_sub(live.half_closed.load());
    half_open.wrapping_add(live.opened.load().wrapping_sub(live.closed.load()))
}

/// Whether the daemon gave a sign of life lately, as of a packet at `tick`.
#[inline(always)]
pub(crate) fn is_attended(settings: &Settings, tick: u32) -> bool {
    ticks_between(settings.heartbeat, tick) < settings.heartbeat_expiry
}

/// What a backend's budget says of the flow in the scratch space, as
/// [`Admission::word`]. A global function, so that it costs the picks no stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn steerline_admit(index: u32) -> u64 {
    let (Some(scratch), Some(settings)) = (scratch(), settings()) else {
        return 0;
    };
    let (Some(backend), Some(live), Some(budget)) = (
        backend(index as u16),
        live(index as u16),
        BUDGETS.get(index),
    ) else {
        return 0;
    };
    let tick = scratch.opening.tick;
    let flows = flows(active(live));
    let attended = is_attended(settings, tick);
    let admission = admit(budget, live.half_opened.load(), flows, tick, attended);
    if admission.full && takes_new_flows(backend.flags, backend.weight) {
        scratch.full.set(1);
    }
    admission.word()
}

/// A count of flows. Loads of racing counters may miss each other: one below
/// zero is none, one past 24 bits is that many.
#[inline(always)]
fn flows(count: u64) -> u32 {
    if (count as i64) < 0 {
        0
    } else if count > 0xff_ffff {
        0xff_ffff
    } else {
        count as u32
    }
}

impl<R: Fn(&Backend) -> bool> Pool for ServicePool<R> {
    #[inline(always)]
    fn member(&self, index: u32) -> Option<Member> {
        let (offset, _) = region(self.members);
        MEMBERS.get(offset + index).copied()
    }
    #[inline(always)]
    fn members(&self) -> u32 {
        region(self.members).1
    }
    #[inline(always)]
    fn advance(&self, by: u64) -> u64 {
        match CURSORS.get_ptr_mut(self.service) {
            // SAFETY: a `u64` of a memory-mapped array, aligned, shared as a word.
            Some(cursor) => unsafe { &*(&raw const (*cursor).members).cast::<Word>() }.add(by),
            None => 0,
        }
    }
    #[inline(always)]
    fn next_ring_slot(&self) -> Option<u16> {
        let (offset, length) = region(self.ring);
        if length == 0 {
            return None;
        }
        let cursor = CURSORS.get_ptr_mut(self.service)?;
        // SAFETY: as in `advance`.
        let turn = unsafe { &*(&raw const (*cursor).ring).cast::<Word>() }.add(1);
        let slot = (turn % length as u64) as u32;
        let chunk = checked(RINGS.get_ptr(offset + (slot >> 2))?);
        // SAFETY: an element of the array.
        Some(unsafe { (*chunk)[(slot & 3) as usize] })
    }
    #[inline(always)]
    fn candidate(&self, index: u16) -> Option<Candidate> {
        let backend = backend(index)?;
        let live = live(index)?;
        let mut count = active(live);
        let mut admission = match BUDGETS.get(index as u32) {
            Some(budget) if budget.flags != 0 || budget.dummies != 0 => {
                Admission::from_word(steerline_admit(index as u32))
            }
            Some(_) | None => Admission::NONE,
        };
        admission.spared |= index == self.former;
        if self.attended {
            let failures = live.resets.load() + live.syn_timeouts.load();
            count = count.wrapping_add(failures.wrapping_sub(live.forgiven.load()));
        }
        let count = flows(count);
        Some(Candidate {
            flags: backend.flags,
            weight: backend.weight,
            relative: backend.relative,
            live: count,
            trial: self.attended && live.trial.load() != 0,
            admission,
        })
    }
    #[inline(always)]
    fn is_refused(&self, index: u16) -> bool {
        match backend(index) {
            Some(backend) => (self.refused)(backend),
            None => true,
        }
    }
    #[inline(always)]
    fn take_trial(&self, backend: u16) -> bool {
        live(backend).is_some_and(|live| live.trial.replace(1, 0))
    }
    #[inline(always)]
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, visit: V) {
        each(count, visit);
    }
}

/// Calls `visit` with 0, 1, … `count` − 1 until it answers `false`.
#[inline(always)]
fn each<V: FnMut(u32) -> bool>(count: u32, mut visit: V) {
    unsafe extern "C" fn step<V: FnMut(u32) -> bool>(index: u64, visit: *mut c_void) -> i64 {
        // SAFETY: `visit` is the closure of the caller below, alive and not
        // otherwise used while `bpf_loop` runs.
        let visit = unsafe { &mut *visit.cast::<V>() };
        // The verifier wants to see that it is 0 or 1; the compiler would return
        // whatever tells.
        (opaque(!visit(index as u32) as u64) & 1) as i64
    }
    // SAFETY: the callback has the signature that `bpf_loop` wants.
    unsafe {
        bpf_loop(
            count,
            step::<V> as *mut c_void,
            core::ptr::from_mut(&mut visit).cast(),
            0,
        );
    }
}
