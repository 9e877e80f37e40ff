//! Frames made by hand, for what no well-behaved host would send.

use std::net::SocketAddrV4;

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};
use std::os::fd::AsRawFd;

use super::Namespace;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_TCP: u8 = 6;

/// An Ethernet frame with a TCP segment of `flags` and `payload`; lengths and
/// checksums are right.
pub fn tcp_frame(
    macs: (/* source: */ [u8; 6], /* destination: */ [u8; 6]),
    source: SocketAddrV4,
    destination: SocketAddrV4,
    flags: u8,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut segment = Vec::with_capacity(20 + payload.len());
    segment.extend(source.port().to_be_bytes());
    segment.extend(destination.port().to_be_bytes());
    segment.extend(1u32.to_be_bytes()); // sequence number
    segment.extend(0u32.to_be_bytes()); // acknowledgement
    segment.extend([5 << 4, flags]); // header of five words
    segment.extend(0xffffu16.to_be_bytes()); // window
    segment.extend([0; 4]); // checksum, urgent pointer
    segment.extend(payload);

    let segment_length = u16::try_from(segment.len()).context("payload too long")?;
    let total_length = segment_length.checked_add(20).context("payload too long")?;
    let mut header = Vec::with_capacity(20);
    header.extend([0x45, 0]); // version 4, five words, no priority
    header.extend(total_length.to_be_bytes());
    header.extend([0, 0, 0x40, 0]); // may not be fragmented
    header.extend([64, PROTOCOL_TCP, 0, 0]); // hops, protocol, checksum
    header.extend(source.ip().octets());
    header.extend(destination.ip().octets());
    let sum = internet_checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());

    let mut pseudo = Vec::with_capacity(12);
    pseudo.extend(&header[12..20]);
    pseudo.extend([0, PROTOCOL_TCP]);
    pseudo.extend(segment_length.to_be_bytes());
    let sum = internet_checksum(&[&pseudo, &segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());

    let (source_mac, destination_mac) = macs;
    Ok([
        &destination_mac,
        &source_mac,
        &ETHERTYPE_IPV4[..],
        &header,
        &segment,
    ]
    .concat())
}

/// RFC 1071 over parts that, but for the last, have even lengths.
fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

impl Namespace {
    /// Sends a frame out of `device` as it is.
    pub fn send_frame(&self, device: &str, frame: &[u8]) -> Result<()> {
        self.send_frames(device, [frame])
    }

    /// Sends frames one after the other. The receiver's queue is short: whoever
    /// sends many must see to it that they are taken.
    pub fn send_frames<F: AsRef<[u8]>>(
        &self,
        device: &str,
        frames: impl IntoIterator<Item = F> + Send,
    ) -> Result<()> {
        self.enter(|| {
            let link = getifaddrs()?
                .filter(|interface| interface.interface_name == device)
                .find_map(|interface| interface.address?.as_link_addr().copied())
                .with_context(|| format!("there is no {device} in {}", self.name()))?;
            let socket = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                None,
            )?;
            for frame in frames {
                sendto(socket.as_raw_fd(), frame.as_ref(), &link, MsgFlags::empty())?;
            }
            Ok(())
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071, section 3, gives these bytes; their sum is 0xddf2.
    #[test]
    fn checksum_of_the_example_in_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(&[&bytes]), !0xddf2);
        assert_eq!(internet_checksum(&[&bytes[..4], &bytes[4..]]), !0xddf2);
    }
}
