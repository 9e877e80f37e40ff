//! A DNS query over UDP (RFC 1035): right is an answer to this question
//! without error that holds at least one record.

use crate::{
    config::DnsProbe,
    outside::{connect, random_bits},
};
use anyhow::{Context as _, Result, bail};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, Question, RCODE, TYPE};
use std::net::{IpAddr, SocketAddr};

/// Longest answer without EDNS (RFC 1035, 4.2.1); what is longer is cut.
const ANSWER: usize = 512;

pub(super) async fn probe(dns: &DnsProbe, to: SocketAddr, source: Option<IpAddr>) -> Result<()> {
    // 16 of the random bits.
    let id = random_bits() as u16;
    let socket = connect::udp(to, source).await?;
    let query = query(id, &dns.query)?;
    socket.send(&query).await.map_err(connect::plain)?;
    let mut bytes = [0; ANSWER];
    loop {
        let length = socket.recv(&mut bytes).await.map_err(connect::plain)?;
        if let Some(result) = judge(&bytes[..length], id, &dns.query) {
            return result;
        }
    }
}

fn query(id: u16, name: &str) -> Result<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).context("not a domain name")?;
    packet.questions.push(Question::new(
        name,
        TYPE::A.into(),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().context("not a query")
}

/// `None`: not an answer to our question, so go on waiting.
fn judge(bytes: &[u8], id: u16, name: &str) -> Option<Result<()>> {
    let Ok(answer) = Packet::parse(bytes) else {
        return Some(Err(anyhow::anyhow!("the answer is not DNS")));
    };
    let ours = answer.id() == id && answer.has_flags(PacketFlag::RESPONSE);
    let asked = answer.questions.first().map(|q| q.qname.to_string());
    let same = asked.is_none_or(|asked| {
        asked
            .trim_end_matches('.')
            .eq_ignore_ascii_case(name.trim_end_matches('.'))
    });
    (ours && same).then(|| content(&answer))
}

fn content(answer: &Packet<'_>) -> Result<()> {
    match answer.rcode() {
        RCODE::NoError if answer.has_flags(PacketFlag::TRUNCATION) => Ok(()),
        RCODE::NoError if answer.answers.is_empty() => bail!("the answer holds no record"),
        RCODE::NoError => Ok(()),
        other => bail!("the server answers {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let sent = query(7, "host.example").unwrap();
        let answer = |id, rcode: u8, answers: u8| {
            let mut bytes = query(id, "Host.Example").unwrap();
            bytes[2] |= 0x80;
            bytes[3] |= rcode;
            bytes[7] = answers;
            if answers > 0 {
                // The name by pointer, A, IN, 60 s, 4 bytes.
                bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
            }
            bytes
        };
        let text = |bytes: &[u8]| {
            judge(bytes, 7, "host.example.")
                .map(|result| result.map_or_else(|error| error.to_string(), |()| "right".into()))
        };
        for (bytes, expected) in [
            (answer(7, 0, 1), Some("right")),
            (answer(7, 0, 0), Some("the answer holds no record")),
            (answer(7, 2, 0), Some("the server answers ServerFailure")),
            (answer(7, 3, 0), Some("the server answers NameError")),
            (answer(8, 0, 1), None),
            (sent, None),
            (b"garbage".to_vec(), Some("the answer is not DNS")),
            (Vec::new(), Some("the answer is not DNS")),
        ] {
            assert_eq!(text(&bytes).as_deref(), expected, "{bytes:02x?}");
        }
        assert!(query(1, &"a".repeat(64)).is_err());
    }

    #[test]
    fn any_bytes_are_judged() {
        let mut bytes = query(7, "host.example").unwrap();
        bytes[2] |= 0x80;
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut mangled = bytes.clone();
                mangled[at] = value;
                let _ = judge(&mangled, 7, "host.example");
                let _ = judge(&mangled[..at], 7, "host.example");
            }
        }
    }
}
