//! The packet path's way of using the table, stage `open` and `find` of the
//! XDP program, for flows that a test names by number.

use lb_common::abi::measure::{FIRST_RESPONSE, REQUEST_TO_RESPONSE, SYN_TO_FIN};
use lb_common::abi::{Ends, endpoint4};
use lb_common::flow::{
    self, Arrival, Found, Measures, Opening, Paired, Placed, Slot, Table, Target, Tracked, Tuple,
    client_word,
};
use lb_common::hash::Home;
use lb_common::tcp::{Side, flags};

/// Class boundary of every service here (the default of the product).
pub(crate) const SHORT_FLOW_BYTES: u32 = 15_360;
/// Sequence number of every SYN and of every SYN-ACK, unless a test sets its own.
pub(crate) const CLIENT_ISN: u32 = 1_000;
pub(crate) const SERVER_ISN: u32 = 9_000;

/// What carries a flow, and how its server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) protocol: u8,
    /// Opened by a datagram.
    pub(crate) datagrams: bool,
    /// The server answers directly.
    pub(crate) direct: bool,
    /// Who its client is.
    pub(crate) client: Side,
}

/// The usual kind.
pub(crate) const TCP: Kind = Kind {
    protocol: 6,
    datagrams: false,
    direct: false,
    client: Side::Client,
};

/// A flow: a client endpoint and a VIP, both by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) kind: Kind,
    pub(crate) home: Home,
    pub(crate) client: u64,
    pub(crate) vip: u64,
    /// [`Ends::NONE`] but in a table of IPv6 flows.
    pub(crate) ends: Ends,
}

impl Flow {
    pub(crate) fn of(kind: Kind, home: Home, client: u32, vip: u16) -> Self {
        Self {
            kind,
            home,
            client: client_word(endpoint4(client, 40_000), kind.protocol),
            vip: endpoint4(0xc633_6400 | u32::from(vip), 80),
            ends: Ends::NONE,
        }
    }
}

/// The endpoint of a backend: another address for each.
pub(crate) const fn backend_endpoint(backend: u16) -> u64 {
    endpoint4(0x0a00_0000 | backend as u32, 8_080)
}

/// What the XDP program makes of a SYN that found no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Opened {
        slot: Slot,
        evicted_half_open: bool,
        spilled: bool,
    },
    Existing(u16),
    Collision,
    Full,
}

/// Time of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) tick: u32,
    pub(crate) micros: u64,
}

pub(crate) fn find<T: Table>(table: &T, flow: Flow, side: Side, backend: u16) -> Option<Found> {
    let endpoint = match side {
        Side::Client | Side::ClientAlone => flow.vip,
        Side::Server => backend_endpoint(backend),
    };
    flow::find(
        table,
        flow.home,
        &Tuple {
            client: flow.client,
            endpoint,
            ends: flow.ends,
        },
        side,
    )
}

/// What a flow's service measures: one of [`lb_common::abi::measure`], or whether
/// it is the first response.
pub(crate) trait Measured {
    fn measure(self) -> u8;
}

impl Measured for u8 {
    fn measure(self) -> u8 {
        self
    }
}

impl Measured for bool {
    fn measure(self) -> u8 {
        if self { FIRST_RESPONSE } else { SYN_TO_FIN }
    }
}

/// Opens a flow, as stage `open`: at most three surveys. `choose` picks a
/// backend that the paired ones do not exclude; `drained` are backends that may
/// not take new flows.
pub(crate) fn open<T: Table>(
    table: &T,
    flow: Flow,
    at: Moment,
    measures: impl Measured,
    drained: impl Fn(u16) -> bool,
    mut choose: impl FnMut(&T, &Paired) -> Option<u16>,
) -> Outcome {
    let measure = measures.measure();
    for _ in 0..3 {
        let own = match find(table, flow, flow.kind.client, 0) {
            Some(found) if found.state().is_ended() || drained(found.backend()) => {
                Target::of(&found)
            }
            Some(found) => return Outcome::Existing(found.backend()),
            None => Target::NONE,
        };
        let survey = flow::survey(table, flow.home, flow.client, &flow.ends, own, at.tick)
            .expect("both buckets exist");
        let Some(backend) = choose(table, &survey.paired) else {
            return Outcome::Collision;
        };
        let opening = Opening {
            home: flow.home,
            client: flow.client,
            virtual_endpoint: flow.vip,
            ends: flow.ends,
            backend_endpoint: backend_endpoint(backend),
            backend,
            pool: 0,
            service: 3,
            hop: 0,
            sequence: CLIENT_ISN,
            first_response: measure == FIRST_RESPONSE,
            turns: measure == REQUEST_TO_RESPONSE,
            tick: at.tick,
            datagram: flow.kind.datagrams,
            one_sided: flow.kind.direct,
            client_mac: 0,
            own_mac: 0,
            client_ifindex: 0,
            micros: at.micros,
        };
        match flow::place(table, &survey, &opening) {
            Placed::Opened {
                slot,
                evicted_half_open,
                spilled,
            } => {
                return Outcome::Opened {
                    slot,
                    evicted_half_open,
                    spilled,
                };
            }
            Placed::Existing(twin) => return Outcome::Existing(twin.backend),
            Placed::Raced => {}
            Placed::Full => return Outcome::Full,
        }
    }
    Outcome::Full
}

/// Tracks a segment of a flow, if the table has it.
pub(crate) fn send<T: Table>(
    table: &T,
    found: &Found,
    arrival: &Arrival,
    at: Moment,
    measure: u8,
) -> Tracked {
    let measures = Measures {
        measure,
        short_flow_bytes: SHORT_FLOW_BYTES,
    };
    flow::track(
        table,
        found,
        arrival,
        at.tick,
        |_| Some(measures),
        || at.micros,
    )
}

/// A segment without payload whose numbers follow from the handshake alone.
pub(crate) fn bare(side: Side, bits: u8) -> Arrival {
    let isn = match side {
        Side::Client | Side::ClientAlone => (CLIENT_ISN, SERVER_ISN),
        Side::Server => (SERVER_ISN, CLIENT_ISN),
    };
    let begun = u32::from(bits & flags::SYN == 0);
    Arrival {
        side,
        flags: bits,
        sequence: isn.0 + begun,
        acknowledgement: isn.1 + 1,
        payload: 0,
    }
}
