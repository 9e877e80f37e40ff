//! How a task tells: words for the engine, and trouble with its peer once.

use lb_common::control::OutsideWord;
use tokio::sync::mpsc;

/// What a task found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// For the engine.
    Word {
        /// Index into the backend maps.
        backend: u16,
        word: OutsideWord,
    },
    /// A peer does not do what it should, or does again.
    Peer {
        /// `agent`, `dfp`, `capacity` or `probe`.
        source: &'static str,
        /// `service/backend`, or an address.
        peer: String,
        /// `None`: it is well again.
        trouble: Option<String>,
    },
}

/// A task's way to the daemon.
pub(super) struct Teller {
    sender: mpsc::Sender<Heard>,
    source: &'static str,
    peer: String,
    in_trouble: bool,
}

impl Teller {
    pub(super) fn new(sender: mpsc::Sender<Heard>, source: &'static str, peer: String) -> Self {
        Self {
            sender,
            source,
            peer,
            in_trouble: false,
        }
    }

    /// Tells the engine. Nobody listening means that the daemon ends.
    pub(super) async fn word(&self, backend: u16, word: OutsideWord) {
        let _ = self.sender.send(Heard::Word { backend, word }).await;
    }

    /// The peer does something wrong; told when it begins.
    pub(super) async fn trouble(&mut self, what: String) {
        if !std::mem::replace(&mut self.in_trouble, true) {
            self.tell(Some(what)).await;
        }
    }

    /// The peer is well; told if it was not.
    pub(super) async fn well(&mut self) {
        if std::mem::take(&mut self.in_trouble) {
            self.tell(None).await;
        }
    }

    async fn tell(&self, trouble: Option<String>) {
        let heard = Heard::Peer {
            source: self.source,
            peer: self.peer.clone(),
            trouble,
        };
        let _ = self.sender.send(heard).await;
    }
}
