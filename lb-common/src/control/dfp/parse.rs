//! Bytes to messages, from a peer that may send anything.

use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;

use super::{
    ALGORITHM_MD5, BindEntry, BindTable, HEADER, HostWeight, Key, Load, MESSAGE_MAX, Message,
    SECURITY, TLV_HEADER, VERSION, kind, same_digest, tlv,
};

/// What is wrong with a message. Each ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DfpError {
    /// The version is this and not 1.
    Version(u8),
    /// The header's length is below its own 8 bytes or above
    /// [`MESSAGE_MAX`].
    MessageLength(u32),
    /// A TLV is shorter than its fields or goes beyond the message.
    TlvLength {
        /// Its type.
        kind: u16,
        /// Its length.
        length: u16,
    },
    /// There is a secret, and the message does not begin with a security TLV.
    Unsigned,
    /// The security TLV names another algorithm than MD5, or another key.
    Algorithm,
    /// The digest is not that of the secret.
    Digest,
}

impl DfpError {
    /// Whether it is about the secret rather than the layout.
    pub const fn is_security(self) -> bool {
        match self {
            Self::Version(_) | Self::MessageLength(_) | Self::TlvLength { .. } => false,
            Self::Unsigned | Self::Algorithm | Self::Digest => true,
        }
    }
}

impl fmt::Display for DfpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "version {version} of DFP is not known"),
            Self::MessageLength(length) => write!(
                f,
                "a message of {length} bytes; {HEADER} to {MESSAGE_MAX} are possible"
            ),
            Self::TlvLength { kind, length } => {
                write!(f, "TLV {kind:#06x} with the impossible length {length}")
            }
            Self::Unsigned => {
                f.write_str("a message without signature; is the agent's secret set?")
            }
            Self::Algorithm => f.write_str("a message signed by another algorithm or key"),
            Self::Digest => f.write_str("a message signed with another secret"),
        }
    }
}

