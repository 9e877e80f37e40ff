//! Publishing lists and rings: written into a free region of their arena, then
//! made current by one 64-bit store.

use super::Maps;
use anyhow::{Context as _, Result};
use lb_common::abi::{MEMBER_SLOTS, Member, RING_CHUNKS, RING_SLOTS, Service, descriptor, region};
use std::{collections::BTreeMap, mem::offset_of};

/// A first-fit allocator of regions.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    size: u32,
    /// Offset → length.
    taken: BTreeMap<u32, u32>,
}

impl Arena {
    /// An arena of `size` entries.
    pub fn new(size: u32) -> Self {
        Self {
            size,
            taken: BTreeMap::new(),
        }
    }

    /// Takes a region; `None` if no gap is large enough.
    pub fn take(&mut self, length: u32) -> Option<u32> {
        let mut start = 0;
        for (offset, taken) in &self.taken {
            if offset - start >= length {
                break;
            }
            start = offset + taken;
        }
        if self.size - start < length {
            return None;
        }
        self.taken.insert(start, length);
        Some(start)
    }

    /// Takes this very region; whether it was free.
    pub fn reserve(&mut self, offset: u32, length: u32) -> bool {
        let end = offset + length;
        let overlaps = self
            .taken
            .iter()
            .any(|(start, taken)| *start < end && offset < start + taken);
        if overlaps || end > self.size {
            return false;
        }
        self.taken.insert(offset, length);
        true
    }

    /// Gives a region back.
    pub fn free(&mut self, offset: u32) {
        self.taken.remove(&offset);
    }
}

/// Microseconds that a replaced region is kept: far longer than any packet is
/// in the program.
const GRACE_US: u64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
enum Which {
    Members,
    Ring,
}

/// Publishes member lists and rings of services.
pub struct Publisher {
    members: Arena,
    rings: Arena,
    /// Regions to be freed, with the time from which they may be.
    leaving: Vec<(u64, Which, u32)>,
    sequence: u16,
}

/// Arena entries of a list, its header included.
const fn member_entries(members: u32) -> u32 {
    members + 1
}

const fn ring_chunks(slots: u32) -> u32 {
    slots.div_ceil(4)
}

impl Publisher {
    /// Takes over what the maps have published already.
    pub fn new(maps: &Maps) -> Self {
        let mut publisher = Self {
            members: Arena::new(MEMBER_SLOTS),
            rings: Arena::new(RING_CHUNKS),
            leaving: Vec::new(),
            sequence: 0,
        };
        for index in 0..maps.service_table.len() {
            let service = maps.service_table.read(index);
            let (offset, length) = region(service.members);
            if service.members != 0 {
                publisher.members.reserve(offset, member_entries(length));
            }
            let (offset, length) = region(service.ring);
            if service.ring != 0 {
                publisher.rings.reserve(offset, ring_chunks(length));
            }
            publisher.sequence = publisher.sequence.max((service.members >> 48) as u16);
        }
        publisher
    }

    /// Whether lists of so many members and so many full rings can be published
    /// besides all that is published now.
    pub fn has_room(&self, lists: &[u32], rings: usize) -> bool {
        let mut arena = self.members.clone();
        let fits = lists
            .iter()
            .all(|members| arena.take(member_entries(*members)).is_some());
        let mut arena = self.rings.clone();
        fits && (0..rings).all(|_| arena.take(ring_chunks(RING_SLOTS)).is_some())
    }

