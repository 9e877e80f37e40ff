//! Who has the XDP hooks, as the kernel tells it, and as it tells it again and
//! again while something happens.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use aya::programs::links::{FdLink, PinnedLink};
use steerline::net::Netlink;
use steerline::net::links::{self, XdpMode};
use steerline_tests::world::Namespace;

/// The program of each interface that has one, by name.
pub(crate) type Programs = BTreeMap<String, u32>;

/// The programs attached in `namespace`. One that is not in the driver, or not
/// alone, is an error: the kernel reports no mode for several at once.
pub(crate) fn programs(namespace: &Namespace) -> Result<Programs> {
    asynchronously(namespace, async || {
        let netlink = Netlink::open()?;
        look(&netlink).await
    })
}

async fn look(netlink: &Netlink) -> Result<Programs> {
    let mut programs = Programs::new();
    for link in links::list(netlink.handle()).await? {
        if let Some(xdp) = link.xdp {
            anyhow::ensure!(
                xdp.mode == XdpMode::Native,
                "{} has a program in mode {:?}",
                link.name,
                xdp.mode
            );
            programs.insert(link.name, xdp.program_id);
        }
    }
    Ok(programs)
}

fn asynchronously<T: Send>(
    namespace: &Namespace,
    body: impl AsyncFnOnce() -> Result<T> + Send,
) -> Result<T> {
    namespace.enter(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?
            .block_on(body())
    })?
}

/// The kernel's id of a pinned link.
pub(crate) fn link_id(pin: &Path) -> Result<u32> {
    let link = PinnedLink::from_pin(pin).with_context(|| format!("{pin:?} is no link"))?;
    Ok(FdLink::from(link).info()?.id())
}

/// Looks at the hooks without a pause.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    watcher: JoinHandle<Result<Seen>>,
}

/// What a [`Watch`] saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Every state that differed from the one before, in order.
    pub(crate) states: Vec<Programs>,
    /// How often it looked.
    pub(crate) looks: u64,
}

impl Watch {
    /// Begins to look at the hooks of `namespace`.
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (namespace, stopped) = (namespace.clone(), Arc::clone(&stop));
        let watcher = thread::spawn(move || {
            asynchronously(&namespace, async || {
                let netlink = Netlink::open()?;
                let mut seen = Seen {
                    states: Vec::new(),
                    looks: 0,
                };
                while !stopped.load(Ordering::Relaxed) {
                    let programs = look(&netlink).await?;
                    if seen.states.last() != Some(&programs) {
                        seen.states.push(programs);
                    }
                    seen.looks += 1;
                }
                Ok(seen)
            })
        });
        Self { stop, watcher }
    }

    /// Ends it and tells what it saw.
    pub(crate) fn finish(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher
            .join()
            .map_err(|_| anyhow!("the watcher panicked"))?
    }
}
