//! The network part of the daemon against the real kernel, in network
//! namespaces of its own. Needs root; without it the tests say that they are
//! skipped, or fail if `STEERLINE_REQUIRE_ROOT` is set.
#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{net::IpAddr, time::Instant};

use lb_common::abi::{HopKey, address4};
use steerline::net::{
    Near, Netlink,
    announce::{self, frames},
    links::{self, Link},
    neighbours::{self, NeighbourState},
    packet_socket::PacketSocket,
    routes::{self, Route, RouteError},
    watch::{Change, Watch},
};

use daemon::Daemon;
use lab::{FAR1_MAC, FAR2_MAC, LAN_MAC, Lab, PATIENCE, WAN, WAN_MAC, inside};

#[path = "net/daemon.rs"]
mod daemon;
#[path = "net/forwarding.rs"]
mod forwarding;
#[path = "net/lab.rs"]
mod lab;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn index(netlink: &Netlink, name: &str) -> u32 {
    Link::find(netlink.handle(), name).await.unwrap().index
}

#[test]
fn links_are_listed() {
    let Some(lab) = Lab::new() else { return };
    lab.run(|| async {
        let netlink = Netlink::open().unwrap();
        let links = links::list(netlink.handle()).await.unwrap();
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        assert!(
            ["lo", WAN, "lan"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );

        let wan = Link::find(netlink.handle(), WAN).await.unwrap();
        assert_eq!((wan.mac, wan.mtu, wan.up), (Some(WAN_MAC), 1_500, true));
        assert_eq!((wan.kind.as_deref(), wan.xdp), (Some("veth"), None));
        let lo = Link::find(netlink.handle(), "lo").await.unwrap();
        assert_eq!((lo.mac, lo.own()), (None, None));
        let same = Link::by_index(netlink.handle(), wan.index).await.unwrap();
        assert_eq!(same.map(|link| link.name), Some(WAN.to_owned()));
        assert_eq!(Link::by_index(netlink.handle(), 9_999).await.unwrap(), None);

        let error = Link::find(netlink.handle(), "wan0")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("wan0") && error.contains("lo, "), "{error}");
    });
}

#[test]
fn routes_are_those_of_the_kernel() {
    let Some(lab) = Lab::new() else { return };
    lab.near("route add 198.51.100.0/24 via 10.9.0.2");
    lab.near("route add blackhole 198.51.101.0/24");
    lab.near("route add unreachable 198.51.102.0/24");
    lab.near(&format!(
        "route add 198.51.103.0/24 via inet6 fd00:9::2 dev {WAN}"
    ));
    lab.run(|| async {
        let netlink = Netlink::open().unwrap();
        let ifindex = index(&netlink, WAN).await;
        let v4 = Some(addr("10.9.0.1"));
        let rows = [
            ("10.9.0.7", Ok((None, v4))),
            ("198.51.100.9", Ok((Some(addr("10.9.0.2")), v4))),
            ("198.51.103.9", Ok((Some(addr("fd00:9::2")), v4))),
            ("fd00:9::7", Ok((None, Some(addr("fd00:9::1"))))),
            ("198.51.101.9", Err("no route")),
            ("198.51.102.9", Err("no route")),
            ("203.0.113.1", Err("no route")),
            ("2001:db8::1", Err("no route")),
            ("10.9.0.1", Err("not another host's")),
            ("10.9.0.255", Err("not another host's")),
        ];
        for (destination, expected) in rows {
            let actual = routes::route_to(netlink.handle(), addr(destination)).await;
            match expected {
                Ok((gateway, source)) => {
                    assert_eq!(
                        actual,
                        Ok(Route {
                            ifindex,
                            gateway,
                            source
                        }),
                        "{destination}"
                    );
                }
                Err(part) => {
                    let error: RouteError = actual.unwrap_err();
                    assert!(error.to_string().contains(part), "{destination}: {error}");
                }
            }
        }
    });
}

