//! Packets through the loaded program: `BPF_PROG_TEST_RUN` in a laboratory of
//! its own.
//!
//! A [`Row`] is a conversation: frames that arrive, and for each of them the
//! verdict, every byte that leaves and every counter that moves. All counters
//! are read before and after each frame, and what a row does not list must not
//! have moved ([`counters`]). The frames that are expected are built anew and
//! summed in full by another library ([`Frame`]), so a wrong checksum cannot
//! agree with itself.
//!
//! A [`Lab`] is the program with its own maps, pins and network namespace; each
//! row starts on empty tables with the services and servers of [`scene`].
//!
//! Rows that hold for IPv4 and IPv6 are written once: [`Family`] says how.
//!
//! What a test run cannot show is the interface of a redirected frame. Rows
//! tell `XDP_TX` (same interface) from `XDP_REDIRECT` and judge the MAC
//! addresses; namespace scenarios judge the rest.

pub mod counters;
mod family;
mod frame;
mod lab;
mod reply;
mod row;
pub mod scene;
mod talk;
mod tunnel;

pub use counters::{Class, Counter, Moved, Snapshot, moves};
pub use family::{FAMILIES, Family, map_address, v4};
pub use frame::{Carried, Endpoint, Extension, Frame, Mac, Quote, Tag, flag, icmp, icmp6};
pub(crate) use lab::context;
pub use lab::{Lab, Port, Tick, early_in_a_tick, now, now_us, set_forwarding, set_mtu};
pub use reply::Reply;
pub use row::{Group, Outcome, Row, Step, hex_difference};
pub use talk::Talk;
pub use tunnel::{Entropy, Tunnel};

/// `XDP_ABORTED` and its fellows (include/uapi/linux/bpf.h).
pub mod verdict {
    /// The program failed.
    pub const ABORTED: u32 = 0;
    /// Dropped.
    pub const DROP: u32 = 1;
    /// Left to the kernel.
    pub const PASS: u32 = 2;
    /// Sent back out of the interface it came in by.
    pub const TX: u32 = 3;
    /// Sent out of another interface.
    pub const REDIRECT: u32 = 4;

    /// The name of a verdict.
    pub fn name(verdict: u32) -> String {
        match verdict {
            ABORTED => "ABORTED".into(),
            DROP => "DROP".into(),
            PASS => "PASS".into(),
            TX => "TX".into(),
            REDIRECT => "REDIRECT".into(),
            other => format!("verdict {other}"),
        }
    }
}
