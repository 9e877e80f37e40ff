//! The next-hop table: who owns which entry of `HOPS`, and what it says.
//!
//! Backends and clients are reached by next hops, an interface and an address
//! on it. The packet path names them by index: `Backend::hop` for the way to a
//! backend, an index within the flow for the way back to its client. This
//! table hands out the indices, follows routes and neighbours, and says what to
//! write. It performs no I/O and reads no clock: events go in by methods, work
//! comes out by [`HopTable::next_command`].
//!
//! What it guarantees:
//! - *Never a wrong MAC address.* An entry is valid only while the neighbour's
//!   and the interface's own address are both known. A client's flow that finds
//!   its entry not valid asks the kernel for each packet: slower, and right.
//! - *An index never means two hops while anything holds it.* It is free again
//!   only after a whole sweep, begun after it was retired, found no flow that
//!   holds it. The same wait covers a packet that read the index just before.
//!   A client's and a backend's hop never share an index, even for one
//!   neighbour: a route change retires the one and not the other.
//! - *Clients cannot starve backends, each other or the kernel.* They have their
//!   own share of the indices ([`MAX_CLIENT_HOPS`]) and get one only when their
//!   neighbour answered, so invented addresses use none up. At most
//!   [`MAX_PENDING`] are being resolved at a time, the oldest giving way: one
//!   that exists answers within milliseconds. What is refused is counted.
//! - *Make before break.* A backend whose route changed keeps the old way, as
//!   long as that is valid and at most [`RETRY`], until the new one resolved.
//! - *Nothing depends on one lost message.* Neighbours are asked for again every
//!   [`REFRESH`], unresolved ones every [`RETRY`], and so are routes.
//!
//! After a route change the hops of clients are all retired, since nobody knows
//! which flows still go that way; flows find their new way by the kernel's
//! answer to their next packet. Where routes change without pause (a full BGP
//! table), that happens at most once per [`ROUTES_PACE`].
//!
//! After a restart the maps themselves say what is taken: a free entry of
//! `HOPS` is all zero, a retired one still has its interface. See
//! [`HopTable::adopt`].

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use lb_common::abi::{Hop, HopKey, address4, hop_flags};

use super::{Mac, Near, links::OwnLink};
use backends::Backend;
use clients::Admission;
pub use slots::{HopSet, MAX_CLIENT_HOPS};
use slots::{Owner, Slots};

mod adopt;
mod backends;
mod clients;
mod slots;
#[cfg(test)]
mod tests;

/// After this an unresolved neighbour or route is asked for again. The kernel
/// retries managed neighbours at the same pace (`interval_probe_time_ms`), and
/// needs 3 s to find that nobody answers.
pub const RETRY: Duration = Duration::from_secs(5);
/// After this a known neighbour or route is asked for again. Half of the
/// kernel's `gc_stale_time`, for neighbours that it does not manage itself.
pub const REFRESH: Duration = Duration::from_secs(30);
/// A client's hop whose neighbour stopped answering is given up after this.
pub const GIVE_UP: Duration = Duration::from_secs(60);
/// Least time between two retirements for changed routes.
pub const ROUTES_PACE: Duration = Duration::from_millis(500);
/// Most clients' neighbours being resolved for the first time at once: a quarter
/// of the size that the kernel's neighbour table has by default (`gc_thresh3`,
/// 1,024).
pub const MAX_PENDING: usize = 256;
/// Most clients' neighbours taken up for resolution in a second. Each costs the
/// daemon some five netlink messages, about 50 µs.
pub const ADMISSIONS_PER_SECOND: u32 = 512;
/// Sweeps in a row that must find no flow of a client's hop before it is
/// retired. The first may have begun before the hop was given out.
pub const IDLE_SWEEPS: u8 = 3;

/// Time between two looks at what is due.
const PASS: Duration = Duration::from_secs(1);
/// Most neighbours asked for in one pass; the rest follow in the next.
const MANAGES_PER_PASS: usize = 512;

/// What is to be done. Carry commands out in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopCommand {
    /// Store `hop` at `index` of `HOPS`.
    WriteHop {
        /// Index into `HOPS`.
        index: u32,
        /// The entry.
        hop: Hop,
    },
    /// Map `key` to `index` in `HOP_INDEX`.
    InsertIndex {
        /// Next hop as the packet path sees it.
        key: HopKey,
        /// Index into `HOPS`.
        index: u32,
    },
    /// Delete `key` from `HOP_INDEX`.
    RemoveIndex {
        /// Next hop as the packet path sees it.
        key: HopKey,
    },
    /// Store `index` as `Backend::hop`; 0: unresolved.
    SetBackendHop {
        /// Index into `BACKENDS`.
        backend: u32,
        /// Index into `HOPS`.
        index: u32,
    },
    /// [`super::neighbours::manage`], then give its answer to
    /// [`HopTable::neighbour_changed`].
    Manage(Near),
    /// [`super::neighbours::release`].
    Release(Near),
    /// [`super::routes::route_to`], then give its answer to
    /// [`HopTable::route_resolved`].
    ResolveRoute {
        /// Index into `BACKENDS`.
        backend: u32,
        /// Its address.
        address: IpAddr,
    },
}

