//! Which backends a client endpoint may not be given again.

use super::Table;
use crate::abi::{SPILL_SLOTS, SpillKey, WAYS};
use crate::hash::Home;

/// The backends that this client endpoint already has flows with, through
/// other VIPs. A second flow to the same one would show that server the same
/// four-tuple twice.
///
/// Kept as a set of places rather than of endpoints: there is hardly ever one,
/// and a BPF stack has 512 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Paired {
    pub(super) home: Home,
    pub(super) client: u64,
    /// Bit 0..4: ways of the primary bucket; 4..8: of the secondary; from 8:
    /// spill slots.
    pub(super) places: u32,
}

impl Paired {
    /// Whether there is any pairing at all.
    #[inline(always)]
    pub const fn any(&self) -> bool {
        self.places != 0
    }

    /// Whether `endpoint` is paired with the client already.
    #[inline(always)]
    pub fn contains<T: Table>(&self, table: &T, endpoint: u64) -> bool {
        if self.places == 0 {
            return false;
        }
        for which in 0..2 {
            let index = if which == 0 {
                self.home.primary
            } else {
                self.home.secondary
            };
            let Some(bucket) = table.bucket(index) else {
                return false;
            };
            for way in 0..WAYS {
                if self.places >> (which * WAYS + way) & 1 != 0
                    && bucket.ways[way].backend_end.load() >> 16 == endpoint
                {
                    return true;
                }
            }
        }
        if self.places >> (2 * WAYS) == 0 {
            return false;
        }
        for slot in 0..SPILL_SLOTS {
            if self.places >> (2 * WAYS + slot as usize) & 1 != 0
                && let Some(other) = table.spilled(&SpillKey {
                    client: self.client,
                    slot,
                })
                && other.way.backend_end.load() >> 16 == endpoint
            {
                return true;
            }
        }
        false
    }
}
