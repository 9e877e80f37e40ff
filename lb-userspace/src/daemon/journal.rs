//! What happened: the last events in memory, a line of the log each, and a
//! stream to whoever follows.
//!
//! Events are numbered from 1 by one daemon. The oldest go when the journal is
//! full, which shows in the first number left. A follower has a queue of its
//! own; one that does not read is not waited for and is told how many events
//! it missed. Nothing here can hold up the loop.

use super::{clock, protocol::Line};
use serde::Serialize;
use serde_json::{Value, json};
use std::{collections::VecDeque, fmt};
use tokio::sync::mpsc;

/// Events kept.
const KEPT: usize = 4_096;
/// Events that wait for a follower.
const QUEUE: usize = 256;
/// Followers at a time: a quarter of the clients of the control socket, so that
/// they never keep an operator out.
const MOST_FOLLOWERS: usize = 16;

/// Something worth telling. In JSON: `event` and the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Happening {
    Started {
        services: usize,
        backends: usize,
        /// Pinned maps of an earlier daemon were taken over.
        adopted: bool,
    },
    /// A backend's state changed.
    State {
        service: String,
        backend: String,
        from: &'static str,
        to: &'static str,
        reason: String,
        effective_weight: u32,
        load: u8,
        active_flows: u64,
        half_open: u64,
    },
    /// In-band health reached its threshold.
    InbandThreshold {
        service: String,
        backend: String,
        failures: u32,
        reset_time_ms: u64,
    },
    /// A guard kept a backend in service.
    Guarded {
        service: String,
        backend: String,
        guard: &'static str,
        reason: String,
    },
    /// An operator said something.
    Override {
        service: String,
        backend: String,
        /// `drain`, `disable`, `enable` or `weight`.
        verb: &'static str,
        /// Of `weight`; `null`: the configured one.
        weight: Option<u32>,
        active_flows: u64,
        half_open: u64,
    },
    /// The file ended what an operator had said.
    OverrideEnded {
        /// Service, address and port.
        identity: String,
        reason: String,
    },
    /// A drain reached its deadline: its flows are being ended.
    DrainDeadline {
        service: String,
        backend: String,
        flows: u64,
        /// Whoever goes on is answered with a reset.
        reset: bool,
    },
    /// Flows past their deadline were ended.
    FlowsEnded {
        service: String,
        backend: String,
        flows: u64,
    },
    /// Nothing is left of a removed backend.
    Forgotten {
        service: String,
        backend: String,
    },
    Reloaded {
        added: Vec<String>,
        removed: Vec<String>,
        changed: usize,
    },
    ReloadRefused {
        reason: String,
    },
    /// Another program wrote to a map.
    Mismatch {
        service: String,
        backend: String,
    },
    /// An interface runs no program, and did.
    Detached {
        interface: String,
    },
    /// Another program took the hook. It is left alone.
    Replaced {
        interface: String,
        program_id: u32,
    },
    /// The interface does not exist any more.
    InterfaceGone {
        interface: String,
    },
    Reattached {
        interface: String,
        program_id: u32,
    },
    ReattachFailed {
        interface: String,
        reason: String,
    },
    /// Somebody who is asked about backends does not answer as he should.
    PeerTrouble {
        /// `agent`, `dfp` or `capacity`.
        source: &'static str,
        /// `service/backend`, or an address.
        peer: String,
        reason: String,
    },
    /// And does again.
    PeerWell {
        source: &'static str,
        peer: String,
    },
}