/// The far ends of the cables and a network behind them.
struct Place {
    far1: &'static str,
    far2: &'static str,
    behind: &'static str,
    network: &'static str,
    /// By which a host says that its MAC address changed.
    notify: &'static str,
}

const PLACES: [Place; 2] = [
    Place {
        far1: "10.9.0.2",
        far2: "10.8.0.2",
        behind: "198.51.100.9",
        network: "198.51.100.0/24",
        notify: "ipv4/conf/far1/arp_notify",
    },
    Place {
        far1: "fd00:9::2",
        far2: "fd00:8::2",
        behind: "2001:db8:9::9",
        network: "2001:db8:9::/64",
        notify: "ipv6/conf/far1/ndisc_notify",
    },
];

fn hop_key(near: Near) -> HopKey {
    let (address, family) = match near.address {
        IpAddr::V4(address) => (address4(address.octets()), 4),
        IpAddr::V6(address) => (address.octets(), 6),
    };
    HopKey {
        address,
        ifindex: near.ifindex,
        family,
    }
}

#[test]
fn a_neighbour_is_resolved_and_its_new_address_followed() {
    PLACES.iter().for_each(follow_a_neighbour);
}

fn follow_a_neighbour(place: &Place) {
    let Some(lab) = Lab::new() else { return };
    // The far end says so when its address changes.
    inside(&lab.far_name, || {
        std::fs::write(format!("/proc/sys/net/{}", place.notify), "1").unwrap();
    });
    lab.run(|| async {
        let mut daemon = Daemon::start().await;
        let ifindex = index(&daemon.netlink, WAN).await;
        let near = Near {
            ifindex,
            address: addr(place.far1),
        };
        daemon.table.want_backend(1, near.address, Instant::now());
        let wanted = hop_key(near);
        daemon.table.want(wanted, Instant::now());
        daemon
            .until(|d| d.backend_mac(1).is_some() && !d.hop_index.is_empty())
            .await;
        let hop = daemon.backend_hop(1).unwrap();
        assert_eq!((hop.destination, hop.source), (FAR1_MAC, WAN_MAC));
        assert_eq!((hop.ifindex, hop.mtu), (ifindex, 1_500));
        let client = daemon.hop_index[&wanted];
        assert_eq!(daemon.hops[&client], hop);
        assert_ne!(daemon.backend_hops[&1], client);
        let entry = neighbours::find(daemon.netlink.handle(), near)
            .await
            .unwrap()
            .unwrap();
        assert!(entry.managed, "{entry:?}");

        let moved = [2, 0, 0, 0, 1, 0x99];
        lab.far("link set far1 address 02:00:00:00:01:99");
        daemon.until(|d| d.backend_mac(1) == Some(moved)).await;
        assert_eq!(daemon.hops[&client].destination, moved);

        lab.near(&format!("link set {WAN} address 02:00:00:00:01:77"));
        daemon
            .until(|d| {
                d.backend_hop(1)
                    .is_some_and(|hop| hop.source == [2, 0, 0, 0, 1, 0x77])
            })
            .await;
        lab.near(&format!("link set {WAN} down"));
        daemon.until(|d| d.backend_hop(1).is_none()).await;
        lab.near(&format!("link set {WAN} up"));
        // With the link went its IPv6 addresses.
        lab.near(&format!("address replace fd00:9::1/64 nodad dev {WAN}"));
        daemon.until(|d| d.backend_mac(1) == Some(moved)).await;

        // The far end answers so fast that only the count tells.
        let voided = daemon.voided;
        lab.near(&format!("neighbour flush dev {WAN}"));
        daemon
            .until(|d| d.voided > voided && d.backend_mac(1) == Some(moved))
            .await;
    });
}

#[test]
fn a_changed_route_is_followed() {
    PLACES.iter().for_each(follow_a_route);
}

