//! A client that asks one question per TCP connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::{Domain, Socket, Type};

use super::Namespace;

/// The longest answer a client accepts: no server here sends more.
const LONGEST_ANSWER: usize = 64 << 20;

/// The bytes that every server sends for `/bytes/LENGTH`. A prefix of a longer
/// payload is never the shorter one.
pub fn payload(length: usize) -> Vec<u8> {
    // Xorshift (Marsaglia 2003), seeded by the length, eight bytes a step.
    let mut state = (length as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// [`Response::digest`] of the right answer to `/bytes/LENGTH`.
pub fn payload_digest(length: usize) -> u64 {
    digest(&payload(length))
}

/// FNV-1a: enough to notice damage, and nobody here forges.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP's number: 200 is good.
    pub status: u16,
    /// Who answered, by its `X-Server` header.
    pub server: Option<String>,
    /// Bytes of the body.
    pub length: usize,
    /// A hash of the body, see [`payload_digest`].
    pub digest: u64,
    /// The client's end of the connection.
    pub source: SocketAddr,
}

/// Why there is no complete answer.
#[derive(Debug)]
pub enum Failure {
    /// No connection came about.
    Connect(io::Error),
    /// The connection broke before an answer was complete.
    Exchange(io::Error),
    /// What came is no answer.
    Malformed(String),
}

impl Failure {
    /// Whether a reset was the cause, of the connection or of its attempt.
    pub fn is_reset(&self) -> bool {
        matches!(
            self.kind(),
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused)
        )
    }

    /// Whether nothing came in time.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self.kind(),
            Some(io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
        )
    }

    fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Failure::Connect(error) | Failure::Exchange(error) => Some(error.kind()),
            Failure::Malformed(_) => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(error) => write!(f, "cannot connect: {error}"),
            Failure::Exchange(error) => write!(f, "connection broke: {error}"),
            Failure::Malformed(what) => write!(f, "no valid answer: {what}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Asks from inside a namespace.
#[derive(Clone, Debug)]
pub struct Client {
    namespace: Namespace,
    limit: Duration,
}

impl Client {
    /// A client that gives up on a request after ten seconds.
    pub fn new(namespace: &Namespace) -> Self {
        Self {
            namespace: namespace.clone(),
            limit: Duration::from_secs(10),
        }
    }

    /// The same with another limit for a whole request.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Asks `target` for `path` over a new connection from `source`, or from
    /// whichever address the route prefers. The outer error is the world's,
    /// the inner one the network's.
    pub fn get(
        &self,
        source: Option<IpAddr>,
        target: SocketAddr,
        path: &str,
    ) -> Result<Result<Response, Failure>> {
        self.namespace
            .enter(|| request(source, target, path, self.limit))
    }
}

/// One request over one connection, from the namespace of this thread.
pub(crate) fn request(
    source: Option<IpAddr>,
    target: SocketAddr,
    path: &str,
    limit: Duration,
) -> Result<Response, Failure> {
    let deadline = Instant::now() + limit;
    let mut stream = connect(source, target, limit).map_err(Failure::Connect)?;
    // HTTP/1.0, so that the server ends the answer by closing and never cuts
    // it into chunks.
    let question = format!("GET {path} HTTP/1.0\r\nHost: {target}\r\n\r\n");
    let answer = exchange(&mut stream, question.as_bytes(), deadline).map_err(Failure::Exchange)?;
    let source = stream.local_addr().map_err(Failure::Exchange)?;
    parse(&answer, source).map_err(Failure::Malformed)
}

fn connect(source: Option<IpAddr>, target: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    if let Some(address) = source {
        socket.bind(&SocketAddr::new(address, 0).into())?;
    }
    socket.connect_timeout(&target.into(), limit)?;
    Ok(socket.into())
}

fn exchange(stream: &mut TcpStream, question: &[u8], deadline: Instant) -> io::Result<Vec<u8>> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        // A timeout of zero would mean none.
        if left.is_zero() {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        } else {
            Ok(Some(left))
        }
    };
    stream.set_write_timeout(left()?)?;
    stream.write_all(question)?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut buffer)? {
            0 => return Ok(answer),
            length => answer.extend(&buffer[..length]),
        }
        if answer.len() > LONGEST_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
}

fn parse(answer: &[u8], source: SocketAddr) -> Result<Response, String> {
    const END_OF_HEADERS: &[u8] = b"\r\n\r\n";
    let end = answer
        .windows(END_OF_HEADERS.len())
        .position(|window| window == END_OF_HEADERS)
        .ok_or_else(|| format!("{} bytes without an end of headers", answer.len()))?;
    let headers = String::from_utf8_lossy(&answer[..end]);
    let body = &answer[end + END_OF_HEADERS.len()..];
    let mut lines = headers.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("starts with {first:?}"))?;
    let mut server = None;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Err(format!("header line {line:?}"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("x-server") {
            server = Some(value.to_owned());
        }
        if name.eq_ignore_ascii_case("content-length") && value != body.len().to_string() {
            return Err(format!("{} of {value} bytes arrived", body.len()));
        }
    }
    Ok(Response {
        status,
        server,
        length: body.len(),
        digest: digest(body),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed_or_refused() {
        type Expected = Result<(u16, Option<&'static str>, usize), &'static str>;
        let rows: [(&str, Expected); 6] = [
            (
                "HTTP/1.1 200 OK\r\nX-Server: a\r\n\r\nbody",
                Ok((200, Some("a"), 4)),
            ),
            ("HTTP/1.0 404 Not Found\r\n\r\n", Ok((404, None, 0))),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nbody",
                Err("4 of 5 bytes arrived"),
            ),
            ("", Err("0 bytes without an end of headers")),
            ("SSH-2.0\r\n\r\n", Err("starts with \"SSH-2.0\"")),
            (
                "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
                Err("header line \"nonsense\""),
            ),
        ];
        let source = SocketAddr::from(([10, 1, 0, 1], 1));
        for (text, expected) in rows {
            let parsed = parse(text.as_bytes(), source);
            let parsed = parsed
                .as_ref()
                .map(|r| (r.status, r.server.as_deref(), r.length))
                .map_err(String::as_str);
            assert_eq!(parsed, expected, "{text:?}");
        }
    }

    #[test]
    fn payloads_have_their_length_and_are_no_prefixes() {
        for length in [0, 1, 7, 8, 9, 1460] {
            assert_eq!(payload(length).len(), length);
        }
        assert_ne!(payload(1460)[..100], payload(100));
    }
}
