//! Repeatable numbers.

/// A linear congruential generator (Knuth's MMIX constants), set by its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next number: 53 bits, since the lowest ones of such a generator
    /// hardly vary.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 11
    }
}
