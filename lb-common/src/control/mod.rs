//! The controller's brain: what the servers' behaviour means for the weights
//! and up/down flags that the packet path obeys.
//!
//! Everything here is pure. Time (microseconds of a monotonic clock that
//! survives a restart of the daemon, `CLOCK_MONOTONIC`) comes in as an argument
//! and effects go out as [`Command`]s, so a test or a simulation runs it
//! exactly as the daemon does:
//!
//! ```text
//! engine.handle(event, now)        a sample of the counters arrived
//! engine.poll_timeout()            when to call handle_timeout next
//! engine.handle_timeout(now)       early calls do nothing
//! engine.next_command()            what the caller must now carry out
//! ```
//!
//! | module | decides |
//! |---|---|
//! | [`aca`] | loads 2 to 255 from measured averages, who is over the threshold, for how long |
//! | [`slow_start`] | what a newcomer may take in each second |
//! | [`standing`], [`budget`] | since when a backend is in service, and what the packet path is told of its limits |
//! | [`inband`], [`fail_detect`] | when failures take a backend out of service, and what brings it back |
//! | [`health`], [`guard`] | how the two work together, and what keeps them from doing harm |
//! | [`penalty`] | what a failed flow costs, and how long it is held against its server |
//! | [`compose`] | which of all inputs has the last word on a backend |
//! | [`overrides`] | what an operator's word changes, and what ends it |
//! | [`shares`] | how loads become shares |
//! | [`ring`] | the order in which `pick = "shares"` serves |
//! | [`histogram`] | percentiles for people |
//! | [`capacity`] | what a cache's own word for its load means for flows and hash buckets |
//! | [`snmp_weight`] | weights from numbers that servers tell |
//! | [`dfp`] | Cisco's protocol for weights: bytes, and when an agent is lost |
//! | [`agent`] | HAProxy's agent text |
//! | [`probe`] | when a server is probed, and what makes it down or up |
//! | [`outside`] | what all of these sources together say of a backend |
//! | [`engine`] | when any of this happens, and which changes go to the maps |
//!
//! Floating point appears in two places only, neither of which the packet path
//! repeats: the smoothing factor and the shares shown to people.

pub mod aca;
pub mod agent;
mod backend;
pub mod budget;
pub mod capacity;
pub mod class;
pub mod compose;
pub mod config;
pub mod dfp;
pub mod engine;
pub mod fail_detect;
mod feedback;
pub mod guard;
pub mod health;
pub mod histogram;
pub mod inband;
pub mod learned;
pub mod outside;
pub mod overrides;
pub mod penalty;
pub mod probe;
mod rationing;
pub mod ring;
mod scale;
mod service;
pub mod shares;
mod shown;
pub mod slow_start;
pub mod snmp_weight;
pub mod standing;
pub mod view;

pub use aca::{Aca, AcaParameters, Calculation, Load};
pub use budget::Budget;
pub use class::{PerClass, SizeClass};
pub use compose::{Cause, Composition, State};
pub use config::{Algorithm, BackendConfig, EngineConfig, Pick, ServiceConfig};
pub use engine::{Command, EndedOverride, Engine, Event, Notice, Sample};
pub use standing::Standing;

pub use fail_detect::{FailDetect, FailDetectParameters};
pub use guard::{Guard, Peer, Ratio};
pub use health::{Failure, FailureKind, HealthParameters, Unreachable};
pub use inband::{Check, Inband, InbandParameters};
pub use learned::{Counters, Learned, LearnedBackend};
pub use outside::{
    OutsideCause, OutsideLimit, OutsideRecord, OutsideSources, OutsideWord, WeightSource,
};
pub use overrides::{Gate, Gated, GivenWeight, Order, Overrides};
pub use ring::smooth_ring;
pub use shares::Curve;
pub use slow_start::{Ramp, RampList};
pub use view::{BackendView, Change, FailureTotals, LoadView, Next, SlowStartView};
