//! Echo requests (RFC 792 and RFC 4443). A datagram socket where the kernel
//! grants one (`net.ipv4.ping_group_range`), else a raw one, which takes
//! CAP_NET_RAW.

use crate::outside::{connect, random_bits};
use anyhow::{Context as _, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{IpAddr, SocketAddr};
use tokio::net::UdpSocket;

/// What differs between the two versions.
#[derive(Clone, Copy)]
struct Version {
    domain: Domain,
    protocol: Protocol,
    request: u8,
    reply: u8,
}

impl Version {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self {
                domain: Domain::IPV4,
                protocol: Protocol::ICMPV4,
                request: 8,
                reply: 0,
            },
            IpAddr::V6(_) => Self {
                domain: Domain::IPV6,
                protocol: Protocol::ICMPV6,
                request: 128,
                reply: 129,
            },
        }
    }
}

/// Header, and eight bytes by which the reply is known: a datagram socket
/// chooses the identifier itself.
const LENGTH: usize = 16;

pub(super) async fn probe(to: IpAddr, source: Option<IpAddr>) -> Result<()> {
    let version = Version::of(to);
    let socket = open(version, to, source)?;
    let token = ((u64::from(random_bits()) << 32) | u64::from(random_bits())).to_be_bytes();
    let request = request(version, token);
    socket.send(&request).await.map_err(connect::plain)?;
    // An IPv4 header with all options may come first.
    let mut bytes = [0; 60 + LENGTH];
    loop {
        let length = socket.recv(&mut bytes).await.map_err(connect::plain)?;
        if is_reply(version, &bytes[..length], token) {
            return Ok(());
        }
    }
}

fn open(version: Version, to: IpAddr, source: Option<IpAddr>) -> Result<UdpSocket> {
    let protocol = Some(version.protocol);
    let socket = Socket::new(version.domain, Type::DGRAM, protocol)
        .or_else(|_| Socket::new(version.domain, Type::RAW, protocol))
        .context("no socket for ICMP; it takes the capability CAP_NET_RAW")?;
    socket.set_nonblocking(true)?;
    if let Some(source) = source {
        socket
            .bind(&SockAddr::from(SocketAddr::new(source, 0)))
            .with_context(|| format!("cannot send from {source}"))?;
    }
    // The kernel then gives us that peer's messages only.
    socket
        .connect(&SockAddr::from(SocketAddr::new(to, 0)))
        .map_err(connect::plain)?;
    // Nothing of it is UDP's own: it sends and receives on the descriptor.
    Ok(UdpSocket::from_std(socket.into())?)
}

fn request(version: Version, token: [u8; 8]) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = version.request;
    bytes[4..6].copy_from_slice(&token[..2]);
    bytes[8..].copy_from_slice(&token);
    // That of ICMPv6 covers addresses too, and the kernel writes it.
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
fn is_reply(version: Version, bytes: &[u8], token: [u8; 8]) -> bool {
    let header = match bytes.first() {
        Some(first) if version.reply == 0 && first >> 4 == 4 => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    bytes.get(header..).is_some_and(|message| {
        message.len() >= LENGTH && message[0] == version.reply && message[8..LENGTH] == token
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn replies_are_known_by_their_token() {
        let token = *b"12345678";
        let v4 = Version::of(Ipv4Addr::LOCALHOST.into());
        let v6 = Version::of(Ipv6Addr::LOCALHOST.into());
        let sent = request(v4, token);
        assert_eq!(checksum(&sent), 0, "a right checksum sums to zero");
        let mut reply = sent.to_vec();
        reply[0] = v4.reply;
        let mut behind_header = vec![0x45; 20];
        behind_header.extend(&reply);
        let mut reply6 = reply.clone();
        reply6[0] = v6.reply;
        for (version, bytes, ours) in [
            (v4, &reply[..], true),
            (v4, &behind_header, true),
            (v4, &sent, false),
            (v4, &reply[..15], false),
            (v4, &behind_header[..20], false),
            (v4, &[0x4f], false),
            (v4, &[], false),
            (v6, &reply6, true),
            (v6, &reply, false),
            (v6, &behind_header, false),
        ] {
            assert_eq!(is_reply(version, bytes, token), ours, "{bytes:02x?}");
        }
        assert!(!is_reply(v4, &reply, *b"12345679"));
    }
}
