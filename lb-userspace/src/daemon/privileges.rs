//! Whether this process may run the packet path at all.
//!
//! Asked first, because what an unprivileged process meets otherwise is
//! misleading: it cannot see its own pins, and takes its own program for
//! somebody else's.

use anyhow::{Context as _, Result, bail};

/// What loading the program and attaching it takes, with the numbers of
/// `include/uapi/linux/capability.h`.
const NEEDED: [(&str, u32); 2] = [("CAP_NET_ADMIN", 12), ("CAP_BPF", 39)];
/// Includes [`NEEDED`]'s `CAP_BPF`, which was split off it in Linux 5.8.
const SYS_ADMIN: u32 = 21;

/// Looks at the capabilities of this process.
///
/// # Errors
/// What is missing, and who has it.
pub(super) fn check() -> Result<()> {
    let path = "/proc/self/status";
    let status =
        std::fs::read_to_string(path).with_context(|| format!("{path}: is /proc mounted?"))?;
    let effective = effective(&status).with_context(|| format!("{path} has no `CapEff`"))?;
    let missing = missing(effective);
    if !missing.is_empty() {
        bail!(
            "run needs root, or the capabilities CAP_NET_ADMIN and CAP_BPF; user {} lacks {} here. \
             Nothing was changed",
            nix::unistd::geteuid(),
            missing.join(" and ")
        );
    }
    Ok(())
}

/// The effective capabilities in the text of `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let digits = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(digits.trim(), 16).ok()
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |number: u32| effective >> number & 1 != 0;
    NEEDED
        .iter()
        .filter(|(name, number)| !(has(*number) || *name == "CAP_BPF" && has(SYS_ADMIN)))
        .map(|(name, _)| *name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_and_judged() {
        let rows: [(&str, Option<&[&str]>); 6] = [
            (
                "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n",
                Some(&[]),
            ),
            (
                "CapEff:\t0000000000000000\n",
                Some(&["CAP_NET_ADMIN", "CAP_BPF"]),
            ),
            ("CapEff:\t0000000000201000\n", Some(&[])),
            ("CapEff:\t0000008000000000\n", Some(&["CAP_NET_ADMIN"])),
            ("CapEff:\t0000000000001000\n", Some(&["CAP_BPF"])),
            ("Name:\tx\n", None),
        ];
        for (status, expected) in rows {
            let found = effective(status).map(missing);
            assert_eq!(found.as_deref(), expected, "{status}");
        }
    }
}
