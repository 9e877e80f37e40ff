//! The controller's pass over the table: expire what timed out.

use super::{LiveWords, Way, leave, meta};
use crate::abi::ticks_between;
use crate::tcp::State;

/// A flow that the sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Index of the backend.
    pub backend: u16,
    /// The state in which it was silent for too long.
    pub state: State,
}

/// Frees a way whose flow has been silent for its state's timeout. `live` are
/// the books of the flow's backend. A SYN that nobody answered in time counts
/// as the backend's failure.
pub fn expire<'a>(
    way: &Way,
    now: u32,
    timeout: impl Fn(State) -> u32,
    live: impl Fn(u16) -> Option<&'a LiveWords>,
) -> Option<Expired> {
    let word = way.meta.load();
    if !meta::is_flow(word) {
        return None;
    }
    let state = meta::state(word);
    if ticks_between(meta::tick(word), now) < timeout(state) {
        return None;
    }
    let backend = way.virtual_end.load() as u16;
    if !way.meta.replace(word, meta::successor(word, State::Free)) {
        return None;
    }
    if let Some(live) = live(backend) {
        leave(live, state, true);
    }
    Some(Expired { backend, state })
}

/// Counts a flow that the caller expired by itself (one in the spill, which has
/// no memory mapping).
pub fn count_expired(live: &LiveWords, state: State) {
    leave(live, state, true);
}

/// Forgets the client-side next hop of a flow, whose index is about to be
/// given to another hop. Whether it is forgotten (a flow that just changed is
/// not: look again).
pub fn forget_hop(way: &Way, word: u64) -> bool {
    way.meta.replace(word, meta::with_hop(word, 0))
}
