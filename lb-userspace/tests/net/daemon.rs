//! The loop around the hop table, with maps that can be looked into.

use std::{collections::BTreeMap, time::Instant};

use lb_common::abi::{Hop, HopKey, hop_flags};
use steerline::net::{
    Mac, Netlink,
    hops::{HopCommand, HopTable},
    links::{self, Link},
    neighbours, routes,
    watch::{Change, Watch},
};

use super::lab::PATIENCE;

/// What the daemon does around the table.
pub(crate) struct Daemon {
    pub(crate) netlink: Netlink,
    pub(crate) watch: Watch,
    pub(crate) table: HopTable,
    pub(crate) hops: BTreeMap<u32, Hop>,
    pub(crate) hop_index: BTreeMap<HopKey, u32>,
    pub(crate) backend_hops: BTreeMap<u32, u32>,
    pub(crate) routes_asked: u32,
    /// Entries written that are not valid.
    pub(crate) voided: u32,
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        let watch = Watch::open().unwrap();
        let netlink = Netlink::open().unwrap();
        let mut table = HopTable::new();
        for link in links::list(netlink.handle()).await.unwrap() {
            table.link_changed(link.index, link.own());
        }
        Self {
            netlink,
            watch,
            table,
            hops: BTreeMap::new(),
            hop_index: BTreeMap::new(),
            backend_hops: BTreeMap::new(),
            routes_asked: 0,
            voided: 0,
        }
    }

    pub(crate) async fn carry_out(&mut self) {
        let handle = self.netlink.handle().clone();
        while let Some(command) = self.table.next_command() {
            match command {
                HopCommand::WriteHop { index, hop } => {
                    self.voided += u32::from(hop.flags & hop_flags::VALID == 0);
                    self.hops.insert(index, hop);
                }
                HopCommand::InsertIndex { key, index } => drop(self.hop_index.insert(key, index)),
                HopCommand::RemoveIndex { key } => drop(self.hop_index.remove(&key)),
                HopCommand::SetBackendHop { backend, index } => {
                    self.backend_hops.insert(backend, index);
                }
                HopCommand::Manage(near) => {
                    let entry = neighbours::manage(&handle, near).await.unwrap();
                    let mac = entry.and_then(|entry| entry.mac);
                    self.table.neighbour_changed(near, mac, Instant::now());
                }
                HopCommand::Release(near) => neighbours::release(&handle, near).await.unwrap(),
                HopCommand::ResolveRoute { backend, address } => {
                    self.routes_asked += 1;
                    let route = routes::route_to(&handle, address).await.ok();
                    self.table
                        .route_resolved(backend, address, route, Instant::now());
                }
            }
        }
    }

    pub(crate) async fn one_change(&mut self) {
        let timeout = self
            .table
            .poll_timeout()
            .unwrap_or_else(|| Instant::now() + PATIENCE);
        tokio::select! {
            change = self.watch.next() => match change.unwrap() {
                Change::Neighbour { near, mac } => {
                    self.table.neighbour_changed(near, mac, Instant::now());
                }
                Change::RoutesChanged => self.table.routes_changed(Instant::now()),
                Change::LinkChanged { ifindex } => {
                    let link = Link::by_index(self.netlink.handle(), ifindex).await.unwrap();
                    self.table.link_changed(ifindex, link.and_then(|link| link.own()));
                }
                Change::Overrun => panic!("overrun"),
            },
            () = tokio::time::sleep_until(timeout.into()) => {
                self.table.handle_timeout(Instant::now());
            }
        }
    }

    /// Follows the kernel until `done`; the caller's timeout bounds it.
    pub(crate) async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        self.carry_out().await;
        while !done(self) {
            self.one_change().await;
            self.carry_out().await;
        }
    }

    pub(crate) fn backend_hop(&self, backend: u32) -> Option<Hop> {
        let index = self.backend_hops.get(&backend)?;
        self.hops
            .get(index)
            .copied()
            .filter(|hop| hop.flags & hop_flags::VALID != 0)
    }

    pub(crate) fn backend_mac(&self, backend: u32) -> Option<Mac> {
        self.backend_hop(backend).map(|hop| hop.destination)
    }
}
