//! Whether an interface forwards packets of a family.
//!
//! `bpf_fib_lookup` answers `BPF_FIB_LKUP_RET_FWD_DISABLED` on an interface
//! whose `forwarding` sysctl is 0, since XDP must not forward where the stack
//! would not.
//!
//! In IPv6 that sysctl also says who is a router, and routers do not listen to
//! routers: while it is 1 an interface takes no router advertisements unless
//! its `accept_ra` is 2, and at the moment it becomes 1 on *any* interface the
//! kernel forgets the default routes that were advertised on *all* whose
//! `accept_ra` is not 2 (`rt6_purge_dflt_routers`). A balancer that has its own
//! default route from its router would cut itself off, so [`ensure()`] sees to it
//! that those routes stay.

use std::{fs, io, path::PathBuf};

use anyhow::{Context as _, bail, ensure};

use crate::Family;

/// What [`ensure()`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// It was off and is on now.
    Changed,
    /// It was off and is on now, and router advertisements are listened to all
    /// the same: `accept_ra` went from 1 to 2.
    ChangedListening,
    /// It was on.
    Already,
}

/// Makes the interface forward packets of a family, in the calling thread's
/// network namespace. What router advertisements taught any interface stays.
///
/// # Errors
/// When the interface is not there, has IPv6 switched off, or the sysctl cannot
/// be written, naming the sysctl and what to do.
pub fn ensure(interface: &str, family: Family) -> anyhow::Result<Forwarding> {
    let path = sysctl(interface, family, "forwarding")?;
    if family == Family::V6 {
        expect_ipv6(interface)?;
    }
    let value = fs::read_to_string(&path).with_context(|| match fs::exists(&path) {
        Ok(false) => format!(
            "interface {interface:?} has no {family} settings ({})",
            path.display()
        ),
        _ => format!("cannot read {}", path.display()),
    })?;
    if value.trim() != "0" {
        return Ok(Forwarding::Already);
    }
    let listening = match family {
        Family::V4 => Vec::new(),
        Family::V6 => Listening::all(),
    };
    let set = fs::write(&path, "1").map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; it is not writable from here (no CAP_NET_ADMIN, or /proc/sys is read-only)"
            }
            _ => "",
        };
        anyhow::Error::new(error).context(format!(
            "interface {interface:?} does not forward {family} and {} cannot be set{why}; set it \
             before starting: echo 1 > {}",
            path.display(),
            path.display()
        ))
    });
    let mut found = Forwarding::Changed;
    for other in listening {
        if set.is_ok() && other.interface == interface {
            found = Forwarding::ChangedListening;
        } else {
            // Without forwarding 1 means the same, and it is the other's own.
            let _ = fs::write(&other.path, "1");
        }
    }
    set.map(|()| found)
}

/// An interface whose `accept_ra` was 1 and is 2 for now.
struct Listening {
    interface: String,
    path: PathBuf,
}

impl Listening {
    /// Makes every interface keep its advertised routes. One that cannot be
    /// changed loses them until the next advertisement: no reason to stop.
    fn all() -> Vec<Self> {
        let Ok(interfaces) = fs::read_dir("/proc/sys/net/ipv6/conf") else {
            return Vec::new();
        };
        let of = |name: std::ffi::OsString| {
            let interface = name.into_string().ok()?;
            let path = sysctl(&interface, Family::V6, "accept_ra").ok()?;
            let listens = fs::read_to_string(&path).ok()?.trim() == "1";
            (listens && fs::write(&path, "2").is_ok()).then_some(Self { interface, path })
        };
        interfaces
            .filter_map(|entry| of(entry.ok()?.file_name()))
            .collect()
    }
}

fn expect_ipv6(interface: &str) -> anyhow::Result<()> {
    ensure!(
        fs::exists("/proc/sys/net/ipv6").unwrap_or(false),
        "this kernel has no IPv6 (it was started with ipv6.disable=1, or is built without): remove \
         the services with IPv6 addresses, or start it with IPv6"
    );
    let path = sysctl(interface, Family::V6, "disable_ipv6")?;
    let disabled = fs::read_to_string(&path).is_ok_and(|value| value.trim() != "0");
    ensure!(
        !disabled,
        "interface {interface:?} has IPv6 switched off; switch it on before starting: echo 0 > {}",
        path.display()
    );
    Ok(())
}

/// The file, not the dotted name: interface names may contain dots themselves
/// (`eth0.100`).
fn sysctl(interface: &str, family: Family, setting: &str) -> anyhow::Result<PathBuf> {
    // What the kernel's dev_valid_name() refuses, which also keeps the path
    // inside its directory.
    let valid = !interface.is_empty()
        && interface.len() < libc::IFNAMSIZ
        && !matches!(interface, "." | "..")
        && !interface
            .bytes()
            .any(|byte| byte == b'/' || byte == 0 || byte.is_ascii_whitespace());
    ensure!(valid, "{interface:?} cannot be the name of an interface");
    if matches!(interface, "all" | "default") {
        bail!("{interface:?} names the settings of other interfaces; name the interface itself");
    }
    Ok(["/proc/sys/net", family.name(), "conf", interface, setting]
        .iter()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{Family, sysctl};

    #[test]
    fn names_become_paths() {
        let rows = [
            ("eth0", Some("eth0/forwarding")),
            ("eth0.100", Some("eth0.100/forwarding")),
            ("exactly15bytes.", Some("exactly15bytes./forwarding")),
            ("sixteen-bytes-xx", None),
            ("", None),
            ("..", None),
            ("a/b", None),
            ("a b", None),
            ("all", None),
            ("default", None),
        ];
        for family in Family::ALL {
            let directory = family.name();
            for (interface, expected) in rows {
                let path = sysctl(interface, family, "forwarding").ok();
                let expected = expected.map(|end| format!("/proc/sys/net/{directory}/conf/{end}"));
                assert_eq!(
                    path.as_deref().and_then(|path| path.to_str()),
                    expected.as_deref(),
                    "{interface:?}"
                );
            }
        }
    }
}
