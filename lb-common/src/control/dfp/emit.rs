//! Messages to bytes. What can be built can be emitted: lengths that a field
//! cannot hold are cut, and the longest list that fits is far beyond a farm.

use alloc::vec;
use alloc::vec::Vec;

use super::{
    ALGORITHM_MD5, BindTable, DIGEST, HEADER, Key, Load, Message, SECURITY, TLV_HEADER, VERSION,
    kind, tlv,
};

/// Most hosts of a load TLV, whose length has 16 bits.
const MOST_HOSTS: usize = (u16::MAX as usize - 12) / 8;
/// Most entries of a bind table, likewise.
const MOST_ENTRIES: usize = (u16::MAX as usize - 16) / 12;

/// A message as it goes over the wire, signed if there is a key.
pub fn emit(message: &Message, key: Option<&Key>) -> Vec<u8> {
    let kind = match message {
        Message::Preference(_) => kind::PREFERENCE,
        Message::Parameters { .. } => kind::PARAMETERS,
        Message::BindRequest => kind::BIND_REQUEST,
        Message::BindReport(_) => kind::BIND_REPORT,
        Message::BindChange => kind::BIND_CHANGE,
        Message::Other(kind) => *kind,
    };
    let mut bytes = vec![VERSION, 0];
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0; 4]);
    if let Some(key) = key {
        open(&mut bytes, tlv::SECURITY, SECURITY);
        bytes.extend(ALGORITHM_MD5.to_be_bytes());
        bytes.extend(key.id.to_be_bytes());
        bytes.extend([0; DIGEST]);
    }
    match message {
        Message::Preference(loads) => loads.iter().for_each(|load| put_load(&mut bytes, load)),
        Message::Parameters { keepalive_s } => {
            open(&mut bytes, tlv::KEEPALIVE, TLV_HEADER + 4);
            bytes.extend(keepalive_s.to_be_bytes());
        }
        Message::BindReport(tables) if tables.is_empty() => {
            // All zero where there is none (spec 4.4).
            open(&mut bytes, tlv::BIND_TABLE, TLV_HEADER + 12);
            bytes.extend([0; 12]);
        }
        Message::BindReport(tables) => {
            tables.iter().for_each(|table| put_table(&mut bytes, table));
        }
        Message::BindRequest | Message::BindChange | Message::Other(_) => {}
    }
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[4..HEADER].copy_from_slice(&length.to_be_bytes());
    if let Some(key) = key {
        let at = HEADER + SECURITY - DIGEST;
        let digest = key.digest(&bytes, at);
        bytes[at..at + DIGEST].copy_from_slice(&digest);
    }
    bytes
}

fn open(bytes: &mut Vec<u8>, kind: u16, length: usize) {
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
}

/// The width of a list's count holds what `MOST_*` leave of it.
fn count(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

fn put_load(bytes: &mut Vec<u8>, load: &Load) {
    let hosts = &load.hosts[..load.hosts.len().min(MOST_HOSTS)];
    open(bytes, tlv::LOAD, 12 + 8 * hosts.len());
    bytes.extend(load.port.to_be_bytes());
    bytes.extend([load.protocol, 0]);
    bytes.extend(count(hosts.len()));
    bytes.extend([0; 2]);
    for host in hosts {
        bytes.extend(host.address.octets());
        bytes.extend(host.bind_id.to_be_bytes());
        bytes.extend(host.weight.to_be_bytes());
    }
}

fn put_table(bytes: &mut Vec<u8>, table: &BindTable) {
    let entries = &table.entries[..table.entries.len().min(MOST_ENTRIES)];
    open(bytes, tlv::BIND_TABLE, 16 + 12 * entries.len());
    bytes.extend(table.address.octets());
    bytes.extend(table.port.to_be_bytes());
    bytes.extend([table.protocol, 0]);
    bytes.extend(count(entries.len()));
    bytes.extend([0; 2]);
    for entry in entries {
        bytes.extend(entry.id.to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(entry.address.octets());
        bytes.extend(entry.mask.octets());
    }
}
