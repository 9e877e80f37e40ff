//! The hops back to clients: wanted by the packet path, held by flows.

use std::time::Instant;

use lb_common::abi::{Hop, HopKey, hop_flags};

use super::{
    ADMISSIONS_PER_SECOND, Client, GIVE_UP, HopCommand, HopSet, HopTable, IDLE_SWEEPS, MAX_PENDING,
    Near, Neighbour, Owner, PASS, RETRY, key, near,
};

/// How many neighbours were taken up in the current second.
#[derive(Debug, Default)]
pub(super) struct Admission {
    since: Option<Instant>,
    taken: u32,
}

impl Admission {
    fn admit(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| since + PASS <= now) {
            *self = Self {
                since: Some(now),
                taken: 0,
            };
        }
        self.taken += 1;
        self.taken <= ADMISSIONS_PER_SECOND
    }
}

impl HopTable {
    /// The packet path met a next hop of a client that it has no index of. It
    /// gets one when the neighbour answers.
    pub fn want(&mut self, key: HopKey, now: Instant) {
        let Some(near) = near(&key) else { return };
        match self.neighbours.get(&near) {
            Some(neighbour) if neighbour.client != Client::No => return,
            Some(_) => {}
            None if self.admission.admit(now) => {}
            None => {
                self.refused += 1;
                return;
            }
        }
        self.enter(near, now).client = Client::Pending;
        self.pending.push_back(near);
        self.give_client_index(near);
        if self.pending.len() > MAX_PENDING
            && let Some(oldest) = self.pending.front().copied()
        {
            self.refused += 1;
            self.give_up_pending(oldest);
        }
    }

    /// A full sweep of all flow tables is done, and found `held` in flows. Call
    /// it with all earlier commands carried out, and before the next sweep.
    pub fn in_use(&mut self, held: &HopSet) {
        for index in self.slots.indices() {
            let is_held = held.contains(index);
            match self.slots.get(index).owner {
                Owner::Free | Owner::Backend(_) => {}
                Owner::Client(near) => {
                    let slot = self.slots.get_mut(index);
                    slot.idle_sweeps = if is_held { 0 } else { slot.idle_sweeps + 1 };
                    if slot.idle_sweeps >= IDLE_SWEEPS {
                        self.retire_client(near);
                    }
                }
                // This sweep may have passed a flow before it took the index.
                Owner::Retired { client, sweeps: 0 } => {
                    self.slots.get_mut(index).owner = Owner::Retired { client, sweeps: 1 };
                }
                Owner::Retired { .. } if is_held => {}
                Owner::Retired { .. } => {
                    self.write(index, Hop::default());
                    self.slots.set_owner(index, Owner::Free);
                }
            }
        }
    }

    /// Gives a pending neighbour its index if it answered. The entry is written
    /// before any packet can find it.
    pub(super) fn give_client_index(&mut self, near: Near) {
        let hop = self.hop_of(near);
        if hop.flags & hop_flags::VALID == 0 {
            return;
        }
        let Some(index) = self.slots.allocate(Owner::Client(near)) else {
            self.refused += 1;
            self.give_up_pending(near);
            return;
        };
        self.set_client(near, Client::Index(index));
        self.write(index, hop);
        self.commands.push_back(HopCommand::InsertIndex {
            key: key(near),
            index,
        });
    }

    pub(super) fn retire_all_clients(&mut self) {
        let has_index = |(_, n): &(&Near, &Neighbour)| matches!(n.client, Client::Index(_));
        let clients: Vec<Near> = self
            .neighbours
            .iter()
            .filter(has_index)
            .map(|(near, _)| *near)
            .collect();
        for near in clients {
            self.retire_client(near);
        }
    }

    pub(super) fn expire_clients(&mut self, now: Instant) {
        let expired = |(_, n): &(&Near, &Neighbour)| match n.client {
            Client::No => false,
            Client::Pending => n.unresolved_since + RETRY <= now,
            Client::Index(_) => n.mac.is_none() && n.unresolved_since + GIVE_UP <= now,
        };
        let expired: Vec<(Near, Client)> = self
            .neighbours
            .iter()
            .filter(expired)
            .map(|(near, n)| (*near, n.client))
            .collect();
        for (near, client) in expired {
            match client {
                Client::No => {}
                Client::Pending => self.give_up_pending(near),
                Client::Index(_) => self.retire_client(near),
            }
        }
    }

    fn retire_client(&mut self, near: Near) {
        let Some(Client::Index(index)) = self.neighbours.get(&near).map(|n| n.client) else {
            return;
        };
        self.commands
            .push_back(HopCommand::RemoveIndex { key: key(near) });
        self.set_client(near, Client::No);
        self.retire(index, true);
        self.release_unused(near);
    }

    fn give_up_pending(&mut self, near: Near) {
        self.set_client(near, Client::No);
        self.release_unused(near);
    }

    /// Keeps the queue of pending neighbours in step.
    fn set_client(&mut self, near: Near, client: Client) {
        self.pending.retain(|pending| *pending != near);
        if let Some(neighbour) = self.neighbours.get_mut(&near) {
            neighbour.client = client;
        }
    }
}
