//! `cargo xtask bench packet`: nanoseconds per packet, by test run.
//!
//! What is compared: the loaded program, as rows of the packet table run it,
//! with balancers on kernel hash maps that do the same rewrite and with
//! programs that do nothing (`lb-ebpf/src/floors`). Every number is of the
//! same frames, the same flows in the same shuffled order and the same number
//! of repeats, one program after the other in rounds, so that whatever else
//! the machine does meets all of them.
//!
//! Nothing counts that was not forwarded: flows are made by real handshakes
//! through each program, samples of both directions are compared byte by byte
//! with frames built anew ([`Frame`]), and after each timed run the program's
//! own counters must say that it forwarded every repeat ([`World`]).
//!
//! docs/benchmarks.md says how to read the result.

mod case;
mod floors;
mod frame;
mod measure;
mod product;
mod report;
mod world;

pub use case::{Case, Flow, Mode, Protocol, SERVERS, Site, Subject};
pub use floors::{Contender, Counted, Floors};
pub use frame::{Frame, Parties};
pub use measure::{Audience, Options, Size, pin_to_one_cpu, run};
pub use report::{Report, Row, Samples, Spread};
pub use world::World;
