//! The two clocks of the packet path.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns};
use lb_common::abi::{ClockReading, Jiffies, Settings};

/// The coarse tick, for idle times: 1 ns a call, resolution one jiffy.
#[inline(always)]
pub(crate) fn tick(settings: &Settings) -> u32 {
    // SAFETY: a helper without arguments.
    let jiffies = unsafe { bpf_jiffies64() };
    Jiffies::tick(settings.jiffies_offset, settings.jiffy_nanoseconds, jiffies)
}

/// Both coarse clocks: they advance together.
#[inline(always)]
pub(crate) fn reading() -> ClockReading {
    // SAFETY: helpers without arguments.
    unsafe {
        ClockReading {
            jiffies: bpf_jiffies64(),
            nanoseconds: bpf_ktime_get_coarse_ns(),
        }
    }
}

/// Monotonic microseconds, for measurements: 22 to 29 ns a call, so only where
/// something begins or ends.
#[inline(always)]
pub(crate) fn micros() -> u64 {
    // SAFETY: a helper without arguments.
    (unsafe { bpf_ktime_get_ns() }) / 1_000
}
