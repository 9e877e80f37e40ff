//! A server that sends back what it gets, and clients that keep a connection.
//!
//! nginx is asked and answers; what clients upload, and connections that stay,
//! need a server that takes bytes as they come.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::socket;
use steerline_tests::world::Namespace;

/// The port of the echo service (RFC 862).
pub(crate) const PORT: u16 = 7;

const LIMIT: Duration = Duration::from_secs(20);

/// A running echo server. Dropping it closes the port; connections end when
/// their clients end them.
#[derive(Debug)]
pub(crate) struct Mirror {
    listener: Arc<TcpListener>,
    accepted: Arc<AtomicU64>,
    acceptor: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Listens on [`PORT`] of every address of both families in `namespace`.
    pub(crate) fn start(namespace: &Namespace) -> Result<Self> {
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT);
        let listener = namespace
            .enter(|| TcpListener::bind(address))?
            .with_context(|| format!("cannot listen on {address}"))?;
        let listener = Arc::new(listener);
        let accepted = Arc::new(AtomicU64::new(0));
        let (shared, count) = (Arc::clone(&listener), Arc::clone(&accepted));
        let acceptor = thread::spawn(move || {
            // Fails once the socket is shut down.
            while let Ok((stream, _)) = shared.accept() {
                count.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || reflect(stream));
            }
        });
        Ok(Self {
            listener,
            accepted,
            acceptor: Some(acceptor),
        })
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // Wakes the acceptor; it only fails for a socket that does not listen.
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Sends everything back until the client has sent all. A client that breaks
/// off is the scenario's matter, not this server's.
fn reflect(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// A connection to a [`Mirror`] that the client keeps.
#[derive(Debug)]
pub(crate) struct Kept {
    stream: TcpStream,
    sent: u8,
}

impl Kept {
    /// Connects from `source` inside `namespace`.
    pub(crate) fn open(namespace: &Namespace, source: IpAddr, target: SocketAddr) -> Result<Self> {
        let stream = namespace.enter(|| connect(source, target))??;
        Ok(Self { stream, sent: 0 })
    }

    /// Sends a line and expects it back.
    pub(crate) fn talk(&mut self) -> Result<()> {
        self.sent = self.sent.wrapping_add(1);
        let line = [self.sent; 100];
        self.stream
            .write_all(&line)
            .context("the connection broke")?;
        let mut answer = [0; 100];
        self.stream
            .read_exact(&mut answer)
            .context("the connection broke")?;
        ensure!(answer == line, "{answer:?} came back for {line:?}");
        Ok(())
    }

    /// Ends it in good order: both sides have sent their FIN afterwards.
    pub(crate) fn close(mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        let rest = self.stream.read(&mut [0; 1])?;
        ensure!(rest == 0, "something came back for nothing");
        Ok(())
    }
}

/// Sends `payload` to a [`Mirror`] from `source` while receiving it, and returns
/// what came back.
pub(crate) fn exchange(
    namespace: &Namespace,
    source: IpAddr,
    target: SocketAddr,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut stream = namespace.enter(|| connect(source, target))??;
    let mut writer = stream.try_clone()?;
    thread::scope(|scope| {
        let sent = scope.spawn(move || -> io::Result<()> {
            writer.write_all(payload)?;
            writer.shutdown(Shutdown::Write)
        });
        let mut answer = Vec::with_capacity(payload.len());
        stream.read_to_end(&mut answer).context("receiving")?;
        match sent.join() {
            Ok(result) => result.context("sending")?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok(answer)
    })
}

/// Connects from an address that no interface has, from the namespace of this
/// thread.
fn connect(source: IpAddr, target: SocketAddr) -> Result<TcpStream> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(target),
        socket2::Type::STREAM,
        None,
    )?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&target.into(), LIMIT)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}
