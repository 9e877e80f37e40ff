//! Finds the virtual service of a packet that belongs to no flow.

use crate::{
    maps,
    packet::{ICMP, Ipv4, Transport},
};
use lb_common::{
    abi::{Service, ServiceKey, address4},
    reason::Reason,
};

/// A service and its index.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub index: u32,
    pub service: &'static Service,
}

/// Whether an address is a VIP. Every VIP has a key of the protocol ICMP.
#[inline(always)]
pub(crate) fn is_vip(address: u32) -> bool {
    let key = ServiceKey {
        address: address4(address.to_be_bytes()),
        port: 0,
        protocol: ICMP,
        family: 4,
    };
    maps::service_index(&key).is_some()
}

/// The service of this very port, else the one of every port.
#[inline(always)]
pub(crate) fn run(ip: &Ipv4, transport: &Transport) -> Result<Known, Reason> {
    let mut key = ServiceKey {
        address: address4(ip.destination.to_be_bytes()),
        port: transport.destination_port,
        protocol: ip.protocol,
        family: 4,
    };
    let index = match maps::service_index(&key) {
        Some(index) => index,
        None => {
            key.port = 0;
            maps::service_index(&key).ok_or(Reason::PassedNoService)?
        }
    };
    let service = maps::service(index).ok_or(Reason::Internal)?;
    Ok(Known { index, service })
}
