//! Connections to peers, from an address of one's own where that is wanted.

use anyhow::{Context as _, Result};
use socket2::SockRef;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// A TCP connection. The caller limits the time.
pub(super) async fn tcp(to: SocketAddrV4, source: Option<Ipv4Addr>) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4().context("no socket")?;
    if let Some(source) = source {
        bind(source, |address| socket.bind(address))?;
    }
    let stream = socket.connect(to.into()).await.map_err(plain)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A UDP socket that hears one peer only.
pub(super) async fn udp(to: SocketAddrV4, source: Option<Ipv4Addr>) -> Result<UdpSocket> {
    let from = SocketAddrV4::new(source.unwrap_or(Ipv4Addr::UNSPECIFIED), 0);
    let socket = UdpSocket::bind(from)
        .await
        .with_context(|| format!("cannot send from {}", from.ip()))?;
    socket.connect(to).await.map_err(plain)?;
    Ok(socket)
}

fn bind(source: Ipv4Addr, bind: impl FnOnce(SocketAddr) -> std::io::Result<()>) -> Result<()> {
    bind(SocketAddrV4::new(source, 0).into()).with_context(|| format!("cannot send from {source}"))
}

/// Closes by reset: thousands of probes a minute would each leave a port in
/// TIME_WAIT otherwise, which is what HAProxy's checks do too.
pub(super) fn reset(stream: &TcpStream) {
    // Without it the connection is closed in order, a minute later.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// An error of the system without its number, which differs for one reason.
pub(super) fn plain(error: std::io::Error) -> anyhow::Error {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => anyhow::anyhow!("connection refused"),
        ErrorKind::ConnectionReset => anyhow::anyhow!("connection reset"),
        ErrorKind::HostUnreachable => anyhow::anyhow!("host unreachable"),
        ErrorKind::NetworkUnreachable => anyhow::anyhow!("network unreachable"),
        ErrorKind::TimedOut => anyhow::anyhow!("no answer"),
        _ => error.into(),
    }
}
