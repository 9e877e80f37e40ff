//! Raw Ethernet frames on one interface (packet(7)).

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _,
            bind, recv, send, setsockopt, socket, sockopt,
        },
        time::TimeVal,
    },
};

/// A socket bound to one interface. Frames include their Ethernet header.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket that sends on `ifindex` and receives nothing.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`, or when the interface is gone.
    pub fn sender(ifindex: u32) -> anyhow::Result<Self> {
        Self::open(ifindex, 0)
    }

    /// Opens a socket that also receives frames of `ethertype`, and waits at
    /// most `patience` for one.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`, or when the interface is gone.
    pub fn receiver(ifindex: u32, ethertype: u16, patience: Duration) -> anyhow::Result<Self> {
        let this = Self::open(ifindex, ethertype)?;
        let timeout = TimeVal::new(
            patience.as_secs().try_into()?,
            patience.subsec_micros().into(),
        );
        setsockopt(&this.socket, sockopt::ReceiveTimeout, &timeout)
            .context("cannot limit the waiting time of a packet socket")?;
        Ok(this)
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// When the interface is down or gone, or its queue is full.
    pub fn send(&self, frame: &[u8]) -> anyhow::Result<()> {
        let sent = send(self.socket.as_raw_fd(), frame, MsgFlags::empty())
            .context("cannot send a frame; is the interface up?")?;
        ensure!(
            sent == frame.len(),
            "the kernel took {sent} of a frame's {} bytes",
            frame.len()
        );
        Ok(())
    }

    /// Receives one frame into `buffer` and returns its length; none when none
    /// came in time.
    ///
    /// # Errors
    /// When the interface went down.
    pub fn receive(&self, buffer: &mut [u8]) -> anyhow::Result<Option<usize>> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error).context("cannot receive from a packet socket"),
            }
        }
    }

    fn open(ifindex: u32, ethertype: u16) -> anyhow::Result<Self> {
        // Protocol 0 here: between creation and bind(2) the socket would
        // receive from all interfaces otherwise.
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            None::<SockProtocol>,
        )
        .context("cannot open a packet socket; CAP_NET_RAW is needed")?;
        bind(socket.as_raw_fd(), &address(ifindex, ethertype)?)
            .with_context(|| format!("cannot bind a packet socket to interface {ifindex}"))?;
        Ok(Self { socket })
    }
}

/// A `sockaddr_ll`, which nix can hold but not build.
fn address(ifindex: u32, ethertype: u16) -> anyhow::Result<LinkAddr> {
    let raw = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: ifindex.try_into()?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&raw) as libc::socklen_t;
    // SAFETY: the pointer is to a whole, initialised `sockaddr_ll` that outlives
    // the call, `length` is its size, and its family says what it is.
    let address = unsafe { LinkAddr::from_raw((&raw const raw).cast(), Some(length)) };
    address.context("a link address was refused")
}
