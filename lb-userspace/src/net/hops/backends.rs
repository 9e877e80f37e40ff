//! The hops to backends: named by `Backend::hop`, held by no flow.

use std::{net::IpAddr, time::Instant};

use super::{HopCommand, HopTable, Near, Owner, PASS, REFRESH, RETRY};
use crate::net::routes::Route;

/// A backend that is to be reachable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backend {
    /// None: known from an earlier daemon only.
    pub(super) address: Option<IpAddr>,
    /// Where its route leads.
    near: Option<Near>,
    /// Used until `near` resolved.
    pub(super) fallback: Option<Fallback>,
    fallback_until: Option<Instant>,
    /// What `Backend::hop` holds once all commands are carried out.
    written: u32,
    resolve_at: Option<Instant>,
}

/// What a backend had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// An index that an earlier daemon gave it.
    Adopted(u32),
    /// The way by its route before; counted among that neighbour's users.
    Previous(Near),
}

impl Backend {
    pub(super) fn new(written: u32, fallback: Option<Fallback>) -> Self {
        Self {
            address: None,
            near: None,
            fallback,
            fallback_until: None,
            written,
            resolve_at: None,
        }
    }

    pub(super) fn uses(&self, near: Near) -> bool {
        self.near == Some(near) || self.fallback == Some(Fallback::Previous(near))
    }
}

impl HopTable {
    /// A backend is to be reachable at `address`: asks for its route. Again
    /// with another address: moves it. A drained backend is wanted until no
    /// flow of its is left.
    pub fn want_backend(&mut self, backend: u32, address: IpAddr, now: Instant) {
        let entry = self
            .backends
            .entry(backend)
            .or_insert_with(|| Backend::new(0, None));
        if entry.address == Some(address) {
            return;
        }
        let moved = entry.address.replace(address).is_some();
        entry.fallback_until = Some(now + RETRY);
        if moved {
            self.leave(backend);
        }
        self.ask_route(backend, now);
    }

    /// The kernel's answer to [`HopCommand::ResolveRoute`]; none where it has
    /// no way. An answer for an address that is no longer wanted is ignored.
    pub fn route_resolved(
        &mut self,
        backend: u32,
        address: IpAddr,
        route: Option<Route>,
        now: Instant,
    ) {
        let Some(entry) = self.backends.get_mut(&backend) else {
            return;
        };
        if entry.address != Some(address) {
            return;
        }
        entry.resolve_at = Some(now + if route.is_some() { REFRESH } else { RETRY });
        let Some(near) = route.map(|route| route.near(address)) else {
            self.leave(backend);
            return;
        };
        let old = entry.near.replace(near);
        if old == Some(near) {
            // There may have been no index left when it joined.
            self.give_backend_index(near);
            self.refresh_backend(backend);
            return;
        }
        self.enter(near, now).backend_users += 1;
        self.give_backend_index(near);
        if let Some(old) = old {
            self.fall_back_on(backend, old, now);
        }
        self.refresh_backend(backend);
    }

    /// The backend is gone, with its flows.
    pub fn forget_backend(&mut self, backend: u32) {
        self.leave(backend);
        self.backends.remove(&backend);
    }

    /// Points a backend to its hop once that is valid. A hop that stops being
    /// valid later stays: its entry says so itself.
    pub(super) fn refresh_backend(&mut self, backend: u32) {
        let Some(entry) = self.backends.get(&backend).copied() else {
            return;
        };
        let own = entry
            .near
            .and_then(|near| self.neighbours.get(&near)?.backend);
        let ready = own.filter(|own| self.slots.is_valid(*own) || entry.written == *own);
        match ready {
            Some(index) => {
                self.set_backend_hop(backend, index);
                self.drop_fallback(backend);
            }
            None => {
                let index = entry.fallback.and_then(|fallback| self.index_of(fallback));
                let valid = index.filter(|index| self.slots.is_valid(*index));
                self.set_backend_hop(backend, valid.unwrap_or(0));
            }
        }
    }

