//! Questions to real peers on loopback, and to peers that do it wrong.

mod agents;
mod dfp_peers;
mod probed;
mod snmp_agents;

use super::{Heard, Outside, Target, Watched};
use lb_common::control::{OutsideRecord, OutsideWord};
use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(20);
/// The only backend's index.
const BACKEND: u16 = 3;

/// A service with one backend on loopback and no source.
fn watched(port: u16) -> Watched {
    Watched {
        protocol: 6,
        probe: None,
        agent: None,
        dfp: None,
        capacity: None,
        targets: vec![Target {
            index: BACKEND,
            name: "web/w1".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            port,
            weight: 8,
            record: OutsideRecord::default(),
        }],
    }
}

/// What is heard next.
async fn heard(outside: &mut Outside) -> Heard {
    limited("something is heard", outside.next()).await
}

/// The next word for the engine; trouble is told on the way or not.
async fn word(outside: &mut Outside) -> OutsideWord {
    loop {
        if let Heard::Word { backend, word } = heard(outside).await {
            assert_eq!(backend, BACKEND);
            return word;
        }
    }
}

/// The next trouble, or `None` for a peer that is well again.
async fn trouble(outside: &mut Outside) -> Option<String> {
    loop {
        if let Heard::Peer { trouble, .. } = heard(outside).await {
            return trouble;
        }
    }
}

async fn limited<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {LIMIT:?} in vain until {what}"),
    }
}

/// A port that nobody listens on, for a program that wants to be told.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A directory that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("steerline-outside-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server program that ends with its owner.
struct Program(Child);

impl Program {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let found = [program.to_owned(), format!("/usr/sbin/{program}")]
            .into_iter()
            .find(|path| Path::new(path).exists())
            .unwrap_or_else(|| program.to_owned());
        let child = Command::new(&found)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{found}: {error}; cargo xtask setup")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a TCP server takes connections.
async fn listening(address: SocketAddr) {
    let connects = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    limited("the server listens", connects).await;
}
