//! One scenario at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use steerline_tests::world::skip_unless_root;

static TURN: Mutex<()> = Mutex::new(());

const REASON: &str = "makes network namespaces and attaches XDP programs";

/// Waits for the machine; none when the scenario must be skipped.
pub(crate) fn take() -> Option<MutexGuard<'static, ()>> {
    // A scenario that failed leaves nothing behind that others could meet.
    (!skip_unless_root(REASON)).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
