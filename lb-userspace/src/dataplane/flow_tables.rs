//! The flow tables of both families as one: for those who go over all flows.

use super::Maps;
use crate::Family;
use anyhow::Result;
use aya::maps::MapError;
use lb_common::{
    abi::{Ends, SpillKey, Spilled4, Spilled6},
    flow::{Bucket, ColdWays, WideBucket},
};

/// A spill entry of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillId {
    /// Whose spill.
    pub family: Family,
    /// Its key there.
    pub key: SpillKey,
}

/// A bucket of either table.
pub struct AnyBucket<'a> {
    /// Whose table.
    pub family: Family,
    /// The words of its ways.
    pub words: &'a Bucket,
    /// Their cold halves.
    pub cold: &'a ColdWays,
    wide: Option<&'a WideBucket>,
}

impl AnyBucket<'_> {
    /// The addresses of a way; [`Ends::NONE`] in IPv4. Consistent only if the way
    /// does not change hands meanwhile.
    pub fn ends(&self, way: usize) -> Ends {
        match self.wide {
            Some(bucket) => bucket.ends[way].load(),
            None => Ends::NONE,
        }
    }
}

impl Maps {
    /// Buckets of both tables.
    pub fn bucket_count(&self) -> u32 {
        self.flows4.len() + self.flows6.len()
    }

    /// A bucket, those of IPv4 first; `position` below
    /// [`Maps::bucket_count`].
    pub fn bucket(&self, position: u32) -> AnyBucket<'_> {
        match position.checked_sub(self.flows4.len()) {
            None => AnyBucket {
                family: Family::V4,
                words: self.flows4.view(position),
                cold: self.cold4.view(position),
                wide: None,
            },
            Some(position) => {
                let wide: &WideBucket = self.flows6.view(position);
                AnyBucket {
                    family: Family::V6,
                    words: &wide.words,
                    cold: self.cold6.view(position),
                    wide: Some(wide),
                }
            }
        }
    }

    /// Every spill entry there is.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn spill_ids(&self) -> Result<Vec<SpillId>, MapError> {
        let id =
            |family| move |key: Result<SpillKey, MapError>| key.map(|key| SpillId { family, key });
        let four = self.spill4.keys().map(id(Family::V4));
        let six = self.spill6.keys().map(id(Family::V6));
        four.chain(six).collect()
    }

    /// Whether a family's spill is empty.
    pub fn spill_is_empty(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.spill4.keys().next().is_none(),
            Family::V6 => self.spill6.keys().next().is_none(),
        }
    }

    /// A copy of a spill entry; `None` if it is gone.
    pub fn spilled(&self, id: &SpillId) -> Option<Spilled6> {
        match id.family {
            Family::V4 => self.spill4.get(&id.key, 0).ok().map(|spilled| Spilled6 {
                spilled,
                ends: Ends::NONE,
            }),
            Family::V6 => self.spill6.get(&id.key, 0).ok(),
        }
    }

    /// Overwrites a spill entry.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn set_spilled(&mut self, id: &SpillId, entry: &Spilled6) -> Result<(), MapError> {
        let four: &Spilled4 = &entry.spilled;
        match id.family {
            Family::V4 => self.spill4.insert(id.key, four, 0),
            Family::V6 => self.spill6.insert(id.key, entry, 0),
        }
    }

    /// Removes a spill entry.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn remove_spilled(&mut self, id: &SpillId) -> Result<(), MapError> {
        match id.family {
            Family::V4 => self.spill4.remove(&id.key),
            Family::V6 => self.spill6.remove(&id.key),
        }
    }
}
