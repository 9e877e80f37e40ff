//! An HTTP/1.1 request, by hyper: status, and text of the body where wanted.

use crate::config::HttpProbe;
use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Request,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest head of an answer, bytes. hyper wants 8 KiB at least.
const HEAD: usize = 16 * 1_024;
/// How much of a body is looked at, bytes.
const BODY: usize = 64 * 1_024;

pub(super) async fn probe(
    http: &HttpProbe,
    to: SocketAddr,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<()> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await?;
    let exchange = async {
        let host = http.host.clone().unwrap_or_else(|| to.to_string());
        let request = Request::get(&http.path)
            .header(HOST, host)
            .header(USER_AGENT, "steerline-probe")
            .header(CONNECTION, "close")
            .body(Empty::new())
            .context("the request cannot be written")?;
        let response = sender.send_request(request).await.map_err(cause)?;
        let status = response.status().as_u16();
        if !http.expect_status.contains(&status) {
            bail!("status {status}");
        }
        match &http.expect_body {
            None => Ok(()),
            Some(text) => find(response.into_body(), text.as_bytes()).await,
        }
    };
    // The connection is driven here and ends with the probe.
    tokio::select! {
        biased;
        result = exchange => result,
        Err(error) = connection => Err(cause(error)),
    }
}

/// hyper's errors say what failed, and their source why.
fn cause(error: hyper::Error) -> anyhow::Error {
    anyhow::Error::from(error).context("not an answer of HTTP/1")
}

async fn find(mut body: Incoming, text: &[u8]) -> Result<()> {
    let mut read = Vec::new();
    while read.len() < BODY {
        let Some(frame) = body.frame().await else {
            break;
        };
        if let Ok(data) = frame.map_err(cause)?.into_data() {
            let room = BODY - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
        }
        if contains(&read, text) {
            return Ok(());
        }
    }
    bail!("the body lacks the expected text")
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    text.is_empty() || body.windows(text.len()).any(|window| window == text)
}
