//! The daemon as its user runs it, in front of real web servers, in networks
//! of their own.
//!
//! Each scenario makes the world it needs and removes it, moves TCP payload,
//! and asserts what was on the wire or in `status`: orders, counts and bytes,
//! never how long anything took. Nothing is tried twice. Where a scenario
//! waits, it waits for a condition, and the limit only decides when to give up.
//!
//! Numbers such as cilium#14250 name public threads in which users of other
//! balancers met what the scenario excludes.
//!
//! Scenarios run beside one another, except those whose verdict depends on how
//! fast servers answer: see [`turn`]. Do not add a scenario for what the packet
//! table or a unit test can show: these here are slow.

mod aca;
mod announcing;
mod crash;
mod ending;
mod hops;
mod lab;
mod links;
mod membership;
mod mirror;
mod obedience;
mod payloads;
mod privileges;
mod refusals;
mod resets;
mod round_robin;
mod stopping;
mod turn;
