//! Which way the kernel would send a packet (`RTM_GETROUTE`).

use std::{fmt, net::IpAddr};

use futures::TryStreamExt as _;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{Near, errno};

/// The kernel's choice for one destination. Of several equal paths it names the
/// one that its hash chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface the packet leaves by.
    pub ifindex: u32,
    /// Router to hand it to; none where the destination is on-link. May be of
    /// the other family (RFC 5549).
    pub gateway: Option<IpAddr>,
    /// Source address that the kernel would use.
    pub source: Option<IpAddr>,
}

impl Route {
    /// Whose MAC address a packet to `destination` needs.
    pub fn near(&self, destination: IpAddr) -> Near {
        Near {
            ifindex: self.ifindex,
            address: self.gateway.unwrap_or(destination),
        }
    }
}

/// Why there is no way that a frame could be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No route, or one that says so (`unreachable`, `prohibit`, `blackhole`).
    Unreachable {
        /// What was asked for.
        destination: IpAddr,
        /// The kernel's word.
        errno: i32,
    },
    /// The destination is an address of this host, broadcast or multicast.
    NotForwarded {
        /// What was asked for.
        destination: IpAddr,
        /// The type of the kernel's route.
        kind: RouteType,
    },
    /// The question itself failed.
    Netlink {
        /// What was asked for.
        destination: IpAddr,
        /// What went wrong.
        reason: String,
    },
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { destination, errno } => write!(
                f,
                "no route to {destination} ({}); add one, or correct the address",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::NotForwarded { destination, kind } => write!(
                f,
                "{destination} is not another host's address (its route is of type {kind:?}); \
                 correct the address"
            ),
            Self::Netlink {
                destination,
                reason,
            } => {
                write!(
                    f,
                    "cannot ask the kernel for the route to {destination}: {reason}"
                )
            }
        }
    }
}

impl std::error::Error for RouteError {}

/// Asks the kernel for the route of packets to `destination`.
///
/// # Errors
/// [`RouteError`]; all but `Netlink` are facts about the destination.
pub async fn route_to(handle: &Handle, destination: IpAddr) -> Result<Route, RouteError> {
    let request = match destination {
        IpAddr::V4(address) => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .build(),
    };
    let mut replies = std::pin::pin!(handle.route().get(request).execute());
    let failed = |reason: &str| RouteError::Netlink {
        destination,
        reason: reason.to_owned(),
    };
    let reply = replies
        .try_next()
        .await
        .map_err(|error| match errno(&error) {
            // fib_props and ip6_rt_type_to_error: what routes without a way answer.
            Some(
                errno @ (libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL),
            ) => RouteError::Unreachable { destination, errno },
            _ => failed(&error.to_string()),
        })?;
    from_message(destination, &reply.ok_or_else(|| failed("no answer"))?)
}

fn from_message(destination: IpAddr, message: &RouteMessage) -> Result<Route, RouteError> {
    if message.header.kind != RouteType::Unicast {
        let kind = message.header.kind;
        return Err(match kind {
            RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => {
                RouteError::Unreachable {
                    destination,
                    errno: libc::EHOSTUNREACH,
                }
            }
            _ => RouteError::NotForwarded { destination, kind },
        });
    }
    let mut ifindex = None;
    let mut gateway = None;
    let mut source = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => source = ip(address),
            _ => {}
        }
    }
    match ifindex {
        Some(ifindex) => Ok(Route {
            ifindex,
            gateway,
            source,
        }),
        None => Err(RouteError::Netlink {
            destination,
            reason: "its answer names no interface".to_owned(),
        }),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