/// Numbers for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopCounts {
    /// Hops of clients in use.
    pub clients: u32,
    /// Clients' neighbours being resolved for the first time.
    pub pending: u32,
    /// Hops of backends in use.
    pub backends: u32,
    /// Retired, waiting for a sweep.
    pub retired: u32,
    /// In use, without a valid MAC address.
    pub unresolved: u32,
    /// Wishes refused since the start for want of an index, or because too many
    /// came at once.
    pub refused: u64,
}

/// A neighbour that somebody wants.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Option<Mac>,
    client: Client,
    /// Index for backends, once one was free.
    backend: Option<u32>,
    backend_users: u32,
    manage_at: Instant,
    unresolved_since: Instant,
}

/// What the packet path's clients have of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    No,
    /// Wanted; gets an index when it answers.
    Pending,
    Index(u32),
}

/// See the module's text.
#[derive(Debug)]
pub struct HopTable {
    slots: Slots,
    links: BTreeMap<u32, OwnLink>,
    neighbours: BTreeMap<Near, Neighbour>,
    backends: BTreeMap<u32, Backend>,
    /// Neighbours that are [`Client::Pending`], oldest first.
    pending: VecDeque<Near>,
    admission: Admission,
    commands: VecDeque<HopCommand>,
    pass_at: Option<Instant>,
    routes_done: Option<Instant>,
    routes_due: Option<Instant>,
    refused: u64,
}

impl Default for HopTable {
    fn default() -> Self {
        Self::new()
    }
}

impl HopTable {
    /// A table over empty maps. For pinned ones see [`HopTable::adopt`].
    pub fn new() -> Self {
        Self {
            slots: Slots::new(),
            links: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            backends: BTreeMap::new(),
            pending: VecDeque::new(),
            admission: Admission::default(),
            commands: VecDeque::new(),
            pass_at: None,
            routes_done: None,
            routes_due: None,
            refused: 0,
        }
    }

    /// The next thing to do.
    pub fn next_command(&mut self) -> Option<HopCommand> {
        self.commands.pop_front()
    }