impl Happening {
    /// Whether somebody should look at it.
    fn is_alarming(&self) -> bool {
        match self {
            Self::Started { .. }
            | Self::State { .. }
            | Self::Override { .. }
            | Self::OverrideEnded { .. }
            | Self::DrainDeadline { .. }
            | Self::FlowsEnded { .. }
            | Self::Forgotten { .. }
            | Self::Reloaded { .. }
            | Self::Reattached { .. }
            | Self::PeerWell { .. } => false,
            Self::ReloadRefused { .. }
            | Self::Mismatch { .. }
            | Self::InbandThreshold { .. }
            | Self::Guarded { .. }
            | Self::Detached { .. }
            | Self::Replaced { .. }
            | Self::InterfaceGone { .. }
            | Self::ReattachFailed { .. }
            | Self::PeerTrouble { .. } => true,
        }
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started {
                services,
                backends,
                adopted,
            } => {
                let how = if *adopted {
                    "took over what was pinned"
                } else {
                    "started afresh"
                };
                write!(f, "{how}: {services} services, {backends} backends")
            }
            Self::State {
                service,
                backend,
                from,
                to,
                reason,
                active_flows,
                half_open,
                ..
            } => {
                write!(
                    f,
                    "{service}/{backend}: {from} to {to}: {reason} ({active_flows} active, \
                     {half_open} half-open)"
                )
            }
            Self::InbandThreshold {
                service,
                backend,
                failures,
                reset_time_ms,
            } => write!(
                f,
                "{service}/{backend}: in-band health: {failures} connection failures within the \
                 reset time of {reset_time_ms} ms"
            ),
            Self::Guarded {
                service,
                backend,
                guard,
                reason,
            } => write!(
                f,
                "{service}/{backend}: kept in service in spite of its failures ({guard}): {reason}"
            ),
            Self::Override {
                service,
                backend,
                verb,
                weight,
                active_flows,
                half_open,
            } => {
                write!(f, "{service}/{backend}: {verb}")?;
                if *verb == "weight" {
                    match weight {
                        Some(weight) => write!(f, " {weight}")?,
                        None => f.write_str(" default")?,
                    }
                }
                write!(
                    f,
                    " by the operator ({active_flows} active, {half_open} half-open)"
                )
            }
            Self::OverrideEnded { identity, reason } => write!(f, "{identity}: {reason}"),
            Self::DrainDeadline {
                service,
                backend,
                flows,
                reset,
            } => write!(
                f,
                "{service}/{backend}: the drain timeout has passed; ending what is open \
                 ({flows}){}",
                if *reset { " with resets" } else { "" }
            ),
            Self::FlowsEnded {
                service,
                backend,
                flows,
            } => {
                write!(f, "{service}/{backend}: connections ended: {flows}")
            }
            Self::Forgotten { service, backend } => {
                write!(f, "{service}/{backend}: removed, and no flow is left")
            }
            Self::Reloaded {
                added,
                removed,
                changed,
            } => write!(
                f,
                "configuration reloaded: {} added, {} removed, {changed} changed",
                added.len(),
                removed.len()
            ),
            Self::ReloadRefused { reason } => {
                write!(
                    f,
                    "configuration not reloaded, nothing was changed: {reason}"
                )
            }
            Self::Mismatch { service, backend } => {
                write!(
                    f,
                    "{service}/{backend}: somebody else changed its map entry; put right"
                )
            }
            Self::Detached { interface } => {
                write!(
                    f,
                    "{interface}: no program is attached; its traffic is not balanced"
                )
            }
            Self::Replaced {
                interface,
                program_id,
            } => write!(
                f,
                "{interface}: program {program_id} of somebody else has the hook; its traffic is \
                 not balanced. `bpftool prog show id {program_id}` names it"
            ),
            Self::InterfaceGone { interface } => write!(f, "{interface}: the interface is gone"),
            Self::Reattached {
                interface,
                program_id,
            } => {
                write!(f, "{interface}: program {program_id} is attached again")
            }
            Self::ReattachFailed { interface, reason } => {
                write!(
                    f,
                    "{interface}: cannot attach again: {reason}; trying every second"
                )
            }
            Self::PeerTrouble {
                source,
                peer,
                reason,
            } => write!(f, "{peer}: {source}: {reason}"),
            Self::PeerWell { source, peer } => write!(f, "{peer}: {source}: well again"),
        }
    }
}

struct Follower {
    queue: mpsc::Sender<Line>,
    /// Events that its queue had no room for.
    lost: u64,
}

