//! Where frames go: MAC addresses, interfaces, and who asks whom.

use lb_common::{abi::HopKey, reason::Reason, tcp::State};
use steerline_tests::packets::{
    Counter, Endpoint, Group, Lab, Mac, Port, Row, Talk,
    flag::{ACK, PSH, SYN},
    map_address,
    moves::{because, goes, once, opens},
    scene::{
        A, B, BACK, CLIENT, FRONT, NARROW_CLIENT, NARROW_MTU, NEAR_CLIENT, NEAR_CLIENT_MAC, ROUTER,
        ROUTER_HOP, ROUTER_MAC, UNRESOLVED_CLIENT, UNRESOLVED_ROUTER, UNROUTED_CLIENT,
    },
    v4,
};

const TALK: Talk = Talk::web(CLIENT.1, A);
/// A router that only the table of next hops knows.
const OTHER_ROUTER: Mac = [2, 0, 0, 0, 0x0d, 1];
/// Headers of a segment without options.
const HEADERS: usize = 40;

fn forget_router(lab: &mut Lab) {
    let key = HopKey {
        address: map_address(ROUTER),
        ifindex: lab.front,
        family: 4,
    };
    lab.maps.hop_index.remove(&key).expect("it was there");
}

fn router_moves(lab: &mut Lab) {
    lab.hop(ROUTER_HOP, |hop| hop.destination = OTHER_ROUTER);
}

/// Two replies note the client's next hop even if the coarse clock ticks
/// between two of them.
fn hop_noted(name: &'static str) -> Row {
    Row::new(name)
        .sends(TALK.handshake())
        .send(TALK.server(ACK).payload(1))
        .send(TALK.server(ACK).payload(1))
}

/// A client on the front network that has no neighbour entry.
const STRANGER: Endpoint = (v4([172, 16, 0, 8]), 31_337);
const STRANGER_MAC: Mac = [2, 0, 0, 0, 0x0c, 8];
const GROUP_MAC: Mac = [1, 0, 0x5e, 0, 0, 8];

