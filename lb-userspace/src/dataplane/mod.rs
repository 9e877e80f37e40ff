//! The kernel half as the daemon sees it: the embedded program, its maps and
//! pins, and its links to interfaces.
//!
//! Everything that must outlive the daemon is pinned below
//! `data_plane.pin_directory`: `maps/NAME`, `links/INTERFACE-NETNS` (an XDP
//! link stays attached as long as its pin exists) and `programs-ID` (the table
//! of tail calls of the program that is attached now). A daemon that starts
//! finds its maps there and carries on; a layout or size that differs is
//! refused before anything changes.

mod attach;
mod books;
mod detach;
mod flow_tables;
mod mapped;
mod maps;
mod pins;
mod room;
mod sweep;
mod tables;

pub use attach::{Attached, Hook, HookState, Loaded, Mode};
pub(crate) use books::decode as decode_name;
pub use books::{Assigned, Books};
pub use flow_tables::{AnyBucket, SpillId};
pub use mapped::Mapped;
pub use maps::Maps;
pub use pins::{PinError, PinState, Pins, Sizes};
pub use room::{Present, Wanted};
pub use sweep::{Pass, Sweeper, TimedOut};
pub use tables::{Arena, Publisher};

/// The BPF object, built by `cargo xtask build`. Empty in builds without it.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steerline-xdp"));
