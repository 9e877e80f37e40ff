//! Watches over the hooks: whether each interface still runs our program.
//!
//! A pinned BPF link cannot be taken off by `ip link`, but whoever may remove
//! its pin, detach it by its id, or delete the interface ends it. A free hook
//! is taken again, if the configuration says so; one that another program has
//! is left alone, however long it stays.

use super::journal::Happening;
use crate::{dataplane::Attached, net::links::Link};

/// What is known of an interface's hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// Runs our program.
    Ours,
    /// Runs nothing.
    Free,
    /// Runs another program.
    Taken(u32),
    /// There is no such interface.
    Gone,
}

/// An interface that is to carry traffic.
#[derive(Clone, Debug)]
struct Watched {
    interface: String,
    condition: Condition,
    losses: u64,
    /// The last failure to attach again, said once.
    failure: Option<String>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchdog {
    watched: Vec<Watched>,
}

impl Watchdog {
    /// Over interfaces that have just been attached to.
    pub(crate) fn new(attached: &[Attached]) -> Self {
        let watched = attached.iter().map(|attached| Watched {
            interface: attached.interface.clone(),
            condition: Condition::Ours,
            losses: 0,
            failure: None,
        });
        Self {
            watched: watched.collect(),
        }
    }

    /// How often each interface has lost the program, in order.
    pub(crate) fn losses(&self) -> impl Iterator<Item = u64> + '_ {
        self.watched.iter().map(|watched| watched.losses)
    }

    /// Takes the present links; `program` is ours. What is new, and the links
    /// whose hook is free.
    pub(crate) fn look<'a>(
        &mut self,
        links: &'a [Link],
        program: u32,
    ) -> (Vec<Happening>, Vec<&'a Link>) {
        let mut news = Vec::new();
        let mut free = Vec::new();
        for watched in &mut self.watched {
            let link = links.iter().find(|link| link.name == watched.interface);
            let condition = match link.map(|link| link.xdp) {
                None => Condition::Gone,
                Some(None) => Condition::Free,
                Some(Some(xdp)) if xdp.program_id == program => Condition::Ours,
                Some(Some(xdp)) => Condition::Taken(xdp.program_id),
            };
            if condition == Condition::Free {
                free.extend(link);
            }
            let former = std::mem::replace(&mut watched.condition, condition);
            if former == condition {
                continue;
            }
            watched.failure = None;
            watched.losses += u64::from(former == Condition::Ours);
            let interface = watched.interface.clone();
            news.push(match condition {
                Condition::Ours => Happening::Reattached {
                    interface,
                    program_id: program,
                },
                Condition::Free => Happening::Detached { interface },
                Condition::Taken(program_id) => Happening::Replaced {
                    interface,
                    program_id,
                },
                Condition::Gone => Happening::InterfaceGone { interface },
            });
        }
        (news, free)
    }

    /// The program is attached again.
    pub(crate) fn attached(&mut self, interface: &str, program: u32) -> Option<Happening> {
        let watched = self.of(interface)?;
        watched.condition = Condition::Ours;
        watched.failure = None;
        Some(Happening::Reattached {
            interface: interface.to_owned(),
            program_id: program,
        })
    }

    /// It could not be attached; news unless that was said already.
    pub(crate) fn failed(&mut self, interface: &str, reason: String) -> Option<Happening> {
        let watched = self.of(interface)?;
        if watched.failure.as_ref() == Some(&reason) {
            return None;
        }
        watched.failure = Some(reason.clone());
        Some(Happening::ReattachFailed {
            interface: interface.to_owned(),
            reason,
        })
    }

    fn of(&mut self, interface: &str) -> Option<&mut Watched> {
        self.watched
            .iter_mut()
            .find(|watched| watched.interface == interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::links::{AttachedXdp, XdpMode};

    const OURS: u32 = 7;

    fn link(name: &str, program: Option<u32>) -> Link {
        Link {
            index: 3,
            name: name.into(),
            mac: None,
            mtu: 1_500,
            up: true,
            carrier: true,
            kind: None,
            xdp: program.map(|program_id| AttachedXdp {
                program_id,
                mode: XdpMode::Native,
            }),
        }
    }

    fn watchdog() -> Watchdog {
        Watchdog::new(&["a", "b"].map(|name| Attached {
            interface: name.into(),
            link: format!("/links/{name}").into(),
            program_id: OURS,
        }))
    }

    #[test]
    fn what_becomes_of_a_hook() {
        let a = || "a".to_owned();
        let detached = Happening::Detached { interface: a() };
        let replaced = |program_id| Happening::Replaced {
            interface: a(),
            program_id,
        };
        let back = Happening::Reattached {
            interface: a(),
            program_id: OURS,
        };
        // What interface `a` runs, look by look (`None`: it is gone); the news
        // of that look, whether the hook is free.
        let mut watchdog = watchdog();
        for (step, (program, news, free)) in [
            (Some(Some(OURS)), None, false),
            (Some(None), Some(detached.clone()), true),
            (Some(None), None, true),
            (Some(Some(9)), Some(replaced(9)), false),
            (Some(Some(9)), None, false),
            (Some(Some(8)), Some(replaced(8)), false),
            (Some(None), Some(detached), true),
            (Some(Some(OURS)), Some(back), false),
            (
                None,
                Some(Happening::InterfaceGone { interface: a() }),
                false,
            ),
            (None, None, false),
        ]
        .into_iter()
        .enumerate()
        {
            let mut links = vec![link("b", Some(OURS)), link("c", None)];
            links.extend(program.map(|program| link("a", program)));
            let (got, hooks) = watchdog.look(&links, OURS);
            assert_eq!(got, Vec::from_iter(news), "step {step}");
            assert_eq!(!hooks.is_empty(), free, "step {step}");
            assert!(hooks.iter().all(|hook| hook.name == "a"), "step {step}");
        }
        assert_eq!(watchdog.losses().collect::<Vec<_>>(), [2, 0]);
    }

    #[test]
    fn a_failure_is_said_once() {
        let mut watchdog = watchdog();
        let links = [link("a", None), link("b", Some(OURS))];
        assert_eq!(watchdog.look(&links, OURS).0.len(), 1);
        assert!(watchdog.failed("a", "busy".into()).is_some());
        assert!(watchdog.failed("a", "busy".into()).is_none());
        assert!(watchdog.failed("a", "no memory".into()).is_some());
        assert!(watchdog.attached("a", OURS).is_some());
        assert!(watchdog.failed("a", "no memory".into()).is_some());
        assert!(watchdog.failed("x", "busy".into()).is_none());
    }
}