fn follow_a_route(place: &Place) {
    let Some(lab) = Lab::new() else { return };
    lab.near(&format!("route add {} via {}", place.network, place.far1));
    lab.run(|| async {
        let mut daemon = Daemon::start().await;
        let lan = index(&daemon.netlink, "lan").await;
        daemon
            .table
            .want_backend(1, addr(place.behind), Instant::now());
        daemon.until(|d| d.backend_mac(1) == Some(FAR1_MAC)).await;
        let (before, asked) = (daemon.backend_hops[&1], daemon.routes_asked);

        lab.near(&format!(
            "route replace {} via {}",
            place.network, place.far2
        ));
        daemon.until(|d| d.backend_mac(1) == Some(FAR2_MAC)).await;
        let hop = daemon.backend_hop(1).unwrap();
        assert_eq!((hop.ifindex, hop.source), (lan, LAN_MAC));
        assert_ne!(daemon.backend_hops[&1], before);
        assert!(daemon.routes_asked > asked);
        assert_eq!(daemon.hops[&before].flags, 0);

        lab.near(&format!("route delete {}", place.network));
        daemon.until(|d| d.backend_hops[&1] == 0).await;
    });
}

#[test]
fn neighbours_are_released_and_those_of_others_left_alone() {
    let Some(lab) = Lab::new() else { return };
    lab.near(&format!(
        "neighbour add 10.9.0.7 lladdr 02:00:00:00:07:07 nud permanent dev {WAN}"
    ));
    lab.run(|| async {
        let netlink = Netlink::open().unwrap();
        let mut watch = Watch::open().unwrap();
        let handle = netlink.handle();
        let ifindex = index(&netlink, WAN).await;
        let far = Near {
            ifindex,
            address: addr("10.9.0.2"),
        };
        assert_eq!(neighbours::find(handle, far).await.unwrap(), None);
        neighbours::release(handle, far).await.unwrap();
        neighbours::manage(handle, far).await.unwrap();
        loop {
            if let Change::Neighbour {
                near,
                mac: Some(mac),
            } = watch.next().await.unwrap()
            {
                assert_eq!((near, mac), (far, FAR1_MAC));
                break;
            }
        }
        assert!(
            neighbours::find(handle, far)
                .await
                .unwrap()
                .unwrap()
                .managed
        );
        neighbours::release(handle, far).await.unwrap();
        let released = neighbours::find(handle, far).await.unwrap().unwrap();
        assert_eq!((released.managed, released.mac), (false, Some(FAR1_MAC)));

        let fixed = Near {
            ifindex,
            address: addr("10.9.0.7"),
        };
        for _ in 0..2 {
            let entry = neighbours::manage(handle, fixed).await.unwrap().unwrap();
            assert_eq!((entry.foreign, entry.managed), (true, false));
            assert_eq!(entry.state, NeighbourState::Permanent);
            assert_eq!(entry.mac, Some([2, 0, 0, 0, 7, 7]));
            neighbours::release(handle, fixed).await.unwrap();
        }
        let all = neighbours::list(handle).await.unwrap();
        assert!(
            [far, fixed]
                .iter()
                .all(|near| all.iter().any(|entry| entry.near == *near))
        );

        let gone = Near {
            ifindex: 9_999,
            address: addr("10.9.0.2"),
        };
        let error = neighbours::manage(handle, gone).await.unwrap_err();
        assert!(
            format!("{error:#}").contains("10.9.0.2 on interface 9999"),
            "{error:#}"
        );
    });
}

#[test]
fn lost_messages_are_reported() {
    let Some(lab) = Lab::new() else { return };
    lab.run(|| async {
        let mut watch = Watch::with_buffer(4_096).unwrap();
        for third in 0..200 {
            lab.near(&format!("route add 203.0.{third}.0/24 via 10.9.0.2"));
        }
        assert_eq!(watch.next().await.unwrap(), Change::Overrun);
        // And it goes on.
        lab.near("link set lan mtu 1400");
        while !matches!(watch.next().await.unwrap(), Change::LinkChanged { .. }) {}
    });
}

