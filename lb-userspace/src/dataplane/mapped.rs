//! Memory-mapped BPF arrays.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// A BPF array in this process's memory, shared with the packet path.
///
/// Other CPUs write at any time, so there are no references to `T` here: reads
/// and writes are volatile copies, and what is shared word by word is reached
/// through an atomic view ([`Mapped::view`]).
pub struct Mapped<T> {
    start: NonNull<T>,
    entries: u32,
    bytes: usize,
    element: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway; every access is a
// volatile copy or goes through atomic views.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: bytemuck::AnyBitPattern> Mapped<T> {
    /// Maps all `entries` of an array made with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    /// What `mmap` answers: `EPERM` without that flag, `ENOMEM`.
    pub fn new(map: BorrowedFd<'_>, entries: u32) -> io::Result<Self> {
        // Array elements are a multiple of eight bytes apart; every `T` of the
        // ABI is that long, so slices line up.
        assert_eq!(size_of::<T>() % 8, 0);
        let bytes = size_of::<T>() * entries as usize;
        // SAFETY: a new mapping of a file of the kernel's; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self {
                start,
                entries,
                bytes,
                element: PhantomData,
            }),
            None => Err(io::Error::other("mmap answered a null pointer")),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> u32 {
        self.entries
    }

    /// Whether there are none (never so for a BPF array).
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    fn pointer(&self, index: u32) -> *mut T {
        assert!(
            index < self.entries,
            "index {index} of {} entries",
            self.entries
        );
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.start.as_ptr().add(index as usize) }
    }

    /// A copy of an element. Words of it may be from different moments.
    pub fn read(&self, index: u32) -> T {
        // SAFETY: `pointer` is valid and aligned; any bit pattern is a `T`.
        unsafe { self.pointer(index).read_volatile() }
    }

    /// Overwrites an element.
    pub fn write(&self, index: u32, value: T) {
        // SAFETY: as in `read`.
        unsafe { self.pointer(index).write_volatile(value) }
    }

    /// Overwrites an aligned field of an element, at `offset` bytes
    /// ([`std::mem::offset_of`]), by one store.
    pub fn write_word<F: bytemuck::NoUninit>(&self, index: u32, offset: usize, value: F) {
        assert!(
            offset + size_of::<F>() <= size_of::<T>() && offset.is_multiple_of(align_of::<F>())
        );
        let element = self.pointer(index).cast::<u8>();
        // SAFETY: inside the element and aligned, by the assertion.
        unsafe { element.add(offset).cast::<F>().write_volatile(value) }
    }

    /// The element as shared words. `V` must be the atomic view of `T`.
    pub fn view<V>(&self, index: u32) -> &V {
        assert!(size_of::<V>() == size_of::<T>() && align_of::<V>() <= 8);
        // SAFETY: same size, and views consist of words that are only accessed
        // atomically.
        unsafe { &*self.pointer(index).cast::<V>() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, not used any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
