//! The controller's pass over the table: expire what timed out.

use super::{LiveWords, Way, blames_server, leave, meta};
use crate::abi::ticks_between;
use crate::tcp::State;

/// A flow that the sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Index of the backend.
    pub backend: u16,
    /// The state in which it was silent for too long.
    pub state: State,
    /// The server did not answer the SYN in time.
    pub syn_timeout: bool,
    /// See [`super::client_word`].
    pub client: u64,
    /// How often the client repeated its SYN.
    pub repeats: u32,
}

/// Frees a way whose flow has been silent for its state's timeout. `live` are
/// the books of the flow's backend, `repeats` how often its client repeated the
/// SYN. A SYN that nobody answered in time counts
/// as the backend's failure.
pub fn expire<'a>(
    way: &Way,
    now: u32,
    timeout: impl Fn(State) -> u32,
    live: impl Fn(u16) -> Option<&'a LiveWords>,
    repeats: impl Fn() -> u32,
) -> Option<Expired> {
    let word = way.meta.load();
    if !meta::is_flow(word) {
        return None;
    }
    let state = meta::state(word);
    if ticks_between(meta::tick(word), now) < timeout(patience(word)) {
        return None;
    }
    let backend = way.virtual_end.load() as u16;
    let (client, repeats) = (way.client.load(), repeats());
    let timed_out = blames_server(word, repeats);
    if !way.meta.replace(word, meta::successor(word, State::Free)) {
        return None;
    }
    if let Some(live) = live(backend) {
        leave(live, state, timed_out);
    }
    Some(Expired {
        backend,
        state,
        syn_timeout: timed_out && matches!(state, State::HalfOpen),
        client,
        repeats,
    })
}

/// The state whose timeout a flow has: what the controller ended with a reset
/// must be there when a peer that was idle goes on.
pub const fn patience(word: u64) -> State {
    if word & meta::REFUSED != 0 {
        State::Established
    } else {
        meta::state(word)
    }
}

/// Counts a flow that the caller expired by itself (one in the spill, which has
/// no memory mapping).
pub fn count_expired(live: &LiveWords, word: u64, repeats: u32) {
    leave(live, meta::state(word), blames_server(word, repeats));
}

/// Forgets the client-side next hop of a flow, whose index is about to be
/// given to another hop. Whether it is forgotten (a flow that just changed is
/// not: look again).
pub fn forget_hop(way: &Way, word: u64) -> bool {
    way.meta.replace(word, meta::with_hop(word, 0))
}
