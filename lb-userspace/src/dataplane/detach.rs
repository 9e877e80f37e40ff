//! Taking a program off its interface at once.
//!
//! Removing the pin of a link detaches its program too, but only once an RCU
//! grace period has passed (the kernel's `bpf_free_inode`). Until then packets
//! still meet the program, and a start right after would take it for somebody
//! else's.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// Commands of bpf(2), `include/uapi/linux/bpf.h`. aya offers neither for a
/// pinned link.
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_LINK_DETACH: libc::c_int = 34;

/// `union bpf_attr` as `BPF_OBJ_GET` reads it.
#[repr(C)]
struct ObjectGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// `union bpf_attr` as `BPF_LINK_DETACH` reads it.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

/// Detaches the program of the pinned link; packets do not meet it any more
/// when this returns.
///
/// # Errors
/// Something else than a link is pinned there, or the kernel is older than 5.9.
pub(super) fn detach(pin: &Path) -> io::Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let get = ObjectGet {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    let fd = bpf(BPF_OBJ_GET, &get)?;
    // SAFETY: the kernel has just opened this descriptor for us; nobody else
    // knows of it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let link_fd = u32::try_from(link.as_raw_fd()).map_err(io::Error::other)?;
    bpf(BPF_LINK_DETACH, &LinkDetach { link_fd })?;
    Ok(())
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`, which is
    // the part of the union that `command` has; the path in it outlives the
    // call. Both commands write nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(result).map_err(io::Error::other)
}
