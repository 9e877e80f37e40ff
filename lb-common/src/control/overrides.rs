//! What an operator has said about a backend, until it is taken back.
//!
//! Two independent things: a *gate* (drain or disable; `enable` opens it) and a
//! *weight* (`weight … default` takes it back). Both are learned state: they
//! survive a crash, a restart and a reload, and are shown with their age, so
//! that nobody has to wonder why a backend has no traffic (rancher issue
//! 10593).
//!
//! | | new flows | open flows |
//! |---|---|---|
//! | drain | none | go on until the service's `drain_timeout`, then are ended |
//! | disable | none | go on until they end by themselves |
//!
//! A gate has no counterpart in the configuration file and ends only by
//! `enable`, or with its backend. A weight replaces a key of the file; a file
//! in which that key has another value than when the operator spoke is the
//! later word and ends it. *What this misses*: a file in which the key was
//! changed and changed back.

use serde::{Deserialize, Serialize};

/// What keeps new flows away from a backend by an operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Open flows go on until the service's drain timeout.
    Drain,
    /// Open flows go on.
    Disable,
}

impl Gate {
    /// The verb that sets it, which is its name in `status --json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Disable => "disable",
        }
    }
}

/// A gate in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gated {
    /// Which.
    pub gate: Gate,
    /// Since when, monotonic microseconds.
    pub since_us: u64,
}

/// A weight in force instead of the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenWeight {
    /// The weight, 0..=65,535.
    pub weight: u32,
    /// What the file said when it was given.
    pub configured: u32,
    /// Since when, monotonic microseconds.
    pub since_us: u64,
}

/// All that operators have said about one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overrides {
    /// Drained or disabled.
    pub gate: Option<Gated>,
    /// Weight.
    pub weight: Option<GivenWeight>,
}

/// What an operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// No new flows; open ones have the service's drain timeout.
    Drain,
    /// No new flows.
    Disable,
    /// Takes flows again.
    Enable,
    /// This weight, 0..=65,535, whatever the file says. A larger one counts as
    /// 65,535.
    Weight(u32),
    /// The file's weight.
    DefaultWeight,
}

/// Largest weight (spec 4.1).
pub const WEIGHT_MAX: u32 = 65_535;

impl Overrides {
    /// Whether nothing is overridden.
    pub const fn is_empty(&self) -> bool {
        self.gate.is_none() && self.weight.is_none()
    }

    /// Takes an order; `configured` is the file's weight. An order that is in
    /// force already keeps its age and its deadline.
    pub fn obey(&mut self, order: Order, configured: u32, now_us: u64) {
        match order {
            Order::Drain => self.close(Gate::Drain, now_us),
            Order::Disable => self.close(Gate::Disable, now_us),
            Order::Enable => self.gate = None,
            Order::Weight(weight) => {
                let weight = weight.min(WEIGHT_MAX);
                let same = self.weight.filter(|given| given.weight == weight);
                self.weight = Some(GivenWeight {
                    weight,
                    configured,
                    since_us: same.map_or(now_us, |given| given.since_us),
                });
            }
            Order::DefaultWeight => self.weight = None,
        }
    }

    fn close(&mut self, gate: Gate, now_us: u64) {
        if self.gate.is_none_or(|gated| gated.gate != gate) {
            self.gate = Some(Gated {
                gate,
                since_us: now_us,
            });
        }
    }

    /// What goes on with a file that says `configured`, at `now_us`: times of
    /// another boot, which lie in the future, become now. Besides, the weight
    /// that the file ended.
    pub fn carried_over(mut self, configured: u32, now_us: u64) -> (Self, Option<GivenWeight>) {
        let ended = self.weight.filter(|given| given.configured != configured);
        if ended.is_some() {
            self.weight = None;
        }
        if let Some(gated) = &mut self.gate {
            gated.since_us = gated.since_us.min(now_us);
        }
        if let Some(given) = &mut self.weight {
            given.since_us = given.since_us.min(now_us);
        }
        (self, ended)
    }

    /// The same as if it had been said at `now_us`.
    pub fn said_at(mut self, now_us: u64) -> Self {
        if let Some(gated) = &mut self.gate {
            gated.since_us = now_us;
        }
        if let Some(given) = &mut self.weight {
            given.since_us = now_us;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn gate(gate: Gate, since_us: u64) -> Option<Gated> {
        Some(Gated { gate, since_us })
    }

    const fn weight(weight: u32, configured: u32, since_us: u64) -> Option<GivenWeight> {
        Some(GivenWeight {
            weight,
            configured,
            since_us,
        })
    }

    #[test]
    fn orders() {
        use Order::*;
        // Orders at seconds 1, 2, …; the gate and the weight in the end.
        type Row = (&'static [Order], Option<Gated>, Option<GivenWeight>);
        let rows: &[Row] = &[
            (&[], None, None),
            (&[Drain], gate(Gate::Drain, 1), None),
            (&[Drain, Drain], gate(Gate::Drain, 1), None),
            (&[Drain, Disable], gate(Gate::Disable, 2), None),
            (&[Disable, Drain], gate(Gate::Drain, 2), None),
            (&[Drain, Enable], None, None),
            (&[Drain, Enable, Drain], gate(Gate::Drain, 3), None),
            (&[Drain, DefaultWeight], gate(Gate::Drain, 1), None),
            (&[Weight(3)], None, weight(3, 8, 1)),
            (&[Weight(3), Weight(3)], None, weight(3, 8, 1)),
            (&[Weight(3), Weight(4)], None, weight(4, 8, 2)),
            (&[Weight(0)], None, weight(0, 8, 1)),
            (&[Weight(70_000)], None, weight(65_535, 8, 1)),
            (&[Weight(3), Enable], None, weight(3, 8, 1)),
            (&[Weight(3), DefaultWeight], None, None),
            (
                &[Weight(3), Disable],
                gate(Gate::Disable, 2),
                weight(3, 8, 1),
            ),
        ];
        for &(orders, gate, weight) in rows {
            let mut overrides = Overrides::default();
            for (now_us, order) in (1..).zip(orders) {
                overrides.obey(*order, 8, now_us);
            }
            assert_eq!(overrides, Overrides { gate, weight }, "{orders:?}");
            assert_eq!(overrides.is_empty(), gate.is_none() && weight.is_none());
        }
    }

    #[test]
    fn a_file_that_says_otherwise_ends_a_weight_and_no_gate() {
        let overrides = Overrides {
            gate: gate(Gate::Drain, 50),
            weight: weight(3, 8, 60),
        };
        // Configured weight, now; what goes on, whether the weight ended.
        let rows = [
            (8, 100, overrides, false),
            (
                8,
                55,
                Overrides {
                    weight: weight(3, 8, 55),
                    ..overrides
                },
                false,
            ),
            (
                9,
                100,
                Overrides {
                    weight: None,
                    ..overrides
                },
                true,
            ),
            // Even if it now says what the operator said.
            (
                3,
                100,
                Overrides {
                    weight: None,
                    ..overrides
                },
                true,
            ),
        ];
        for (configured, now_us, kept, ended) in rows {
            let got = overrides.carried_over(configured, now_us);
            assert_eq!(
                got,
                (kept, overrides.weight.filter(|_| ended)),
                "{configured}"
            );
        }
    }
}