impl Follower {
    /// Queues what can be queued. False once the follower is gone.
    fn offer(&mut self, event: Option<&Value>) -> bool {
        if self.lost > 0 {
            match self.queue.try_send(Line::Lost(self.lost)) {
                Ok(()) => self.lost = 0,
                Err(mpsc::error::TrySendError::Full(_)) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        let Some(event) = event else {
            return !self.queue.is_closed();
        };
        if self.lost > 0 {
            // Behind the gap that it has not been told of yet.
            self.lost += 1;
            return true;
        }
        match self.queue.try_send(Line::Event(event.clone())) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.lost = 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Journal {
    /// Numbers of the events that are no longer in `events`: 1 to this.
    dropped: u64,
    events: VecDeque<Value>,
    followers: Vec<Follower>,
}

impl Journal {
    /// Takes an event: logs it, keeps it, sends it.
    pub(crate) fn record(&mut self, happening: &Happening) {
        if happening.is_alarming() {
            tracing::warn!("{happening}");
        } else {
            tracing::info!("{happening}");
        }
        let event = self.numbered(happening, clock::utc());
        self.followers
            .retain_mut(|follower| follower.offer(Some(&event)));
        self.events.push_back(event);
        if self.events.len() > KEPT {
            self.events.pop_front();
            self.dropped += 1;
        }
    }

    fn numbered(&self, happening: &Happening, time: String) -> Value {
        let sequence = self.dropped + self.events.len() as u64 + 1;
        let mut event = json!({ "sequence": sequence, "time": time });
        // An enum of structs without odd keys always becomes an object.
        if let (Some(event), Ok(Value::Object(fields))) =
            (event.as_object_mut(), serde_json::to_value(happening))
        {
            event.extend(fields);
            event.insert("message".into(), happening.to_string().into());
        }
        event
    }

    /// Tells followers of losses that their queues had no room for either.
    pub(crate) fn tick(&mut self) {
        self.followers.retain_mut(|follower| follower.offer(None));
    }

    /// Everything kept, and how many were dropped before.
    pub(crate) fn past(&self) -> Value {
        json!({ "dropped": self.dropped, "events": self.events })
    }

    /// A stream of what happens from now on.
    ///
    /// # Errors
    /// Too many followers.
    pub(crate) fn follow(&mut self) -> Result<mpsc::Receiver<Line>, String> {
        self.tick();
        if self.followers.len() >= MOST_FOLLOWERS {
            return Err(format!(
                "{MOST_FOLLOWERS} clients follow already; end one of them"
            ));
        }
        let (queue, rest) = mpsc::channel(QUEUE);
        self.followers.push(Follower { queue, lost: 0 });
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(interface: u64) -> Happening {
        Happening::Detached {
            interface: interface.to_string(),
        }
    }

    #[test]
    fn the_oldest_go_and_the_loss_shows() {
        let mut journal = Journal::default();
        assert_eq!(journal.past(), json!({ "dropped": 0, "events": [] }));
        let more = 3;
        for number in 1..=KEPT as u64 + more {
            journal.record(&happening(number));
        }
        let past = journal.past();
        assert_eq!(past["dropped"], more);
        let events = past["events"].as_array().unwrap();
        assert_eq!(events.len(), KEPT);
        for (sequence, event) in (more + 1..).zip(events) {
            assert_eq!(event["sequence"], sequence);
            assert_eq!(event["interface"], sequence.to_string());
        }
    }

    #[test]
    fn an_event_in_json() {
        let event = Journal::default().numbered(
            &Happening::Override {
                service: "web".into(),
                backend: "w1".into(),
                verb: "weight",
                weight: None,
                active_flows: 3,
                half_open: 1,
            },
            "2030-01-02T03:04:05.678Z".into(),
        );
        let expected = json!({
            "sequence": 1, "time": "2030-01-02T03:04:05.678Z", "event": "override",
            "service": "web", "backend": "w1", "verb": "weight", "weight": null,
            "active_flows": 3, "half_open": 1,
            "message": "web/w1: weight default by the operator (3 active, 1 half-open)",
        });
        assert_eq!(event, expected);
    }

    #[test]
    fn a_slow_follower_is_told_how_many_it_lost() {
        let mut journal = Journal::default();
        let mut slow = journal.follow().unwrap();
        let mut quick = journal.follow().unwrap();
        let queue = QUEUE as u64;
        for number in 1..=queue + 40 {
            journal.record(&happening(number));
            assert!(matches!(quick.try_recv(), Ok(Line::Event(_))), "{number}");
        }
        // Room for one: it is told of the gap before anything after it.
        let sequence = |line| match line {
            Ok(Line::Event(event)) => event["sequence"].as_u64(),
            _ => None,
        };
        assert_eq!(sequence(slow.try_recv()), Some(1));
        journal.record(&happening(0));
        for number in 2..=queue {
            assert_eq!(sequence(slow.try_recv()), Some(number));
        }
        assert_eq!(slow.try_recv(), Ok(Line::Lost(40)));
        // The event that came with it found the queue full again.
        assert!(slow.try_recv().is_err());
        journal.tick();
        assert_eq!(slow.try_recv(), Ok(Line::Lost(1)));
        journal.record(&happening(0));
        assert_eq!(sequence(slow.try_recv()), Some(queue + 42));
    }

    #[test]
    fn followers_are_few_and_those_gone_do_not_count() {
        let mut journal = Journal::default();
        let mut followers: Vec<_> = (0..MOST_FOLLOWERS).map(|_| journal.follow()).collect();
        assert!(followers.iter().all(Result::is_ok));
        assert!(journal.follow().is_err());
        followers.pop();
        assert!(journal.follow().is_ok());
    }
}
