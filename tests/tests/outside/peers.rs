//! Peers in the servers' namespaces that say what a scenario wants.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use steerline_tests::world::{Namespace, wait_until};

use crate::stage::PATIENCE;

/// What a peer does with a connection; it gets the present text.
type Serve = fn(TcpStream, &[u8], &Shared);

struct Shared {
    text: Mutex<Vec<u8>>,
    served: AtomicU64,
    stop: AtomicBool,
}

/// A server of one thread that ends with its owner.
pub(crate) struct Peer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// An HAProxy agent on this port that answers with `line`.
    pub(crate) fn agent(namespace: &Namespace, port: u16, line: &str) -> Result<Self> {
        Self::start(namespace, port, line.as_bytes(), |mut stream, text, _| {
            // Who does not read the answer is the test's business.
            let _ = stream.write_all(text);
        })
    }

    /// A DFP agent: whatever it is given goes to the connected manager, at once
    /// and at every change.
    pub(crate) fn dfp(namespace: &Namespace, port: u16, bytes: &[u8]) -> Result<Self> {
        Self::start(namespace, port, bytes, |mut stream, first, shared| {
            let mut said = first.to_vec();
            let timeout = Some(Duration::from_millis(20));
            let _ = stream.set_read_timeout(timeout);
            let mut ok = stream.write_all(&said).is_ok();
            while ok && !shared.stop.load(Ordering::Relaxed) {
                let mut bytes = [0; 64];
                // Its parameters are read and kept to oneself.
                match stream.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) => {
                        use std::io::ErrorKind::{TimedOut, WouldBlock};
                        ok = matches!(error.kind(), TimedOut | WouldBlock);
                    }
                }
                let now = shared.text();
                if now != said {
                    ok &= stream.write_all(&now).is_ok();
                    said = now;
                }
            }
        })
    }

    fn start(namespace: &Namespace, port: u16, text: &[u8], serve: Serve) -> Result<Self> {
        let listener = namespace
            .enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?
            .context("no port for a peer")?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            text: Mutex::new(text.to_vec()),
            served: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !theirs.stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let _ = stream.set_nonblocking(false);
                        serve(stream, &theirs.text(), &theirs);
                        theirs.served.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Says something else from now on.
    pub(crate) fn say(&self, text: impl AsRef<[u8]>) {
        *self
            .shared
            .text
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = text.as_ref().to_vec();
    }

    /// Waits until it has served so many connections more.
    pub(crate) fn wait_for(&self, more: u64) -> Result<()> {
        let goal = self.shared.served.load(Ordering::Relaxed) + more;
        wait_until("the peer was asked again", PATIENCE, || {
            Ok((self.shared.served.load(Ordering::Relaxed) >= goal).then_some(()))
        })
    }
}

impl Shared {
    fn text(&self) -> Vec<u8> {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
