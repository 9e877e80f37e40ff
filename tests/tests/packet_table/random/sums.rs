//! Whether the checksums of a frame are right, by the sums of RFC 1071 over what its
//! own headers say: neither the program's arithmetic nor the builder's.

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

fn number(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Whether words, in ones' complement, sum to all ones.
fn cancels<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let words = parts.into_iter().flat_map(|part| part.chunks(2));
    let mut sum: usize = words
        .map(|word| number(word) << (8 * (2 - word.len())))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

/// Of the IP header and what is behind it. `None` where that cannot be said: no IP
/// packet of one of the protocols with a checksum, a fragment, lengths that lie.
pub(super) fn are_right(frame: &[u8]) -> Option<bool> {
    let mut start = 12;
    for _ in 0..2 {
        if matches!(frame.get(start..start + 2)?, [0x81, 0] | [0x88, 0xa8]) {
            start += 4;
        }
    }
    let packet = frame.get(start + 2..)?;
    match frame.get(start..start + 2)? {
        [8, 0] => ipv4(packet),
        [0x86, 0xdd] => ipv6(packet),
        _ => None,
    }
}

fn ipv4(packet: &[u8]) -> Option<bool> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    if header < 20 || number(packet.get(6..8)?) & 0x3fff != 0 {
        return None;
    }
    let segment = packet.get(header..number(packet.get(2..4)?))?;
    let right = cancels([packet.get(..header)?]);
    Some(right && behind(packet[9], packet.get(12..20)?, segment)?)
}

fn ipv6(packet: &[u8]) -> Option<bool> {
    let segment = packet.get(40..40 + number(packet.get(4..6)?))?;
    behind(*packet.get(6)?, packet.get(8..40)?, segment)
}

fn behind(protocol: u8, addresses: &[u8], segment: &[u8]) -> Option<bool> {
    let segment = match protocol {
        TCP => segment,
        UDP if segment.get(6..8)? == [0, 0] => return None,
        UDP => segment.get(..number(segment.get(4..6)?))?,
        ICMP => return Some(cancels([segment])),
        ICMP6 => segment,
        _ => return None,
    };
    let length = u32::try_from(segment.len()).ok()?.to_be_bytes();
    Some(cancels([addresses, &length, &[0, protocol], segment]))
}
