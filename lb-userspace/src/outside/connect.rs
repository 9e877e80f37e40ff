//! Connections to peers, from an address of one's own where that is wanted.

use anyhow::{Context as _, Result};
use socket2::SockRef;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

/// A TCP connection. The caller limits the time.
pub(super) async fn tcp(to: SocketAddr, source: Option<IpAddr>) -> Result<TcpStream> {
    let socket = match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .context("no socket")?;
    if let Some(source) = source {
        socket
            .bind(SocketAddr::new(source, 0))
            .with_context(|| format!("cannot send from {source}"))?;
    }
    let stream = socket.connect(to).await.map_err(plain)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A UDP socket that hears one peer only.
pub(super) async fn udp(to: SocketAddr, source: Option<IpAddr>) -> Result<UdpSocket> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = SocketAddr::new(source.unwrap_or(any), 0);
    let socket = UdpSocket::bind(from)
        .await
        .with_context(|| format!("cannot send from {}", from.ip()))?;
    socket.connect(to).await.map_err(plain)?;
    Ok(socket)
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
