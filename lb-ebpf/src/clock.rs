//! The two clocks of the packet path.

use aya_ebpf::helpers::generated::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use lb_common::abi::tick_of;

/// The coarse tick, for idle times: 4 ns a call, resolution one jiffy.
#[inline(always)]
pub(crate) fn tick() -> u32 {
    // SAFETY: a helper without arguments.
    tick_of(unsafe { bpf_ktime_get_coarse_ns() })
}

/// Monotonic microseconds, for measurements: 22 to 29 ns a call, so only where
/// something begins or ends.
#[inline(always)]
pub(crate) fn micros() -> u64 {
    // SAFETY: a helper without arguments.
    (unsafe { bpf_ktime_get_ns() }) / 1_000
}