/// Everything about the ways out.
pub(crate) fn group() -> Group {
    let narrow = Talk {
        client: NARROW_CLIENT,
        ..TALK
    };
    let unresolved = Talk {
        client: UNRESOLVED_CLIENT,
        ..TALK
    };
    let unrouted = Talk {
        client: UNROUTED_CLIENT,
        ..TALK
    };
    let near = Talk {
        client: NEAR_CLIENT,
        ..TALK
    };
    let stranger = Talk {
        client: STRANGER,
        ..TALK
    };
    let fitting = usize::from(NARROW_MTU) - HEADERS;
    let rows = vec![
        Row::new("each server by its own next hop")
            .send(TALK.syn())
            .send(Talk::web(40_001, B).syn()),
        Row::new("a reply goes by the kernel's route at first").sends(TALK.answered()),
        hop_noted("later replies go by the next hop that the flow remembers")
            .change(router_moves)
            .send(
                TALK.server(ACK)
                    .payload(2)
                    .leaving(Port::Front, (OTHER_ROUTER, FRONT.1)),
            ),
        hop_noted("a remembered next hop that is no longer valid: the kernel is asked again")
            .change(|lab| {
                router_moves(lab);
                lab.hop(ROUTER_HOP, |hop| hop.flags = 0);
            })
            .send(TALK.server(ACK).payload(2)),
        hop_noted("a remembered next hop on another interface is followed")
            .change(|lab| {
                let back = lab.back;
                lab.hop(ROUTER_HOP, |hop| hop.ifindex = back);
            })
            .send(
                TALK.server(ACK)
                    .payload(2)
                    .leaving(Port::Back, (ROUTER_MAC, FRONT.1)),
            ),
        Row::new("a next hop without an index is asked for, the reply forwarded")
            .change(forget_router)
            .send(TALK.syn())
            .send(TALK.syn_ack().also(once(Counter::Wanted(ROUTER))))
            .send(TALK.ack())
            .send(
                TALK.server(ACK)
                    .payload(2)
                    .also(once(Counter::Wanted(ROUTER))),
            ),
        Row::new("a client on the interface's own network")
            .send(near.syn())
            .send(
                near.syn_ack()
                    .leaving(Port::Front, (NEAR_CLIENT_MAC, FRONT.1))
                    .also(once(Counter::Wanted(NEAR_CLIENT.0))),
            ),
        Row::new("a client on our own network that ARP has not found: by its SYN's own MAC")
            .from("XDP takes the SYN before the kernel can learn from it")
            .send(stranger.syn().with(|frame| frame.macs.1 = STRANGER_MAC))
            .send(
                stranger
                    .syn_ack()
                    .leaving(Port::Front, (STRANGER_MAC, FRONT.1))
                    .also(once(Counter::Wanted(STRANGER.0))),
            ),
        Row::new("a group's MAC address is nobody's: the reply waits for ARP")
            .send(stranger.syn().with(|frame| frame.macs.1 = GROUP_MAC))
            .send(
                stranger
                    .syn_ack()
                    .dropped(Reason::NeighbourUnresolved)
                    .also(once(Counter::Wanted(STRANGER.0))),
            ),
        Row::new("a router without a MAC address is asked for, the reply dropped")
            .send(unresolved.syn())
            .send(
                unresolved
                    .syn_ack()
                    .dropped(Reason::NeighbourUnresolved)
                    .also(once(Counter::Wanted(UNRESOLVED_ROUTER))),
            ),
        Row::new("no route to the client")
            .send(unrouted.syn())
            .send(unrouted.syn_ack().dropped(Reason::NoRoute)),
        Row::new("a server whose MAC address is not known: the SYN is dropped, the next goes")
            .change(|lab| lab.hop(A.hop(), |hop| hop.flags = 0))
            .send(TALK.syn().dropped(Reason::NeighbourUnresolved))
            .send(
                TALK.client(SYN)
                    .dropped(Reason::NeighbourUnresolved)
                    .also(because(Reason::SynRepeated)),
            )
            .change(|lab| lab.hop(A.hop(), |hop| hop.flags = 1))
            .send(TALK.client(SYN).also(because(Reason::SynRepeated)))
            .send(TALK.syn_ack()),
        Row::new("a server without a next hop")
            .change(|lab| lab.backend(A, |a| a.hop = 0))
            .send(TALK.syn().dropped(Reason::NeighbourUnresolved)),
        Row::new("a server's next hop beyond the table")
            .change(|lab| lab.backend(A, |a| a.hop = lb_common::abi::MAX_HOPS))
            .send(TALK.syn().dropped(Reason::NeighbourUnresolved)),
        Row::new("a server's MAC address changes under a flow")
            .sends(TALK.handshake())
            .change(|lab| lab.hop(A.hop(), |hop| hop.destination = OTHER_ROUTER))
            .send(
                TALK.client(ACK)
                    .payload(3)
                    .leaving(Port::Back, (OTHER_ROUTER, BACK.1)),
            ),
        Row::new("to a server: as large as the MTU goes, one more does not")
            .from("loxilb#1054, cilium#32601: exactly the MTU is a case of its own")
            .change(|lab| lab.hop(A.hop(), |hop| hop.mtu = 1_000))
            .sends(TALK.handshake())
            .send(TALK.client(ACK).payload(960))
            .send(TALK.client(ACK).payload(961).dropped(Reason::TooBig)),
        Row::new("to a server whose MTU is not known: everything goes")
            .change(|lab| lab.hop(A.hop(), |hop| hop.mtu = 0))
            .sends(TALK.handshake())
            .send(TALK.client(ACK).payload(1_460)),
        Row::new("padding does not count towards the MTU")
            .change(|lab| lab.hop(A.hop(), |hop| hop.mtu = 1_000))
            .sends(TALK.handshake())
            .send(
                TALK.client(ACK)
                    .payload(960)
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
                    .dropped(Reason::TooBig),
            )
            .send(narrow.server(ACK | PSH).payload(fitting)),
        hop_noted("to a client by a remembered next hop with an MTU")
            .change(|lab| lab.hop(ROUTER_HOP, |hop| hop.mtu = 1_000))
            .send(TALK.server(ACK).payload(960))
            .send(TALK.server(ACK).payload(961).dropped(Reason::TooBig)),
        Row::new("one arm: out of the interface it came in by")
            .from("cilium xdp_nodeport_lb4_test.c: XDP_TX with MAC addresses of the FIB")
            .change(|lab| {
                let front = lab.front;
                lab.hop(A.hop(), |hop| (hop.ifindex, hop.source) = (front, FRONT.1));
            })
            .send(TALK.syn().leaving(Port::Front, (A.mac(), FRONT.1)))
            .send(TALK.syn_ack().at(Port::Front))
            .send(TALK.ack().leaving(Port::Front, (A.mac(), FRONT.1)))
            .send(
                TALK.client(ACK)
                    .payload(5)
                    .leaving(Port::Front, (A.mac(), FRONT.1)),
            )
            .send(TALK.server(ACK).payload(5).at(Port::Front)),
        Row::new("two arms: out of the other interface")
            .from("kernel selftests l4lb_all.c: TX or redirect by the way out")
            .sends(TALK.handshake()),
        Row::new("a client's packet that comes in at the servers' side is forwarded back there")
            .send(TALK.client(SYN).at(Port::Back).also(opens(A.index)))
            .send(
                TALK.server(SYN | ACK)
                    .also(goes(State::HalfOpen, State::Answered)),
            ),
        Row::new("forwarding is off at the interface: no route")
            .change(|_| steerline_tests::packets::set_forwarding("back", false))
            .send(TALK.syn())
            .send(TALK.syn_ack().dropped(Reason::NoRoute))
            .change(|_| steerline_tests::packets::set_forwarding("back", true))
            .send(TALK.server(SYN | ACK)),
    ];
    Group::new("next hops", rows)
}
