//! Shared words: the few atomic operations that the XDP program and the
//! controller both perform on memory-mapped BPF arrays.
//!
//! On BPF they are the instructions that the kernel offers (`cmpxchg`, `xadd`,
//! `xchg`, `or`, all fully ordered; kernel 5.12) and plain loads and stores. On
//! the host they are `core::sync::atomic`, so that everything built on them
//! runs in ordinary tests and under racing threads.
//!
//! Loads and stores are relaxed on BPF, kept in program order by being
//! volatile; x86-64 keeps loads in order with loads and stores with stores,
//! which is what [`crate::flow`] relies on. A port to arm64 needs
//! `load_acquire`/`store_release` (kernel 6.15 there) in [`Word::load`] and
//! [`Word::store`]; the read-modify-write operations are ordered already.

use core::cell::UnsafeCell;

/// A 64-bit word shared with other CPUs and with user space.
#[repr(transparent)]
pub struct Word(UnsafeCell<u64>);

/// A 32-bit word shared with other CPUs and with user space.
#[repr(transparent)]
pub struct Half(UnsafeCell<u32>);

// SAFETY: every access goes through the operations below, each of which is a
// single aligned machine access or an atomic instruction.
unsafe impl Sync for Word {}
// SAFETY: as for `Word`.
unsafe impl Sync for Half {}

impl Word {
    /// A word of this program's own memory (tests, tables on the heap).
    pub const fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The word as it is now.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        imp::load64(self.0.get())
    }

    /// Overwrites the word.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        imp::store64(self.0.get(), value);
    }

    /// Stores `value`, returns what was there.
    #[inline(always)]
    pub fn swap(&self, value: u64) -> u64 {
        imp::swap64(self.0.get(), value)
    }

    /// Stores `new` if the word is `old`; whether it did.
    #[inline(always)]
    pub fn replace(&self, old: u64, new: u64) -> bool {
        imp::replace64(self.0.get(), old, new)
    }

    /// Adds, wrapping, and returns what was there before.
    #[inline(always)]
    pub fn add(&self, value: u64) -> u64 {
        imp::add64(self.0.get(), value)
    }

    /// Sets the bits of `value`.
    #[inline(always)]
    pub fn set_bits(&self, value: u64) {
        imp::or64(self.0.get(), value);
    }
}

impl Half {
    /// A word of this program's own memory.
    pub const fn new(value: u32) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The word as it is now.
    #[inline(always)]
    pub fn load(&self) -> u32 {
        imp::load32(self.0.get())
    }

    /// Overwrites the word.
    #[inline(always)]
    pub fn store(&self, value: u32) {
        imp::store32(self.0.get(), value);
    }
}

#[cfg(target_arch = "bpf")]
mod imp {
    use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_or, atomic_xadd, atomic_xchg};

    const ORDER: AtomicOrdering = AtomicOrdering::SeqCst;

    #[inline(always)]
    pub(super) fn load64(word: *mut u64) -> u64 {
        // SAFETY: `word` comes from a `Word` reference: valid and aligned.
        unsafe { word.read_volatile() }
    }
    #[inline(always)]
    pub(super) fn store64(word: *mut u64, value: u64) {
        // SAFETY: as in `load64`.
        unsafe { word.write_volatile(value) }
    }
    #[inline(always)]
    pub(super) fn swap64(word: *mut u64, value: u64) -> u64 {
        // SAFETY: as in `load64`.
        unsafe { atomic_xchg::<u64, ORDER>(word, value) }
    }
    #[inline(always)]
    pub(super) fn replace64(word: *mut u64, old: u64, new: u64) -> bool {
        // SAFETY: as in `load64`.
        unsafe { atomic_cxchg::<u64, ORDER, ORDER>(word, old, new).0 == old }
    }
    #[inline(always)]
    pub(super) fn add64(word: *mut u64, value: u64) -> u64 {
        // SAFETY: as in `load64`.
        unsafe { atomic_xadd::<u64, u64, ORDER>(word, value) }
    }
    #[inline(always)]
    pub(super) fn or64(word: *mut u64, value: u64) {
        // SAFETY: as in `load64`.
        unsafe { atomic_or::<u64, u64, ORDER>(word, value) };
    }
    #[inline(always)]
    pub(super) fn load32(word: *mut u32) -> u32 {
        // SAFETY: `word` comes from a `Half` reference: valid and aligned.
        unsafe { word.read_volatile() }
    }
    #[inline(always)]
    pub(super) fn store32(word: *mut u32, value: u32) {
        // SAFETY: as in `load32`.
        unsafe { word.write_volatile(value) }
    }
}

#[cfg(not(target_arch = "bpf"))]
mod imp {
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

    fn word64<'a>(word: *mut u64) -> &'a AtomicU64 {
        // SAFETY: `word` comes from a live `Word` reference, is aligned, and is
        // never accessed otherwise than atomically by this program.
        unsafe { AtomicU64::from_ptr(word) }
    }
    fn word32<'a>(word: *mut u32) -> &'a AtomicU32 {
        // SAFETY: as in `word64`, for `Half`.
        unsafe { AtomicU32::from_ptr(word) }
    }

    // Acquire and release cost nothing on x86-64 and make the host twin right
    // on every other machine that runs the tests.
    pub(super) fn load64(word: *mut u64) -> u64 {
        word64(word).load(Acquire)
    }
    pub(super) fn store64(word: *mut u64, value: u64) {
        word64(word).store(value, Release);
    }
    pub(super) fn swap64(word: *mut u64, value: u64) -> u64 {
        word64(word).swap(value, SeqCst)
    }
    pub(super) fn replace64(word: *mut u64, old: u64, new: u64) -> bool {
        word64(word)
            .compare_exchange(old, new, SeqCst, SeqCst)
            .is_ok()
    }
    pub(super) fn add64(word: *mut u64, value: u64) -> u64 {
        word64(word).fetch_add(value, SeqCst)
    }
    pub(super) fn or64(word: *mut u64, value: u64) {
        word64(word).fetch_or(value, SeqCst);
    }
    pub(super) fn load32(word: *mut u32) -> u32 {
        word32(word).load(Acquire)
    }
    pub(super) fn store32(word: *mut u32, value: u32) {
        word32(word).store(value, Release);
    }
}
