//! Echo requests (RFC 792). A datagram socket where the kernel grants one
//! (`net.ipv4.ping_group_range`), else a raw one, which takes CAP_NET_RAW.

use crate::outside::{connect, random_bits};
use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, SocketAddrV4};
use tokio::net::UdpSocket;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// Header, and eight bytes by which the reply is known: a datagram socket
/// chooses the identifier itself.
const LENGTH: usize = 16;

pub(super) async fn probe(to: Ipv4Addr, source: Option<Ipv4Addr>) -> Result<()> {
    let socket = open(to, source)?;
    let token = (u64::from(random_bits()) << 32 | u64::from(random_bits())).to_be_bytes();
    socket.send(&request(token)).await.map_err(connect::plain)?;
    // An IPv4 header with all options may come first.
    let mut bytes = [0; 60 + LENGTH];
    loop {
        let length = socket.recv(&mut bytes).await.map_err(connect::plain)?;
        if is_reply(&bytes[..length], token) {
            return Ok(());
        }
    }
}

fn open(to: Ipv4Addr, source: Option<Ipv4Addr>) -> Result<UdpSocket> {
    let icmp = Some(Protocol::ICMPV4);
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, icmp)
        .or_else(|_| Socket::new(Domain::IPV4, Type::RAW, icmp))
        .context("no socket for ICMP; it takes the capability CAP_NET_RAW")?;
    socket.set_nonblocking(true)?;
    if let Some(source) = source {
        socket
            .bind(&SockAddr::from(SocketAddrV4::new(source, 0)))
            .with_context(|| format!("cannot send from {source}"))?;
    }
    // The kernel then gives us that peer's messages only.
    socket
        .connect(&SockAddr::from(SocketAddrV4::new(to, 0)))
        .map_err(connect::plain)?;
    // Nothing of it is UDP's own: it sends and receives on the descriptor.
    Ok(UdpSocket::from_std(socket.into())?)
}

fn request(token: [u8; 8]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = ECHO_REQUEST;
    bytes[4..6].copy_from_slice(&token[..2]);
    bytes[8..].copy_from_slice(&token);
    let sum = checksum(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Whether this is our reply, with or without an IPv4 header before it.
fn is_reply(bytes: &[u8], token: [u8; 8]) -> bool {
    let header = match bytes.first() {
        Some(first) if first >> 4 == 4 => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    bytes.get(header..).is_some_and(|message| {
        message.len() >= LENGTH && message[0] == ECHO_REPLY && message[8..LENGTH] == token
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_known_by_their_token() {
        let token = *b"12345678";
        let sent = request(token);
        assert_eq!(checksum(&sent), 0, "a right checksum sums to zero");
        let mut reply = sent.to_vec();
        reply[0] = ECHO_REPLY;
        let mut behind_header = vec![0x45; 20];
        behind_header.extend(&reply);
        for (bytes, ours) in [
            (&reply[..], true),
            (&behind_header, true),
            (&sent, false),
            (&reply[..15], false),
            (&behind_header[..20], false),
            (&[0x4f], false),
            (&[], false),
        ] {
            assert_eq!(is_reply(bytes, token), ours, "{bytes:02x?}");
        }
        assert!(!is_reply(&reply, *b"12345679"));
    }
}
