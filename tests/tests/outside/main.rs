//! Others tell what servers can take, and the packet path obeys: agents,
//! probes, DFP and SNMP with the real daemon in front of real web servers.
//!
//! Each scenario makes the world it needs and removes it, and asserts counts on
//! the wire and names in `status`, never how long anything took. Nothing is
//! tried twice. Where a scenario waits, it waits for a condition, and the limit
//! only decides when to give up. Scenarios take turns, see [`turn`].

mod agents;
mod dfp;
mod peers;
mod probes;
mod snmp;
mod stage;
mod turn;