    /// When [`HopTable::handle_timeout`] is due. Early is harmless.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.neighbours.is_empty() && self.backends.is_empty();
        let pass = self.pass_at.filter(|_| !idle);
        [pass, self.routes_due].into_iter().flatten().min()
    }

    /// Numbers for `status`.
    pub fn counts(&self) -> HopCounts {
        let mut counts = HopCounts {
            pending: self.pending.len() as u32,
            refused: self.refused,
            ..HopCounts::default()
        };
        for index in self.slots.indices() {
            match self.slots.get(index).owner {
                Owner::Free => continue,
                Owner::Client(_) => counts.clients += 1,
                Owner::Backend(_) => counts.backends += 1,
                Owner::Retired { .. } => {
                    counts.retired += 1;
                    continue;
                }
            }
            counts.unresolved += u32::from(!self.slots.is_valid(index));
        }
        counts
    }

    /// The kernel's entry of a neighbour changed; `mac` is none when it has
    /// none that is valid.
    pub fn neighbour_changed(&mut self, near: Near, mac: Option<Mac>, now: Instant) {
        let Some(neighbour) = self.neighbours.get_mut(&near) else {
            return;
        };
        if neighbour.mac == mac {
            return;
        }
        neighbour.mac = mac;
        if mac.is_none() {
            neighbour.unresolved_since = now;
        }
        self.refresh_near(near);
        if mac.is_none() {
            // The entry may be gone altogether (the link went down), and with
            // it the wish to keep it.
            self.manage(near, now);
        }
    }

    /// All entries of the kernel, after an overrun: what is not among them has
    /// no valid address.
    pub fn neighbours_reread(
        &mut self,
        all: impl IntoIterator<Item = (Near, Option<Mac>)>,
        now: Instant,
    ) {
        let all: BTreeMap<Near, Option<Mac>> = all.into_iter().collect();
        let known: Vec<Near> = self.neighbours.keys().copied().collect();
        for near in known {
            self.neighbour_changed(near, all.get(&near).copied().flatten(), now);
        }
    }

    /// What frames that leave by an own interface need; none when it is down,
    /// gone or has no MAC address ([`super::links::Link::own`]).
    pub fn link_changed(&mut self, ifindex: u32, link: Option<OwnLink>) {
        let before = match link {
            Some(link) => self.links.insert(ifindex, link),
            None => self.links.remove(&ifindex),
        };
        if before != link {
            let on_link: Vec<Near> = self
                .neighbours
                .keys()
                .filter(|near| near.ifindex == ifindex)
                .copied()
                .collect();
            for near in on_link {
                self.refresh_near(near);
            }
        }
    }

    /// Routes, rules or own addresses changed.
    pub fn routes_changed(&mut self, now: Instant) {
        match self.routes_done {
            Some(done) if now < done + ROUTES_PACE => self.routes_due = Some(done + ROUTES_PACE),
            _ => self.follow_routes(now),
        }
    }

    /// Asks again for what is due, and gives up what did not come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.routes_due.is_some_and(|due| due <= now) {
            self.follow_routes(now);
        }
        if self.pass_at.is_none_or(|pass| now < pass) {
            return;
        }
        self.pass_at = Some(now + PASS);
        self.expire_clients(now);
        let due = self.neighbours.iter().filter(|(_, n)| n.manage_at <= now);
        let due: Vec<Near> = due.map(|(near, _)| *near).take(MANAGES_PER_PASS).collect();
        for near in due {
            self.manage(near, now);
        }
        self.expire_backends(now);
    }

    fn follow_routes(&mut self, now: Instant) {
        self.routes_done = Some(now);
        self.routes_due = None;
        self.retire_all_clients();
        let backends: Vec<u32> = self.backends.keys().copied().collect();
        for backend in backends {
            self.ask_route(backend, now);
        }
    }

    /// Stores an entry unless the map already holds it.
    fn write(&mut self, index: u32, hop: Hop) {
        let slot = self.slots.get_mut(index);
        if slot.written != hop {
            slot.written = hop;
            self.commands.push_back(HopCommand::WriteHop { index, hop });
        }
    }

    /// What is known of a next hop.
    fn hop_of(&self, near: Near) -> Hop {
        let destination = self
            .neighbours
            .get(&near)
            .and_then(|neighbour| neighbour.mac);
        match (destination, self.links.get(&near.ifindex)) {
            (Some(destination), Some(own)) => Hop {
                flags: hop_flags::VALID,
                ifindex: near.ifindex,
                destination,
                source: own.mac,
                mtu: own.mtu,
                padding: 0,
            },
            _ => not_valid(near.ifindex),
        }
    }

    /// Writes what is known of a neighbour, wherever it is used.
    fn refresh_near(&mut self, near: Near) {
        let Some(neighbour) = self.neighbours.get(&near).copied() else {
            return;
        };
        let hop = self.hop_of(near);
        match neighbour.client {
            Client::No => {}
            Client::Pending => self.give_client_index(near),
            Client::Index(index) => self.write(index, hop),
        }
        if let Some(index) = neighbour.backend {
            self.write(index, hop);
        }
        let users = self.backends.iter().filter(|(_, entry)| entry.uses(near));
        let users: Vec<u32> = users.map(|(backend, _)| *backend).collect();
        for backend in users {
            self.refresh_backend(backend);
        }
    }

    /// Makes sure that the neighbour is known and being resolved.
    fn enter(&mut self, near: Near, now: Instant) -> &mut Neighbour {
        self.pass_at.get_or_insert(now + PASS);
        let (neighbours, commands) = (&mut self.neighbours, &mut self.commands);
        neighbours.entry(near).or_insert_with(|| {
            commands.push_back(HopCommand::Manage(near));
            Neighbour {
                mac: None,
                client: Client::No,
                backend: None,
                backend_users: 0,
                manage_at: now + RETRY,
                unresolved_since: now,
            }
        })
    }

    fn manage(&mut self, near: Near, now: Instant) {
        if let Some(neighbour) = self.neighbours.get_mut(&near) {
            neighbour.manage_at = now
                + if neighbour.mac.is_some() {
                    REFRESH
                } else {
                    RETRY
                };
            self.commands.push_back(HopCommand::Manage(near));
        }
    }

    fn release_unused(&mut self, near: Near) {
        let unused = |n: &Neighbour| n.client == Client::No && n.backend_users == 0;
        if self.neighbours.get(&near).is_some_and(unused) {
            self.neighbours.remove(&near);
            self.commands.push_back(HopCommand::Release(near));
        }
    }

    /// Takes an index out of use; nothing new may point there any more.
    fn retire(&mut self, index: u32, client: bool) {
        let ifindex = self.slots.get(index).written.ifindex;
        self.write(index, not_valid(ifindex));
        self.slots
            .set_owner(index, Owner::Retired { client, sweeps: 0 });
    }
}

/// The address as the maps hold it, with its family.
fn key(near: Near) -> HopKey {
    let (address, family) = match near.address {
        IpAddr::V4(v4) => (address4(v4.octets()), 4),
        IpAddr::V6(v6) => (v6.octets(), 6),
    };
    HopKey {
        address,
        ifindex: near.ifindex,
        family,
    }
}

/// None for a key that the packet path cannot have meant.
fn near(wanted: &HopKey) -> Option<Near> {
    let [a, b, c, d, ..] = wanted.address;
    let address = match wanted.family {
        4 => IpAddr::from([a, b, c, d]),
        6 => IpAddr::from(wanted.address),
        _ => return None,
    };
    let near = Near {
        ifindex: wanted.ifindex,
        address,
    };
    let unicast = !address.is_unspecified() && !address.is_multicast() && near.ifindex != 0;
    (unicast && key(near) == *wanted).then_some(near)
}

/// An entry that says to ask the kernel. It keeps the interface, so that after
/// a restart it does not pass for a free one.
fn not_valid(ifindex: u32) -> Hop {
    Hop {
        ifindex,
        ..Hop::default()
    }
}
