//! Why a packet was dropped or passed: one table, one name each.
//!
//! The numbers index the per-CPU map `REASONS`. A retired reason keeps its
//! number; new ones are added at the end.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal, $name:literal, $drops:literal;)+) => {
        /// What happened to a packet, other than being forwarded by an
        /// existing flow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl Reason {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The reason of a number; [`Reason::Internal`] of one that has none.
            #[inline(always)]
            pub const fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$variant,)+
                    _ => Self::Internal,
                }
            }

            /// The name in `status`, `stats` and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Whether a packet counted here was turned into an answer, which
            /// went back to where it came from.
            pub const fn answers(self) -> bool {
                matches!(
                    self,
                    Self::EchoAnswered
                        | Self::ResetAnswered
                        | Self::TtlAnswered
                        | Self::TooBigAnswered
                )
            }

            /// Whether a packet counted here was dropped.
            pub const fn drops(self) -> bool {
                match self {
                    $(Self::$variant => $drops,)+
                }
            }
        }
    };
}

/// Entries of map `REASONS`.
pub const REASONS: u32 = 64;

reasons! {
    /// Forwarded to a server or back to a client.
    Forwarded = 0, "forwarded", false;
    /// A new flow was opened (its SYN is counted in `forwarded` too).
    NewFlow = 1, "new_flow", false;
    /// Passed: neither address is one of ours.
    PassedNotOurs = 2, "passed_not_ours", false;
    /// Passed: neither IPv4 nor IPv6, or behind more than two VLAN tags.
    PassedNotIp = 3, "passed_not_ip", false;
    /// Passed: one of our addresses, but no service has this protocol and port,
    /// or a server's packet that belongs to no flow of ours.
    PassedNoService = 4, "passed_no_service", false;
    /// Passed: the kernel half holds no configuration yet.
    PassedNotReady = 5, "passed_not_ready", false;
    /// Passed: a fragment of ICMP, or one of a server's whose packet's first was
    /// not seen.
    PassedFragment = 6, "passed_fragment", false;
    /// Passed: ICMP other than a ping of a VIP, and protocols that no service
    /// balances.
    PassedProtocol = 7, "passed_protocol", false;
    /// Dropped: headers that contradict each other or the frame's length.
    Malformed = 8, "malformed", true;
    /// Dropped: a TCP packet to a service, not a SYN, of no known flow.
    NoFlow = 9, "no_flow", true;
    /// Dropped: no backend of the service may take a new flow.
    NoBackend = 10, "no_backend", true;
    /// Dropped: every usable backend already has a flow of this client endpoint.
    TupleCollision = 11, "tuple_collision", true;
    /// Dropped: the flow table has no place for a new flow.
    TableFull = 12, "table_full", true;
    /// Dropped: the next hop has no known MAC address yet; it is being resolved.
    NeighbourUnresolved = 13, "neighbour_unresolved", true;
    /// Dropped: no route to the client or server.
    NoRoute = 14, "no_route", true;
    /// Dropped: the time to live ran out here, and the sender is not told: too many
    /// were, or it is nobody who could be.
    TtlExceeded = 15, "ttl_exceeded", true;
    /// Dropped: larger than the MTU of the interface it must leave by, and the
    /// sender is not told, as above.
    TooBig = 16, "too_big", true;
    /// A SYN repeated on a flow that the server has not answered.
    SynRepeated = 17, "syn_repeated", false;
    /// A new flow took the place of a half-open one.
    EvictedHalfOpen = 18, "evicted_half_open", false;
    /// A new flow went to the spill table.
    Spilled = 19, "spilled", false;
    /// A flow that seemed reset went on: the reset was not the peer's.
    Restored = 20, "restored", false;
    /// A new flow that was a trial of a backend without traffic.
    Trial = 21, "trial", false;
    /// Two CPUs opened the same flow; one copy was withdrawn.
    Withdrawn = 22, "withdrawn", false;
    /// Passed: too short, or broken before its addresses; the kernel judges it.
    PassedMalformed = 23, "passed_malformed", false;
    /// Answered: a ping of a VIP.
    EchoAnswered = 24, "echo_answered", false;
    /// Dropped: the program met a state that its own rules exclude.
    Internal = 25, "internal", true;
    /// Dropped: the frame has no room in front for the header of a tunnel (XDP
    /// drivers leave 256 bytes; IPv6 in GUE takes 52).
    NoHeadroom = 26, "no_headroom", true;
    /// Dropped: no port of the addresses for `full-nat` is free.
    PoolExhausted = 27, "pool_exhausted", true;
    /// A new flow went to a backend that slow start or a test spares, since nobody
    /// else takes it.
    OverBudget = 28, "over_budget", false;
    /// Dropped: every usable backend has as many flows as its `maximum`.
    AtMaximum = 29, "at_maximum", true;
    /// Answered: a segment of a connection that was ended here, with a reset.
    ResetAnswered = 30, "reset_answered", false;
    /// Answered: the time to live ran out here, and the sender is told.
    TtlAnswered = 31, "ttl_answered", false;
    /// Answered: larger than the MTU of the way out, and the sender is told which
    /// that is.
    TooBigAnswered = 32, "too_big_answered", false;
    /// Forwarded: an ICMP error, to the end that sent the packet which it quotes.
    IcmpRelayed = 33, "icmp_relayed", false;
    /// Passed: an ICMP error that quotes a packet of no flow.
    PassedIcmp = 34, "passed_icmp", false;
    /// Dropped: an ICMP error about a packet that its flow cannot have sent.
    IcmpForged = 35, "icmp_forged", true;
    /// A server, or a router in front of it, said that the server cannot be
    /// reached (the error is counted in `icmp_relayed` too).
    ServerUnreachable = 36, "server_unreachable", false;
    /// Dropped: the service has as many unanswered SYNs as SynGuard lets it have.
    SynGuard = 37, "syn_guard", true;
    /// A flow's SYN went to another server, since the first one left so many
    /// unanswered.
    Reassigned = 38, "reassigned", false;
    /// A failure of which the ring had no room to tell; it is counted all the same.
    FailureUntold = 39, "failure_untold", false;
    /// Dropped: a fragment to a service before the first one of its packet, which
    /// has the ports.
    FragmentEarly = 40, "fragment_early", true;
    /// A later fragment followed the first one of its packet (it is counted as
    /// `forwarded` too).
    FragmentFollowed = 41, "fragment_followed", false;
    /// Dropped: a server is a client of its own service in `nat`, and no other
    /// server may take its flow: it would get a packet from itself.
    Hairpin = 42, "hairpin", true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions_and_names_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for (position, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, position);
            assert!(names.insert(reason.name()), "{} twice", reason.name());
        }
        assert!(Reason::ALL.len() <= REASONS as usize);
    }
}
