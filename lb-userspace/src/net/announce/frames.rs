//! The frames that tell neighbours where an address lives now.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::Mac;

/// Bytes of an Ethernet frame with an ARP packet for IPv4.
pub const ARP_FRAME: usize = 42;
/// Bytes of an Ethernet frame with an unsolicited neighbour advertisement.
pub const ADVERTISEMENT_FRAME: usize = 86;

const BROADCAST: Mac = [0xff; 6];

/// The two forms of a gratuitous ARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpForm {
    /// RFC 5227 section 2.3, "ARP Announcement": a request for the own address.
    Request,
    /// A reply nobody asked for, for hosts that learn from replies alone
    /// (RFC 5227 section 3).
    Reply,
}

/// A broadcast frame by which `mac` claims `address`.
pub fn gratuitous_arp(form: ArpForm, mac: Mac, address: Ipv4Addr) -> [u8; ARP_FRAME] {
    let (operation, target) = match form {
        // RFC 5227 section 1.1: the target hardware address SHOULD be zero.
        ArpForm::Request => ([0, 1], [0; 6]),
        ArpForm::Reply => ([0, 2], BROADCAST),
    };
    let mut frame = [0; ARP_FRAME];
    frame[0..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    // Ethernet, IPv4, address lengths 6 and 4 (RFC 826).
    frame[14..20].copy_from_slice(&[0, 1, 0x08, 0, 6, 4]);
    frame[20..22].copy_from_slice(&operation);
    frame[22..28].copy_from_slice(&mac);
    frame[28..32].copy_from_slice(&address.octets());
    frame[32..38].copy_from_slice(&target);
    frame[38..42].copy_from_slice(&address.octets());
    frame
}

/// A frame to all nodes by which `mac` claims `address`: an unsolicited
/// neighbour advertisement (RFC 4861 section 7.2.6). With the override flag, so
/// that those who know another MAC address of it take this one; without the
/// solicited flag, which would say that it is the answer to a question.
pub fn advertisement(mac: Mac, address: Ipv6Addr) -> [u8; ADVERTISEMENT_FRAME] {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    // Router and override: the balancer forwards, so hosts must not take it out
    // of their lists of routers if it is in there.
    const FLAGS: u8 = 0x80 | 0x20;
    let mut frame = [0; ADVERTISEMENT_FRAME];
    frame[0..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    // Version 6, 32 bytes of ICMPv6, hop limit 255 (section 7.1.2).
    frame[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
    frame[22..38].copy_from_slice(&address.octets());
    frame[38..54].copy_from_slice(&ALL_NODES.octets());
    frame[54] = 136;
    frame[58] = FLAGS;
    frame[62..78].copy_from_slice(&address.octets());
    // Option: target link-layer address, one unit of eight bytes.
    frame[78..80].copy_from_slice(&[2, 1]);
    frame[80..86].copy_from_slice(&mac);
    let checksum = icmp6_checksum(&frame);
    frame[56..58].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// RFC 4443 section 2.3 over addresses, length, next header and message.
fn icmp6_checksum(frame: &[u8; ADVERTISEMENT_FRAME]) -> u16 {
    let words = frame[22..]
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum::<u32>() + 32 + 58;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::{ArpForm, advertisement, gratuitous_arp};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0xab, 1];

    #[test]
    fn arp_bytes() {
        let rows = [
            (ArpForm::Request, 1, [0; 6]),
            (ArpForm::Reply, 2, [0xff; 6]),
        ];
        for (form, operation, target) in rows {
            let mut expected = vec![0xff; 6];
            expected.extend(MAC);
            expected.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
            expected.extend(MAC);
            expected.extend([192, 0, 2, 10]);
            expected.extend(target);
            expected.extend([192, 0, 2, 10]);
            let frame = gratuitous_arp(form, MAC, [192, 0, 2, 10].into());
            assert_eq!(frame.as_slice(), expected, "{form:?}");
        }
    }

    #[test]
    fn advertisement_bytes() {
        let address = "2001:db8::10".parse::<std::net::Ipv6Addr>().unwrap();
        let frame = advertisement(MAC, address);
        let mut expected = vec![0x33, 0x33, 0, 0, 0, 1];
        expected.extend(MAC);
        expected.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
        expected.extend(address.octets());
        // All nodes, ff02::1.
        expected.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([136, 0]);
        expected.extend(&frame[56..58]);
        // Router and override, not solicited.
        expected.extend([0xa0, 0, 0, 0]);
        expected.extend(address.octets());
        expected.extend([2, 1]);
        expected.extend(MAC);
        assert_eq!(frame.as_slice(), expected);
        // With its checksum in place the pseudo-header and message sum to ones.
        let mut sum: u32 = 32 + 58;
        for pair in frame[22..].chunks_exact(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
