//! The structs of the flow table as shared words: the atomic views of those in
//! [`crate::abi`].

use crate::abi::{self, Ends, WAYS};
use crate::atomic::{Half, Word};

/// A way, as shared words: the atomic view of [`abi::Way`].
#[repr(C)]
pub struct Way {
    /// See [`abi::Way::client`]; 0 while the way is written.
    pub client: Word,
    /// See [`abi::Way::virtual_end`].
    pub virtual_end: Word,
    /// See [`mod@meta`].
    pub meta: Word,
    /// See [`abi::Way::backend_end`].
    pub backend_end: Word,
}

/// The atomic view of [`abi::Bucket4`], and of the first half of
/// [`abi::Bucket6`].
#[repr(C)]
pub struct Bucket {
    /// The ways; the first one's meta word also carries [`meta::SPILLED`].
    pub ways: [Way; WAYS],
}

/// The shared view of [`abi::Ends`].
#[repr(C)]
pub struct EndsWords {
    /// See [`Ends::client`].
    pub client: [Word; 2],
    /// See [`Ends::virtual_address`].
    pub virtual_address: [Word; 2],
}

impl EndsWords {
    /// A copy, consistent only if the way did not change hands meanwhile.
    #[inline(always)]
    pub fn load(&self) -> Ends {
        Ends {
            client: [self.client[0].load(), self.client[1].load()],
            virtual_address: [
                self.virtual_address[0].load(),
                self.virtual_address[1].load(),
            ],
        }
    }

    /// Overwrites them, while the way is busy.
    #[inline(always)]
    pub fn store(&self, ends: &Ends) {
        self.client[0].store(ends.client[0]);
        self.client[1].store(ends.client[1]);
        self.virtual_address[0].store(ends.virtual_address[0]);
        self.virtual_address[1].store(ends.virtual_address[1]);
    }
}

/// The shared view of [`abi::Bucket6`].
#[repr(C)]
pub struct WideBucket {
    /// The words of its ways.
    pub words: Bucket,
    /// Their addresses.
    pub ends: [EndsWords; WAYS],
}

/// The shared view of [`abi::Cold`].
#[repr(C)]
pub struct ColdWay {
    /// See [`abi::Cold::syn_us`].
    pub syn_us: Word,
    /// See [`abi::Cold::syn_ack_us`].
    pub syn_ack_us: Half,
    /// See [`abi::Cold::request_us`].
    pub request_us: Half,
    /// See [`abi::Cold::response_us`].
    pub response_us: Half,
    /// See [`abi::Cold::client_end`].
    pub client_end: Half,
    /// See [`abi::Cold::client_start`].
    pub client_start: Half,
    /// See [`abi::Cold::server_start`]; 0: no SYN-ACK yet.
    pub server_start: Half,
    /// See [`abi::Cold::service`].
    pub service: Half,
    /// See [`abi::Cold::syn_repeats`].
    pub syn_repeats: Half,
    /// See [`abi::Cold::client_mac`].
    pub client_mac: Word,
    /// See [`abi::Cold::own_mac`].
    pub own_mac: Word,
    /// See [`abi::Cold::client_ifindex`].
    pub client_ifindex: Half,
    /// Visible padding, zero.
    pub padding1: Half,
}

/// The shared view of [`abi::ColdBucket`].
#[repr(C)]
pub struct ColdWays {
    /// The cold half of each way.
    pub ways: [ColdWay; WAYS],
}

/// The shared view of [`abi::Spilled4`].
#[repr(C)]
pub struct SpilledWay {
    /// The flow's words.
    pub way: Way,
    /// Its cold half.
    pub cold: ColdWay,
}

/// The shared view of [`abi::Spilled6`].
#[repr(C)]
pub struct WideSpilledWay {
    /// The flow's words and its cold half.
    pub spilled: SpilledWay,
    /// Its addresses.
    pub ends: EndsWords,
}

/// The shared view of [`abi::Live`].
#[repr(C)]
pub struct LiveWords {
    /// See [`abi::Live::half_opened`].
    pub half_opened: Word,
    /// See [`abi::Live::half_closed`].
    pub half_closed: Word,
    /// See [`abi::Live::opened`].
    pub opened: Word,
    /// See [`abi::Live::closed`].
    pub closed: Word,
    /// See [`abi::Live::resets`].
    pub resets: Word,
    /// See [`abi::Live::syn_timeouts`].
    pub syn_timeouts: Word,
    /// See [`abi::Live::forgiven`].
    pub forgiven: Word,
    /// See [`abi::Live::trial`].
    pub trial: Word,
}

const _: () = {
    assert!(size_of::<Bucket>() == size_of::<abi::Bucket4>());
    assert!(size_of::<WideBucket>() == size_of::<abi::Bucket6>());
    assert!(size_of::<WideSpilledWay>() == size_of::<abi::Spilled6>());
    assert!(size_of::<ColdWays>() == size_of::<abi::ColdBucket>());
    assert!(size_of::<SpilledWay>() == size_of::<abi::Spilled4>());
    assert!(size_of::<LiveWords>() == size_of::<abi::Live>());
};
