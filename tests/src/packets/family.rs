//! The two families of addresses, and how rows are written once for both.
//!
//! A row names clients, services and servers by the constants of
//! [`scene`](super::scene), which are those of IPv4; `in_family` of each gives
//! its counterpart. Addresses correspond by [`Family::address`], so a frame of
//! IPv6 can be read next to the one of IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The families that the packet path forwards: tables that run over families
/// run over these.
pub const FAMILIES: &[Family] = &Family::ALL;

/// An IPv4 address.
pub const fn v4(octets: [u8; 4]) -> IpAddr {
    let [a, b, c, d] = octets;
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

impl Family {
    /// Both, whether or not they are forwarded.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// As the maps have it.
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    /// For people: `ipv4` or `ipv6`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    /// Bytes of an IP header without options or extension headers (RFC 791,
    /// section 3.1; RFC 8200, section 3).
    pub const fn header(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }

    /// An IPv4 address of the scene, or what has its place in this family.
    ///
    /// The networks are those of katran's fixtures where it has one: services
    /// `fc00:1::/64`, servers `fc00::/64`, clients `fc00:2:0:N::/64`.
    ///
    /// # Panics
    /// If the scene has no such network.
    pub const fn address(self, octets: [u8; 4]) -> IpAddr {
        let [a, b, c, d] = octets;
        match (self, a, b) {
            (Self::V4, ..) => v4(octets),
            (Self::V6, 10, 200) => six(1, 0, d),
            (Self::V6, 10, 0) => six(0, 0, d),
            (Self::V6, 192, 168) => six(2, c, d),
            (Self::V6, 172, 16) => six(3, 0, d),
            (Self::V6, 100, 64) => six(4, 0, d),
            _ => panic!("the scene has no such network"),
        }
    }

    /// [`Family::address`] of an address that is IPv4; one of IPv6 is kept.
    pub const fn counterpart(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => self.address(address.octets()),
            IpAddr::V6(_) => address,
        }
    }
}

const fn six(network: u16, subnet: u8, host: u8) -> IpAddr {
    let (subnet, host) = (subnet as u16, host as u16);
    IpAddr::V6(Ipv6Addr::new(0xfc00, network, 0, subnet, 0, 0, 0, host))
}

/// An address as the maps hold it.
pub fn map_address(address: IpAddr) -> lb_common::abi::Address {
    match address {
        IpAddr::V4(address) => lb_common::abi::address4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}
