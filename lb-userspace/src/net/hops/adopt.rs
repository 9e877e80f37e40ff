//! Taking over the maps of an earlier daemon.

use std::time::Instant;

use lb_common::abi::{Hop, HopKey, hop_flags};

use super::{Backend, Client, HopCommand, HopTable, OwnLink, Owner, backends::Fallback, near};

impl HopTable {
    /// An entry of `HOP_INDEX` found in the pinned maps, with its entry of
    /// `HOPS`. Flows hold it, so it stays what it is; its neighbour is asked
    /// for at once, which corrects an address that changed in between. An entry
    /// that makes no sense is removed.
    ///
    /// After a restart, in this order and before anything else: `adopt` for all
    /// of `HOP_INDEX`; [`HopTable::adopt_backend`] for all of `BACKENDS`;
    /// [`HopTable::adopt_retired`] for what else of `HOPS` is not zero. Then
    /// [`HopTable::link_changed`] of all links and
    /// [`HopTable::want_backend`] as usual. Routes may have changed while nobody
    /// watched: finish by [`HopTable::routes_changed`], which costs every flow
    /// one question to the kernel.
    pub fn adopt(&mut self, index: u32, key: HopKey, hop: Hop, now: Instant) {
        let near = near(&key).filter(|near| {
            let taken = self
                .neighbours
                .get(near)
                .is_some_and(|n| n.client != Client::No);
            !taken && hop.ifindex == near.ifindex
        });
        let Some(near) = near.filter(|_| self.slots.is_free(index)) else {
            self.commands.push_back(HopCommand::RemoveIndex { key });
            return;
        };
        self.slots.set_owner(index, Owner::Client(near));
        self.slots.get_mut(index).written = hop;
        let neighbour = self.enter(near, now);
        neighbour.client = Client::Index(index);
        if hop.flags & hop_flags::VALID != 0 {
            neighbour.mac = Some(hop.destination);
            self.links.entry(near.ifindex).or_insert(OwnLink {
                mac: hop.source,
                mtu: hop.mtu,
            });
        }
        self.refresh_near(near);
    }

    /// An entry of `BACKENDS` found in the pinned maps that names a hop, with
    /// that entry of `HOPS`. The maps do not say whose hop it is, so the backend
    /// keeps it until its own resolves, until the kernel says that there is no
    /// way, or for [`super::RETRY`] after it is wanted.
    pub fn adopt_backend(&mut self, backend: u32, index: u32, hop: Hop) {
        if index == 0 {
            return;
        }
        let usable = hop.flags & hop_flags::VALID != 0;
        if usable && self.slots.is_free(index) {
            self.slots.set_owner(index, Owner::Backend(None));
            self.slots.get_mut(index).written = hop;
        }
        let adopted = self.slots.indices().contains(&index)
            && self.slots.get(index).owner == Owner::Backend(None);
        let fallback = adopted.then_some(Fallback::Adopted(index));
        self.backends.insert(backend, Backend::new(index, fallback));
        self.refresh_backend(backend);
    }

    /// Any other entry of `HOPS`. One that is not all zero was retired, and
    /// flows may still hold it.
    pub fn adopt_retired(&mut self, index: u32, hop: Hop) {
        if hop != Hop::default() && self.slots.is_free(index) {
            self.slots.get_mut(index).written = hop;
            self.retire(index, true);
        }
    }
}
