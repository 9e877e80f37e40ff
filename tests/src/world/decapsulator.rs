//! The far end of tunnels, for servers whose kernel has no tunnel devices.
//!
//! ```text
//! server   eth0 ─▶ raw socket of the tunnel's protocol ─▶ out ══ veth ══ in ─▶ lo: VIP
//! ```
//!
//! The kernel judges the outer IP header, as it would for a device of its own:
//! checksum, lengths, and that the packet is for this host. What is behind it is
//! judged here by etherparse. The inner packet then comes in by an interface like
//! any other, and the kernel judges that too. Whatever either refuses is not
//! delivered, and is counted.

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etherparse::{Ipv4Slice, Ipv6Slice, UdpSlice};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket as new_socket,
};
use socket2::{Domain, Socket, Type};

use super::Namespace;

/// Protocol numbers (IANA): IPv4 and IPv6 in IP, and UDP.
const IPV4: u8 = 4;
const IPV6: u8 = 41;
const UDP: u8 = 17;
/// Bytes of GUE's header: variant 0, no optional fields.
const GUE_HEADER: usize = 4;
/// How long a thread may take to see that it is to end.
const LIMIT: Duration = Duration::from_millis(100);
/// Bytes that may wait for a thread: a few windows of TCP.
const BUFFER: usize = 8 << 20;

const OUT_MAC: [u8; 6] = [2, 0, 0, 0, 5, 1];
const IN_MAC: [u8; 6] = [2, 0, 0, 0, 5, 2];
/// What takes packets out of packets on one server. Dropping it ends that.
#[derive(Debug)]
pub struct Decapsulator {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Somebody listens, so that the kernel does not answer that nobody does.
    _listener: UdpSocket,
}

#[derive(Debug)]
struct Shared {
    out: OwnedFd,
    link: LinkAddr,
    port: u16,
    over: AtomicBool,
    delivered: AtomicUsize,
    refused: AtomicUsize,
}

impl Decapsulator {
    /// The interface by which inner packets come in.
    pub const IN_DEVICE: &str = "in";

    /// Takes IPv4 and IPv6 out of IPv4 and IPv6, and out of GUE at UDP `port`.
    pub fn start(server: &Namespace, port: u16) -> Result<Self> {
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        server.ip(&format!(
            "link add out address {} type veth peer name {} address {}",
            mac(OUT_MAC),
            Self::IN_DEVICE,
            mac(IN_MAC)
        ))?;
        for device in ["out", Self::IN_DEVICE] {
            // Outer packets may be of 9,000 bytes.
            server.ip(&format!("link set {device} mtu 9000 up"))?;
        }
        // Clients are not reached by this interface.
        for device in ["all", Self::IN_DEVICE] {
            server.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0")?;
        }
        server.enter(|| Self::start_here(port))?
    }

    /// The same in the namespace of this thread.
    fn start_here(port: u16) -> Result<Self> {
        let link = getifaddrs()?
            .filter(|interface| interface.interface_name == "out")
            .find_map(|interface| interface.address?.as_link_addr().copied())
            .context("there is no `out`")?;
        let out = new_socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let shared = Arc::new(Shared {
            out,
            link,
            port,
            over: AtomicBool::new(false),
            delivered: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let listener = UdpSocket::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))?;
        let mut threads = Vec::new();
        for domain in [Domain::IPV4, Domain::IPV6] {
            for protocol in [IPV4, IPV6, UDP] {
                let socket = Socket::new(domain, Type::RAW, Some(i32::from(protocol).into()))?;
                socket.set_read_timeout(Some(LIMIT))?;
                socket.set_recv_buffer_size(BUFFER)?;
                let shared = Arc::clone(&shared);
                let is_ipv4 = domain == Domain::IPV4;
                threads.push(thread::spawn(move || {
                    shared.serve(&socket, is_ipv4, protocol)
                }));
            }
        }
        Ok(Self {
            shared,
            threads,
            _listener: listener,
        })
    }

    /// Packets that were taken out and came in.
    pub fn delivered(&self) -> usize {
        self.shared.delivered.load(Ordering::Relaxed)
    }

    /// Packets of which something was wrong.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Decapsulator {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, mut socket: &Socket, is_ipv4: bool, protocol: u8) {
        let mut buffer = vec![0; 1 << 16];
        while !self.over.load(Ordering::Relaxed) {
            let length = match socket.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            let counter = match self.take_out(&buffer[..length], is_ipv4, protocol) {
                Ok(None) => continue,
                Ok(Some(())) => &self.delivered,
                Err(error) => {
                    eprintln!("a packet was refused: {error:#}");
                    &self.refused
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// None: no packet of a tunnel. Sockets of IPv4 give the IP header, those of
    /// IPv6 what is behind it.
    fn take_out(&self, packet: &[u8], is_ipv4: bool, protocol: u8) -> Result<Option<()>> {
        let mut payload = packet;
        if is_ipv4 {
            payload = Ipv4Slice::from_slice(packet)?.payload().payload;
        }
        let (inner, kind) = if protocol == UDP {
            let udp = UdpSlice::from_slice(payload)?;
            if udp.destination_port() != self.port {
                return Ok(None);
            }
            ensure!(
                usize::from(udp.length()) == payload.len(),
                "a UDP length of {} in {} bytes",
                udp.length(),
                payload.len()
            );
            ensure!(udp.checksum() == 0, "a UDP checksum");
            let (gue, inner) = udp
                .payload()
                .split_at_checked(GUE_HEADER)
                .context("no room for GUE's header")?;
            let [0, kind, 0, 0] = *gue else {
                anyhow::bail!("not variant 0 of GUE without fields: {gue:?}");
            };
            (inner, kind)
        } else {
            (payload, protocol)
        };
        // Nothing may be behind the inner packet.
        let (length, ethertype) = match kind {
            IPV4 => {
                let ip = Ipv4Slice::from_slice(inner)?;
                (usize::from(ip.header().total_len()), [0x08, 0x00])
            }
            IPV6 => {
                let ip = Ipv6Slice::from_slice(inner)?;
                (40 + usize::from(ip.header().payload_length()), [0x86, 0xdd])
            }
            other => anyhow::bail!("protocol {other} inside"),
        };
        ensure!(
            length == inner.len(),
            "a packet of {length} in {} bytes",
            inner.len()
        );
        let frame = [&IN_MAC[..], &OUT_MAC, &ethertype, inner].concat();
        sendto(self.out.as_raw_fd(), &frame, &self.link, MsgFlags::empty())?;
        Ok(Some(()))
    }
}
