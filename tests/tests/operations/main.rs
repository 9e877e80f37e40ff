//! What an operator does on the first days, in namespaces with the real daemon:
//! direct return, tunnels, datagrams, pings of a virtual address, drains,
//! reloads, and the verbs that look.
//!
//! Each scenario makes the world it needs and removes it, and asserts counts,
//! bytes and names, never how long anything took. Nothing is tried twice. Where
//! a scenario waits, it waits for a condition, and the limit only decides when
//! to give up.
//!
//! Numbers such as cilium#20407 name public threads in which users of other
//! balancers met what the scenario excludes.
//!
//! Scenarios take turns, see [`turn`]: they count to the last packet with
//! thousands of connections under way, and two processors are soon busy.

mod direct_return;
mod dns;
mod drain_reset;
mod endings;
mod errors;
mod fragments;
mod full_nat;
mod generic;
mod hosts;
mod one_arm;
mod ping;
mod resolver;
mod site;
mod steering;
mod tunnel_ends;
mod tunnels;
mod turn;
mod verbs;
