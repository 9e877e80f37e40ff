//! Finds the flow of a packet, in whichever direction it goes.

use super::classify::Ours;
use crate::{
    maps::Flows4,
    packet::{Ipv4, Tcp},
};
use lb_common::{
    abi::{Settings, endpoint4},
    flow::{self, Found, client_word},
    hash,
    tcp::Side,
};

/// What was found.
pub enum Flow {
    ToServer(Found),
    ToClient(Found),
    None,
}

#[inline(always)]
pub fn run(settings: &Settings, table: &Flows4, ours: Ours, ip: &Ipv4, tcp: &Tcp) -> Flow {
    let source = endpoint4(ip.source, tcp.source_port);
    let destination = endpoint4(ip.destination, tcp.destination_port);
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
    if ours.source
        && let Some(found) = search(destination, Side::Server, source)
    {
        return Flow::ToClient(found);
    }
    Flow::None
}
