//! Since when a backend is in service, and which limits follow from that.

use serde::{Deserialize, Serialize};

use super::slow_start::{self, Limits, Ramp, SECOND_US};

/// Whether a backend is in service, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// Takes no flows, or only one to test it.
    Out,
    /// Came into service.
    Entered {
        /// When, monotonic microseconds.
        at_us: u64,
        /// Dummy connections that it began with.
        dummies: u32,
    },
    /// In service for longer than any ramp.
    Settled,
}

impl Standing {
    /// In service from `now_us` on.
    pub(super) fn enter(ramp: &Ramp, dummies: u32, now_us: u64) -> Self {
        match ramp {
            Ramp::Off => Self::Settled,
            Ramp::Default | Ramp::List(_) => Self::Entered {
                at_us: now_us,
                dummies,
            },
        }
    }

    /// Settled once every ramp is over. A time in the future is of another boot:
    /// nothing is known of how much was left.
    pub(super) fn advanced(self, ramp: &Ramp, now_us: u64) -> Self {
        match self {
            Self::Out | Self::Settled => self,
            Self::Entered { at_us, .. } => {
                let over_us = at_us.saturating_add(Self::length_us(ramp));
                if at_us > now_us || over_us <= now_us {
                    Self::Settled
                } else {
                    self
                }
            }
        }
    }

    /// Of the longest ramp.
    fn length_us(ramp: &Ramp) -> u64 {
        let seconds = match ramp {
            Ramp::Off => 0,
            Ramp::Default | Ramp::List(_) => ramp.seconds().max(slow_start::SERVER_SECONDS),
        };
        seconds.saturating_mul(SECOND_US)
    }

    /// When it entered, while a ramp may go on.
    pub(super) fn entered_us(&self) -> Option<u64> {
        match self {
            Self::Out | Self::Settled => None,
            Self::Entered { at_us, .. } => Some(*at_us),
        }
    }

    /// When [`Standing::advanced`] settles it.
    pub(super) fn settles_us(&self, ramp: &Ramp) -> Option<u64> {
        Some(self.entered_us()?.saturating_add(Self::length_us(ramp)))
    }

    /// The second since the entry, 1 for the first.
    pub(super) fn second(&self, now_us: u64) -> Option<u64> {
        let at_us = self.entered_us()?;
        Some(slow_start::second(now_us.saturating_sub(at_us)))
    }

    /// What the port's ramp allows now.
    pub(super) fn limits(&self, ramp: &Ramp, now_us: u64) -> Option<Limits> {
        ramp.limits(self.second(now_us)?)
    }

    /// Dummy connections that are left.
    pub(super) fn dummies(&self, now_us: u64) -> u32 {
        match self {
            Self::Out | Self::Settled => 0,
            Self::Entered { at_us, dummies } => {
                slow_start::dummies_left(*dummies, now_us.saturating_sub(*at_us))
            }
        }
    }
}

/// The second since the entry of an address of which backends have these
/// standings; `None` if its ramp is over or nothing of it is in service.
///
/// An address entered when the first of those that are in service did. So one
/// port that comes back to a busy server does not limit the others (guide of
/// the Virtual ADX, p. 243: only the server's own return starts its ramp).
pub(super) fn server_second(
    standings: impl IntoIterator<Item = Standing>,
    now_us: u64,
) -> Option<u64> {
    let mut first_us = None;
    for standing in standings {
        match standing {
            Standing::Out => {}
            Standing::Settled => return None,
            Standing::Entered { at_us, .. } => {
                first_us = Some(first_us.map_or(at_us, |first: u64| first.min(at_us)));
            }
        }
    }
    Some(slow_start::second(now_us.saturating_sub(first_us?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = SECOND_US;

    const fn entered(seconds: u64) -> Standing {
        Standing::Entered {
            at_us: seconds * S,
            dummies: 0,
        }
    }

    #[test]
    fn settling() {
        let short = Ramp::List(slow_start::RampList {
            rate1: 1,
            interval1_s: 2,
            rate2: 1,
            interval2_s: 3,
            maximum: 9,
        });
        // Ramp, standing, now in seconds; then.
        let rows = [
            (Ramp::Default, entered(10), 69, entered(10)),
            (Ramp::Default, entered(10), 70, Standing::Settled),
            (Ramp::Default, entered(10), 9, Standing::Settled),
            (Ramp::Default, Standing::Out, 99, Standing::Out),
            // The server's ramp goes on.
            (short, entered(10), 39, entered(10)),
            (short, entered(10), 40, Standing::Settled),
            (Ramp::Off, entered(10), 10, Standing::Settled),
        ];
        for (ramp, standing, now, then) in rows {
            assert_eq!(
                standing.advanced(&ramp, now * S),
                then,
                "{standing:?} {now}"
            );
        }
        assert_eq!(Standing::enter(&Ramp::Off, 0, 7), Standing::Settled);
    }

    #[test]
    fn the_second_of_a_server() {
        use Standing::{Out, Settled};
        // Standings; second at 20 s.
        type Row = (&'static [Standing], Option<u64>);
        const ROWS: &[Row] = &[
            (&[], None),
            (&[Out], None),
            (&[Settled, Out], None),
            (&[entered(20)], Some(1)),
            (&[Out, entered(15)], Some(6)),
            (&[entered(15), entered(12)], Some(9)),
            (&[entered(15), Settled], None),
        ];
        for &(standings, second) in ROWS {
            let found = server_second(standings.iter().copied(), 20 * S);
            assert_eq!(found, second, "{standings:?}");
        }
    }
}
