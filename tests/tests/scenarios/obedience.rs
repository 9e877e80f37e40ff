//! The packet path obeys what stands in the maps, and the daemon sees to it
//! that its own word stands there.

use std::mem::offset_of;

use anyhow::{Context, Result};
use lb_common::abi::{Backend, backend_flags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerline::dataplane::{Maps, Pins};
use steerline_tests::world::{Load, wait_until};

use crate::lab::{Lab, PATIENCE, Service, WEB, growth, vip};
use crate::turn;

/// A daemon that is halted, and goes on when this is dropped.
struct Halted(Pid);

impl Halted {
    fn new(lab: &Lab) -> Result<Self> {
        let id = lab.balancer.process_id().context("no daemon")?;
        let id = Pid::from_raw(i32::try_from(id)?);
        kill(id, Signal::SIGSTOP)?;
        wait_until("the daemon has halted", PATIENCE, || {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
            Ok(stat.contains(") T ").then_some(()))
        })?;
        Ok(Self(id))
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        // Its guard still has it, so the id is its own.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// New flows of each backend during `count` connections, with or without a
/// daemon.
fn flows(lab: &Lab, count: u64) -> Result<Vec<u64>> {
    let before = lab.stats()?.each(WEB, "/new_flows")?;
    Load::sequential(vip(), count)
        .run(lab.world.client())?
        .expect_success()?;
    growth(&before, &lab.stats()?.each(WEB, "/new_flows")?)
}

/// Weight 0 and the down flag keep off the very next connection (katran#117 and
/// keepalived#1757 had values that meant something else), in the way of IOS SLB:
/// the whole run is jumped. Then the daemon restores its own and counts that
/// somebody had written (keepalived#871, rule 12 of the field study).
#[test]
fn a_word_in_the_map_counts_at_once_and_is_set_right() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let lab = Lab::new(3, &[Service::round_robin(&[3, 1, 2])])?;
    let maps = Maps::open(&Pins::new(lab.balancer.pin_directory()))?;
    let address =
        lb_common::abi::address4(steerline_tests::world::World::server_address(2).octets());
    let index = (1..maps.backends.len())
        .find(|index| maps.backends.read(*index).address == address)
        .context("web-2 has no entry")?;
    assert_eq!(flows(&lab, 12)?, [6, 2, 4]);

    let rows = [
        ("weight 0", offset_of!(Backend, weight), 0, [6, 0, 4]),
        (
            "down",
            offset_of!(Backend, flags),
            backend_flags::PRESENT,
            [6, 0, 4],
        ),
    ];
    for (number, (name, offset, value, expected)) in (1..).zip(rows) {
        let halted = Halted::new(&lab)?;
        let own: u32 = word(&maps, index, offset);
        assert_ne!(own, value, "{name}");
        maps.backends.write_word(index, offset, value);
        assert_eq!(flows(&lab, 10)?, expected, "{name}");
        assert_eq!(
            word(&maps, index, offset),
            value,
            "{name}: nobody else wrote"
        );
        drop(halted);

        wait_until("the daemon has set it right", PATIENCE, || {
            Ok((word(&maps, index, offset) == own).then_some(()))
        })?;
        assert_eq!(lab.status()?.number("/mismatches")?, number, "{name}");
        assert_eq!(flows(&lab, 12)?, [6, 2, 4], "{name}");
    }
    Ok(())
}

fn word(maps: &Maps, index: u32, offset: usize) -> u32 {
    let backend = maps.backends.read(index);
    let bytes = bytemuck::bytes_of(&backend);
    bytemuck::pod_read_unaligned(&bytes[offset..offset + size_of::<u32>()])
}
