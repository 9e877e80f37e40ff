//! The control socket: who may claim it, and its clients. See `protocol` for
//! what is said.

use super::protocol::{Asked, Line, Request, Response};
use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

/// Longest request line, bytes. A client that sends more is cut off.
const LONGEST_REQUEST: u64 = 64 * 1024;
/// A client that says nothing for this long is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// Characters of a complaint that are logged.
const LONGEST_COMPLAINT: usize = 200;
/// Clients served at a time.
const MOST_CLIENTS: usize = 64;

/// The claimed socket. The lock beside it tells a running daemon from a socket
/// that one left behind when it was killed.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    _lock: Flock<fs::File>,
}

impl ControlSocket {
    /// Claims the socket.
    ///
    /// # Errors
    /// Another daemon has it; a path that cannot be used.
    pub(crate) fn claim(path: &Path) -> Result<Self> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)
            .with_context(|| format!("{}: cannot make the directory", directory.display()))?;
        let lock_path = path.with_extension("lock");
        let lock = fs::File::create(&lock_path)
            .with_context(|| format!("{}: cannot open", lock_path.display()))?;
        let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
            bail!(
                "{}: another steerline daemon is running on this socket; stop it, or set \
                 control.socket to another path",
                path.display()
            )
        };
        if let Ok(kind) = fs::symlink_metadata(path) {
            use std::os::unix::fs::FileTypeExt as _;
            if !kind.file_type().is_socket() {
                bail!(
                    "{}: exists and is not a socket; nothing was changed",
                    path.display()
                );
            }
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!(
                    "{}: another program is listening on this socket; set control.socket to \
                     another path",
                    path.display()
                );
            }
            fs::remove_file(path)
                .with_context(|| format!("{}: cannot remove a dead socket", path.display()))?;
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("{}: cannot listen", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))
            .with_context(|| format!("{}: cannot set mode 0660", path.display()))?;
        Ok(Self {
            listener,
            path: path.into(),
            _lock: lock,
        })
    }

    /// Serves clients until the loop that receives the requests is gone.
    pub(crate) async fn serve(&self, asked: mpsc::Sender<Asked>) {
        let clients = std::sync::Arc::new(tokio::sync::Semaphore::new(MOST_CLIENTS));
        loop {
            let Ok(permit) = clients.clone().acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let asked = asked.clone();
                    tokio::spawn(async move {
                        client(stream, asked).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!("control socket: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Why a connection is closed from this side.
enum Fault {
    /// The client's: said to it, and once in the log.
    Client(String),
    /// It went away, or was silent for too long.
    Gone(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Gone(error.into())
    }
}

/// Serves one client. Whatever it sends costs at most one line in the log.
async fn client(stream: UnixStream, asked: mpsc::Sender<Asked>) {
    let (input, mut output) = stream.into_split();
    match converse(input, &mut output, asked).await {
        Ok(()) => {}
        Err(Fault::Gone(error)) => tracing::debug!("control client: {error:#}"),
        Err(Fault::Client(message)) => {
            // Escaped and short: it may quote what the client sent.
            let quoted: String = message.escape_debug().take(LONGEST_COMPLAINT).collect();
            tracing::warn!("a client of the control socket was cut off: {quoted}");
            let _ = write(&mut output, &Line::Error(message)).await;
        }
    }
}

async fn converse(
    input: OwnedReadHalf,
    output: &mut OwnedWriteHalf,
    asked: mpsc::Sender<Asked>,
) -> Result<(), Fault> {
    let mut input = BufReader::new(input.take(LONGEST_REQUEST));
    loop {
        let mut line = Vec::new();
        input.get_mut().set_limit(LONGEST_REQUEST);
        tokio::time::timeout(PATIENCE, input.read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            return Err(Fault::Client(match input.get_ref().limit() {
                0 => format!("a request has at most {LONGEST_REQUEST} bytes"),
                _ => "the request ended in the middle of a line".into(),
            }));
        }
        let request = serde_json::from_slice::<Request>(&line)
            .map_err(|error| Fault::Client(format!("not a request: {error}")))?;
        let (back, answer) = oneshot::channel();
        asked.send((request, back)).await?;
        match answer.await? {
            Response::Answer(line) => write(output, &line).await?,
            Response::Follow(first, mut rest) => {
                write(output, &first).await?;
                return follow(input, output, &mut rest).await;
            }
        }
    }
}

/// Sends what happens until the client goes. One that does not read is waited
/// for: its queue is bounded, and what it misses is counted.
async fn follow(
    mut input: impl AsyncRead + Unpin,
    output: &mut OwnedWriteHalf,
    rest: &mut mpsc::Receiver<Line>,
) -> Result<(), Fault> {
    let mut ignored = [0; 64];
    loop {
        tokio::select! {
            line = rest.recv() => {
                let Some(line) = line else { return Ok(()) };
                let mut text = serde_json::to_vec(&line)?;
                text.push(b'\n');
                output.write_all(&text).await?;
            }
            read = input.read(&mut ignored) => match read? {
                0 => return Ok(()),
                _ => return Err(Fault::Client("more requests after `events`".into())),
            },
        }
    }
}

async fn write(output: &mut OwnedWriteHalf, line: &Line) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    tokio::time::timeout(PATIENCE, output.write_all(&text)).await??;
    Ok(())
}

#[cfg(test)]
mod tests;
