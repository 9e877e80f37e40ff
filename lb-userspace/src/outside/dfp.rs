//! Manager of one DFP agent: connects, asks for keepalives, takes weights.
//!
//! [`Session`] decides when; here are the socket and the bytes. A connection
//! that sends something else than DFP is closed, told once, and tried again
//! after the interval. It can make this side keep one message.

use super::{Target, connect, sleep_until, teller::Teller};
use crate::{config::Dfp, daemon::micros, outside::micros_of};
use lb_common::control::{
    OutsideWord,
    dfp::{
        AgentStatus, DfpError, Frames, Key, Message, Session, SessionParameters, Step, emit, parse,
    },
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Time for a connection to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// Bytes read at once.
const PIECE: usize = 4_096;

/// A service and its agents.
pub(super) struct Farm {
    pub(super) dfp: Dfp,
    /// IP protocol number.
    pub(super) protocol: u8,
    pub(super) targets: Vec<Target>,
}

impl Farm {
    fn key(&self) -> Option<Key> {
        self.dfp.password.as_ref().map(|password| Key {
            id: self.dfp.key_id,
            secret: password.as_bytes().to_vec(),
        })
    }

    fn parameters(&self) -> SessionParameters {
        SessionParameters {
            timeout_us: micros_of(self.dfp.timeout),
            retries: self.dfp.retries,
            interval_us: micros_of(self.dfp.interval),
        }
    }

    /// Backend and weight of every host that a message names and we have.
    fn weights(&self, message: &Message) -> Vec<(u16, u16)> {
        let Message::Preference(loads) = message else {
            // Another type, or in the wrong direction: nothing for us.
            return Vec::new();
        };
        let mut weights = Vec::new();
        for target in &self.targets {
            let covering = loads
                .iter()
                .filter(|load| load.covers(target.port, self.protocol));
            // Of several the last, as if each had come by itself.
            let named = covering.flat_map(|load| &load.hosts).rfind(|host| {
                IpAddr::V4(host.address) == target.address && host.bind_id == self.dfp.bind_id
            });
            weights.extend(named.map(|host| (target.index, host.weight)));
        }
        weights
    }
}

/// Why a connection ended.
enum End {
    Silent,
    Closed,
    Broken(std::io::Error),
    Wrong(DfpError),
}

impl End {
    fn is_security(&self) -> bool {
        matches!(self, Self::Wrong(error) if error.is_security())
    }

    fn message(&self, timeout: Duration) -> String {
        match self {
            Self::Silent => format!(
                "silent for {}; closed",
                crate::config::format_duration(timeout)
            ),
            Self::Closed => "the agent closed the connection".to_owned(),
            Self::Broken(error) => format!("the connection broke: {error}"),
            Self::Wrong(error) => format!("{error}; closed"),
        }
    }
}

pub(super) async fn run(farm: Arc<Farm>, address: SocketAddr, mut teller: Teller) {
    let mut session = Session::new(farm.parameters(), micros());
    // Whose weight is this agent's. What a former run left may be anybody's;
    // with one agent it is this one's.
    let mut told: BTreeSet<u16> = farm
        .targets
        .iter()
        .filter(|target| target.record.dfp.is_some())
        .map(|target| target.index)
        .collect();
    if farm.dfp.agents.len() > 1 {
        revert(&mut told, &teller).await;
    }
    while let Some(due_us) = session.poll_timeout() {
        sleep_until(due_us).await;
        let Some(Step::Connect) = session.handle_timeout(micros()) else {
            continue;
        };
        let connected = tokio::time::timeout(CONNECT, connect::tcp(address, None)).await;
        let (security, trouble) = match connected {
            Ok(Ok(stream)) => {
                session.opened(micros());
                let end = talk(stream, &farm, &mut session, &mut told, &mut teller).await;
                (end.is_security(), end.message(farm.dfp.timeout))
            }
            Ok(Err(error)) => (false, format!("{error:#}")),
            Err(_) => (false, "no answer".to_owned()),
        };
        revert(&mut told, &teller).await;
        session.lost(security, micros());
        let given_up = session.status() == AgentStatus::Failed;
        let note = if given_up { "; given up" } else { "" };
        teller.trouble(format!("{trouble}{note}")).await;
    }
}

/// The configured weights are in force again.
async fn revert(told: &mut BTreeSet<u16>, teller: &Teller) {
    for backend in std::mem::take(told) {
        teller.word(backend, OutsideWord::Dfp(None)).await;
    }
}

async fn talk(
    mut stream: TcpStream,
    farm: &Farm,
    session: &mut Session,
    told: &mut BTreeSet<u16>,
    teller: &mut Teller,
) -> End {
    let key = farm.key();
    let keepalive_s = session.keepalive_s();
    let hello = emit(&Message::Parameters { keepalive_s }, key.as_ref());
    if let Err(error) = stream.write_all(&hello).await {
        return End::Broken(error);
    }
    let mut frames = Frames::default();
    let mut piece = [0; PIECE];
    loop {
        let due_us = session.poll_timeout();
        let read = tokio::select! {
            read = stream.read(&mut piece) => read,
            () = wait(due_us) => match session.handle_timeout(micros()) {
                Some(Step::Close) => return End::Silent,
                Some(Step::Connect) | None => continue,
            },
        };
        let bytes = match read {
            Ok(0) => return End::Closed,
            Ok(length) => &piece[..length],
            Err(error) => return End::Broken(error),
        };
        let mut taken = Vec::new();
        let mut wrong = None;
        let framed = frames.push(bytes, |message| match parse(message, key.as_ref()) {
            Ok(message) if wrong.is_none() => taken.push(message),
            Ok(_) => {}
            Err(error) => wrong = wrong.or(Some(error)),
        });
        for message in taken {
            session.heard(micros());
            teller.well().await;
            for (backend, weight) in farm.weights(&message) {
                told.insert(backend);
                teller.word(backend, OutsideWord::Dfp(Some(weight))).await;
            }
        }
        if let Some(error) = wrong.or(framed.err()) {
            return End::Wrong(error);
        }
    }
}

async fn wait(due_us: Option<u64>) {
    match due_us {
        Some(due_us) => sleep_until(due_us).await,
        None => std::future::pending().await,
    }
}
