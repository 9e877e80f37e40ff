//! Who owns which index of `HOPS`, and when an index may be given out again.

use std::collections::VecDeque;

use lb_common::abi::{Hop, MAX_BACKENDS, MAX_HOPS, hop_flags};

use super::Near;

/// Most client-side indices, retired ones included. What remains is enough for
/// every backend to have a hop of its own, so that clients, who are not to be
/// trusted, cannot leave a backend without one.
pub const MAX_CLIENT_HOPS: u32 = MAX_HOPS - MAX_BACKENDS;

/// A set of indices of `HOPS`: those that a sweep found in flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopSet(Vec<u64>);

impl Default for HopSet {
    fn default() -> Self {
        Self(vec![0; (MAX_HOPS as usize).div_ceil(64)])
    }
}

impl HopSet {
    /// Adds an index. One outside the map is ignored: a flow's word is 16 bits
    /// wide and may be read while it is written.
    pub fn insert(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// Whether the index was added.
    pub fn contains(&self, index: u32) -> bool {
        self.0
            .get(index as usize / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Empties the set for the next sweep.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }
}

/// What an index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody: no flow, no backend and no packet under way holds it.
    Free,
    /// In `HOP_INDEX`; flows hold it.
    Client(Near),
    /// Named by `Backend::hop`. No [`Near`]: left by an earlier daemon, the
    /// maps do not say for whom.
    Backend(Option<Near>),
    /// No longer given out; flows may still hold it.
    Retired { client: bool, sweeps: u8 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) owner: Owner,
    /// What the map holds once all commands are carried out.
    pub(super) written: Hop,
    /// Sweeps in a row that found no flow of a client's hop.
    pub(super) idle_sweeps: u8,
}

/// All indices. Index 0 is never given out: it means "ask the kernel".
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Oldest first, so that an index rests as long as possible. May name
    /// indices that were adopted since; [`Slots::allocate`] skips those.
    free: VecDeque<u32>,
    clients: u32,
}

impl Slots {
    pub(super) fn new() -> Self {
        let slot = Slot {
            owner: Owner::Free,
            written: Hop::default(),
            idle_sweeps: 0,
        };
        Self {
            slots: vec![slot; MAX_HOPS as usize],
            free: (1..MAX_HOPS).collect(),
            clients: 0,
        }
    }

    /// The slot of an index that this table gave out or checked.
    pub(super) fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        1..self.slots.len() as u32
    }

    pub(super) fn is_free(&self, index: u32) -> bool {
        self.indices().contains(&index) && self.get(index).owner == Owner::Free
    }

    pub(super) fn is_valid(&self, index: u32) -> bool {
        self.get(index).written.flags & hop_flags::VALID != 0
    }

    /// Leaves only a few indices to give out, so that tests meet reuse.
    #[cfg(test)]
    pub(super) fn keep_free(&mut self, indices: usize) {
        self.free.truncate(indices);
    }

    pub(super) fn allocate(&mut self, owner: Owner) -> Option<u32> {
        if is_client(owner) && self.clients >= MAX_CLIENT_HOPS {
            return None;
        }
        while let Some(index) = self.free.pop_front() {
            if self.is_free(index) {
                self.set_owner(index, owner);
                return Some(index);
            }
        }
        None
    }

    pub(super) fn set_owner(&mut self, index: u32, owner: Owner) {
        let slot = &mut self.slots[index as usize];
        let before = std::mem::replace(&mut slot.owner, owner);
        slot.idle_sweeps = 0;
        self.clients = self.clients + u32::from(is_client(owner)) - u32::from(is_client(before));
        if owner == Owner::Free {
            self.free.push_back(index);
        }
    }
}

fn is_client(owner: Owner) -> bool {
    match owner {
        Owner::Client(_) | Owner::Retired { client: true, .. } => true,
        Owner::Free | Owner::Backend(_) | Owner::Retired { client: false, .. } => false,
    }
}
