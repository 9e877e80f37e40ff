//! Checksums of what is changed and of what is made.
//!
//! What is forwarded is updated incrementally (RFC 1624, equation 3): never a sum
//! over the packet, only the difference of the words that changed ([`Delta`]).
//! What we send ourselves is summed in full ([`Sum`]).

/// The change that rewriting some header words makes to a ones'-complement
/// sum. Words are numbers as read from the wire in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta(u64);

impl Delta {
    /// Nothing changed yet.
    pub const fn new() -> Self {
        Self(0)
    }

    /// A 16-bit word changed.
    #[inline(always)]
    pub const fn word(self, old: u16, new: u16) -> Self {
        Self(self.0 + (!old) as u64 + new as u64)
    }

    /// A 32-bit field (an IPv4 address) changed.
    #[inline(always)]
    pub const fn double(self, old: u32, new: u32) -> Self {
        self.word((old >> 16) as u16, (new >> 16) as u16)
            .word(old as u16, new as u16)
    }

    /// A 64-bit field (half an IPv6 address) changed.
    #[inline(always)]
    pub const fn quad(self, old: u64, new: u64) -> Self {
        self.double((old >> 32) as u32, (new >> 32) as u32)
            .double(old as u32, new as u32)
    }

    /// Both changes.
    #[inline(always)]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after the change.
    #[inline(always)]
    pub const fn apply(self, checksum: u16) -> u16 {
        let mut sum = (!checksum) as u64 + self.0;
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }

    /// The same for UDP, whose zero means "none": one that is zero stays so, and
    /// one that becomes zero is sent as all ones (RFC 768).
    #[inline(always)]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        if checksum == 0 {
            return 0;
        }
        match self.apply(checksum) {
            0 => 0xffff,
            changed => changed,
        }
    }
}

/// The sum of the words of something that is made from nothing (RFC 1071). Words
/// are numbers as read from the wire in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Of nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// A sum that was taken elsewhere, at most 48 bits of it.
    #[inline(always)]
    pub const fn of(words: u64) -> Self {
        Self(words)
    }

    /// A 16-bit word.
    #[inline(always)]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// A 32-bit field.
    #[inline(always)]
    pub const fn double(self, double: u32) -> Self {
        Self(self.0 + (double >> 16) as u64 + (double & 0xffff) as u64)
    }

    /// A 64-bit field.
    #[inline(always)]
    pub const fn quad(self, quad: u64) -> Self {
        self.double((quad >> 32) as u32).double(quad as u32)
    }

    /// The words so far, for [`Sum::of`].
    #[inline(always)]
    pub const fn words(self) -> u64 {
        self.0
    }

    /// The checksum.
    #[inline(always)]
    pub const fn checksum(self) -> u16 {
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071: the checksum of a buffer, computed in full.
    fn full(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: HC = DD2F, m = 5555, m' = 3285 gives HC' = 0000.
        assert_eq!(Delta::new().word(0x5555, 0x3285).apply(0xdd2f), 0x0000);
    }

    #[test]
    fn udp_knows_no_checksum_of_zero() {
        let delta = Delta::new().word(0x5555, 0x3285);
        assert_eq!(delta.apply_udp(0xdd2f), 0xffff);
        assert_eq!(delta.apply_udp(0), 0);
        assert_eq!(delta.apply_udp(0x1234), delta.apply(0x1234));
    }

    #[test]
    fn a_sum_equals_that_over_the_bytes() {
        // RFC 1071, section 3: 0001 f203 f4f5 f6f7 sum to ddf2.
        let example = Sum::new().quad(0x0001_f203_f4f5_f6f7);
        assert_eq!(example.checksum(), !0xddf2);
        assert_eq!(Sum::of(example.words()), example);
        assert_eq!(Sum::new().checksum(), 0xffff);
        let all = (0..1_000).fold(Sum::new(), |sum, _| sum.quad(u64::MAX));
        assert_eq!(all.checksum(), 0, "carries are folded");
        let bytes: Vec<u8> = (0..14u8).map(|place| place.wrapping_mul(37)).collect();
        let number = |range: core::ops::Range<usize>| {
            let bytes = bytes[range].iter();
            bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let sum = Sum::new()
            .quad(number(0..8))
            .double(number(8..12) as u32)
            .word(number(12..14) as u16);
        assert_eq!(sum.checksum(), full(&bytes));
    }

    #[test]
    fn a_delta_equals_the_full_sum() {
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..20_000 {
            let mut bytes = [0u8; 24];
            for chunk in bytes.chunks_mut(8) {
                chunk.copy_from_slice(&random().to_be_bytes());
            }
            let before = full(&bytes);
            let old_address = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let old_port = u16::from_be_bytes([bytes[10], bytes[11]]);
            let (address, port) = (random() as u32, random() as u16);
            bytes[4..8].copy_from_slice(&address.to_be_bytes());
            bytes[10..12].copy_from_slice(&port.to_be_bytes());
            let delta = Delta::new()
                .double(old_address, address)
                .word(old_port, port);
            assert_eq!(delta.apply(before), full(&bytes));
        }
    }
}
