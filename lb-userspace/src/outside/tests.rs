//! Questions to real peers on loopback, and to peers that do it wrong.

mod agents;
mod dfp_peers;
mod probed;
mod snmp_agents;

use super::{Heard, Outside, Target, Watched};
use lb_common::control::{OutsideRecord, OutsideWord};
use std::{
    collections::VecDeque,
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

/// An [`Outside`] whose words are looked at one by one.
struct Listener {
    outside: Outside,
    heard: VecDeque<Heard>,
}

impl Listener {
    fn start(services: Vec<Watched>) -> Self {
        Self {
            outside: Outside::start(services),
            heard: VecDeque::new(),
        }
    }

    /// What is heard next.
    async fn next(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            self.heard.extend(self.outside.next().await);
        }
    }

    /// Whether there is something to hear already.
    async fn has_next(&mut self) -> bool {
        let now = Duration::from_millis(1);
        if let Ok(heard) = tokio::time::timeout(now, self.outside.next()).await {
            self.heard.extend(heard);
        }
        !self.heard.is_empty()
    }
}

/// What is heard next.
async fn heard(outside: &mut Listener) -> Heard {
    limited("something is heard", outside.next()).await
}

/// More words at once than a batch, and the last of them arrive too.
#[tokio::test]
async fn no_word_is_lost_between_batches() {
    let backends = 700;
    // All of them refuse, at once.
    let first = watched(free_port());
    let targets = (0..backends).map(|index| Target {
        index,
        ..first.targets[0].clone()
    });
    let mut outside = Outside::start(vec![Watched {
        probe: Some(crate::config::Probe {
            kind: crate::config::ProbeKind::Tcp,
            port: None,
            interval: Duration::from_secs(600),
            fast_interval: Duration::from_millis(1),
            timeout: LIMIT,
            rise: 1,
            fall: 1,
            jitter: 0,
            source: None,
        }),
        targets: targets.collect(),
        ..first.clone()
    }]);
    // Nobody listens while they all answer.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut told = std::collections::BTreeSet::new();
    while told.len() < usize::from(backends) {
        for heard in limited("every backend is heard of", outside.next()).await {
            if let Heard::Word { backend, .. } = heard {
                told.insert(backend);
            }
        }
    }
}

/// The next word for the engine; trouble is told on the way or not.
async fn word(outside: &mut Listener) -> OutsideWord {
    loop {
        if let Heard::Word { backend, word } = heard(outside).await {
            assert_eq!(backend, BACKEND);
            return word;
        }
    }
}

/// The next trouble, or `None` for a peer that is well again.
async fn trouble(outside: &mut Listener) -> Option<String> {
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