#[test]
fn an_address_is_announced_and_withdrawn() {
    let Some(lab) = Lab::new() else { return };
    lab.near(&format!("address add 10.9.0.60/32 dev {WAN}"));
    let far_index = inside(&lab.far_name, || {
        nix::net::if_::if_nametoindex("far1").unwrap()
    });
    let receiver = |ethertype| {
        inside(&lab.far_name, || {
            PacketSocket::receiver(far_index, ethertype, PATIENCE).unwrap()
        })
    };
    let (arp, ipv6) = (receiver(0x0806), receiver(0x86dd));
    lab.run(|| async {
        let netlink = Netlink::open().unwrap();
        let handle = netlink.handle();
        let lan = Link::find(handle, "lan").await.unwrap();
        let wan = Link::find(handle, WAN).await.unwrap();
        let listed = [lan.clone(), wan.clone()];
        // Address, where it goes, whether it is ours, who hears of it.
        let rows = [
            ("10.9.0.50", wan.index, true, vec![wan.clone()]),
            ("10.9.0.50", wan.index, true, vec![wan.clone()]),
            ("192.0.2.10", lan.index, true, vec![lan.clone()]),
            ("10.9.0.60", wan.index, false, vec![wan.clone()]),
            ("fd00:9::50", wan.index, true, vec![wan.clone()]),
        ];
        for (address, ifindex, ours, audience) in rows {
            let placed = announce::place(handle, addr(address), &listed)
                .await
                .unwrap();
            assert_eq!((placed.ifindex, placed.ours), (ifindex, ours), "{address}");
            assert_eq!(placed.audience, audience, "{address}");
        }
        let error = announce::place(handle, addr("192.0.2.99"), &[])
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("data_plane.interfaces"),
            "{error}"
        );

        let placed = announce::place(handle, addr("10.9.0.50"), &listed)
            .await
            .unwrap();
        placed.send().unwrap();
        for form in [frames::ArpForm::Request, frames::ArpForm::Reply] {
            let expected = frames::gratuitous_arp(form, WAN_MAC, [10, 9, 0, 50].into());
            expect_frame(&arp, &expected);
        }
        let placed = announce::place(handle, addr("fd00:9::50"), &listed)
            .await
            .unwrap();
        placed.send().unwrap();
        // It is there at once, and nothing of this host's own comes from it.
        let own = own_address(&lab, "fd00:9::50");
        assert!(
            own.contains("valid_lft forever preferred_lft 0sec"),
            "{own}"
        );
        assert!(
            own.contains("deprecated") && !own.contains("tentative"),
            "{own}"
        );
        let route = routes::route_to(handle, addr("fd00:9::2")).await.unwrap();
        assert_eq!(route.source, Some(addr("fd00:9::1")));
        let address = "fd00:9::50".parse().unwrap();
        expect_frame(&ipv6, &frames::advertisement(WAN_MAC, address));

        let rows = [
            ("10.9.0.50", true),
            ("10.9.0.50", false),
            ("10.9.0.60", false),
            ("fd00:9::50", true),
            ("fd00:9::50", false),
        ];
        for (address, removed) in rows {
            let withdrawn = announce::withdraw(handle, addr(address)).await.unwrap();
            assert_eq!(withdrawn, removed, "{address}");
        }
        let left = announce::addresses(handle).await.unwrap();
        let has = |address| left.iter().any(|own| own.address == addr(address));
        assert!(
            !has("10.9.0.50") && has("10.9.0.60") && !has("fd00:9::50"),
            "{left:?}"
        );
    });
}

/// What `ip` says of an address in the near namespace.
fn own_address(lab: &Lab, address: &str) -> String {
    let output = std::process::Command::new("ip")
        .args(["-n", &lab.near_name, "address", "show", "to", address])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for a frame of these bytes; others may come in between.
fn expect_frame(socket: &PacketSocket, expected: &[u8]) {
    let mut buffer = [0; 1_514];
    loop {
        let length = socket
            .receive(&mut buffer)
            .unwrap()
            .expect("no such frame came");
        if buffer[..length] == *expected {
            return;
        }
    }
}
