//! Finds the virtual service of a packet that belongs to no flow.

use crate::{
    maps,
    packet::{Ipv4, Tcp},
};
use lb_common::{
    abi::{Service, ServiceKey, address4},
    reason::Reason,
};

/// A service and its index.
#[derive(Clone, Copy)]
pub struct Known {
    pub index: u32,
    pub service: &'static Service,
}

/// The service of this very port, else the one of every port.
#[inline(always)]
pub fn run(ip: &Ipv4, tcp: &Tcp) -> Result<Known, Reason> {
    let mut key = ServiceKey {
        address: address4(ip.destination.to_be_bytes()),
        port: tcp.destination_port,
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
