//! Who may run beside whom.
//!
//! Worlds are independent, but processors are not: a scenario about response
//! times must not share them with one that loads every core. So such a
//! scenario runs alone, and all others run beside one another.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use steerline_tests::world::skip_unless_root;

static TURN: RwLock<()> = RwLock::new(());

const REASON: &str = "makes network namespaces and attaches XDP programs";

/// The right to run, as long as it is held.
pub(crate) enum Turn {
    /// Beside others.
    Beside {
        _guard: RwLockReadGuard<'static, ()>,
    },
    /// With the machine to itself.
    Alone {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

/// Waits for a turn beside others; none when the scenario must be skipped.
pub(crate) fn beside() -> Option<Turn> {
    (!skip_unless_root(REASON)).then(|| Turn::Beside {
        // A scenario that failed leaves nothing behind that others could meet.
        _guard: TURN.read().unwrap_or_else(PoisonError::into_inner),
    })
}

/// Waits for a turn alone; none when the scenario must be skipped.
pub(crate) fn alone() -> Option<Turn> {
    (!skip_unless_root(REASON)).then(|| Turn::Alone {
        _guard: TURN.write().unwrap_or_else(PoisonError::into_inner),
    })
}
