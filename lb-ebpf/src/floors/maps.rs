//! The maps of the floors.

use crate::packet::Key;
use aya_ebpf::{
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray},
    macros::btf_map,
    programs::XdpContext,
};
use lb_common::{
    abi::Traffic,
    atomic::Word,
    bench::{Balanced, PEERS as PEERS_MAX, Peer, Plan},
};

const MMAPABLE: usize = 0x400;

#[btf_map]
static PLAN: Array<Plan, 1, MMAPABLE> = Array::new();
/// Sized by the loader, as the flow maps are.
#[btf_map]
static CLIENTS: Array<u64, 1, MMAPABLE> = Array::new();
/// The program that is measured.
#[btf_map]
static TARGET: ProgramArray<1> = ProgramArray::new();
#[btf_map]
static PEERS: Array<Peer, { PEERS_MAX as usize }, MMAPABLE> = Array::new();
#[btf_map]
static BALANCED: Array<Balanced, 2, MMAPABLE> = Array::new();
#[btf_map]
static SERVICES4: HashMap<ServiceKey4, u32, 1_024> = HashMap::new();
#[btf_map]
static SERVICES6: HashMap<ServiceKey6, u32, 1_024> = HashMap::new();
#[btf_map]
static TRAFFIC: PerCpuArray<Traffic, 8> = PerCpuArray::new();
/// Flows opened.
#[btf_map]
static OPENED: PerCpuArray<u64, 1> = PerCpuArray::new();

#[btf_map]
static HASH_OUT4: HashMap<Key<u32>, Flow, 1> = HashMap::new();
#[btf_map]
static HASH_BACK4: HashMap<Key<u32>, Flow, 1> = HashMap::new();
#[btf_map]
static HASH_OUT6: HashMap<Key<[u32; 4]>, Flow, 1> = HashMap::new();
#[btf_map]
static HASH_BACK6: HashMap<Key<[u32; 4]>, Flow, 1> = HashMap::new();
#[btf_map]
static LRU_OUT4: LruHashMap<Key<u32>, Flow, 1> = LruHashMap::new();
#[btf_map]
static LRU_BACK4: LruHashMap<Key<u32>, Flow, 1> = LruHashMap::new();
#[btf_map]
static LRU_OUT6: LruHashMap<Key<[u32; 4]>, Flow, 1> = LruHashMap::new();
#[btf_map]
static LRU_BACK6: LruHashMap<Key<[u32; 4]>, Flow, 1> = LruHashMap::new();

/// The VIP of each family, as on the wire; set by the loader, so that whether a
/// packet goes to it is a comparison with a constant.
#[unsafe(no_mangle)]
static VIP4: u32 = 0;
#[unsafe(no_mangle)]
static VIP6: [u32; 4] = [0; 4];

/// A flow's value: whose address and port are written, and whose MAC addresses;
/// indices into `PEERS`. Four bytes keep the map's elements small.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub peer: u16,
    pub via: u16,
}

/// Address, port as on the wire, protocol.
#[repr(C)]
pub(crate) struct ServiceKey4 {
    pub address: u32,
    pub port: u16,
    pub protocol: u16,
}

/// The same of IPv6.
#[repr(C)]
pub(crate) struct ServiceKey6 {
    pub address: [u32; 4],
    pub port: u16,
    pub protocol: u16,
}

pub(crate) fn vip4() -> u32 {
    // SAFETY: a static. Volatile: the loader writes it before the kernel sees
    // the program, so the compiler must not know its value.
    unsafe { (&raw const VIP4).read_volatile() }
}

pub(crate) fn vip6() -> [u32; 4] {
    let words = (&raw const VIP6).cast::<u32>();
    // SAFETY: as in `vip4`; four words of it.
    unsafe {
        [
            words.read_volatile(),
            words.add(1).read_volatile(),
            words.add(2).read_volatile(),
            words.add(3).read_volatile(),
        ]
    }
}

#[inline(always)]
pub(crate) fn service4(key: &ServiceKey4) -> Option<u32> {
    // SAFETY: copied at once; nobody changes it while the bench runs.
    unsafe { SERVICES4.get(key) }.copied()
}

#[inline(always)]
pub(crate) fn service6(key: &ServiceKey6) -> Option<u32> {
    // SAFETY: as in `service4`.
    unsafe { SERVICES6.get(key) }.copied()
}

