//! Where frames go: MAC addresses, interfaces, and who asks whom.

use lb_common::{abi::HopKey, reason::Reason, tcp::State};
use std::net::IpAddr;
use steerline_tests::packets::{
    Counter, Endpoint, FAMILIES, Family, Group, Lab, Mac, Port, Reply, Row, Talk,
    flag::{ACK, PSH, SYN},
    map_address,
    moves::{because, goes, once, opens},
    scene::{
        A, B, BACK, CLIENT, FRONT, NARROW_CLIENT, NARROW_MTU, NEAR_CLIENT, NEAR_CLIENT_MAC, ROUTER,
        ROUTER_MAC, UNRESOLVED_CLIENT, UNRESOLVED_ROUTER, UNROUTED_CLIENT, router_hop,
    },
    v4,
};

/// What the sender of a packet is told that is larger than `mtu`: of IPv6 no less
/// than every link takes.
fn told(talk: &Talk, mtu: u16) -> Reply {
    let least = match talk.family() {
        Family::V4 => 68,
        Family::V6 => 1_280,
    };
    Reply::TooBig(talk.vip.0, mtu.max(least))
}

/// A router that only the table of next hops knows.
const OTHER_ROUTER: Mac = [2, 0, 0, 0, 0x0d, 1];

fn forget_router(lab: &mut Lab, family: Family) {
    let key = HopKey {
        address: map_address(family.counterpart(ROUTER)),
        ifindex: lab.front,
        family: family.number().into(),
    };
    lab.maps.hop_index.remove(&key).expect("it was there");
}

fn router_moves(lab: &mut Lab, family: Family) {
    lab.hop(router_hop(family), |hop| hop.destination = OTHER_ROUTER);
}

/// A client on the front network that has no neighbour entry.
const STRANGER: Endpoint = (v4([172, 16, 0, 8]), 31_337);
const STRANGER_MAC: Mac = [2, 0, 0, 0, 0x0c, 8];
const GROUP_MAC: Mac = [1, 0, 0x5e, 0, 0, 8];

/// Everything about the ways out, in every family.
pub(crate) fn group() -> Group {
    let rows = FAMILIES.iter().flat_map(|family| {
        let named = |row: Row| row.in_family(*family);
        rows(*family).into_iter().map(named)
    });
    Group::new("next hops", rows.collect())
}

