//! SynGuard: how many unanswered SYNs a service forwards in an interval (Cisco
//! IOS SLB, spec 4.3).
//!
//! Intervals follow one another from the first SYN seen; at each boundary the
//! count is zero again. A SYN counts one up and is dropped once the count has
//! reached the limit; a SYN-ACK counts one down. So with no answer at all the
//! limit is a rate, and with prompt answers it limits what is outstanding (both
//! readings of spec 4.6).
//!
//! One word holds interval and count, so that a boundary is one swap. Under a
//! flood dropped SYNs only read it. CPUs that race may count a SYN twice, which
//! errs on the side of the servers, and never pass one beyond the limit but for
//! the turn of an interval.

use crate::atomic::Word;

/// What is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// SYNs without an answer within an interval; 0: no limit (spec 4.1).
    pub unanswered: u32,
    /// Length of an interval, microseconds; 50 to 5,000 ms. 0 counts as 1.
    pub interval_us: u32,
}

/// The shared count of one service.
#[repr(C)]
pub struct Guarded {
    /// When the first SYN came, monotonic microseconds; 0: none yet.
    pub origin_us: Word,
    /// Number of the interval (upper half, from 1) and the count in it.
    pub window: Word,
}

/// Tries at a word that other CPUs change too.
const TRIES: u32 = 4;

#[inline(always)]
const fn packed(number: u32, count: u32) -> u64 {
    (number as u64) << 32 | count as u64
}

/// Whether interval `number` is past the one in `window`. Clocks of two CPUs
/// may be out of step: an earlier one is the same.
#[inline(always)]
const fn is_past(number: u32, window: u64) -> bool {
    let ahead = number.wrapping_sub((window >> 32) as u32);
    ahead != 0 && ahead < 1 << 31
}

impl Guarded {
    /// The number of the interval at `now_us`; the first call sets the origin.
    #[inline(always)]
    fn number(&self, limit: &Limit, now_us: u64) -> u32 {
        let mut origin_us = self.origin_us.load();
        if origin_us == 0 {
            let first_us = if now_us == 0 { 1 } else { now_us };
            origin_us = if self.origin_us.replace(0, first_us) {
                first_us
            } else {
                self.origin_us.load()
            };
        }
        let interval_us = if limit.interval_us == 0 {
            1
        } else {
            limit.interval_us as u64
        };
        (now_us.saturating_sub(origin_us) / interval_us) as u32 + 1
    }

    /// Whether a SYN may pass.
    #[inline(always)]
    pub fn admits_syn(&self, limit: &Limit, now_us: u64) -> bool {
        if limit.unanswered == 0 {
            return true;
        }
        let number = self.number(limit, now_us);
        let window = self.window.load();
        if is_past(number, window) && self.window.replace(window, packed(number, 1)) {
            return true;
        }
        // Of this interval, whoever began it.
        let window = self.window.load();
        if !is_past(number, window) && window as u32 >= limit.unanswered {
            return false;
        }
        let before = self.window.add(1);
        if (before as u32) < limit.unanswered {
            return true;
        }
        // Others were faster. If they go on being so, one more is counted.
        self.window.replace(before.wrapping_add(1), before);
        false
    }

    /// Takes note of a SYN-ACK.
    #[inline(always)]
    pub fn answered(&self, limit: &Limit, now_us: u64) {
        if limit.unanswered == 0 {
            return;
        }
        let number = self.number(limit, now_us);
        for _ in 0..TRIES {
            let window = self.window.load();
            if is_past(number, window)
                || window as u32 == 0
                || self.window.replace(window, window.wrapping_sub(1))
            {
                return;
            }
        }
    }
}
