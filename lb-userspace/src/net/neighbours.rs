//! The kernel's neighbour table: who has which MAC address, and keeping the
//! entries fresh that packets rely on which the stack never sees.
//!
//! The kernel refreshes an entry when its own stack sends by it. Frames that
//! XDP forwards do not count, so a neighbour in use would grow stale and be
//! collected. Entries with `NTF_EXT_MANAGED` (kernel 5.16, commit 7482e3841d52)
//! are resolved and re-probed by the kernel on its own. Where that is refused,
//! `NTF_USE` resolves once and has to be repeated, which
//! [`super::hops::HopTable`] does anyway.
//!
//! In IPv6 the kernel asks for a neighbour that no packet of its own waits for
//! from the interface's link-local address, and without one it does not ask
//! (`ndisc_ns_create`): see [`super::announce::has_link_local`].

use std::net::IpAddr;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
    },
};
use rtnetlink::{
    Handle,
    packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
};

use crate::Family;

use super::{Mac, Near, errno, usable_mac};

pub use netlink_packet_route::neighbour::NeighbourState;

/// One entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Interface and address.
    pub near: Near,
    /// Where to send frames for it. None unless the state says that it is
    /// valid: never a guess.
    pub mac: Option<Mac>,
    /// `NUD_…`, see ip-neighbour(8).
    pub state: NeighbourState,
    /// The kernel keeps it fresh (`NTF_EXT_MANAGED`).
    pub managed: bool,
    /// Set by an operator or a routing daemon (`permanent`, `noarp`,
    /// `extern_learn`, `extern_valid`): not ours to touch.
    pub foreign: bool,
}

/// The entry of `near`; none when the kernel has none.
///
/// # Errors
/// When netlink fails.
pub async fn find(handle: &Handle, near: Near) -> anyhow::Result<Option<Neighbour>> {
    let mut message = NeighbourMessage::default();
    message.header.family = match Family::of(near.address) {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.ifindex = near.ifindex;
    message
        .attributes
        .push(NeighbourAttribute::Destination(near.address.into()));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNeighbour(message));
    request.header.flags = NLM_F_REQUEST;

    let place = || format!("cannot look up the neighbour {near}");
    let mut replies = handle.clone().request(request).with_context(place)?;
    while let Some(reply) = replies.next().await {
        match reply.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) => {
                return Ok(from_message(&message));
            }
            NetlinkPayload::Error(error) => {
                let error = rtnetlink::Error::NetlinkError(error);
                return match errno(&error) {
                    // No such entry, or no such interface any more.
                    Some(libc::ENOENT | libc::ENODEV) => Ok(None),
                    _ => Err(error).with_context(place),
                };
            }
            _ => {}
        }
    }
    Ok(None)
}

/// All IPv4 and IPv6 entries: what to compare with after an overrun.
///
/// # Errors
/// When netlink fails.
pub async fn list(handle: &Handle) -> anyhow::Result<Vec<Neighbour>> {
    handle
        .neighbours()
        .get()
        .execute()
        .try_filter_map(|message| std::future::ready(Ok(from_message(&message))))
        .try_collect()
        .await
        .context("cannot list the neighbours")
}

/// Has the kernel resolve `near` and keep it fresh, and returns what it knows
/// of it now; a later answer arrives by [`super::watch::Watch`]. May be
/// repeated; entries of other owners ([`Neighbour::foreign`]) are left alone.
///
/// # Errors
/// When the kernel refuses: the interface is gone, or the neighbour table is
/// full.
pub async fn manage(handle: &Handle, near: Near) -> anyhow::Result<Option<Neighbour>> {
    let present = find(handle, near).await?;
    if present.is_some_and(|entry| entry.foreign || (entry.managed && entry.mac.is_some())) {
        return Ok(present);
    }
    // Together with `NTF_USE`: a kernel that ignores unknown attributes would
    // otherwise take the request for one to set the state to none.
    let wanted = match request(handle, near, true).await {
        Err(error) if errno(&error) == Some(libc::EINVAL) => request(handle, near, false).await,
        result => result,
    };
    match wanted {
        Ok(()) => find(handle, near).await,
        Err(error) => {
            let remedy = match errno(&error) {
                Some(libc::ENOBUFS) => {
                    "; the neighbour table is full, raise net.ipv4.neigh.default.gc_thresh3 or \
                     net.ipv6.neigh.default.gc_thresh3"
                }
                Some(libc::EPERM) => "; CAP_NET_ADMIN is needed",
                _ => "",
            };
            Err(error).with_context(|| format!("cannot have the neighbour {near} resolved{remedy}"))
        }
    }
}

/// Leaves `near` to the kernel's ordinary ageing again. The entry keeps its
/// state. An absent one is as good as released.
///
/// # Errors
/// When netlink fails.
pub async fn release(handle: &Handle, near: Near) -> anyhow::Result<()> {
    match find(handle, near).await? {
        Some(entry) if entry.managed => {}
        _ => return Ok(()),
    }
    // `__neigh_update` keeps the state of an entry that is only "used", and
    // drops the managed flag as the request does not carry it.
    match request(handle, near, false).await {
        Ok(()) => Ok(()),
        Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot release the neighbour {near}")),
    }
}

async fn request(handle: &Handle, near: Near, managed: bool) -> Result<(), rtnetlink::Error> {
    let mut request = handle
        .neighbours()
        .add(near.ifindex, near.address)
        .replace()
        .state(NeighbourState::None)
        .flags(NeighbourFlags::Use);
    if managed {
        let flags = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
        request.message_mut().attributes.push(flags);
    }
    request.execute().await
}

/// None for messages that are not about an IP neighbour (bridge tables).
pub(super) fn from_message(message: &NeighbourMessage) -> Option<Neighbour> {
    let mut address = None;
    let mut mac = None;
    let mut extended = NeighbourExtFlags::empty();
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = usable_mac(bytes),
            NeighbourAttribute::ExtFlags(flags) => extended = *flags,
            _ => {}
        }
    }
    let state = message.header.state;
    let flags = message.header.flags;
    // A proxy entry answers for others; it says nothing about who is there.
    if flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    Some(Neighbour {
        near: Near {
            ifindex: message.header.ifindex,
            address: address?,
        },
        mac: mac.filter(|_| valid(state)),
        state,
        managed: extended.contains(NeighbourExtFlags::Managed),
        foreign: matches!(state, NeighbourState::Permanent | NeighbourState::Noarp)
            || flags.contains(NeighbourFlags::ExtLearned)
            || extended.contains(NeighbourExtFlags::ExtValidated),
    })
}

/// The kernel's `NUD_VALID`: the MAC address was confirmed once and nothing has
/// refuted it.
fn valid(state: NeighbourState) -> bool {
    match state {
        NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Probe
        | NeighbourState::Noarp
        | NeighbourState::Permanent => true,
        NeighbourState::None | NeighbourState::Incomplete | NeighbourState::Failed => false,
        _ => false,
    }
}
