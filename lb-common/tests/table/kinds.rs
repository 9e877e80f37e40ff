//! The kinds of flows besides TCP through us.

use lb_common::flow::Arrival;
use lb_common::tcp::Side;

use crate::drive::{Kind, TCP};

pub(crate) const DATAGRAMS: Kind = Kind {
    protocol: 17,
    datagrams: true,
    ..TCP
};
pub(crate) const DIRECT_TCP: Kind = Kind {
    direct: true,
    client: Side::ClientAlone,
    ..TCP
};
pub(crate) const DIRECT_DATAGRAMS: Kind = Kind {
    direct: true,
    client: Side::ClientAlone,
    ..DATAGRAMS
};

/// A datagram.
pub(crate) fn datagram(side: Side, payload: u32) -> Arrival {
    Arrival {
        side,
        flags: 0,
        sequence: 0,
        acknowledgement: 0,
        payload,
    }
}
