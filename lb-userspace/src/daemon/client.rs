//! The client's side of the control socket, for the command line.

use super::protocol::{Line, Refusal, Request};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// A daemon that says nothing for this long does not answer. A reload waits up
/// to two seconds for the way to new backends.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a question to a daemon.
#[derive(Debug)]
pub enum Reply {
    /// Its answer.
    Answer(Value),
    /// It did nothing, because the request or the configuration is wrong.
    Refused(Refusal),
    /// No daemon listens on the socket.
    NotRunning,
}

/// A line of a followed journal.
#[derive(Debug)]
pub enum Followed {
    /// What there was already: `dropped` and `events`.
    Past(Value),
    /// Something happened.
    Event(Value),
    /// So many events were not sent, because they were not read in time.
    Lost(u64),
}

/// Asks the daemon at `socket`.
///
/// # Errors
/// A socket that may not be opened; a daemon that does not answer or fails.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply> {
    let Some(mut input) = send(socket, request)? else {
        return Ok(Reply::NotRunning);
    };
    match read(socket, &mut input)? {
        Some(Line::Ok(value)) => Ok(Reply::Answer(value)),
        Some(Line::Refused(refusal)) => Ok(Reply::Refused(refusal)),
        Some(Line::Error(error)) => bail!("{}: {error}", socket.display()),
        Some(Line::Event(_) | Line::Lost(_)) => {
            bail!("{}: an event where an answer was due", socket.display())
        }
        None => bail!("{}: the daemon ended without an answer", socket.display()),
    }
}

/// Hands the journal and then everything that happens to `each`, until that
/// answers `false` or the daemon ends. Whether a daemon was there.
///
/// # Errors
/// As [`ask`], and those of `each`.
pub fn follow(socket: &Path, mut each: impl FnMut(Followed) -> Result<bool>) -> Result<bool> {
    let Some(mut input) = send(socket, &Request::Events { follow: true })? else {
        return Ok(false);
    };
    // Nothing may happen for days.
    input.get_ref().set_read_timeout(None)?;
    while let Some(line) = read(socket, &mut input)? {
        let followed = match line {
            Line::Ok(value) => Followed::Past(value),
            Line::Event(value) => Followed::Event(value),
            Line::Lost(events) => Followed::Lost(events),
            Line::Refused(refusal) => bail!("{}: {}", socket.display(), refusal.message),
            Line::Error(error) => bail!("{}: {error}", socket.display()),
        };
        if !each(followed)? {
            break;
        }
    }
    Ok(true)
}

/// Sends a request; `None`: nobody listens.
fn send(socket: &Path, request: &Request) -> Result<Option<BufReader<UnixStream>>> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("{}: cannot connect", socket.display()));
        }
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(request)?;
    request.push(b'\n');
    stream.write_all(&request)?;
    Ok(Some(BufReader::new(stream)))
}

/// The next line; `None`: the daemon closed the connection.
fn read(socket: &Path, input: &mut BufReader<UnixStream>) -> Result<Option<Line>> {
    let mut line = String::new();
    let read = input
        .read_line(&mut line)
        .with_context(|| format!("{}: the daemon does not answer", socket.display()))?;
    if read == 0 {
        return Ok(None);
    }
    let line = serde_json::from_str(&line)
        .with_context(|| format!("{}: not an answer of steerline's", socket.display()))?;
    Ok(Some(line))
}
