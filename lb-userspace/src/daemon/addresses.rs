//! The daemon's own addresses: VIPs that it puts on interfaces, announces, and
//! takes off again.

use super::{
    network::{Network, let_forward},
    prepare,
};
use crate::{
    config::{Announce, Config},
    dataplane::Maps,
    net::{
        Netlink, announce,
        links::{self, Link},
    },
};
use anyhow::Result;
use lb_common::abi;
use std::{collections::BTreeSet, net::IpAddr, time::Instant};

impl Network {
    /// Puts the VIPs that are ours to announce on an interface, and says so.
    pub(crate) async fn announce(&mut self, config: &Config) -> Result<()> {
        let all = links::list(self.netlink.handle()).await?;
        let ours: Vec<Link> = all
            .into_iter()
            .filter(|l| config.data_plane.interfaces.contains(&l.name))
            .collect();
        for address in announced(config) {
            let placed = announce::place(self.netlink.handle(), address, &ours).await?;
            self.announcements.push(placed);
        }
        self.send_announcements();
        if !self.announcements.is_empty() {
            self.announce_again = Some(Instant::now() + announce::REPEAT);
        }
        Ok(())
    }

    /// Puts addresses that `config` wants and that are on no interface yet on
    /// one, and has the interfaces forward their families. Tells nobody. Either
    /// all addresses or, after an error, none.
    pub(crate) async fn place_addresses(
        &mut self,
        config: &Config,
    ) -> Result<Vec<announce::Announcement>> {
        let mut placed: Vec<announce::Announcement> = Vec::new();
        let ours = self.listed(config).await?;
        for link in &ours {
            let_forward(&link.name, config)?;
        }
        for address in announced(config) {
            if self
                .announcements
                .iter()
                .any(|known| known.address == address)
            {
                continue;
            }
            match announce::place(self.netlink.handle(), address, &ours).await {
                Ok(announcement) => placed.push(announcement),
                Err(error) => {
                    self.take_back(placed).await;
                    return Err(error);
                }
            }
        }
        Ok(placed)
    }

    /// Takes addresses off again that [`Network::place_addresses`] put on.
    pub(crate) async fn take_back(&mut self, placed: Vec<announce::Announcement>) {
        for announcement in placed.iter().filter(|placed| placed.ours) {
            let address = announcement.address;
            if let Err(error) = announce::withdraw(self.netlink.handle(), address).await {
                tracing::warn!("{address}: {error:#}");
            }
        }
    }

    /// Tells the neighbours of new addresses.
    pub(crate) fn announce_placed(&mut self, placed: Vec<announce::Announcement>) {
        if placed.is_empty() {
            return;
        }
        self.announcements.extend(placed);
        self.send_announcements();
        self.announce_again = Some(Instant::now() + announce::REPEAT);
    }

    /// Takes addresses off that are announced no longer, except those of removed
    /// services that still have flows.
    pub(crate) async fn withdraw_unused(&mut self, config: &Config, maps: &Maps) -> Result<()> {
        let wanted = announced(config);
        let needed: BTreeSet<IpAddr> = (0..maps.service_names.len())
            .filter(|index| maps.service_names.read(*index).state == abi::name_state::RETIRED)
            .map(|index| {
                let service = maps.service_table.read(index);
                prepare::ip_address(&service.address, service.family)
            })
            .collect();
        let unused = |announcement: &announce::Announcement| {
            let address = &announcement.address;
            !wanted.contains(address) && !needed.contains(address)
        };
        let leaving: Vec<_> = self
            .announcements
            .iter()
            .filter(|a| unused(a))
            .cloned()
            .collect();
        for announcement in leaving {
            if announcement.ours {
                announce::withdraw(self.netlink.handle(), announcement.address).await?;
            }
            self.announcements
                .retain(|known| known.address != announcement.address);
            tracing::info!("{}: announced no longer", announcement.address);
        }
        Ok(())
    }

    /// An interface that was made anew: lets it forward, and puts addresses back
    /// that were lost with it.
    pub(crate) async fn restore(&mut self, interface: &str, config: &Config) -> Result<()> {
        let_forward(interface, config)?;
        self.announcements.clear();
        self.announce(config).await
    }

    async fn listed(&self, config: &Config) -> Result<Vec<Link>> {
        let all = self.links().await?;
        let is_listed = |link: &Link| config.data_plane.interfaces.contains(&link.name);
        Ok(all.into_iter().filter(is_listed).collect())
    }

    pub(super) fn send_announcements(&self) {
        for announcement in &self.announcements {
            if let Err(error) = announcement.send() {
                tracing::warn!("{}: {error:#}", announcement.address);
            }
        }
    }

    /// Takes the addresses off again that this program had put on.
    pub(crate) async fn withdraw(&mut self, config: &Config) -> Result<()> {
        for announcement in self.announcements.iter().filter(|known| known.ours) {
            announce::withdraw(self.netlink.handle(), announcement.address).await?;
        }
        withdraw(config, &self.netlink).await
    }
}

/// VIPs that are ours to announce, and the addresses that stand for clients.
fn announced(config: &Config) -> BTreeSet<IpAddr> {
    let ours = config
        .services
        .iter()
        .filter(|service| service.announce == Announce::Address);
    let pool = config.data_plane.source_pool.iter().copied();
    ours.map(|service| service.address).chain(pool).collect()
}

pub(super) async fn withdraw(config: &Config, netlink: &Netlink) -> Result<()> {
    for address in announced(config) {
        announce::withdraw(netlink.handle(), address).await?;
    }
    Ok(())
}
