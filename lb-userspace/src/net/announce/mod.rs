//! `announce = "address"`: the virtual address lives on an interface of ours,
//! and neighbours are told so.
//!
//! Addresses that this program adds carry a mark in the kernel (`IFA_PROTO`,
//! kernel 5.18), so that any later process knows whether an address is its own
//! to remove. One that is already there without the mark belongs to somebody
//! else (an operator, keepalived) and stays.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, CacheInfo},
};
use rtnetlink::{AddressMessageBuilder, Handle};

use super::{errno, links::Link, packet_socket::PacketSocket};

pub mod frames;

/// `IFA_PROTO` of addresses that this program added. 0 to 3 are the kernel's
/// own; `ip address show proto 0x53` lists ours.
pub const MARK: u8 = 0x53;

/// A lifetime without an end (`INFINITY_LIFE_TIME` of the kernel).
const FOREVER: u32 = u32::MAX;

/// An announcement is repeated once after this (RFC 5227 section 1.1,
/// `ANNOUNCE_NUM` and `ANNOUNCE_INTERVAL`; RFC 4861 section 7.2.6 allows three,
/// a second apart or more).
pub const REPEAT: Duration = Duration::from_secs(2);

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Index of the interface.
    pub ifindex: u32,
    /// The local address.
    pub address: IpAddr,
    /// Bits of the subnet.
    pub prefix_length: u8,
    /// Has our [`MARK`].
    pub ours: bool,
}

impl InterfaceAddress {
    /// Whether `address` is in this address's subnet.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let distance = u32::from(own) ^ u32::from(other);
                distance.leading_zeros() >= u32::from(self.prefix_length)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let distance = u128::from(own) ^ u128::from(other);
                distance.leading_zeros() >= u32::from(self.prefix_length)
            }
            _ => false,
        }
    }
}

/// Where a virtual address is and who is to hear of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The virtual address.
    pub address: IpAddr,
    /// Index of the interface that has it.
    pub ifindex: u32,
    /// Added by this program, now or earlier. Otherwise it stays on
    /// [`withdraw`].
    pub ours: bool,
    /// The listed interfaces whose subnet contains the address; else the
    /// interface that has it.
    pub audience: Vec<Link>,
}

impl Announcement {
    /// Tells the neighbours on every interface of the audience: gratuitous ARP
    /// in both forms, or an unsolicited neighbour advertisement. Send again
    /// after [`REPEAT`].
    ///
    /// # Errors
    /// Of the first interface that failed, after all were tried.
    pub fn send(&self) -> anyhow::Result<()> {
        let results = self.audience.iter().map(|link| {
            self.send_on(link).with_context(|| {
                format!(
                    "cannot announce {} on interface {}",
                    self.address, link.name
                )
            })
        });
        // Each is tried before the first error is returned.
        results.collect::<Vec<_>>().into_iter().collect()
    }

    fn send_on(&self, link: &Link) -> anyhow::Result<()> {
        let Some(mac) = link.mac else {
            bail!("it has no MAC address; set announce = \"none\" and route the address here");
        };
        let socket = PacketSocket::sender(link.index)?;
        match self.address {
            IpAddr::V4(address) => {
                for form in [frames::ArpForm::Request, frames::ArpForm::Reply] {
                    socket.send(&frames::gratuitous_arp(form, mac, address))?;
                }
                Ok(())
            }
            IpAddr::V6(address) => socket.send(&frames::advertisement(mac, address)),
        }
    }
}

/// All addresses of all interfaces.
///
/// # Errors
/// When netlink fails.
pub async fn addresses(handle: &Handle) -> anyhow::Result<Vec<InterfaceAddress>> {
    handle
        .address()
        .get()
        .execute()
        .try_filter_map(|message| std::future::ready(Ok(from_message(&message))))
        .try_collect()
        .await
        .context("cannot list the addresses of the interfaces")
}

