//! The interfaces of the current network namespace.

use anyhow::{Context as _, bail};
use futures::TryStreamExt as _;
use netlink_packet_route::link::{
    LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, XdpAttached,
};
use rtnetlink::Handle;

use super::{Mac, errno, usable_mac};

/// An interface as the kernel reports it (`RTM_NEWLINK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index in this network namespace.
    pub index: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Ethernet address; none on links without one (tunnels, loopback).
    pub mac: Option<Mac>,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// The carrier is there (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// Kind of a virtual link (`veth`, `bridge`, `vlan`, …); none on hardware.
    pub kind: Option<String>,
    /// The attached XDP program.
    pub xdp: Option<AttachedXdp>,
}

/// An XDP program on an interface (`IFLA_XDP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachedXdp {
    /// The kernel's id of the program.
    pub program_id: u32,
    /// Where in the receive path it runs.
    pub mode: XdpMode,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// After the socket buffer was made.
    Generic,
    /// On the network card.
    Offload,
}

/// What a frame that leaves by an interface needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnLink {
    /// Source address of the frame.
    pub mac: Mac,
    /// Largest IP packet, bytes.
    pub mtu: u32,
}

impl Link {
    /// None when no frame can leave: down, or without a MAC address.
    pub fn own(&self) -> Option<OwnLink> {
        let mac = self.mac.filter(|_| self.up)?;
        Some(OwnLink { mac, mtu: self.mtu })
    }

    /// The interface named `name`.
    ///
    /// # Errors
    /// When there is none, naming those that are, or netlink fails.
    pub async fn find(handle: &Handle, name: &str) -> anyhow::Result<Self> {
        let links = list(handle).await?;
        if let Some(link) = links.iter().find(|link| link.name == name) {
            return Ok(link.clone());
        }
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        bail!(
            "there is no interface {name:?} here; there are: {}",
            names.join(", ")
        )
    }

    /// The interface of an index; none when it is gone.
    ///
    /// # Errors
    /// When netlink fails.
    pub async fn by_index(handle: &Handle, index: u32) -> anyhow::Result<Option<Self>> {
        let mut replies = std::pin::pin!(handle.link().get().match_index(index).execute());
        match replies.try_next().await {
            Ok(reply) => Ok(reply.map(|message| from_message(&message))),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => {
                Err(error).with_context(|| format!("cannot read the interface of index {index}"))
            }
        }
    }
}

/// All interfaces, in order of their index.
///
/// # Errors
/// When netlink fails.
pub async fn list(handle: &Handle) -> anyhow::Result<Vec<Link>> {
    let mut links: Vec<Link> = handle
        .link()
        .get()
        .execute()
        .map_ok(|message| from_message(&message))
        .try_collect()
        .await
        .context("cannot list the interfaces")?;
    links.sort_by_key(|link| link.index);
    Ok(links)
}

fn from_message(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        kind: None,
        xdp: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = usable_mac(bytes),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            LinkAttribute::Xdp(attributes) => link.xdp = attached(attributes),
            _ => {}
        }
    }
    link
}

/// With programs in several modes at once the kernel reports no common id but
/// one per mode (`rtnl_xdp_fill`); the first to see a packet is the one named.
fn attached(attributes: &[LinkXdp]) -> Option<AttachedXdp> {
    let common = attributes.iter().find_map(|attribute| match attribute {
        LinkXdp::Attached(XdpAttached::Driver) => Some(XdpMode::Native),
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(XdpMode::Generic),
        LinkXdp::Attached(XdpAttached::Hardware) => Some(XdpMode::Offload),
        _ => None,
    });
    let of = |mode| {
        let program_id = attributes
            .iter()
            .find_map(|attribute| match (attribute, mode) {
                (LinkXdp::HwProgId(id), XdpMode::Offload)
                | (LinkXdp::DrvProgId(id), XdpMode::Native)
                | (LinkXdp::SkbProgId(id), XdpMode::Generic) => Some(*id),
                (LinkXdp::ProgId(id), _) if common == Some(mode) => Some(*id),
                _ => None,
            })?;
        (program_id != 0).then_some(AttachedXdp { program_id, mode })
    };
    [XdpMode::Offload, XdpMode::Native, XdpMode::Generic]
        .into_iter()
        .find_map(of)
}

#[cfg(test)]
mod tests {
    use super::{AttachedXdp, LinkXdp, XdpAttached, XdpMode, attached};

    #[test]
    fn attached_programs() {
        let native = |program_id| {
            Some(AttachedXdp {
                program_id,
                mode: XdpMode::Native,
            })
        };
        let generic = |program_id| {
            Some(AttachedXdp {
                program_id,
                mode: XdpMode::Generic,
            })
        };
        let rows = [
            (vec![], None),
            (vec![LinkXdp::Attached(XdpAttached::None)], None),
            (
                vec![
                    LinkXdp::Attached(XdpAttached::Driver),
                    LinkXdp::ProgId(7),
                    LinkXdp::DrvProgId(7),
                ],
                native(7),
            ),
            (
                vec![LinkXdp::Attached(XdpAttached::Driver), LinkXdp::ProgId(7)],
                native(7),
            ),
            (
                vec![
                    LinkXdp::Attached(XdpAttached::SocketBuffer),
                    LinkXdp::ProgId(8),
                    LinkXdp::SkbProgId(8),
                ],
                generic(8),
            ),
            (
                vec![
                    LinkXdp::Attached(XdpAttached::Multiple),
                    LinkXdp::SkbProgId(8),
                    LinkXdp::DrvProgId(7),
                ],
                native(7),
            ),
        ];
        for (attributes, expected) in rows {
            assert_eq!(attached(&attributes), expected, "{attributes:?}");
        }
    }
}