    fn next_sequence(&mut self) -> u16 {
        // Never zero, so that a descriptor of an empty list is not "none".
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    /// Publishes a member list in configuration order. The cursor goes on where
    /// it was: in the same backend's run if that still exists, so that a change
    /// elsewhere does not make anybody's turn come twice (envoy issue 14360).
    ///
    /// # Errors
    /// A full arena.
    pub fn publish_members(
        &mut self,
        maps: &Maps,
        service: u32,
        members: &[(u16, u32)],
        now_us: u64,
    ) -> Result<()> {
        let before = maps.service_table.read(service);
        if has_members(maps, before.members, members) {
            return Ok(());
        }
        let cursor = maps.cursors.read(service).members;
        let position = next_position(maps, &before, cursor, members);
        let length = u32::try_from(members.len())?;
        let offset = self
            .members
            .take(member_entries(length))
            .context("the member arena is full: too many backends over all services")?;
        maps.members
            .write(offset, Member::header(cursor.wrapping_sub(position)));
        let mut prefix = 0u32;
        for (place, (backend, weight)) in (offset + 1..).zip(members) {
            prefix += weight;
            maps.members.write(
                place,
                Member {
                    prefix,
                    backend: *backend,
                    padding: 0,
                },
            );
        }
        let word = descriptor(offset, u16::try_from(length)?, self.next_sequence());
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        maps.service_table
            .write_word(service, offset_of!(Service, members), word);
        self.retire(before.members, Which::Members, now_us);
        Ok(())
    }

    /// Publishes a ring; an empty one means "none".
    ///
    /// # Errors
    /// A full arena.
    pub fn publish_ring(
        &mut self,
        maps: &Maps,
        service: u32,
        slots: &[u16],
        now_us: u64,
    ) -> Result<()> {
        let before = maps.service_table.read(service);
        if has_ring(maps, before.ring, slots) {
            return Ok(());
        }
        let word = if slots.is_empty() {
            0
        } else {
            let length = u32::try_from(slots.len())?;
            let offset = self
                .rings
                .take(ring_chunks(length))
                .context("the ring arena is full: too many services with pick = \"shares\"")?;
            for (place, chunk) in (offset..).zip(slots.chunks(4)) {
                let mut four = [0; 4];
                four[..chunk.len()].copy_from_slice(chunk);
                maps.rings.write(place, four);
            }
            descriptor(offset, u16::try_from(length)?, self.next_sequence())
        };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        maps.service_table
            .write_word(service, offset_of!(Service, ring), word);
        self.retire(before.ring, Which::Ring, now_us);
        Ok(())
    }

    fn retire(&mut self, word: u64, which: Which, now_us: u64) {
        if word != 0 {
            self.leaving
                .push((now_us + GRACE_US, which, region(word).0));
        }
    }

    /// Frees regions whose grace period is over.
    pub fn collect(&mut self, now_us: u64) {
        let (members, rings) = (&mut self.members, &mut self.rings);
        self.leaving.retain(|(due, which, offset)| {
            if now_us < *due {
                return true;
            }
            match which {
                Which::Members => members.free(*offset),
                Which::Ring => rings.free(*offset),
            }
            false
        });
    }
}

/// Whether the list published by `word` is this one: after a reload most are.
fn has_members(maps: &Maps, word: u64, members: &[(u16, u32)]) -> bool {
    let (offset, length) = region(word);
    if word == 0 || length as usize != members.len() {
        return false;
    }
    let mut prefix = 0u32;
    (offset + 1..)
        .zip(members)
        .all(|(place, (backend, weight))| {
            prefix = prefix.wrapping_add(*weight);
            maps.members.read(place)
                == Member {
                    prefix,
                    backend: *backend,
                    padding: 0,
                }
        })
}

/// Whether the ring published by `word` is this one.
fn has_ring(maps: &Maps, word: u64, slots: &[u16]) -> bool {
    let (offset, length) = region(word);
    if word == 0 || length as usize != slots.len() {
        return word == 0 && slots.is_empty();
    }
    (offset..)
        .zip(slots.chunks(4))
        .all(|(place, chunk)| maps.rings.read(place).starts_with(chunk))
}

/// The slot of the new list that follows on what the cursor has given out of
/// the old one.
fn next_position(maps: &Maps, before: &Service, cursor: u64, members: &[(u16, u32)]) -> u64 {
    if before.members == 0 {
        return 0;
    }
    let (offset, length) = region(before.members);
    let total = u64::from(maps.members.read(offset + length).prefix);
    if length == 0 || total == 0 {
        return 0;
    }
    let slot = cursor.wrapping_sub(maps.members.read(offset).base()) % total;
    let mut start = 0u64;
    for place in offset + 1..=offset + length {
        let member = maps.members.read(place);
        let end = u64::from(member.prefix);
        if slot < end {
            let into_run = slot - start;
            let mut position = 0;
            for (backend, weight) in members {
                if *backend == member.backend {
                    return position + into_run.min(u64::from(*weight));
                }
                position += u64::from(*weight);
            }
            return 0;
        }
        start = end;
    }
    0
}