fn rows(family: Family) -> Vec<Row> {
    let a = A.in_family(family);
    let talk = Talk::web(CLIENT.1, A).in_family(family);
    let of = |client: Endpoint| talk.from((family.counterpart(client.0), client.1));
    let wanted = |address: IpAddr| once(Counter::Wanted(family.counterpart(address)));
    let router = router_hop(family);
    // Two replies note the client's next hop even if the coarse clock ticks
    // between two of them.
    let hop_noted = |name: &'static str| {
        Row::new(name)
            .sends(talk.handshake())
            .send(talk.server(ACK).payload(1))
            .send(talk.server(ACK).payload(1))
    };
    let narrow = of(NARROW_CLIENT);
    let unresolved = of(UNRESOLVED_CLIENT);
    let unrouted = of(UNROUTED_CLIENT);
    let near = of(NEAR_CLIENT);
    let stranger = of(STRANGER);
    // Of a segment without options.
    let headers = family.header() + 20;
    let fitting = usize::from(NARROW_MTU) - headers;
    vec![
        Row::new("each server by its own next hop")
            .send(talk.syn())
            .send(Talk::web(40_001, B).in_family(family).syn()),
        Row::new("a reply goes by the kernel's route at first").sends(talk.answered()),
        hop_noted("later replies go by the next hop that the flow remembers")
            .change(move |lab| router_moves(lab, family))
            .send(
                talk.server(ACK)
                    .payload(2)
                    .leaving(Port::Front, (OTHER_ROUTER, FRONT.1)),
            ),
        hop_noted("a remembered next hop that is no longer valid: the kernel is asked again")
            .change(move |lab| {
                router_moves(lab, family);
                lab.hop(router, |hop| hop.flags = 0);
            })
            .send(talk.server(ACK).payload(2)),
        hop_noted("a remembered next hop on another interface is followed")
            .change(move |lab| {
                let back = lab.back;
                lab.hop(router, |hop| hop.ifindex = back);
            })
            .send(
                talk.server(ACK)
                    .payload(2)
                    .leaving(Port::Back, (ROUTER_MAC, FRONT.1)),
            ),
        Row::new("a next hop without an index is asked for, the reply forwarded")
            .change(move |lab| forget_router(lab, family))
            .send(talk.syn())
            .send(talk.syn_ack().also(wanted(ROUTER)))
            .send(talk.ack())
            .send(talk.server(ACK).payload(2).also(wanted(ROUTER))),
        Row::new("a client on the interface's own network")
            .send(near.syn())
            .send(
                near.syn_ack()
                    .leaving(Port::Front, (NEAR_CLIENT_MAC, FRONT.1))
                    .also(wanted(NEAR_CLIENT.0)),
            ),
        Row::new("a client on our own network that ARP has not found: by its SYN's own MAC")
            .from("XDP takes the SYN before the kernel can learn from it")
            .send(stranger.syn().with(|frame| frame.macs.1 = STRANGER_MAC))
            .send(
                stranger
                    .syn_ack()
                    .leaving(Port::Front, (STRANGER_MAC, FRONT.1))
                    .also(wanted(STRANGER.0)),
            ),
        Row::new("a group's MAC address is nobody's: the reply waits for ARP")
            .send(stranger.syn().with(|frame| frame.macs.1 = GROUP_MAC))
            .send(
                stranger
                    .syn_ack()
                    .dropped(Reason::NeighbourUnresolved)
                    .also(wanted(STRANGER.0)),
            ),
        Row::new("a router without a MAC address is asked for, the reply dropped")
            .send(unresolved.syn())
            .send(
                unresolved
                    .syn_ack()
                    .dropped(Reason::NeighbourUnresolved)
                    .also(wanted(UNRESOLVED_ROUTER)),
            ),
        Row::new("no route to the client")
            .send(unrouted.syn())
            .send(unrouted.syn_ack().dropped(Reason::NoRoute)),
        Row::new("a server whose MAC address is not known: the SYN is dropped, the next goes")
            .change(move |lab| lab.hop(a.hop(), |hop| hop.flags = 0))
            .send(talk.syn().dropped(Reason::NeighbourUnresolved))
            .send(
                talk.client(SYN)
                    .dropped(Reason::NeighbourUnresolved)
                    .also(because(Reason::SynRepeated)),
            )
            .change(move |lab| lab.hop(a.hop(), |hop| hop.flags = 1))
            .send(talk.client(SYN).also(because(Reason::SynRepeated)))
            .send(talk.syn_ack()),
        Row::new("a server without a next hop")
            .change(move |lab| lab.backend(a, |a| a.hop = 0))
            .send(talk.syn().dropped(Reason::NeighbourUnresolved)),
        Row::new("a server's next hop beyond the table")
            .change(move |lab| lab.backend(a, |a| a.hop = lb_common::abi::MAX_HOPS))
            .send(talk.syn().dropped(Reason::NeighbourUnresolved)),
        Row::new("a server's MAC address changes under a flow")
            .sends(talk.handshake())
            .change(move |lab| lab.hop(a.hop(), |hop| hop.destination = OTHER_ROUTER))
            .send(
                talk.client(ACK)
                    .payload(3)
                    .leaving(Port::Back, (OTHER_ROUTER, BACK.1)),
            ),
        Row::new("to a server: as large as the MTU goes, one more does not")
            .from("loxilb#1054, cilium#32601: exactly the MTU is a case of its own")
            .change(move |lab| lab.hop(a.hop(), |hop| hop.mtu = 1_000))
            .sends(talk.handshake())
            .send(talk.client(ACK).payload(1_000 - headers))
            .send(
                talk.client(ACK)
                    .payload(1_001 - headers)
                    .replied(told(&talk, 1_000)),
            ),
        Row::new("to a server whose MTU is not known: everything goes")
            .change(move |lab| lab.hop(a.hop(), |hop| hop.mtu = 0))
            .sends(talk.handshake())
            .send(talk.client(ACK).payload(1_500 - headers)),
        Row::new("padding does not count towards the MTU")
            .change(move |lab| lab.hop(a.hop(), |hop| hop.mtu = 1_000))
            .sends(talk.handshake())
            .send(
                talk.client(ACK)
                    .payload(1_000 - headers)
                    .with(|f| f.padding = vec![0; 60]),
            ),
        Row::new("to a client by a route with an MTU: as large goes, one more does not")
            .send(narrow.syn())
            .send(narrow.syn_ack())
            .send(narrow.ack())
            .send(
                narrow
                    .server(ACK | PSH)
                    .payload(fitting + 1)
                    .replied(told(&talk, NARROW_MTU)),
            )
            .send(narrow.server(ACK | PSH).payload(fitting)),
        hop_noted("to a client by a remembered next hop with an MTU")
            .change(move |lab| lab.hop(router, |hop| hop.mtu = 1_000))
            .send(talk.server(ACK).payload(1_000 - headers))
            .send(
                talk.server(ACK)
                    .payload(1_001 - headers)
                    .replied(told(&talk, 1_000)),
            ),
        Row::new("one arm: out of the interface it came in by")
            .from("cilium xdp_nodeport_lb4_test.c: XDP_TX with MAC addresses of the FIB")
            .change(move |lab| {
                let front = lab.front;
                lab.hop(a.hop(), |hop| (hop.ifindex, hop.source) = (front, FRONT.1));
            })
            .send(talk.syn().leaving(Port::Front, (a.mac(), FRONT.1)))
            .send(talk.syn_ack().at(Port::Front))
            .send(talk.ack().leaving(Port::Front, (a.mac(), FRONT.1)))
            .send(
                talk.client(ACK)
                    .payload(5)
                    .leaving(Port::Front, (a.mac(), FRONT.1)),
            )
            .send(talk.server(ACK).payload(5).at(Port::Front)),
        Row::new("two arms: out of the other interface")
            .from("kernel selftests l4lb_all.c: TX or redirect by the way out")
            .sends(talk.handshake()),
        Row::new("a client's packet that comes in at the servers' side is forwarded back there")
            .send(talk.client(SYN).at(Port::Back).also(opens(a.index)))
            .send(
                talk.server(SYN | ACK)
                    .also(goes(State::HalfOpen, State::Answered)),
            ),
        Row::new("forwarding is off at the interface: no route")
            .change(|_| steerline_tests::packets::set_forwarding("back", false))
            .send(talk.syn())
            .send(talk.syn_ack().dropped(Reason::NoRoute))
            .change(|_| steerline_tests::packets::set_forwarding("back", true))
            .send(talk.server(SYN | ACK)),
    ]
}
