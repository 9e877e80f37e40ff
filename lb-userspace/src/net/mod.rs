//! Everything the daemon asks of the kernel's network stack.
//!
//! The packet path bypasses the stack, so what the stack would do for it is
//! done here by netlink: which interface and gateway lead to a backend
//! ([`routes`]), which MAC address answers there and that it stays fresh
//! ([`neighbours`]), and what changed since ([`watch`]). [`hops`] turns those
//! facts into the entries of the maps `HOPS` and `HOP_INDEX`; it decides
//! without I/O, and the daemon carries out its commands. [`announce`] puts a
//! virtual address on an interface and tells the neighbours, [`forwarding`]
//! lets an interface forward, [`links`] lists interfaces.
//!
//! A netlink socket belongs to the network namespace of the thread that opened
//! it, for good. [`Netlink::open`] and [`watch::Watch::open`] must therefore be
//! called on a thread inside the namespace that is meant.

use std::{fmt, net::IpAddr};

use anyhow::Context as _;
use rtnetlink::Handle;
use tokio::task::JoinHandle;

pub mod announce;
pub mod forwarding;
pub mod hops;
pub mod links;
pub mod neighbours;
pub mod packet_socket;
pub mod routes;
pub mod watch;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// An address of a next hop on an interface: what a neighbour entry of the
/// kernel is keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Near {
    /// Interface index in this network namespace.
    pub ifindex: u32,
    /// Gateway, or the destination itself where it is on-link. The family may
    /// differ from the packet's (RFC 5549: IPv4 routes through IPv6 gateways).
    pub address: IpAddr,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on interface {}", self.address, self.ifindex)
    }
}

/// A netlink connection for requests. Closed when dropped.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    driver: JoinHandle<()>,
}

impl Netlink {
    /// Opens a `NETLINK_ROUTE` socket in the calling thread's network namespace
    /// and drives it by a task of the current tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses the socket (out of file descriptors or memory).
    pub fn open() -> anyhow::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .context("cannot open a NETLINK_ROUTE socket; check the limit of open files")?;
        let driver = tokio::spawn(connection);
        Ok(Self { handle, driver })
    }

    /// What the functions of this module send their requests by.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The `errno` by which the kernel refused a request; none for other failures.
fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// A MAC address that a unicast frame can be sent to: six bytes, not all zero
/// (links without addresses report that), not a group address.
fn usable_mac(bytes: &[u8]) -> Option<Mac> {
    let mac: Mac = bytes.try_into().ok()?;
    (mac != [0; 6] && mac[0] & 1 == 0).then_some(mac)
}
