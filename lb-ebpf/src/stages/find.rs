//! Finds the flow of a packet, in whichever direction it goes.

use super::classify::Ours;
use crate::{
    maps::Flows4,
    packet::{Ipv4, Transport},
};
use lb_common::{
    abi::{Settings, endpoint4},
    flow::{self, Found, client_word},
    hash,
    tcp::Side,
};

/// What was found.
pub(crate) enum Flow {
    ToServer(Found),
    ToClient(Found),
    None,
}

#[inline(always)]
pub(crate) fn run(
    settings: &Settings,
    table: &Flows4,
    ours: Ours,
    ip: &Ipv4,
    transport: &Transport,
) -> Flow {
    let source = endpoint4(ip.source, transport.source_port);
    let destination = endpoint4(ip.destination, transport.destination_port);
    let search = |client: u64, side: Side, endpoint: u64| {
        let word = client_word(client, ip.protocol);
        let home = hash::home(word, settings.hash_secret, settings.bucket_mask4);
        flow::find(table, home, word, side, endpoint)
    };
    if ours.destination
        && let Some(found) = search(source, Side::Client, destination)
    {
        return Flow::ToServer(found);
    }
    // Nobody's endpoint is what a flow of direct return has in place of its
    // server's.
    if ours.source
        && source != 0
        && let Some(found) = search(destination, Side::Server, source)
    {
        return Flow::ToClient(found);
    }
    Flow::None
}