#[inline(always)]
pub(crate) fn balanced(index: u32) -> Option<&'static Balanced> {
    // SAFETY: array elements live as long as the program.
    BALANCED.get_ptr(index).map(|service| unsafe { &*service })
}

/// The turn of this new flow.
#[inline(always)]
pub(crate) fn turn(service: &Balanced) -> u64 {
    // SAFETY: an aligned word of a memory-mapped array, only added to.
    unsafe { &*(&raw const service.cursor).cast::<Word>() }.add(1)
}

#[inline(always)]
pub(crate) fn peer(index: u16) -> Option<&'static Peer> {
    // SAFETY: as in `balanced`; nobody writes while programs run.
    PEERS
        .get_ptr(u32::from(index))
        .map(|peer| unsafe { &*peer })
}

/// Counts a forwarded packet on its service.
#[inline(always)]
pub(crate) fn count(service: u16, bytes: u64) {
    if let Some(traffic) = TRAFFIC.get_ptr_mut(u32::from(service)) {
        // SAFETY: a per-CPU slot; the program is not preempted on its CPU.
        unsafe {
            (*traffic).packets += 1;
            (*traffic).bytes += bytes;
        }
    }
}

#[inline(always)]
pub(crate) fn count_opened() {
    if let Some(opened) = OPENED.get_ptr_mut(0) {
        // SAFETY: as in `count`.
        unsafe { *opened += 1 };
    }
}

/// The frame of the next flow in turn: its plan, and what is its own.
#[inline(always)]
pub(crate) fn next() -> Option<(&'static Plan, u64)> {
    let plan = PLAN.get_ptr_mut(0)?;
    // SAFETY: one element that lives as long as the program; the bench runs
    // one test run at a time.
    let (turn, plan) = unsafe {
        let turn = (*plan).turn;
        (*plan).turn = turn + 1;
        (turn, &*plan)
    };
    let client = CLIENTS.get(plan.first + (turn as u32 & plan.mask))?;
    Some((plan, *client))
}

/// Goes on in the program that is measured.
#[inline(always)]
pub(crate) fn jump(ctx: &XdpContext) {
    // SAFETY: nothing of this frame is used after the jump.
    unsafe { TARGET.tail_call(ctx, 0) };
}

/// The flows of one kind of kernel map: `out` by the tuple of the client's
/// packets, `back` by that of the server's.
pub(crate) trait Store<A> {
    fn out(key: &Key<A>) -> Option<Flow>;
    fn back(key: &Key<A>) -> Option<Flow>;
    fn put_out(key: &Key<A>, flow: Flow) -> bool;
    fn put_back(key: &Key<A>, flow: Flow) -> bool;
    fn remove(out: &Key<A>, back: &Key<A>);
}

/// `BPF_MAP_TYPE_HASH`.
pub(crate) struct Hash;
/// `BPF_MAP_TYPE_LRU_HASH`.
pub(crate) struct Lru;

macro_rules! store {
    ($kind:ident, $address:ty, $out:ident, $back:ident) => {
        impl Store<$address> for $kind {
            #[inline(always)]
            fn out(key: &Key<$address>) -> Option<Flow> {
                // SAFETY: copied at once; one test run at a time.
                unsafe { $out.get(key) }.copied()
            }
            #[inline(always)]
            fn back(key: &Key<$address>) -> Option<Flow> {
                // SAFETY: as above.
                unsafe { $back.get(key) }.copied()
            }
            #[inline(always)]
            fn put_out(key: &Key<$address>, flow: Flow) -> bool {
                $out.insert(key, &flow, 0).is_ok()
            }
            #[inline(always)]
            fn put_back(key: &Key<$address>, flow: Flow) -> bool {
                $back.insert(key, &flow, 0).is_ok()
            }
            #[inline(always)]
            fn remove(out: &Key<$address>, back: &Key<$address>) {
                // In direct return there is no way back.
                let _ = $out.remove(out);
                let _ = $back.remove(back);
            }
        }
    };
}
store!(Hash, u32, HASH_OUT4, HASH_BACK4);
store!(Hash, [u32; 4], HASH_OUT6, HASH_BACK6);
store!(Lru, u32, LRU_OUT4, LRU_BACK4);
store!(Lru, [u32; 4], LRU_OUT6, LRU_BACK6);
