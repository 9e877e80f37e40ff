//! One subscription to what changes in the kernel's network stack.
//!
//! Changes are merged while nobody reads: of a neighbour only its latest state
//! is kept, a thousand changed routes are one [`Change::RoutesChanged`]. The
//! socket is read only by [`Watch::next`], so a reader that is too slow fills
//! the kernel's buffer, not this process's memory; the kernel then says so and
//! the reader gets [`Change::Overrun`].
//!
//! The kernel sends no route messages when an interface going down takes its
//! IPv4 routes along, so links are watched for that too. Router advertisements
//! repeat addresses that did not change; those are not changes here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
};

use anyhow::{Context as _, anyhow};
use futures::{Stream, StreamExt as _};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    link::{LinkFlags, LinkMessage},
    route::{RouteFlags, RouteMessage},
};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::{
    MulticastGroup,
    packet_core::NetlinkPayload,
    sys::{AsyncSocket as _, Socket},
};

use super::{Mac, Near, neighbours};

/// What happened. Each is a reason to look again, not a log of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Messages were lost: read everything again. Older changes that were not
    /// handed out yet are dropped; newer ones follow.
    Overrun,
    /// A link appeared, vanished or changed (state, MAC address, MTU, …).
    LinkChanged {
        /// Its index.
        ifindex: u32,
    },
    /// A neighbour's entry changed or went.
    Neighbour {
        /// Interface and address.
        near: Near,
        /// Its MAC address; none when it has none that is valid.
        mac: Option<Mac>,
    },
    /// Routes, rules or own addresses changed.
    RoutesChanged,
}

/// Bytes of the socket's buffer: room for thousands of messages, for which the
/// kernel counts about one KiB each.
const BUFFER: usize = 4 << 20;

/// The groups of rtnetlink(7) that make up a [`Change`].
const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Neigh,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
];

type Payload = NetlinkPayload<RouteNetlinkMessage>;

/// A subscription. Dropping it ends it.
pub struct Watch {
    driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    messages: Pin<Box<dyn Stream<Item = Payload> + Send>>,
    pending: Pending,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Subscribes in the calling thread's network namespace. What changes from
    /// here on is reported: subscribe first, then read the present state.
    ///
    /// # Errors
    /// When the kernel refuses the socket.
    pub fn open() -> anyhow::Result<Self> {
        Self::with_buffer(BUFFER)
    }

    /// [`Watch::open`] with a buffer of `bytes`, for tests of overruns.
    ///
    /// # Errors
    /// When the kernel refuses the socket.
    pub fn with_buffer(bytes: usize) -> anyhow::Result<Self> {
        let (mut connection, _, messages) = rtnetlink::new_multicast_connection(&GROUPS)
            .context("cannot subscribe to network changes; check the limit of open files")?;
        let socket: &Socket = connection.socket_mut().socket_ref();
        // Past net.core.rmem_max where allowed (CAP_NET_ADMIN); a smaller
        // buffer overruns earlier and is no reason to fail.
        if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
            let _ = setsockopt(socket, sockopt::RcvBuf, &bytes);
        }
        Ok(Self {
            driver: Box::pin(connection),
            messages: Box::pin(messages.map(|(message, _)| message.payload)),
            pending: Pending::default(),
        })
    }

    /// Waits for the next change. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the socket failed: open another and read everything again.
    pub async fn next(&mut self) -> anyhow::Result<Change> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<anyhow::Result<Change>> {
        let ended = self.driver.as_mut().poll(cx).is_ready();
        while let Poll::Ready(Some(payload)) = self.messages.as_mut().poll_next(cx) {
            self.pending.add(payload);
        }
        match self.pending.take() {
            Some(change) => Poll::Ready(Ok(change)),
            None if ended => Poll::Ready(Err(anyhow!(
                "the subscription to network changes ended; it has to be opened again"
            ))),
            None => Poll::Pending,
        }
    }
}

/// Changes not handed out yet, and what was last seen of links and addresses.
#[derive(Debug, Default)]
struct Pending {
    overrun: bool,
    links: BTreeSet<u32>,
    neighbours: BTreeMap<Near, Option<Mac>>,
    routes: bool,
    known_links: HashMap<u32, bool>,
    known_addresses: HashSet<(u32, IpAddr, u8)>,
}

impl Pending {
    fn take(&mut self) -> Option<Change> {
        if std::mem::take(&mut self.overrun) {
            return Some(Change::Overrun);
        }
        if let Some(ifindex) = self.links.pop_first() {
            return Some(Change::LinkChanged { ifindex });
        }
        if let Some((near, mac)) = self.neighbours.pop_first() {
            return Some(Change::Neighbour { near, mac });
        }
        std::mem::take(&mut self.routes).then_some(Change::RoutesChanged)
    }

    fn add(&mut self, payload: Payload) {
        match payload {
            NetlinkPayload::Overrun(_) => {
                *self = Self {
                    overrun: true,
                    ..Self::default()
                }
            }
            NetlinkPayload::InnerMessage(message) => self.add_message(&message),
            _ => {}
        }
    }

    fn add_message(&mut self, message: &RouteNetlinkMessage) {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.new_link(link),
            RouteNetlinkMessage::DelLink(link) => self.del_link(link),
            RouteNetlinkMessage::NewNeighbour(message) => {
                if let Some(entry) = neighbours::from_message(message) {
                    self.neighbours.insert(entry.near, entry.mac);
                }
            }
            RouteNetlinkMessage::DelNeighbour(message) => {
                if let Some(entry) = neighbours::from_message(message) {
                    self.neighbours.insert(entry.near, None);
                }
            }
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                self.routes |= is_fib_entry(route);
            }
            RouteNetlinkMessage::NewRule(_) | RouteNetlinkMessage::DelRule(_) => {
                self.routes = true;
            }
            RouteNetlinkMessage::NewAddress(message) => {
                self.routes |= own_address(message).is_none_or(|a| self.known_addresses.insert(a));
            }
            RouteNetlinkMessage::DelAddress(message) => {
                if let Some(address) = own_address(message) {
                    self.known_addresses.remove(&address);
                }
                self.routes = true;
            }
            _ => {}
        }
    }

    fn new_link(&mut self, link: &LinkMessage) {
        if !is_link_itself(link) {
            return;
        }
        let ifindex = link.header.index;
        self.links.insert(ifindex);
        let usable = link
            .header
            .flags
            .contains(LinkFlags::Up | LinkFlags::LowerUp);
        self.routes |= self.known_links.insert(ifindex, usable) != Some(usable);
    }

    fn del_link(&mut self, link: &LinkMessage) {
        if is_link_itself(link) {
            self.known_links.remove(&link.header.index);
            self.links.insert(link.header.index);
            self.routes = true;
        }
    }
}

/// A bridge reports its ports by link messages of family `AF_BRIDGE`, and a
/// port that leaves it by a deletion: the link itself lives on.
fn is_link_itself(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

/// Not a cached path (IPv6 path MTU exceptions are reported as clones).
fn is_fib_entry(route: &RouteMessage) -> bool {
    !route.header.flags.contains(RouteFlags::Cloned)
}

fn own_address(message: &AddressMessage) -> Option<(u32, IpAddr, u8)> {
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
    let peer = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        });
    Some((
        message.header.index,
        address.or(peer)?,
        message.header.prefix_len,
    ))
}
