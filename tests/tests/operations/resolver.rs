//! A DNS client of a few bytes (RFC 1035, section 4), and a real server.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use steerline::Family;
use steerline_tests::world::{Process, Scratch, World, wait_until};

/// The port of DNS.
pub(crate) const PORT: u16 = 53;

/// The name that every server knows, each with its own address.
const NAME: &str = "who.example";

const LIMIT: Duration = Duration::from_secs(5);
const TYPE_A: [u8; 2] = [0, 1];
const CLASS_IN: [u8; 2] = [0, 1];
const HEADER: usize = 12;

fn question() -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in NAME.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(TYPE_A);
    bytes.extend(CLASS_IN);
    bytes
}

fn query(id: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([0x01, 0x00]); // a query, recursion desired
    bytes.extend([0, 1, 0, 0, 0, 0, 0, 0]); // one question
    bytes.extend(question());
    bytes
}

/// The only address of an answer to `query(id)`.
fn parse(bytes: &[u8], id: u16) -> Result<Ipv4Addr> {
    ensure!(bytes.len() >= HEADER, "{} bytes", bytes.len());
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    ensure!(word(0) == id, "the answer to another question");
    // QR set, no opcode, not cut, no error.
    ensure!(word(2) & 0xfa0f == 0x8000, "flags {:#06x}", word(2));
    ensure!(
        (word(4), word(6)) == (1, 1),
        "not one question and one answer"
    );
    let question = question();
    let answer = bytes[HEADER..]
        .strip_prefix(question.as_slice())
        .context("another question")?;
    // A pointer to the name in the question, type, class, time to live, length.
    let [0xc0, 0x0c, 0, 1, 0, 1, _, _, _, _, 0, 4, a, b, c, d, ..] = *answer else {
        bail!("no address in {answer:?}");
    };
    Ok(Ipv4Addr::new(a, b, c, d))
}

/// A client's socket, from the namespace of the thread that makes it.
#[derive(Debug)]
pub(crate) struct Resolver {
    socket: UdpSocket,
    id: u16,
}

impl Resolver {
    /// From `source`, to `server` only.
    pub(crate) fn new(source: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(source)?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Self { socket, id: 0 })
    }

    /// Asks once who answers. A lost datagram is an error: nothing is repeated.
    pub(crate) fn ask(&mut self) -> Result<Ipv4Addr> {
        self.id = self.id.wrapping_add(1);
        self.socket.send(&query(self.id))?;
        let mut answer = [0; 512];
        let length = self.socket.recv(&mut answer).context("no answer")?;
        parse(&answer[..length], self.id)
    }
}

/// A running dnsmasq.
#[derive(Debug)]
pub(crate) struct NameServer {
    _process: Process,
    _scratch: Scratch,
}

impl NameServer {
    /// Starts it on server `number`, listening in that family, and returns once it
    /// answers. Whoever asks is told the server's IPv4 address.
    pub(crate) fn start(world: &World, number: u8, family: Family) -> Result<Self> {
        let scratch = Scratch::new()?;
        let address = World::server_ip(number, family);
        let name = World::server_address(number);
        let configuration = format!(
            "port={PORT}\nlisten-address={address}\nbind-interfaces\nno-resolv\nno-hosts\n\
             cache-size=0\nuser=root\npid-file={}\nlog-facility={}\naddress=/{NAME}/{name}\n",
            scratch.file("dns.pid").display(),
            scratch.file("dns.log").display(),
        );
        fs::write(scratch.file("dns.conf"), configuration)?;
        let errors = fs::File::create(scratch.file("stderr.log"))?;
        let namespace = world.server(number)?;
        let mut command = namespace.command(dnsmasq());
        command
            .arg("--keep-in-foreground")
            // The value of a long option must be in the same word.
            .arg(format!(
                "--conf-file={}",
                scratch.file("dns.conf").display()
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let mut process = Process::start(&mut command)?;
        let here = SocketAddr::new(address, PORT);
        wait_until("dnsmasq answers", LIMIT, || {
            if let Some(status) = process.ended()? {
                let said = fs::read_to_string(scratch.file("stderr.log"))?;
                bail!("dnsmasq ended ({status}): {said}");
            }
            let answered = namespace.enter(|| {
                Resolver::new(SocketAddr::new(address, 0), here)?
                    .ask()
                    .context("not yet")
            })?;
            Ok(answered.ok())
        })?;
        Ok(Self {
            _process: process,
            _scratch: scratch,
        })
    }
}

/// `dnsmasq` lives where only root's PATH looks.
fn dnsmasq() -> &'static Path {
    let path = Path::new("/usr/sbin/dnsmasq");
    if path.exists() {
        path
    } else {
        Path::new("dnsmasq")
    }
}

#[test]
fn answers_are_parsed_or_refused() {
    let good = |change: fn(&mut Vec<u8>)| {
        let mut bytes = query(7);
        bytes[2..8].copy_from_slice(&[0x85, 0x80, 0, 1, 0, 1]);
        bytes.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 10, 2, 0, 11]);
        change(&mut bytes);
        parse(&bytes, 7).ok()
    };
    assert_eq!(good(|_| ()), Some(Ipv4Addr::new(10, 2, 0, 11)));
    assert_eq!(good(|bytes| bytes[1] = 8), None, "another identifier");
    assert_eq!(good(|bytes| bytes[2] = 0x05), None, "a query");
    assert_eq!(good(|bytes| bytes[3] = 0x83), None, "no such name");
    assert_eq!(good(|bytes| bytes[13] = b'x'), None, "another question");
    assert_eq!(good(|bytes| bytes.truncate(11)), None);
    assert_eq!(good(|bytes| bytes.truncate(40)), None);
}
