//! One flow in a table of its own, driven by hand.

use lb_common::flow::{Arrival, Tracked};
use lb_common::hash::Home;
use lb_common::tcp::Side::{self, Client};
use lb_common::tcp::State;

use crate::drive::{Flow, Kind, Moment, Outcome, bare, find, open, send};
use crate::table::Host;

pub(crate) const BACKEND: u16 = 3;
pub(crate) const NOW: u32 = 500;
pub(crate) const HOME: Home = Home {
    primary: 0,
    secondary: 1,
};

/// One flow of backend 3 in a table of its own, driven by hand.
pub(crate) struct World {
    pub(crate) host: Host,
    pub(crate) flow: Flow,
    pub(crate) measure: u8,
    pub(crate) at: Moment,
}

impl World {
    pub(crate) fn of(kind: Kind, measure: u8) -> Self {
        let world = Self {
            host: Host::new(2, 4, 5),
            flow: Flow::of(kind, HOME, 1, 1),
            measure,
            at: Moment {
                tick: NOW,
                micros: 1_000_000,
            },
        };
        assert!(matches!(world.syn(), Outcome::Opened { .. }));
        world
    }

    pub(crate) fn syn(&self) -> Outcome {
        open(
            &self.host,
            self.flow,
            self.at,
            self.measure,
            |_| false,
            |_, _| Some(BACKEND),
        )
    }

    pub(crate) fn send(&self, arrival: &Arrival) -> Tracked {
        let found = find(&self.host, self.flow, arrival.side, BACKEND).expect("the flow is there");
        send(&self.host, &found, arrival, self.at, self.measure)
    }

    pub(crate) fn bare(&self, side: Side, bits: u8) -> Tracked {
        self.send(&bare(side, bits))
    }

    pub(crate) fn state(&self) -> State {
        find(&self.host, self.flow, Client, 0)
            .expect("the flow is there")
            .state()
    }
}
