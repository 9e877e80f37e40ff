//! The failures that the packet path and the sweep tell of, as the engine wants
//! them.

use crate::dataplane::{Maps, Pins, TimedOut};
use anyhow::Result;
use aya::maps::{MapData, RingBuf};
use lb_common::{
    abi::{self, failure_kind},
    control::{Failure, FailureKind},
};
use tokio::io::unix::AsyncFd;

/// Most records that are taken at a time: a flood of failures must not keep the
/// loop from its other work, and what is left wakes it again.
const MOST: usize = 4_096;

/// The ring of failures.
pub(super) struct Failures {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Failures {
    /// Opens it.
    ///
    /// # Errors
    /// A pin that is missing; no runtime.
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        Ok(Self {
            ring: Maps::failures_async(pins)?,
        })
    }

    /// Waits for a record.
    ///
    /// # Errors
    /// What the kernel answers.
    pub(super) async fn readable(&self) -> Result<()> {
        // The ring is read to its end at the next tick at the latest, so that a
        // wake-up may be consumed here.
        self.ring.readable().await?.clear_ready();
        Ok(())
    }

    /// The records that there are, with their times.
    pub(super) fn take(&mut self) -> Vec<(Failure, u64)> {
        let mut failures = Vec::new();
        let ring = self.ring.get_mut();
        while failures.len() < MOST
            && let Some(item) = ring.next()
        {
            if item.len() == size_of::<abi::Failure>() {
                let record: abi::Failure = bytemuck::pod_read_unaligned(&item);
                failures.push((failure(&record), record.at_us));
            }
        }
        failures
    }
}

fn failure(record: &abi::Failure) -> Failure {
    let kind = if record.kind == failure_kind::REASSIGNED {
        FailureKind::SynTimeout
    } else {
        FailureKind::Reset
    };
    of_client(
        record.backend,
        kind,
        record.client,
        u32::from(record.repeats),
    )
}

/// A SYN timeout that the sweep found.
pub(super) fn timed_out(found: &TimedOut) -> Failure {
    of_client(
        found.backend,
        FailureKind::SynTimeout,
        found.client,
        found.repeats,
    )
}

/// The client word holds the address, or what stands for it, above the port.
fn of_client(backend: u16, kind: FailureKind, word: u64, repeats: u32) -> Failure {
    Failure {
        backend,
        kind,
        client: Some(word >> 32),
        attempt: (word >> 16) as u16,
        repeats,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::{abi::endpoint4, flow::client_word};

    #[test]
    fn records() {
        let record = |kind| abi::Failure {
            client: client_word(endpoint4(0x0a00_0001, 40_000), 6),
            at_us: 1,
            backend: 7,
            repeats: 2,
            kind,
            padding: [0; 3],
        };
        for (kind, expected) in [
            (failure_kind::RESET, FailureKind::Reset),
            (failure_kind::REASSIGNED, FailureKind::SynTimeout),
        ] {
            let expected = Failure {
                backend: 7,
                kind: expected,
                client: Some(0x0a00_0001),
                attempt: 40_000,
                repeats: 2,
            };
            assert_eq!(failure(&record(kind)), expected);
        }
    }
}