/// Cuts a stream into messages. It holds one message at most: what follows it
/// is given when that was taken.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Takes bytes of the stream, and gives every whole message to `take`.
    ///
    /// # Errors
    /// A header that cannot be one. The stream is of no use from there on.
    pub fn push(&mut self, mut stream: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), DfpError> {
        loop {
            let wanted = match length(&self.bytes)? {
                None => HEADER,
                Some(length) if self.bytes.len() == length => {
                    take(&self.bytes);
                    self.bytes.clear();
                    continue;
                }
                Some(length) => length,
            };
            if stream.is_empty() {
                return Ok(());
            }
            let (now, rest) = stream.split_at(stream.len().min(wanted - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            stream = rest;
        }
    }

    /// Bytes held of a message that is not whole yet.
    pub fn held(&self) -> usize {
        self.bytes.len()
    }
}

/// The length of the message that `bytes` begins; `None` before its header is
/// there.
fn length(bytes: &[u8]) -> Result<Option<usize>, DfpError> {
    match bytes.first() {
        Some(&VERSION) | None => {}
        Some(&version) => return Err(DfpError::Version(version)),
    }
    let Some(length) = u32_at(bytes, 4) else {
        return Ok(None);
    };
    match usize::try_from(length) {
        Ok(bytes @ HEADER..=MESSAGE_MAX) => Ok(Some(bytes)),
        _ => Err(DfpError::MessageLength(length)),
    }
}

/// Reads one whole message. With a key it must be signed by it; without one a
/// signature is not looked at.
///
/// # Errors
/// See [`DfpError`].
pub fn parse(bytes: &[u8], key: Option<&Key>) -> Result<Message, DfpError> {
    let length = length(bytes)?.filter(|&length| length == bytes.len());
    let (Some(_), Some(kind)) = (length, u16_at(bytes, 2)) else {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        return Err(DfpError::MessageLength(length));
    };
    if let Some(key) = key {
        authenticate(bytes, key)?;
    }
    let mut loads = Vec::new();
    let mut tables = Vec::new();
    let mut keepalive_s = 0;
    let mut rest = &bytes[HEADER..];
    while !rest.is_empty() {
        let (tlv, body, behind) = split(rest)?;
        let short = DfpError::TlvLength {
            kind: tlv,
            length: u16::try_from(body.len() + TLV_HEADER).unwrap_or(u16::MAX),
        };
        match tlv {
            tlv::LOAD => loads.push(load(body).ok_or(short)?),
            tlv::KEEPALIVE => keepalive_s = u32_at(body, 0).ok_or(short)?,
            tlv::BIND_TABLE => tables.push(bind_table(body).ok_or(short)?),
            _ => {}
        }
        rest = behind;
    }
    Ok(match kind {
        kind::PREFERENCE => Message::Preference(loads),
        kind::PARAMETERS => Message::Parameters { keepalive_s },
        kind::BIND_REQUEST => Message::BindRequest,
        kind::BIND_REPORT => {
            // All zero stands for none.
            tables.retain(|table| !table.entries.is_empty() || !table.address.is_unspecified());
            Message::BindReport(tables)
        }
        kind::BIND_CHANGE => Message::BindChange,
        other => Message::Other(other),
    })
}

fn authenticate(bytes: &[u8], key: &Key) -> Result<(), DfpError> {
    let (tlv, body, _) = split(&bytes[HEADER..]).map_err(|_| DfpError::Unsigned)?;
    if tlv != tlv::SECURITY || body.len() + TLV_HEADER != SECURITY {
        return Err(DfpError::Unsigned);
    }
    if u32_at(body, 0) != Some(ALGORITHM_MD5) || u32_at(body, 4) != Some(key.id) {
        return Err(DfpError::Algorithm);
    }
    let digest = key.digest(bytes, HEADER + TLV_HEADER + 8);
    if same_digest(&body[8..], &digest) {
        Ok(())
    } else {
        Err(DfpError::Digest)
    }
}

/// Type and body of the first TLV, and what is behind it.
fn split(bytes: &[u8]) -> Result<(u16, &[u8], &[u8]), DfpError> {
    let (Some(kind), Some(length)) = (u16_at(bytes, 0), u16_at(bytes, 2)) else {
        return Err(DfpError::TlvLength { kind: 0, length: 0 });
    };
    match bytes.split_at_checked(length.into()) {
        Some((whole, behind)) if whole.len() >= TLV_HEADER => {
            Ok((kind, &whole[TLV_HEADER..], behind))
        }
        _ => Err(DfpError::TlvLength { kind, length }),
    }
}

fn load(body: &[u8]) -> Option<Load> {
    let hosts = usize::from(u16_at(body, 4)?);
    let list = body.get(8..).filter(|list| list.len() == 8 * hosts)?;
    Some(Load {
        port: u16_at(body, 0)?,
        protocol: *body.get(2)?,
        hosts: list
            .chunks_exact(8)
            .filter_map(|host| {
                Some(HostWeight {
                    address: address_at(host, 0)?,
                    bind_id: u16_at(host, 4)?,
                    weight: u16_at(host, 6)?,
                })
            })
            .collect(),
    })
}

fn bind_table(body: &[u8]) -> Option<BindTable> {
    let entries = usize::from(u16_at(body, 8)?);
    let list = body.get(12..).filter(|list| list.len() == 12 * entries)?;
    Some(BindTable {
        address: address_at(body, 0)?,
        port: u16_at(body, 4)?,
        protocol: *body.get(6)?,
        entries: list
            .chunks_exact(12)
            .filter_map(|entry| {
                Some(BindEntry {
                    id: u16_at(entry, 0)?,
                    address: address_at(entry, 4)?,
                    mask: address_at(entry, 8)?,
                })
            })
            .collect(),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|&b| u16::from_be_bytes(b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|&b| u32::from_be_bytes(b))
}

fn address_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    u32_at(bytes, at).map(Ipv4Addr::from)
}
