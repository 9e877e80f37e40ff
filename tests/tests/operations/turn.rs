//! Two scenarios at a time: each has namespaces of its own, and most of a start is
//! the kernel's judging of the program, on one CPU.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use steerline_tests::world::skip_unless_root;

static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

const REASON: &str = "makes network namespaces and attaches XDP programs";

/// Waits for the machine; none when the scenario must be skipped.
pub(crate) fn take() -> Option<MutexGuard<'static, ()>> {
    if skip_unless_root(REASON) {
        return None;
    }
    // A scenario that failed leaves nothing behind that others could meet.
    let [first, second] = &TURNS;
    Some(match first.try_lock() {
        Ok(turn) => turn,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => second.lock().unwrap_or_else(PoisonError::into_inner),
    })
}
