//! Whether an interface forwards IPv4.
//!
//! `bpf_fib_lookup` answers `BPF_FIB_LKUP_RET_FWD_DISABLED` on an interface
//! whose `forwarding` sysctl is 0, since XDP must not forward where the stack
//! would not.

use std::{fs, io, path::PathBuf};

use anyhow::{Context as _, bail, ensure};

/// What [`ensure()`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// It was off and is on now.
    Changed,
    /// It was on.
    Already,
}

/// Makes the interface forward IPv4, in the calling thread's network namespace.
///
/// # Errors
/// When the interface is not there or the sysctl cannot be written, naming the
/// sysctl and what to do.
pub fn ensure(interface: &str) -> anyhow::Result<Forwarding> {
    let path = sysctl(interface)?;
    let value = fs::read_to_string(&path).with_context(|| match fs::exists(&path) {
        Ok(false) => format!(
            "interface {interface:?} has no IPv4 settings ({})",
            path.display()
        ),
        _ => format!("cannot read {}", path.display()),
    })?;
    if value.trim() != "0" {
        return Ok(Forwarding::Already);
    }
    fs::write(&path, "1").map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; it is not writable from here (no CAP_NET_ADMIN, or /proc/sys is read-only)"
            }
            _ => "",
        };
        anyhow::Error::new(error).context(format!(
            "interface {interface:?} does not forward IPv4 and {} cannot be set{why}; set it \
             before starting: echo 1 > {}",
            path.display(),
            path.display()
        ))
    })?;
    Ok(Forwarding::Changed)
}

/// The file, not the dotted name: interface names may contain dots themselves
/// (`eth0.100`).
fn sysctl(interface: &str) -> anyhow::Result<PathBuf> {
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
    Ok(["/proc/sys/net/ipv4/conf", interface, "forwarding"]
        .iter()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::sysctl;

    #[test]
    fn names_become_paths() {
        let rows = [
            ("eth0", Some("/proc/sys/net/ipv4/conf/eth0/forwarding")),
            (
                "eth0.100",
                Some("/proc/sys/net/ipv4/conf/eth0.100/forwarding"),
            ),
            (
                "exactly15bytes.",
                Some("/proc/sys/net/ipv4/conf/exactly15bytes./forwarding"),
            ),
            ("sixteen-bytes-xx", None),
            ("", None),
            ("..", None),
            ("a/b", None),
            ("a b", None),
            ("all", None),
            ("default", None),
        ];
        for (interface, expected) in rows {
            let path = sysctl(interface).ok();
            assert_eq!(
                path.as_deref().and_then(|path| path.to_str()),
                expected,
                "{interface:?}"
            );
        }
    }
}
