//! Interfaces that begin to forward.

use std::net::Ipv6Addr;

use steerline::{
    Family,
    net::{
        Mac, Netlink,
        forwarding::{self, Forwarding},
        packet_socket::PacketSocket,
        routes,
        watch::Watch,
    },
};

use super::addr;
use super::lab::{FAR1_MAC, FAR2_MAC, Lab, WAN, inside};

#[test]
fn forwarding_is_switched_on_per_interface() {
    let Some(lab) = Lab::new() else { return };
    lab.run(|| async {
        for family in Family::ALL {
            let directory = family.name();
            let path = |name: &str| format!("/proc/sys/net/{directory}/conf/{name}/forwarding");
            let value = |name: &str| std::fs::read_to_string(path(name)).unwrap();
            for name in [WAN, "lan"] {
                std::fs::write(path(name), "0").unwrap();
            }
            let changed = match family {
                Family::V4 => Forwarding::Changed,
                Family::V6 => Forwarding::ChangedListening,
            };
            assert_eq!(forwarding::ensure(WAN, family).unwrap(), changed);
            let again = forwarding::ensure(WAN, family).unwrap();
            assert_eq!(again, Forwarding::Already);
            assert_eq!((value(WAN).trim(), value("lan").trim()), ("1", "0"));
            let error = forwarding::ensure("wan0", family).unwrap_err();
            assert!(error.to_string().contains(&path("wan0")), "{error}");
        }
        std::fs::write("/proc/sys/net/ipv6/conf/lan/disable_ipv6", "1").unwrap();
        let error = forwarding::ensure("lan", Family::V6).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("echo 0 > /proc/sys/net/ipv6/conf/lan/disable_ipv6"),
            "{error}"
        );
    });
}

/// A machine whose default route is its router's word keeps it when it becomes a
/// router itself, on whichever interface.
#[test]
fn advertised_routes_outlive_forwarding() {
    let Some(lab) = Lab::new() else { return };
    let accept_ra = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra")).unwrap()
    };
    lab.run(|| async {
        let netlink = Netlink::open().unwrap();
        let handle = netlink.handle();
        let mut watch = Watch::open().unwrap();
        let far = inside(&lab.far_name, || {
            let index = |name| nix::net::if_::if_nametoindex(name).unwrap();
            [index("far1"), index("far2")]
        });
        let advertised = || async {
            let route = routes::route_to(handle, addr("2001:db8::1")).await;
            route.ok().and_then(|route| route.gateway)
        };
        for (link, mac) in [(far[0], FAR1_MAC), (far[1], FAR2_MAC)] {
            let router = routers_address(mac);
            inside(&lab.far_name, || {
                let socket = PacketSocket::sender(link).unwrap();
                socket.send(&router_advertisement(mac, router)).unwrap();
            });
            while advertised().await.is_none() {
                watch.next().await.unwrap();
            }
        }
        let before = advertised().await;
        for name in [WAN, "lan"] {
            let found = forwarding::ensure(name, Family::V6).unwrap();
            assert_eq!(advertised().await, before, "{name}");
            assert_eq!(found, Forwarding::ChangedListening, "{name}");
        }
        assert_eq!((accept_ra(WAN).trim(), accept_ra("lan").trim()), ("2", "2"));
        assert_eq!(accept_ra("lo").trim(), "1", "not ours to change");
    });
}

/// The link-local address of a MAC address (RFC 4291, appendix A).
fn routers_address(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.map(u16::from);
    let words = [(a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f];
    Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
}

/// A frame by which a router says that it is one for half an hour (RFC 4861,
/// section 4.2), without options.
fn router_advertisement(mac: Mac, router: Ipv6Addr) -> Vec<u8> {
    // To ff02::1, all nodes.
    let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut message = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = [&router.octets()[..], &to, &[0, 16, 0, 58], &message].concat();
    let sum: u32 = words
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    [
        &[0x33, 0x33, 0, 0, 0, 1][..],
        &mac,
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 58, 255],
        &router.octets(),
        &to,
        &message,
    ]
    .concat()
}
