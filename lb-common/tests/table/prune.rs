//! The controller's part in the spill: removing entries that hold no flow.

use lb_common::flow::meta;

use crate::table::{Host, SpillIndex};

/// Spill entries, dead ones included.
pub(crate) fn entries(table: &Host) -> usize {
    table.spill.lock().expect("no holder panics").places.len()
}

/// Removes the spill entries that hold no flow. Nobody may use the table
/// meanwhile.
pub(crate) fn prune(table: &mut Host) {
    let arena = &table.arena;
    let SpillIndex { places, free } = table.spill.get_mut().expect("no holder panics");
    places.retain(|_, place| {
        let keep = meta::is_flow(arena[*place].way.meta.load());
        if !keep {
            free.push(*place);
        }
        keep
    });
}
