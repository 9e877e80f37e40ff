//! Two network namespaces joined by two cables. Near ends: [`WAN`]
//! (10.9.0.1/24, fd00:9::1/64) and `lan` (10.8.0.1/24, fd00:8::1/64). Far ends:
//! `far1` (10.9.0.2, fd00:9::2) and `far2` (10.8.0.2, fd00:8::2).

use std::{
    fs::File,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, setns},
    unistd::Uid,
};
use steerline::net::Mac;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const WAN: &str = "wan.1";
pub(crate) const WAN_MAC: Mac = [2, 0, 0, 0, 1, 1];
pub(crate) const FAR1_MAC: Mac = [2, 0, 0, 0, 1, 2];
pub(crate) const LAN_MAC: Mac = [2, 0, 0, 0, 2, 1];
pub(crate) const FAR2_MAC: Mac = [2, 0, 0, 0, 2, 2];

/// Two namespaces joined by two cables; removed when dropped.
pub(crate) struct Lab {
    pub(crate) near_name: String,
    pub(crate) far_name: String,
}

impl Lab {
    pub(crate) fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !Uid::effective().is_root() {
            let required = std::env::var_os("STEERLINE_REQUIRE_ROOT").is_some();
            assert!(
                !required,
                "STEERLINE_REQUIRE_ROOT is set, and this is not root"
            );
            eprintln!("skipped: making network namespaces needs root");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = |side| format!("steerline-net-{}-{number}-{side}", std::process::id());
        let lab = Self {
            near_name: name("near"),
            far_name: name("far"),
        };
        let (near, far) = (&lab.near_name, &lab.far_name);
        ip(&format!("netns add {near}"));
        ip(&format!("netns add {far}"));
        ip(&format!(
            "link add {WAN} netns {near} address 02:00:00:00:01:01 type veth \
             peer name far1 netns {far} address 02:00:00:00:01:02"
        ));
        ip(&format!(
            "link add lan netns {near} address 02:00:00:00:02:01 type veth \
             peer name far2 netns {far} address 02:00:00:00:02:02"
        ));
        for (namespace, link) in [(near, WAN), (near, "lan"), (far, "far1"), (far, "far2")] {
            // Duplicate detection would keep link-local addresses from being
            // used for a second.
            inside(namespace, || {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/accept_dad"), "0").unwrap();
            });
        }
        for (cable, near, far) in [(9, WAN, "far1"), (8, "lan", "far2")] {
            lab.near(&format!("address add 10.{cable}.0.1/24 dev {near}"));
            lab.near(&format!("address add fd00:{cable}::1/64 nodad dev {near}"));
            lab.far(&format!("address add 10.{cable}.0.2/24 dev {far}"));
            lab.far(&format!("address add fd00:{cable}::2/64 nodad dev {far}"));
        }
        for link in ["lo", WAN, "lan"] {
            lab.near(&format!("link set {link} up"));
        }
        for link in ["lo", "far1", "far2"] {
            lab.far(&format!("link set {link} up"));
        }
        Some(lab)
    }

    pub(crate) fn near(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.near_name));
    }

    pub(crate) fn far(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.far_name));
    }

    /// Runs `test` on a thread inside the near namespace.
    pub(crate) fn run<F: Future<Output = ()>>(&self, test: impl FnOnce() -> F + Send) {
        inside(&self.near_name, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                tokio::time::timeout(PATIENCE, test())
                    .await
                    .expect("not done in time");
            });
        });
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in [&self.near_name, &self.far_name] {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// Runs `work` on a fresh thread, since a thread cannot be trusted to come back.
pub(crate) fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}
