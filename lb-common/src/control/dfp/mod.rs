//! Cisco's Dynamic Feedback Protocol: an agent near the servers tells a load
//! balancer how much each of them should get (spec 4.4).
//!
//! The balancer is the *manager*: it connects, says how often it wants to hear
//! something, and takes weights. [`Message`] is what travels, [`parse`] and
//! [`emit`] are the codec, [`Frames`] cuts a byte stream into messages, and
//! [`Session`] decides when to connect and when an agent is lost.
//!
//! Never an RFC: draft-eck-dfp-01 (2006) and Cisco's own agent under a BSD
//! licence are where the layout comes from. Network byte order:
//!
//! ```text
//! message   version 1 · reserved 1 · type 2 · length 4 (header counts)
//! TLV       type 2 · length 2 (header counts)
//! ```
//!
//! What cannot be read ends the connection: after a wrong length nothing that
//! follows can be trusted. A message of another type, in the wrong direction,
//! or with TLVs that are not known is skipped, as the protocol wants it.
//!
//! *Security*: a shared secret, and MD5 over message and secret. It keeps out
//! whoever does not know the secret and cannot listen; it does not stop a
//! replay. That is the protocol's strength, not this codec's choice.

mod emit;
mod parse;
mod session;

pub use emit::emit;
pub use parse::{DfpError, Frames, parse};
pub use session::{AgentStatus, Session, SessionParameters, Step};

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use md5::{Digest as _, Md5};

/// The only version there is.
const VERSION: u8 = 1;
/// Bytes of a message's header.
const HEADER: usize = 8;
/// Bytes of a TLV's header.
const TLV_HEADER: usize = 4;
/// Longest message taken, bytes: eight load TLVs of a thousand hosts each, and
/// all that a connection can make this side keep.
pub const MESSAGE_MAX: usize = 65_536;

/// Numbers of message types.
mod kind {
    pub(super) const PREFERENCE: u16 = 0x0101;
    pub(super) const PARAMETERS: u16 = 0x0301;
    pub(super) const BIND_REQUEST: u16 = 0x0401;
    pub(super) const BIND_REPORT: u16 = 0x0402;
    pub(super) const BIND_CHANGE: u16 = 0x0403;
}

/// Numbers of TLVs.
mod tlv {
    pub(super) const SECURITY: u16 = 0x0001;
    pub(super) const LOAD: u16 = 0x0002;
    pub(super) const KEEPALIVE: u16 = 0x0101;
    pub(super) const BIND_TABLE: u16 = 0x0301;
}

/// The number of MD5 in a security TLV.
const ALGORITHM_MD5: u32 = 1;
/// Bytes of an MD5 digest.
const DIGEST: usize = 16;
/// Bytes of a security TLV: header, algorithm, key id, digest.
const SECURITY: usize = TLV_HEADER + 8 + DIGEST;

/// What travels between manager and agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Agent to manager: weights. Without any it is a keepalive.
    Preference(Vec<Load>),
    /// Manager to agent.
    Parameters {
        /// The manager wants to hear something this often, seconds; 0: it will
        /// not close on silence.
        keepalive_s: u32,
    },
    /// Manager to agent: which bind ids are there?
    BindRequest,
    /// Agent to manager: these.
    BindReport(Vec<BindTable>),
    /// Agent to manager: they changed.
    BindChange,
    /// Another type; its content is not looked at.
    Other(u16),
}

/// The weights of some hosts for one port and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// 0: any.
    pub port: u16,
    /// IP protocol number; 0: any.
    pub protocol: u8,
    /// Who, and how much.
    pub hosts: Vec<HostWeight>,
}

/// The weight of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostWeight {
    /// Address of the host.
    pub address: Ipv4Addr,
    /// Which of the host's services is meant; 0: whichever.
    pub bind_id: u16,
    /// 0..=65,535; 0: nothing new.
    pub weight: u16,
}

impl Load {
    /// Whether it is about this port and protocol.
    pub fn covers(&self, port: u16, protocol: u8) -> bool {
        (self.port == 0 || self.port == port) && (self.protocol == 0 || self.protocol == protocol)
    }
}

/// The bind ids of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindTable {
    /// Address of the host.
    pub address: Ipv4Addr,
    /// 0: any.
    pub port: u16,
    /// 0: any.
    pub protocol: u8,
    /// Which clients each id is for.
    pub entries: Vec<BindEntry>,
}

/// A bind id and the clients it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindEntry {
    /// The id.
    pub id: u16,
    /// Address of the clients.
    pub address: Ipv4Addr,
    /// Mask of that address.
    pub mask: Ipv4Addr,
}

/// A shared secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Which of several keys this is; 0 where there is one.
    pub id: u32,
    /// 1 to 32 bytes (spec 4.1).
    pub secret: Vec<u8>,
}

impl core::fmt::Debug for Key {
    /// Without the secret: this may reach a log.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish()
    }
}

impl Key {
    /// The digest of a message whose own digest is at `at`: MD5 over the message
    /// with zeros there, followed by the secret. The draft's text is not at
    /// hand; this is the form of RFC 2082 (section 3.2.1) and its
    /// contemporaries, and the one place to change.
    fn digest(&self, message: &[u8], at: usize) -> [u8; DIGEST] {
        let mut md5 = Md5::new();
        md5.update(&message[..at]);
        md5.update([0; DIGEST]);
        md5.update(&message[at + DIGEST..]);
        md5.update(&self.secret);
        md5.finalize().into()
    }
}

/// Whether two digests are the same, in a time that does not depend on where
/// they differ.
fn same_digest(one: &[u8], other: &[u8; DIGEST]) -> bool {
    one.len() == DIGEST && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}
