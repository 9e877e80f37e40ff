//! What the controller's sweep sees of a table.

use lb_common::flow::{Way, meta};

use crate::table::Host;

impl Host {
    /// Calls `visit` with every way that holds a flow: buckets, then spill.
    pub(crate) fn each_flow(&self, mut visit: impl FnMut(&Way)) {
        let mut one = |way: &Way| {
            if meta::is_flow(way.meta.load()) {
                visit(way);
            }
        };
        for bucket in &self.buckets {
            bucket.ways.iter().for_each(&mut one);
        }
        let index = self.spill.lock().expect("no holder panics");
        index
            .places
            .values()
            .for_each(|&place| one(&self.arena[place].way));
    }

    /// Half-open and active flows of a backend, by a scan of the table.
    pub(crate) fn scan(&self, backend: u16) -> (u64, u64) {
        let (mut half_open, mut active) = (0, 0);
        self.each_flow(|way| {
            let state = meta::state(way.meta.load());
            if way.virtual_end.load() as u16 == backend {
                half_open += u64::from(state.is_half_open());
                active += u64::from(state.is_active());
            }
        });
        (half_open, active)
    }

    /// Half-open and active flows of a backend, by its books.
    pub(crate) fn booked(&self, backend: u16) -> (u64, u64) {
        let live = &self.live[usize::from(backend)];
        (
            live.half_opened
                .load()
                .wrapping_sub(live.half_closed.load()),
            live.opened.load().wrapping_sub(live.closed.load()),
        )
    }
}