    pub(super) fn expire_backends(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let late = self
            .backends
            .iter()
            .filter(|(_, b)| is_due(b.fallback_until));
        let late: Vec<u32> = late.map(|(backend, _)| *backend).collect();
        for backend in late {
            self.drop_fallback(backend);
            self.refresh_backend(backend);
        }
        let due = self.backends.iter().filter(|(_, b)| is_due(b.resolve_at));
        let due: Vec<u32> = due.map(|(backend, _)| *backend).collect();
        for backend in due {
            self.ask_route(backend, now);
        }
    }

    pub(super) fn ask_route(&mut self, backend: u32, now: Instant) {
        self.pass_at.get_or_insert(now + PASS);
        let Some(entry) = self.backends.get_mut(&backend) else {
            return;
        };
        let Some(address) = entry.address else { return };
        entry.resolve_at = Some(now + RETRY);
        self.commands
            .push_back(HopCommand::ResolveRoute { backend, address });
    }

    fn index_of(&self, fallback: Fallback) -> Option<u32> {
        match fallback {
            Fallback::Adopted(index) => Some(index),
            Fallback::Previous(near) => self.neighbours.get(&near)?.backend,
        }
    }

    /// The backend's route led by `old` and leads elsewhere now.
    fn fall_back_on(&mut self, backend: u32, old: Near, now: Instant) {
        let index = self.index_of(Fallback::Previous(old));
        let Some(entry) = self.backends.get_mut(&backend) else {
            return;
        };
        // Only what is really in use is worth keeping.
        if entry.fallback.is_none() && Some(entry.written) == index {
            entry.fallback = Some(Fallback::Previous(old));
            entry.fallback_until = Some(now + RETRY);
        } else {
            self.leave_near(old);
        }
    }

    fn set_backend_hop(&mut self, backend: u32, index: u32) {
        if let Some(entry) = self.backends.get_mut(&backend)
            && entry.written != index
        {
            entry.written = index;
            self.commands
                .push_back(HopCommand::SetBackendHop { backend, index });
        }
    }

    /// Gives up what the backend had before. If it still points there it points
    /// nowhere after.
    fn drop_fallback(&mut self, backend: u32) {
        let Some(entry) = self.backends.get_mut(&backend) else {
            return;
        };
        entry.fallback_until = None;
        let Some(fallback) = entry.fallback.take() else {
            return;
        };
        let (written, near) = (entry.written, entry.near);
        let own = near.and_then(|near| self.neighbours.get(&near)?.backend);
        if self.index_of(fallback) == Some(written) && own != Some(written) {
            self.set_backend_hop(backend, 0);
        }
        match fallback {
            Fallback::Previous(near) => self.leave_near(near),
            // The last backend to leave an adopted index retires it.
            Fallback::Adopted(index) => {
                if !self
                    .backends
                    .values()
                    .any(|other| other.fallback == Some(fallback))
                {
                    self.retire(index, false);
                }
            }
        }
    }

    fn give_backend_index(&mut self, near: Near) {
        let hop = self.hop_of(near);
        let Some(neighbour) = self.neighbours.get_mut(&near) else {
            return;
        };
        if neighbour.backend.is_some() {
            return;
        }
        match self.slots.allocate(Owner::Backend(Some(near))) {
            Some(index) => {
                neighbour.backend = Some(index);
                self.write(index, hop);
            }
            None => self.refused += 1,
        }
    }

    /// The backend has no way any more.
    fn leave(&mut self, backend: u32) {
        let Some(entry) = self.backends.get_mut(&backend) else {
            return;
        };
        let near = entry.near.take();
        self.set_backend_hop(backend, 0);
        self.drop_fallback(backend);
        if let Some(near) = near {
            self.leave_near(near);
        }
    }

    /// One backend less goes by `near`; it does not point there any more.
    fn leave_near(&mut self, near: Near) {
        let Some(neighbour) = self.neighbours.get_mut(&near) else {
            return;
        };
        neighbour.backend_users -= 1;
        if neighbour.backend_users == 0
            && let Some(index) = neighbour.backend.take()
        {
            self.retire(index, false);
        }
        self.release_unused(near);
    }
}
