//! Servers and clients that end a connection in every way there is.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{self, sockopt};
use socket2::{Domain, SockRef, Socket, Type};
use steerline_tests::world::{Namespace, payload};

const LIMIT: Duration = Duration::from_secs(20);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// FIN of the client's first.
    ClientFin,
    /// FIN of the server's first.
    ServerFin,
    /// The client resets.
    ClientReset,
    /// The server resets.
    ServerReset,
}

impl Ending {
    pub(crate) const ALL: [Self; 4] = [
        Self::ClientFin,
        Self::ServerFin,
        Self::ClientReset,
        Self::ServerReset,
    ];

    /// What the client says to get it.
    fn letter(self) -> u8 {
        self as u8
    }
}

/// What a server does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Ends it as it is told by the first byte; until then, and if the client
    /// ends it before, it waits.
    Obedient,
    /// Keeps it, and says nothing ever.
    Silent,
    /// Reads it to its end. If that was the payload of its length, it answers by
    /// the length in eight bytes, else not at all.
    Receiving,
}

/// A running server. Dropping it closes the port and what it kept.
#[derive(Debug)]
pub(crate) struct Host {
    listener: Arc<TcpListener>,
    kept: Arc<Mutex<Vec<TcpStream>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Host {
    /// Listens on `port` of every address in `namespace`.
    pub(crate) fn start(namespace: &Namespace, port: u16, manner: Manner) -> Result<Self> {
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let listener = namespace
            .enter(|| listen(address))?
            .with_context(|| format!("cannot listen on {address}"))?;
        let listener = Arc::new(listener);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (shared, keep) = (Arc::clone(&listener), Arc::clone(&kept));
        let acceptor = thread::spawn(move || {
            // Fails once the socket is shut down.
            while let Ok((stream, _)) = shared.accept() {
                match manner {
                    // A client that breaks off is the scenario's matter.
                    Manner::Obedient => drop(thread::spawn(move || obey(stream))),
                    Manner::Receiving => drop(thread::spawn(move || receive(stream))),
                    Manner::Silent => keep
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(stream),
                }
            }
        });
        Ok(Self {
            listener,
            kept,
            acceptor: Some(acceptor),
        })
    }

    /// Connections that it keeps.
    pub(crate) fn kept(&self) -> usize {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// The next bytes of the one connection that it keeps.
    pub(crate) fn receive(&self, length: usize) -> Result<Vec<u8>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let [stream] = kept.as_mut_slice() else {
            anyhow::bail!("{} connections are kept, not one", kept.len());
        };
        stream.set_read_timeout(Some(LIMIT))?;
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).context("too little came")?;
        Ok(bytes)
    }

    /// Sends bytes on the one connection that it keeps.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let [stream] = kept.as_mut_slice() else {
            anyhow::bail!("{} connections are kept, not one", kept.len());
        };
        stream.write_all(bytes).context("not all could be sent")
    }

    /// Says something on each connection that it keeps, and waits for what comes
    /// of it: the kinds of the errors.
    pub(crate) fn speak(&self) -> Result<Vec<ErrorKind>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds = Vec::new();
        for stream in kept.iter_mut() {
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(&[0])?;
            kinds.extend(stream.read(&mut [0]).map_err(|error| error.kind()).err());
        }
        Ok(kinds)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Wakes the acceptor; it only fails for a socket that does not listen.
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    // IPv4 clients as well.
    socket.set_only_v6(false)?;
    socket.bind(&address.into())?;
    socket.listen(4_096)?;
    Ok(socket.into())
}

fn obey(mut stream: TcpStream) -> io::Result<()> {
    let mut letter = [0];
    if stream.read(&mut letter)? == 0 {
        return Ok(());
    }
    stream.write_all(&letter)?;
    let is = |ending: Ending| letter[0] == ending.letter();
    if is(Ending::ServerReset) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    } else if is(Ending::ServerFin) {
        stream.shutdown(Shutdown::Write)?;
        await_end(&mut stream)?;
    } else {
        await_end(&mut stream)?;
    }
    Ok(())
}

fn receive(mut stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    if received == payload(received.len()) {
        stream.write_all(&(received.len() as u64).to_be_bytes())?;
    }
    Ok(())
}

/// Until the client's FIN or reset.
fn await_end(stream: &mut TcpStream) -> io::Result<()> {
    while stream.read(&mut [0])? > 0 {}
    Ok(())
}

/// Opens a connection from `source`, from the namespace of this thread.
pub(crate) fn open(source: IpAddr, target: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket
        .connect_timeout(&target.into(), LIMIT)
        .with_context(|| format!("cannot connect to {target}"))?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends that many bytes to a host that is [`Manner::Receiving`].
pub(crate) fn send(source: IpAddr, target: SocketAddr, length: usize) -> Result<()> {
    let mut stream = open(source, target)?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(&payload(length)).context("not sent")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).context("no answer")?;
    let received = u64::from_be_bytes(answer);
    ensure!(received == length as u64, "{received} of {length} bytes");
    Ok(())
}

/// Opens a connection and ends it that way.
pub(crate) fn end(source: IpAddr, target: SocketAddr, ending: Ending) -> Result<()> {
    let mut stream = open(source, target)?;
    let mut answer = [0];
    stream.write_all(&[ending.letter()])?;
    stream.read_exact(&mut answer).context("no answer")?;
    ensure!(answer[0] == ending.letter(), "{answer:?} for {ending:?}");
    match ending {
        Ending::ClientFin => {
            stream.shutdown(Shutdown::Write)?;
            ensure!(stream.read(&mut answer)? == 0, "no FIN came");
        }
        Ending::ServerFin => ensure!(stream.read(&mut answer)? == 0, "no FIN came"),
        Ending::ClientReset => SockRef::from(&stream).set_linger(Some(Duration::ZERO))?,
        Ending::ServerReset => {
            let kind = stream.read(&mut answer).map_err(|error| error.kind());
            ensure!(
                kind == Err(ErrorKind::ConnectionReset),
                "{kind:?}, no reset"
            );
        }
    }
    Ok(())
}

/// Opens a connection and forgets it as a host does that loses power: neither
/// FIN nor reset is sent.
pub(crate) fn vanish(source: IpAddr, target: SocketAddr) -> Result<()> {
    let stream = open(source, target)?;
    // A socket under repair is closed without a word.
    socket::setsockopt(&stream, sockopt::TcpRepair, &1)?;
    Ok(())
}
