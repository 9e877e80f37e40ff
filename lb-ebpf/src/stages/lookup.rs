//! Finds the virtual service of a packet that belongs to no flow.

use crate::{
    family::Family,
    maps,
    packet::{Ip, Transport},
};
use lb_common::{
    abi::{Service, ServiceKey},
    reason::Reason,
};

/// A service and its index.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    pub index: u32,
    pub service: &'static Service,
}

/// Whether an address is a VIP. Every VIP has a key of its family's ICMP.
#[inline(always)]
pub(crate) fn is_vip<F: Family>(address: F::Address) -> bool {
    let key = ServiceKey {
        address: F::key(address),
        port: 0,
        protocol: F::ICMP,
        family: F::NUMBER,
    };
    maps::service_index(&key).is_some()
}

/// The service of this very port, else the one of every port.
#[inline(always)]
pub(crate) fn run<F: Family>(ip: &Ip<F>, transport: &Transport) -> Result<Known, Reason> {
    let mut key = ServiceKey {
        address: F::key(ip.destination),
        port: transport.destination_port,
        protocol: ip.protocol,
        family: F::NUMBER,
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
