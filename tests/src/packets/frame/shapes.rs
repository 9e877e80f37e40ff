//! Parts of frames that most have none of: VLAN tags, extension headers,
//! pieces of a fragmented packet, and errors that quote one.

use super::{Carried, Frame, Mac};
use std::net::IpAddr;

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100 (IEEE 802.1Q), or 0x88a8 for the outer of two (802.1ad).
    pub protocol: u16,
    /// Priority, drop bit and the VLAN's number.
    pub control: u16,
}

impl Tag {
    /// A customer's tag of VLAN `number`, with a priority that must stay.
    pub const fn customer(number: u16) -> Self {
        Self {
            protocol: 0x8100,
            control: 0x6000 | number,
        }
    }

    /// A provider's tag around a customer's.
    pub const fn provider(number: u16) -> Self {
        Self {
            protocol: 0x88a8,
            control: 0xa000 | number,
        }
    }
}

/// An extension header of IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its protocol number (IANA).
    pub kind: u8,
    /// All behind next header and length. Of the kinds that RFC 8200 defines,
    /// two bytes less than a multiple of eight.
    pub body: Vec<u8>,
}

impl Extension {
    /// Hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// A routing header.
    pub const ROUTING: u8 = 43;
    /// A fragment header.
    pub const FRAGMENT: u8 = 44;
    /// An authentication header (RFC 4302), whose length counts otherwise.
    pub const AUTHENTICATION: u8 = 51;
    /// Destination options.
    pub const DESTINATION: u8 = 60;

    /// Options of nothing but padding, `units` times eight bytes long.
    pub fn padding(kind: u8, units: usize) -> Self {
        let mut body = vec![0; units * 8 - 2];
        // PadN (RFC 8200, section 4.2), as often as it takes.
        for option in body.chunks_mut(257) {
            match option {
                [] | [_] => {}
                [kind, length, rest @ ..] => (*kind, *length) = (1, rest.len() as u8),
            }
        }
        Self { kind, body }
    }

    /// A routing header of a type that nobody has (RFC 4727: 253 is for
    /// experiments) with no segments left, which hosts must ignore.
    pub fn routing() -> Self {
        Self {
            kind: Self::ROUTING,
            body: vec![253, 0, 0, 0, 0, 0],
        }
    }

    /// A fragment header at this place, filled in by what the frame says: of
    /// neither offset nor more fragments the atomic one of RFC 6946.
    pub fn fragment() -> Self {
        Self {
            kind: Self::FRAGMENT,
            body: vec![0; 6],
        }
    }

    /// An authentication header whose integrity check value has 12 bytes.
    pub fn authentication() -> Self {
        Self {
            kind: Self::AUTHENTICATION,
            body: vec![0x11; 22],
        }
    }

    /// Its bytes in front of `next`.
    pub(super) fn bytes(&self, next: u8) -> Vec<u8> {
        let length = self.body.len() + 2;
        let length = match self.kind {
            // Reserved.
            Self::FRAGMENT => 0,
            Self::AUTHENTICATION => length / 4 - 2,
            _ => length / 8 - 1,
        };
        let length = u8::try_from(length).expect("an extension header of at most 2,048 bytes");
        [&[next, length], self.body.as_slice()].concat()
    }
}

/// A packet in an error.
#[derive(Clone, Debug)]
pub struct Quote {
    /// The packet as it was when the error came about; its Ethernet header and
    /// padding are left out.
    pub packet: Frame,
    /// Most bytes of it from its IP header on.
    pub most: usize,
}

impl Quote {
    /// Its bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.packet.packet();
        bytes.truncate(self.most);
        bytes
    }
}

impl Frame {
    /// An error about `packet`, from a host or router on its way. `kind` is
    /// type and code, `rest` the four bytes after the checksum: of "too big"
    /// the MTU.
    ///
    /// It quotes at most 548 bytes, which make a datagram of 576 with IPv4
    /// (RFC 1812, section 4.3.2.3); change [`Quote::most`] for another limit.
    pub fn error(
        macs: (Mac, Mac),
        from: IpAddr,
        kind: (u8, u8),
        rest: [u8; 4],
        packet: Self,
    ) -> Self {
        let to = packet.source.0;
        let quote = Quote { packet, most: 548 };
        Self {
            carried: Carried::Icmp(kind.0, kind.1, rest),
            quote: Some(Box::new(quote)),
            ..Self::tcp(macs, (from, 0), (to, 0), 0)
        }
    }

    /// The packet that this error quotes.
    ///
    /// # Panics
    /// If it is no error.
    pub fn quoted(&mut self) -> &mut Self {
        match &mut self.quote {
            Some(quote) => &mut quote.packet,
            None => panic!("this frame quotes none"),
        }
    }

    /// The fragments of this frame, each with at most `size` bytes of its IP
    /// payload, in order. As pieces of one packet they are changed alike: an
    /// address that is rewritten in all of them changes the checksum in the
    /// first.
    ///
    /// # Panics
    /// If `size` is not a multiple of eight, or zero.
    pub fn fragments(&self, size: usize) -> Vec<Self> {
        assert!(
            size > 0 && size.is_multiple_of(8),
            "fragments begin at multiples of eight bytes"
        );
        let whole = self.clone().with(|frame| frame.dont_fragment = false);
        let length = whole.datagram().len();
        (0..length)
            .step_by(size)
            .map(|start| {
                let piece = (start, length.min(start + size));
                whole.clone().with(|frame| frame.piece = Some(piece))
            })
            .collect()
    }
}