/// Puts `address` on the first of the `listed` interfaces whose subnet contains
/// it, else on the first listed, as a /32 or /128, unless some interface has it
/// already. Tells nobody yet: see [`Announcement::send`].
///
/// # Errors
/// When no interface is listed or the kernel refuses the address.
pub async fn place(
    handle: &Handle,
    address: IpAddr,
    listed: &[Link],
) -> anyhow::Result<Announcement> {
    let present = addresses(handle).await?;
    let subnet_has = |link: &&Link| {
        present
            .iter()
            .any(|own| own.ifindex == link.index && own.address != address && own.contains(address))
    };
    let mut audience: Vec<Link> = listed.iter().filter(subnet_has).cloned().collect();
    if let Some(own) = present.iter().find(|own| own.address == address) {
        if audience.is_empty() {
            // On a link without neighbours (loopback), the listed ones answer.
            let home = Link::by_index(handle, own.ifindex)
                .await?
                .filter(|home| home.mac.is_some());
            audience.extend(home.or(listed.first().cloned()));
        }
        return Ok(Announcement {
            address,
            ifindex: own.ifindex,
            ours: own.ours,
            audience,
        });
    }
    let Some(home) = audience.first().or(listed.first()).cloned() else {
        bail!("no interface to put {address} on; list one in data_plane.interfaces");
    };
    match handle
        .address()
        .add(home.index, address, host_length(address))
        .marked()
        .await
    {
        Ok(()) => {}
        // Somebody else was faster.
        Err(error) if errno(&error) == Some(libc::EEXIST) => {
            let ifindex = home.index;
            return Ok(Announcement {
                address,
                ifindex,
                ours: false,
                audience,
            });
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "cannot put {address} on interface {}; CAP_NET_ADMIN is needed, or set \
                     announce = \"none\"",
                    home.name
                )
            });
        }
    }
    if audience.is_empty() {
        audience.push(home.clone());
    }
    Ok(Announcement {
        address,
        ifindex: home.index,
        ours: true,
        audience,
    })
}

/// Removes `address` where this program added it, in this run or an earlier
/// one. Returns whether there was anything to remove.
///
/// # Errors
/// When netlink fails.
pub async fn withdraw(handle: &Handle, address: IpAddr) -> anyhow::Result<bool> {
    let mut removed = false;
    for own in addresses(handle).await? {
        if own.address != address || !own.ours || own.prefix_length != host_length(address) {
            continue;
        }
        match handle.address().del(message(&own)).execute().await {
            Ok(()) => removed = true,
            Err(error) if errno(&error) == Some(libc::EADDRNOTAVAIL) => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot remove {address} from interface {}", own.ifindex)
                });
            }
        }
    }
    Ok(removed)
}

trait Marked {
    async fn marked(self) -> Result<(), rtnetlink::Error>;
}

impl Marked for rtnetlink::AddressAddRequest {
    /// Adds the address with our mark, and at once: duplicate detection would
    /// keep an IPv6 address unusable for a second, and the address may well be
    /// in use where it is taken over from.
    ///
    /// An IPv6 address is deprecated from the beginning (RFC 4862, section
    /// 5.5.4): it answers, and this host's own connections do not come from it
    /// (RFC 6724, rule 3), whose answers would be taken for a client's. In IPv4
    /// a /32 is not chosen as long as the subnet's own address is there.
    async fn marked(mut self) -> Result<(), rtnetlink::Error> {
        let message = self.message_mut();
        let attributes = &mut message.attributes;
        attributes.push(AddressAttribute::Protocol(AddressProtocol::Other(MARK)));
        attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        if message.header.family == AddressFamily::Inet6 {
            let mut lifetimes = CacheInfo::default();
            lifetimes.ifa_preferred = 0;
            lifetimes.ifa_valid = FOREVER;
            attributes.push(AddressAttribute::CacheInfo(lifetimes));
        }
        self.execute().await
    }
}

/// Whether an interface has an IPv6 link-local address, which the kernel needs
/// to ask for neighbours there.
pub fn has_link_local(addresses: &[InterfaceAddress], ifindex: u32) -> bool {
    addresses.iter().any(|own| {
        let is_local = matches!(own.address, IpAddr::V6(a) if a.is_unicast_link_local());
        own.ifindex == ifindex && is_local
    })
}

fn host_length(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn message(own: &InterfaceAddress) -> AddressMessage {
    match own.address {
        IpAddr::V4(address) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(own.ifindex)
            .address(address, own.prefix_length)
            .build(),
        IpAddr::V6(address) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(own.ifindex)
            .address(address, own.prefix_length)
            .build(),
    }
}

fn from_message(message: &AddressMessage) -> Option<InterfaceAddress> {
    let mut local = None;
    let mut peer = None;
    let mut ours = false;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            AddressAttribute::Protocol(protocol) => {
                ours = *protocol == AddressProtocol::Other(MARK);
            }
            _ => {}
        }
    }
    Some(InterfaceAddress {
        ifindex: message.header.index,
        address: local.or(peer)?,
        prefix_length: message.header.prefix_len,
        ours,
    })
}
